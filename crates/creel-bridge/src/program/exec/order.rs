//! Where the order comes from.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::Order;

use crate::program::failure::Failure;
use crate::program::first_line::{self, parse};

/// Reads an order from a file, and removes the file: it may hold secrets.
pub(super) fn read_file(file: &Path) -> Result<Order, Failure> {
    let text = fs::read(file).map_err(Failure::of(format!("read {}", file.display())))?;
    fs::remove_file(file).map_err(Failure::of(format!("remove {}", file.display())))?;
    parse(&text)
}

/// Reads an order from the first line of the standard input.
pub(super) fn read_input() -> Result<Order, Failure> {
    parse(&first_line::read()?)
}

/// Returns what the command reads.
pub(super) fn input_of(order: &Order) -> Result<Vec<u8>, Failure> {
    let input = BASE64_STANDARD.decode(&order.input);
    input.map_err(|_| Failure::Usage("the input in the order is not base64".to_owned()))
}
