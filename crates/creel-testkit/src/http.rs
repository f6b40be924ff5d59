//! A single HTTP request to a server on this machine.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// The time limit of a response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a request with a JSON body, or none for `null`. Returns the status, and the body if it is
/// JSON.
///
/// # Errors
///
/// Fails when there is no response, or it is not HTTP.
pub fn send(method: &str, url: &str, key: &str, body: &Value) -> io::Result<(u16, Value)> {
    let strange = || io::Error::from(io::ErrorKind::InvalidData);
    let address = url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
    let (authority, path) = address.ok_or_else(strange)?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    write!(
        stream,
        "{method} /{path} HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {key}\r\n\
         Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(strange)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(strange)?, serde_json::from_str(body).unwrap_or_default()))
}
