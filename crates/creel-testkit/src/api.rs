//! One HTTP/1.1 request over a unix socket.
//!
//! Tests need thousands of objects quickly, and must not depend on the client library under test.
//! So this implements just enough HTTP: one request per connection, with the response read to its
//! end.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use memchr::memmem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// The API version of every request: that of the oldest engine we test against.
pub const API_VERSION: &str = "v1.41";

/// The time limit of one response. Forced removals on a loaded machine take a while.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(120);

/// An engine's API at a unix socket.
#[derive(Debug, Clone)]
pub struct Api {
    socket: PathBuf,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// The HTTP status code.
    pub status: u16,
    /// The header lines, without the status line.
    pub headers: Vec<(String, String)>,
    /// The body, with any transfer coding decoded.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    ///
    /// # Errors
    ///
    /// Fails when the body is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("answer {} is not JSON: {}", self.status, self.text()))
    }

    /// Returns the named header, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(&found.1)
    }

    /// Returns whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Api {
    /// Returns the API at a socket; nothing is sent yet.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Returns the socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the address in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Sends a request with a JSON body, or none, and returns the response, whatever its status.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be reached or the response is cut.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<HttpResponse> {
        // A body that the engine does not read resets the connection, and the response is lost.
        let body = body.filter(|body| !body.is_null()).map(Value::to_string).unwrap_or_default();
        self.send(method, path, "application/json", body.as_bytes())
    }

    /// Sends a request with any body, and returns the response, whatever its status.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be reached or the response is cut.
    pub fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<HttpResponse> {
        self.exchange(method, path, kind, body).with_context(|| format!("{method} {path}"))
    }

    /// Reads JSON. Any status but 2xx is an error.
    ///
    /// # Errors
    ///
    /// Fails on any other status, and as [`Api::request`] does.
    pub fn get(&self, path: &str) -> Result<Value> {
        expect_success(path, self.request("GET", path, None)?)?.json()
    }

    /// Posts JSON, or nothing for `null`, and returns the response. Any status but 2xx is an error.
    ///
    /// # Errors
    ///
    /// Fails on any other status, and as [`Api::request`] does.
    pub fn post(&self, path: &str, body: &Value) -> Result<HttpResponse> {
        expect_success(path, self.request("POST", path, Some(body))?)
    }

    /// Deletes an object. 404 counts as done; any other status but 2xx is an error.
    ///
    /// # Errors
    ///
    /// Fails on any other status, and as [`Api::request`] does.
    pub fn delete(&self, path: &str) -> Result<()> {
        let response = self.request("DELETE", path, None)?;
        if response.status != 404 {
            expect_success(path, response)?;
        }
        Ok(())
    }

    fn exchange(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<HttpResponse> {
        let mut stream = UnixStream::connect(&self.socket)
            .with_context(|| format!("cannot connect to {}", self.socket.display()))?;
        stream.set_read_timeout(Some(RESPONSE_DEADLINE))?;
        stream.set_write_timeout(Some(RESPONSE_DEADLINE))?;
        let head = format!(
            "{method} /{API_VERSION}{path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).context("the answer was cut")?;
        parse_response(&bytes)
    }
}

fn expect_success(path: &str, response: HttpResponse) -> Result<HttpResponse> {
    if !response.is_success() {
        bail!("{path} answered {}: {}", response.status, response.text().trim());
    }
    Ok(response)
}

pub(crate) fn parse_response(bytes: &[u8]) -> Result<HttpResponse> {
    let end = memmem::find(bytes, b"\r\n\r\n").context("the answer has no complete head")?;
    let head = std::str::from_utf8(&bytes[..end]).context("the answer's head is not text")?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("not a status line: {status_line}"))?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    let mut response = HttpResponse { status, headers, body: Vec::new() };
    response.body = decode_body(&response, &bytes[end + 4..])?;
    Ok(response)
}

fn decode_body(response: &HttpResponse, bytes: &[u8]) -> Result<Vec<u8>> {
    if response.header("transfer-encoding").is_some_and(|value| value == "chunked") {
        return decode_chunks(bytes);
    }
    let Some(length) = response.header("content-length") else { return Ok(bytes.to_vec()) };
    let length: usize = length.parse().context("content-length is not a number")?;
    let body = bytes.get(..length).context("the body was cut")?;
    Ok(body.to_vec())
}

fn decode_chunks(mut bytes: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = memmem::find(bytes, b"\r\n").context("a chunk was cut")?;
        let size = std::str::from_utf8(&bytes[..end]).context("a chunk size is not text")?;
        let size = usize::from_str_radix(size.trim(), 16).context("a chunk size is no number")?;
        if size == 0 {
            return Ok(body);
        }
        let start = end + 2;
        body.extend_from_slice(bytes.get(start..start + size).context("a chunk was cut")?);
        bytes = bytes.get(start + size + 2..).context("a chunk was cut")?;
    }
}

/// The characters that a query string cannot contain as they are.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes a value for use in a query string.
pub fn escape(value: &str) -> String {
    utf8_percent_encode(value, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_put_together() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let response = parse_response(bytes).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "abcde"));
    }

    #[test]
    fn a_cut_body_is_an_error() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc";
        assert!(parse_response(bytes).is_err());
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc";
        assert!(parse_response(bytes).is_err());
    }

    #[test]
    fn escapes_what_a_query_string_cannot_hold() {
        assert_eq!(escape("a=b c"), "a%3Db%20c");
    }
}
