//! The endpoint as a client sees it, and the parser against whatever may arrive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use proptest::prelude::*;

use super::request::{HEAD_BYTES_MAX, Method, Refusal, Request, parse};
use super::{Exposition, MetricsEndpoint, metrics_address};

fn endpoint() -> MetricsEndpoint {
    MetricsEndpoint::serve(metrics_address("0").unwrap(), || "headwater_x 1\n".into()).unwrap()
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection.write_all(request).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_is_served_whole_with_its_length_and_type() {
    let endpoint = endpoint();
    assert!(endpoint.address().ip().is_loopback(), "unless told otherwise");
    let answer = ask(endpoint.address(), b"GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(head.contains("Content-Length: 14"), "{head}");
    assert_eq!(body, "headwater_x 1\n");
    let answer = ask(endpoint.address(), b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(answer.contains("Content-Length: 14") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn what_is_not_a_request_for_the_page_is_told_why() {
    let endpoint = endpoint();
    let long =
        [b"GET /metrics HTTP/1.1\r\nHost: here\r\nX: ".as_slice(), &vec![b'x'; HEAD_BYTES_MAX]].concat();
    for (request, status) in [
        (b"GET /other HTTP/1.1\r\nHost: here\r\n\r\n".as_slice(), "404"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "200"),
        (b"POST /metrics HTTP/1.1\r\nHost: here\r\n\r\n", "405"),
        (b"GET /metrics HTTP/2.0\r\nHost: here\r\n\r\n", "505"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "400"),
        (b"GET  /metrics HTTP/1.1\r\nHost: here\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nHost: here\r\n folded\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\n\n", "400"),
        (&long[..HEAD_BYTES_MAX], "431"),
    ] {
        let answer = ask(endpoint.address(), request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
}

#[test]
fn clients_that_say_nothing_fill_the_places_and_others_are_told_to_come_back() {
    let endpoint = endpoint();
    let silent: Vec<_> = (0..64).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
    // Those beyond the places have been answered and closed; the rest are answered when their time is up.
    let mut answers = Vec::new();
    for mut connection in silent {
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answers.push(answer);
    }
    let told = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
    assert!(told("HTTP/1.1 503") > 0 && told("HTTP/1.1 408") > 0, "{answers:?}");
    assert_eq!(told("HTTP/1.1 503") + told("HTTP/1.1 408"), answers.len());
    let answer = ask(endpoint.address(), b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "the places are free again: {answer}");
}

#[test]
fn a_closed_endpoint_gives_its_address_back() {
    let endpoint = endpoint();
    let address = endpoint.address();
    drop(endpoint);
    drop(MetricsEndpoint::serve(address, String::new).unwrap());
}

#[test]
fn labels_and_help_are_escaped() {
    let mut text = Exposition::default();
    text.gauge("x", "a \"quote\", a \\ and\na line").row(&[("a", "\"\\\n"), ("b", "")], 1.5).row(&[], 2);
    let expected = "# HELP headwater_x a \"quote\", a \\\\ and\\na line\n# TYPE headwater_x gauge\n\
        headwater_x{a=\"\\\"\\\\\\n\",b=\"\"} 1.5\nheadwater_x 2\n";
    assert_eq!(text.into_text(), expected);
}

#[test]
fn the_longest_head_is_read_and_one_byte_more_is_not() {
    let head = |bytes: usize| {
        let frame = "GET / HTTP/1.0\r\nX: \r\n\r\n".len();
        format!("GET / HTTP/1.0\r\nX: {}\r\n\r\n", "x".repeat(bytes - frame)).into_bytes()
    };
    assert_eq!(parse(&head(HEAD_BYTES_MAX)), Ok(Some(Request { method: Method::Get, path: "/" })));
    assert_eq!(parse(&head(HEAD_BYTES_MAX + 1)), Err(Refusal::TooLarge));
}

/// Bytes that look a little like a request.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just(b"GET".to_vec()),
        Just(b" ".to_vec()),
        Just(b"/metrics".to_vec()),
        Just(b"HTTP/1.1".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"Host".to_vec()),
        Just(b":".to_vec()),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn an_answer_once_found_does_not_change_with_what_comes_behind(bytes in nearly(), more in nearly()) {
        let first = parse(&bytes);
        let both = [bytes.clone(), more].concat();
        if first != Ok(None) {
            prop_assert_eq!(first, parse(&both));
        }
    }

    #[test]
    fn a_proper_request_is_understood_however_it_arrives(
        path in "/[a-z0-9/_.-]{0,40}",
        query in prop::option::of("[a-z=&%0-9]{0,20}"),
        headers in prop::collection::vec(("[A-Za-z][A-Za-z0-9-]{0,12}", "[ -~]{0,30}"), 0..6),
        host_at in 0usize..7,
        cut in any::<prop::sample::Index>(),
    ) {
        let target = query.map_or(path.clone(), |query| format!("{path}?{query}"));
        let mut lines: Vec<String> = headers
            .into_iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        lines.insert(host_at.min(lines.len()), "hOst: here".into());
        let request = format!("GET {target} HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n")).into_bytes();
        prop_assert_eq!(parse(&request), Ok(Some(Request { method: Method::Get, path: &path })));
        prop_assert_eq!(parse(&request[..cut.index(request.len())]), Ok(None), "not before it is whole");
    }
}
