//! Bounds on what an engine can make us keep.
//!
//! An engine may be broken, or somebody else's. Every answer is read up to a bound and then given
//! up with an error that names the bound; a list is read row by row, and the rows together may
//! weigh so much. The sum over all lists that are read at once stays below 200 MB.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bollard::errors::Error;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::labels::Labels;

use super::transport::RawStream;

/// The answer about one object.
pub(super) const ANSWER: usize = 4 << 20;
/// What an engine says to a request that it does not carry out.
pub(super) const REFUSAL: usize = 64 << 10;
/// An archive of a container's file.
pub(super) const ARCHIVE: usize = 8 << 20;
/// One row of a list, as it is sent.
pub(super) const ROW: usize = 1 << 20;
/// All rows of a list, as they are kept.
pub(super) const LIST: usize = 40 << 20;
/// One line of a stream of progress.
pub(super) const LINE: usize = 64 << 10;
/// What a row costs beside its texts.
const ROW_COST: usize = 400;
/// What a text costs beside its bytes.
const TEXT_COST: usize = 32;

/// An engine sent more than we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine sent more than {limit} bytes for {what}")]
pub(crate) struct TooMuch {
    /// What it was to answer.
    pub(super) what: &'static str,
    /// How much is taken.
    pub(super) limit: usize,
}

impl From<TooMuch> for Error {
    fn from(error: TooMuch) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error).into()
    }
}

/// Reads a body whole, up to a bound.
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

/// What a row costs while it is kept.
pub(super) trait Weigh {
    /// Returns about how many bytes it takes.
    fn weight(&self) -> usize;
}

/// Returns what the texts of a row cost, and the row itself.
pub(super) fn weight_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> usize {
    texts.into_iter().map(|text| text.len() + TEXT_COST).sum::<usize>() + ROW_COST
}

/// Returns the texts of labels.
pub(super) fn texts_of(labels: &Labels) -> impl Iterator<Item = &str> {
    labels.iter().flat_map(|(name, value)| [name, value])
}

/// How much more a connection may bring, for the answer that is under way.
///
/// The client library reads answers whole, however long they are. So the connection itself ends
/// when an answer is longer than any that the library is asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Allowance {
    /// Sets how much the next answer may bring.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.is_ok()
    }
}

/// A stream that ends with an error when it brings more than it is allowed.
pub(super) struct Metered {
    pub(super) stream: Box<dyn RawStream>,
    pub(super) allowance: Allowance,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = (buffer.filled().len() - before) as u64;
        if matches!(read, Poll::Ready(Ok(()))) && !self.allowance.take(count) {
            let error = TooMuch { what: "an answer", limit: ANSWER };
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
