//! The head of a request or response, parsed and written without changing what is not ours.
//!
//! Clients send what HTTP libraries refuse: hundreds of headers, quotes in a query, an empty host.
//! So lines are kept as received, and only those that the guard must change are parsed.

use std::io;

use memchr::memmem;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest head that is read. Engines allow a megabyte.
pub(super) const HEAD_LIMIT: usize = 1 << 20;
const END: &[u8] = b"\r\n\r\n";

/// The first line and the header lines, as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HttpHead {
    first: Vec<u8>,
    lines: Vec<Vec<u8>>,
}

/// How the length of a body is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body.
    Empty,
    /// The body has this many bytes.
    Length(u64),
    /// The body is chunked.
    Chunked,
}

/// Reads a head, and returns it with the bytes that follow it. Returns `None` when the peer
/// disconnects without sending anything.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(HttpHead, Vec<u8>)>> {
    let mut bytes = Vec::with_capacity(4096);
    loop {
        let seen = bytes.len().saturating_sub(END.len() - 1);
        if stream.read_buf(&mut bytes).await? == 0 {
            return match bytes.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        if let Some(place) = memmem::find(&bytes[seen..], END) {
            let rest = bytes.split_off(seen + place + END.len());
            bytes.truncate(seen + place);
            return Ok(Some((HttpHead::parse(&bytes), rest)));
        }
        if bytes.len() > HEAD_LIMIT {
            return Err(io::Error::other("the head of the request is too long"));
        }
    }
}

impl HttpHead {
    /// Parses a head. The input does not include the empty line at its end.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut lines = bytes
            .split(|&byte| byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec());
        Self { first: lines.next().unwrap_or_default(), lines: lines.collect() }
    }

    /// Returns one space-separated field of the first line.
    fn field(&self, place: usize) -> &str {
        let field = self.first.split(|&byte| byte == b' ').nth(place).unwrap_or_default();
        std::str::from_utf8(field).unwrap_or_default()
    }

    pub(super) fn method(&self) -> &str {
        self.field(0)
    }

    /// Returns path and query: everything between method and version.
    pub(super) fn target(&self) -> &str {
        let text = std::str::from_utf8(&self.first).unwrap_or_default();
        let target = text.split_once(' ').map_or("", |(_, rest)| rest);
        target.rsplit_once(' ').map_or(target, |(target, _)| target)
    }

    pub(super) fn set_target(&mut self, target: &str) {
        let text = String::from_utf8_lossy(&self.first).into_owned();
        let version = text.rsplit_once(' ').map_or("HTTP/1.1", |(_, version)| version);
        self.first = format!("{} {target} {version}", self.method()).into_bytes();
    }

    /// Returns the status of a response.
    pub(super) fn status(&self) -> u16 {
        self.field(1).parse().unwrap_or_default()
    }

    /// Returns the value of the first header with this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| value_of(line, name))
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.lines.retain(|line| value_of(line, name).is_none());
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.lines.push(format!("{name}: {value}").into_bytes());
    }

    /// Returns whether the request upgrades its connection.
    pub(super) fn is_upgrade(&self) -> bool {
        let upgrades = |value: &str| value.to_ascii_lowercase().contains("upgrade");
        self.header("upgrade").is_some() || self.header("connection").is_some_and(upgrades)
    }

    /// Returns the framing of the body that follows.
    pub(super) fn framing(&self) -> Framing {
        let is_chunked = |value: &str| value.to_ascii_lowercase().contains("chunked");
        if self.header("transfer-encoding").is_some_and(is_chunked) {
            return Framing::Chunked;
        }
        match self.header("content-length").and_then(|length| length.parse().ok()) {
            None | Some(0) => Framing::Empty,
            Some(length) => Framing::Length(length),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.clone();
        for line in &self.lines {
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(line);
        }
        bytes.extend_from_slice(END);
        bytes
    }
}

/// Returns the value of a header line, if it has this name.
fn value_of<'a>(line: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(line).ok()?;
    let (key, value) = text.split_once(':')?;
    key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_is_returned_unchanged_with_the_rest() {
        let text = b"GET /a?b=\"c d\" HTTP/1.1\r\nHost:\r\nX-Odd: \xff\xfe\r\n\r\nrest";
        let (head, rest) = read(&mut &text[..]).await.unwrap().unwrap();
        assert_eq!(head.target(), "/a?b=\"c d\"");
        assert_eq!([head.to_bytes(), rest].concat(), text);
        assert_eq!(read(&mut &b""[..]).await.unwrap(), None);
        assert!(read(&mut &b"GET / HT"[..]).await.is_err());
    }

    #[test]
    fn headers_are_found_whatever_their_case() {
        let mut head =
            HttpHead::parse(b"POST /build HTTP/1.0\r\ncontent-LENGTH: 12\r\nConnection: x");
        assert_eq!(head.framing(), Framing::Length(12));
        head.set("Connection", "close");
        head.set_target("/v1.41/build?forcerm=1");
        let text =
            "POST /v1.41/build?forcerm=1 HTTP/1.0\r\ncontent-LENGTH: 12\r\nConnection: close";
        assert_eq!(head, HttpHead::parse(text.as_bytes()));
        head.set("Transfer-Encoding", "Chunked");
        assert_eq!(head.framing(), Framing::Chunked);
        assert!(HttpHead::parse(b"POST / HTTP/1.1\r\nConnection: Upgrade").is_upgrade());
        assert_eq!(HttpHead::parse(b"HTTP/1.1 409 Conflict").status(), 409);
    }
}
