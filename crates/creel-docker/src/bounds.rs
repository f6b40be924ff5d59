//! Bounds on how much of an engine's responses is kept in memory.
//!
//! An engine may be broken or untrusted. Every response is read up to a bound, and then fails with
//! an error that names the bound. A list is read row by row, and the total weight of its rows is
//! bounded. The sum over all lists that are read at once stays below 200 MB.

use std::io;

use bollard::errors::Error;
use bytes::{Bytes, BytesMut};
use creel_model::labels::Labels;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// The response about one object.
pub(super) const RESPONSE: usize = 4 << 20;
/// The response to a request that the engine does not carry out.
pub(super) const REFUSAL: usize = 64 << 10;
/// An archive of a container's file.
pub(super) const ARCHIVE: usize = 8 << 20;
/// One row of a list, as sent.
pub(super) const ROW: usize = 1 << 20;
/// All rows of a list, as kept.
pub(super) const LIST: usize = 40 << 20;
/// One line of a progress stream.
pub(super) const LINE: usize = 64 << 10;
/// The cost of a row besides its texts.
const ROW_COST: usize = 400;
/// The cost of a text besides its bytes.
const TEXT_COST: usize = 32;

/// An engine sent more than the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine sent more than {limit} bytes for {what}")]
pub(crate) struct TooMuch {
    /// What the response was about.
    pub(super) what: &'static str,
    /// The bound in bytes.
    pub(super) limit: usize,
}

impl From<TooMuch> for Error {
    fn from(error: TooMuch) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error).into()
    }
}

/// Reads a whole body, up to a bound.
pub(super) async fn collect(
    mut body: Incoming,
    what: &'static str,
    limit: usize,
) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame?.into_data() else { continue };
        if whole.len() + bytes.len() > limit {
            return Err(TooMuch { what, limit }.into());
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// The memory cost of a row.
pub(super) trait Weigh {
    /// Returns roughly how many bytes the row takes.
    fn weight(&self) -> usize;
}

/// Returns the cost of a row with these texts.
pub(super) fn weight_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> usize {
    texts.into_iter().map(|text| text.len() + TEXT_COST).sum::<usize>() + ROW_COST
}

/// Returns the texts of labels.
pub(super) fn texts_of(labels: &Labels) -> impl Iterator<Item = &str> {
    labels.iter().flat_map(|(name, value)| [name, value])
}
