//! Limits on responses of the service, so that a hostile one cannot exhaust our memory.
//!
//! Every body, row, text and list has a limit far above what an honest service sends. A response
//! beyond it is an error of its own. The error is transient, because the request may still have
//! been carried out.

use bytes::{Bytes, BytesMut};
use creel_model::provider::ErrorClass;

use super::classify::DaytonaError;

/// The largest response about one sandbox, or about the service itself.
pub(super) const OBJECT: usize = 4 << 20;
/// The largest page of a listing.
pub(super) const PAGE: usize = 32 << 20;
/// The most rows on one page: the requested number, and some room.
pub(super) const PAGE_ROWS: usize = 1_000;
/// The largest row.
pub(super) const ROW: usize = 512 << 10;
/// The most rows of a whole listing.
pub(super) const LISTING_ROWS: usize = 200_000;
/// The most bytes of all rows of a listing together.
pub(super) const LISTING: usize = 256 << 20;
/// The longest id, name, label or address.
pub(super) const TEXT: usize = 64 << 10;
/// How much of the body of an error is read; the rest is discarded.
pub(super) const ERROR: usize = 64 << 10;
/// How much of a reason from the service is shown.
pub(super) const REASON: usize = 1_000;
/// The largest response of a toolbox, except for files.
pub(super) const TOOLBOX: usize = 64 << 20;
/// The largest file that is read at once.
pub(super) const FILE: usize = 512 << 20;
/// The largest message of a followed log.
pub(super) const MESSAGE: usize = 4 << 20;

/// The part of a response that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooLarge {
    /// The body as a whole.
    #[error("it answered with more than {} MiB, which no honest answer has", .limit >> 20)]
    Body { limit: usize },
    /// One row.
    #[error("its listing has a row of {size} bytes; no honest row has more than {ROW}")]
    Row { size: usize },
    /// One page.
    #[error("its listing has a page of more than {PAGE_ROWS} rows")]
    PageRows,
    /// All pages together.
    #[error("its listing has more than {LISTING_ROWS} rows, or more than {} MiB", LISTING >> 20)]
    Listing,
    /// One text field.
    #[error("the {field} of a sandbox has {size} bytes; no honest one has more than {TEXT}")]
    Text { field: &'static str, size: usize },
}

impl From<TooLarge> for DaytonaError {
    fn from(error: TooLarge) -> Self {
        Self::new(ErrorClass::Transient, error.to_string())
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub(super) enum BodyError {
    /// The connection broke.
    Broken(reqwest::Error),
    /// The body is too large.
    TooLarge(TooLarge),
}

/// Reads a body up to a limit.
pub(super) async fn read(
    mut response: reqwest::Response,
    limit: usize,
) -> Result<Bytes, BodyError> {
    let too_large = || BodyError::TooLarge(TooLarge::Body { limit });
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Broken)? {
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Reads the beginning of a body and discards the rest.
pub(super) async fn read_start(mut response: reqwest::Response, limit: usize) -> Bytes {
    let mut body = BytesMut::new();
    while body.len() < limit {
        let Ok(Some(chunk)) = response.chunk().await else { break };
        body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
    }
    body.freeze()
}

/// Counts the rows and bytes of a listing over all its pages.
#[derive(Debug, Default)]
pub(super) struct ListTally {
    rows: usize,
    bytes: usize,
}

impl ListTally {
    /// Adds a page.
    pub(super) fn add(&mut self, rows: usize, bytes: usize) -> Result<(), TooLarge> {
        self.rows = self.rows.saturating_add(rows);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.rows > LISTING_ROWS || self.bytes > LISTING {
            return Err(TooLarge::Listing);
        }
        Ok(())
    }
}

/// Returns the beginning of a text, cut at a character boundary.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let end = (0..=limit).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_without_end_is_refused_by_rows_and_by_bytes() {
        let mut tally = ListTally::default();
        assert_eq!(tally.add(LISTING_ROWS, 1), Ok(()));
        assert_eq!(tally.add(1, 1), Err(TooLarge::Listing));
        assert_eq!(ListTally::default().add(1, LISTING + 1), Err(TooLarge::Listing));
    }

    #[test]
    fn a_reason_is_truncated_between_characters() {
        assert_eq!(shortened("üü", 3), "ü…");
        assert_eq!(shortened("üü", 4), "üü");
    }
}
