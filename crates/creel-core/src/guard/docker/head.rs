//! The head of a request or an answer, read and written without touching what is not ours.
//!
//! Clients send what HTTP libraries refuse: hundreds of headers, quotes in a
//! query, an empty host. So lines are kept as they came, and only those that
//! the guard must change are looked at.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest head that is read; engines allow a megabyte.
const HEAD_LIMIT: usize = 1 << 20;
const END: &[u8] = b"\r\n\r\n";

/// The first line and the header lines, as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    first: Vec<u8>,
    lines: Vec<Vec<u8>>,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// Reads a head, and returns it with the bytes that came after it; `None` when the peer left
/// without a word.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<(Head, Vec<u8>)>> {
    let mut bytes = Vec::with_capacity(4096);
    loop {
        let seen = bytes.len().saturating_sub(END.len() - 1);
        if stream.read_buf(&mut bytes).await? == 0 {
            return match bytes.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        if let Some(place) = find(&bytes[seen..], END) {
            let rest = bytes.split_off(seen + place + END.len());
            bytes.truncate(seen + place);
            return Ok(Some((Head::parse(&bytes), rest)));
        }
        if bytes.len() > HEAD_LIMIT {
            return Err(io::Error::other("the head of the request is too long"));
        }
    }
}

/// Returns where a short text begins in a longer one.
pub(super) fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

impl Head {
    /// Takes a head apart; the empty line at its end is left out.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut lines = bytes
            .split(|&byte| byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec());
        Self { first: lines.next().unwrap_or_default(), lines: lines.collect() }
    }

    /// Returns the words of the first line.
    fn word(&self, place: usize) -> &str {
        let word = self.first.split(|&byte| byte == b' ').nth(place).unwrap_or_default();
        std::str::from_utf8(word).unwrap_or_default()
    }

    pub(super) fn method(&self) -> &str {
        self.word(0)
    }

    /// Returns path and query, whatever stands between method and version.
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

    /// Returns the status of an answer.
    pub(super) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or_default()
    }

    /// Returns the value of the first header of that name.
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

    /// Returns whether the connection becomes something else after this request.
    pub(super) fn is_upgrade(&self) -> bool {
        let asks = |value: &str| value.to_ascii_lowercase().contains("upgrade");
        self.header("upgrade").is_some() || self.header("connection").is_some_and(asks)
    }

    /// Returns how long the body is that follows.
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

/// Returns the value of a header line, if it has that name.
fn value_of<'a>(line: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(line).ok()?;
    let (key, value) = text.split_once(':')?;
    key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_comes_back_as_it_was_and_its_rest_with_it() {
        let text = b"GET /a?b=\"c d\" HTTP/1.1\r\nHost:\r\nX-Odd: \xff\xfe\r\n\r\nrest";
        let (head, rest) = read(&mut &text[..]).await.unwrap().unwrap();
        assert_eq!(head.target(), "/a?b=\"c d\"");
        assert_eq!([head.to_bytes(), rest].concat(), text);
        assert_eq!(read(&mut &b""[..]).await.unwrap(), None);
        assert!(read(&mut &b"GET / HT"[..]).await.is_err());
    }

    #[test]
    fn headers_are_found_whatever_their_case() {
        let mut head = Head::parse(b"POST /build HTTP/1.0\r\ncontent-LENGTH: 12\r\nConnection: x");
        assert_eq!(head.framing(), Framing::Length(12));
        head.set("Connection", "close");
        head.set_target("/v1.41/build?forcerm=1");
        let text =
            "POST /v1.41/build?forcerm=1 HTTP/1.0\r\ncontent-LENGTH: 12\r\nConnection: close";
        assert_eq!(head, Head::parse(text.as_bytes()));
        head.set("Transfer-Encoding", "Chunked");
        assert_eq!(head.framing(), Framing::Chunked);
        assert!(Head::parse(b"POST / HTTP/1.1\r\nConnection: Upgrade").is_upgrade());
        assert_eq!(Head::parse(b"HTTP/1.1 409 Conflict").status(), 409);
    }
}
