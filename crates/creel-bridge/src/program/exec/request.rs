//! Reads the request.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::ExecRequest;

use crate::program::error::BridgeError;
use crate::program::first_line::{self, parse};

/// Reads a request from a file, and removes the file, because it may hold secrets.
pub(super) fn read_file(file: &Path) -> Result<ExecRequest, BridgeError> {
    let text = fs::read(file).map_err(BridgeError::of(format!("read {}", file.display())))?;
    fs::remove_file(file).map_err(BridgeError::of(format!("remove {}", file.display())))?;
    parse(&text)
}

/// Reads a request from the first line of standard input.
pub(super) fn read_input() -> Result<ExecRequest, BridgeError> {
    parse(&first_line::read()?)
}

/// Returns the standard input of the command.
pub(super) fn input_of(request: &ExecRequest) -> Result<Vec<u8>, BridgeError> {
    let input = BASE64_STANDARD.decode(&request.input);
    input.map_err(|_| BridgeError::Usage("the input in the order is not base64".to_owned()))
}
