//! A minimal HTTP client: one request per connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use memchr::memmem;
use serde_json::Value;

/// The time limit of a response.
const DEADLINE: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The headers, their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Returns the body as JSON, or null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Checks the status, and returns the body.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        self.json()
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
}

/// Sends a request on its own connection. A response that breaks off is an error.
pub(crate) fn send(request: &Request<'_>) -> io::Result<Response> {
    let rest = request.url.strip_prefix("http://").expect("the server speaks HTTP");
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut head = format!("{} /{path} HTTP/1.1\r\nConnection: close\r\n", request.method);
    if !request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += &format!("Host: {authority}\r\n");
    }
    for (name, value) in request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", request.body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(request.body)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    parse(&response).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn parse(response: &[u8]) -> Option<Response> {
    let split = memmem::find(response, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&response[..split]).into_owned();
    let body = response[split + 4..].to_vec();
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    match length {
        Some(length) if body.len() < length => None,
        _ => Some(Response { status, headers, body }),
    }
}
