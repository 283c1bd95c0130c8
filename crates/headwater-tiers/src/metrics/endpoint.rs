//! A server of one page: `GET /metrics`.
//!
//! One thread accepts, and one more for each connection answers one request and closes. Everything is bounded: connections at
//! once, bytes of a request, and the time from the first byte expected to the last one sent, so that a client that dawdles costs a
//! thread for a few seconds and nothing else.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::exposition::Exposition;
use super::request::{HEAD_BYTES_MAX, Method, Refusal, Request, parse};
use crate::error::TierError;

/// Connections answered at once; more are told to come back later. A Prometheus server uses one.
const CONNECTIONS_MAX: usize = 16;

/// How long a client may take to ask, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for a client that has its answer to hang up.
const LINGER: Duration = Duration::from_millis(200);

/// Hands out a text to whoever asks for `/metrics`, until dropped.
///
/// ```no_run
/// use headwater_tiers::metrics::{MetricsEndpoint, metrics_address};
/// # fn example(spill: headwater_tiers::Spill) -> Result<(), headwater_tiers::TierError> {
/// let endpoint = MetricsEndpoint::serve(metrics_address("9464")?, move || spill.prometheus_text())?;
/// println!("http://{}/metrics", endpoint.address());
/// # Ok(())
/// # }
/// ```
pub struct MetricsEndpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    text: Box<dyn Fn() -> String + Send + Sync>,
    is_closing: AtomicBool,
    connections: AtomicUsize,
}

impl MetricsEndpoint {
    /// Listens on `address` and answers with what `text` returns at that time.
    ///
    /// # Errors
    /// [`TierError::System`] where the address cannot be had.
    pub fn serve(
        address: SocketAddr,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, TierError> {
        let failed = |error: io::Error| TierError::system("listening for metrics", &error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            text: Box::new(text),
            is_closing: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let accepting = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("headwater-metrics".into())
            .spawn(move || accept(&listener, &accepting))
            .map_err(failed)?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens; the port is the one that was found where any was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsEndpoint {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        // A last connection, so that the acceptor looks up.
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let woken = TcpStream::connect_timeout(&SocketAddr::new(ip, self.address.port()), PATIENCE).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            // It ends by returning; there is nobody left to tell if not.
            let _ = acceptor.join();
        }
    }
}

impl fmt::Debug for MetricsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsEndpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.is_closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok(mut connection) = connection else {
            // Out of descriptors, most likely: somebody has to give one back first.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        // Counted here, so that no two connections see the last place.
        if shared.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            let _ = connection.set_write_timeout(Some(Duration::from_millis(100)));
            // A client that does not listen has had its answer.
            let _ = Answer::plain("503 Service Unavailable", "too many connections\n")
                .send(&mut connection, true);
            continue;
        }
        let place = Place(shared.clone());
        let answering = std::thread::Builder::new().name("headwater-metrics".into());
        // Without a thread the connection is closed, and its place given back, by dropping both.
        let _ = answering.spawn(move || {
            // A client that went away, or too slow, has nothing to be told.
            let _ = answer(&mut connection, &place.0);
        });
    }
}

/// One of the connections that are answered at once.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(connection: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let (mut arrived, mut filled) = ([0; HEAD_BYTES_MAX], 0);
    let deadline = Instant::now() + PATIENCE;
    let (answer, with_body) = loop {
        match parse(&arrived[..filled]) {
            Ok(Some(request)) => break (page(request, shared), request.method != Method::Head),
            Ok(None) => {}
            Err(refusal) => break (refuse(refusal), true),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break (Answer::plain("408 Request Timeout", "the request took too long\n"), true);
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut arrived[filled..]) {
            Ok(0) => return Ok(()),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    };
    connection.set_write_timeout(Some(PATIENCE))?;
    answer.send(connection, with_body)?;
    connection.shutdown(Shutdown::Write)?;
    linger(connection, &mut arrived)
}

/// Reads a little of what a refused client still sends: a connection closed with bytes unread is reset, and the answer may be lost
/// with it.
fn linger(connection: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    connection.set_read_timeout(Some(LINGER))?;
    for _ in 0..8 {
        if connection.read(into)? == 0 {
            break;
        }
    }
    Ok(())
}

fn page(request: Request<'_>, shared: &Shared) -> Answer {
    match (request.method, request.path) {
        (Method::Other, _) => Answer::plain("405 Method Not Allowed", "GET or HEAD\n"),
        (_, "/metrics") => {
            Answer { status: "200 OK", content_type: Exposition::CONTENT_TYPE, body: (shared.text)() }
        }
        (_, "/") => Answer::plain("200 OK", "Headwater: the figures are at /metrics\n"),
        _ => Answer::plain("404 Not Found", "there is only /metrics\n"),
    }
}

fn refuse(refusal: Refusal) -> Answer {
    match refusal {
        Refusal::Malformed => Answer::plain("400 Bad Request", "not a request of HTTP/1.1\n"),
        Refusal::TooLarge => {
            Answer::plain("431 Request Header Fields Too Large", "the request is too long\n")
        }
        Refusal::UnknownVersion => Answer::plain("505 HTTP Version Not Supported", "HTTP/1.1\n"),
    }
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    fn send(&self, connection: &mut TcpStream, with_body: bool) -> io::Result<()> {
        let Self { status, content_type, body } = self;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut message = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            body.len()
        );
        if with_body {
            message.push_str(body);
        }
        connection.write_all(message.as_bytes())
    }
}
