//! The head of an HTTP request, as far as a server of one page needs it.
//!
//! Strict where leniency has let requests be smuggled past others: one space between the words of the first line, names that are
//! tokens with the colon right behind, no folded lines, one `Host`. Lines may end in a bare line feed, as RFC 9112 (2.2) allows.

/// The longest head that is read.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) method: Method,
    /// Without the query.
    pub(super) path: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Other,
}

/// Why a head is not answered with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    TooLarge,
    UnknownVersion,
}

/// Reads a request from what has arrived; `None` where the head is not whole yet.
pub(super) fn parse(arrived: &[u8]) -> Result<Option<Request<'_>>, Refusal> {
    // No further than that: what comes behind, and how much of it, makes no difference.
    let window = &arrived[..arrived.len().min(HEAD_BYTES_MAX)];
    let Some(head) = whole_head(window) else {
        return if arrived.len() >= HEAD_BYTES_MAX { Err(Refusal::TooLarge) } else { Ok(None) };
    };
    let head = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let first = lines.next().ok_or(Refusal::Malformed)?;
    let (request, needs_host) = request_line(first)?;
    let mut hosts = 0;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Refusal::Malformed)?;
        if !is_token(name) || value.chars().any(|c| c.is_control() && c != '\t') {
            return Err(Refusal::Malformed);
        }
        hosts += u32::from(name.eq_ignore_ascii_case("host"));
    }
    if hosts > 1 || (needs_host && hosts == 0) {
        return Err(Refusal::Malformed);
    }
    Ok(Some(request))
}

/// The lines before the empty one, without the end of the last.
fn whole_head(arrived: &[u8]) -> Option<&[u8]> {
    let mut start = 0;
    while let Some(end) = arrived[start..].iter().position(|byte| *byte == b'\n').map(|at| start + at) {
        if matches!(&arrived[start..end], b"" | b"\r") && start > 0 {
            return Some(&arrived[..start - 1]);
        }
        start = end + 1;
    }
    None
}

/// The request, and whether its version must name a host.
fn request_line(line: &str) -> Result<(Request<'_>, bool), Refusal> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    let is_visible = target.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token(method) || !is_visible || !target.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    let needs_host = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        other if other.starts_with("HTTP/") => return Err(Refusal::UnknownVersion),
        _ => return Err(Refusal::Malformed),
    };
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        _ => Method::Other,
    };
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    Ok((Request { method, path }, needs_host))
}

/// A token of RFC 9110 (5.6.2).
fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}
