//! Requests: one line of JSON on standard input.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::error::BridgeError;
use super::poll::is_ready_within;

/// The maximum length of a request.
const MAX_REQUEST_SIZE: usize = 64 << 20;
/// How long to wait for the request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads the first line of standard input. Bytes read together with it, after its end, are lost.
pub(crate) fn read() -> Result<Vec<u8>, BridgeError> {
    let (stdin, mut text, mut chunk) = (io::stdin(), Vec::new(), vec![0; 64 << 10]);
    loop {
        if !is_ready_within(stdin.as_fd(), PollFlags::IN, PATIENCE) {
            return Err(BridgeError::Usage("no order came in".to_owned()));
        }
        let count = match rustix::io::read(&stdin, &mut chunk) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(BridgeError::of("read the order")(error)),
        };
        let bytes = &chunk[..count];
        let end = bytes.iter().position(|byte| *byte == b'\n');
        text.extend_from_slice(&bytes[..end.unwrap_or(count)]);
        if end.is_some() || count == 0 {
            return Ok(text);
        }
        if text.len() > MAX_REQUEST_SIZE {
            return Err(BridgeError::Usage("the order is too long".to_owned()));
        }
    }
}

/// Parses a request. The parser's message may quote the request, which may be secret, so the error
/// names only the position.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, BridgeError> {
    serde_json::from_slice(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        BridgeError::Usage(format!("the order is not understood at {place}"))
    })
}
