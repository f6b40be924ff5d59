//! Orders: one line of JSON on the standard input.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::lookout::is_ready_within;

/// An order that is longer than this is none.
const LONGEST_ORDER: usize = 64 << 20;
/// How long the order may be in coming.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads the first line of the standard input. What comes in the same breath after it is lost.
pub(crate) fn read() -> Result<Vec<u8>, Failure> {
    let (stdin, mut text, mut chunk) = (io::stdin(), Vec::new(), vec![0; 64 << 10]);
    loop {
        if !is_ready_within(stdin.as_fd(), PollFlags::IN, PATIENCE) {
            return Err(Failure::Usage("no order came in".to_owned()));
        }
        let count = match rustix::io::read(&stdin, &mut chunk) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(Failure::of("read the order")(error)),
        };
        let piece = &chunk[..count];
        let end = piece.iter().position(|byte| *byte == b'\n');
        text.extend_from_slice(&piece[..end.unwrap_or(count)]);
        if end.is_some() || count == 0 {
            return Ok(text);
        }
        if text.len() > LONGEST_ORDER {
            return Err(Failure::Usage("the order is too long".to_owned()));
        }
    }
}

/// Understands an order. The words of the parser may quote it, and it may be secret: only the
/// place of a mistake is told.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Failure::Usage(format!("the order is not understood at {place}"))
    })
}
