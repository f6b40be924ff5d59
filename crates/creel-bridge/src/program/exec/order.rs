//! Where the order comes from.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::Order;
use rustix::event::PollFlags;

use crate::program::failure::Failure;
use crate::program::lookout::is_ready_within;

/// An order that is longer than this is none.
const LONGEST_ORDER: usize = 64 << 20;
/// How long the order may be in coming.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads an order from a file, and removes the file: it may hold secrets.
pub(super) fn read_file(file: &Path) -> Result<Order, Failure> {
    let text = fs::read(file).map_err(Failure::of(format!("read {}", file.display())))?;
    fs::remove_file(file).map_err(Failure::of(format!("remove {}", file.display())))?;
    parse(&text)
}

/// Reads an order from the first line of the standard input.
pub(super) fn read_input() -> Result<Order, Failure> {
    parse(&first_line()?)
}

/// Reads the first line of the standard input. What comes in the same breath after it is lost.
pub(crate) fn first_line() -> Result<Vec<u8>, Failure> {
    let (stdin, mut text, mut chunk) = (io::stdin(), Vec::new(), vec![0; 64 << 10]);
    loop {
        if !is_ready_within(stdin.as_fd(), PollFlags::IN, PATIENCE) {
            return Err(Failure::Usage("no order came in".to_owned()));
        }
        let count = match rustix::io::read(&stdin, &mut chunk) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
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

/// Returns what the command reads.
pub(super) fn input_of(order: &Order) -> Result<Vec<u8>, Failure> {
    let input = BASE64_STANDARD.decode(&order.input);
    input.map_err(|_| Failure::Usage("the input in the order is not base64".to_owned()))
}

fn parse(text: &[u8]) -> Result<Order, Failure> {
    // The words of the parser may quote the order, which may be secret: only the place is told.
    serde_json::from_slice(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Failure::Usage(format!("the order is not understood at {place}"))
    })
}
