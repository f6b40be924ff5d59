//! Byte streams to an engine, and the bound on what each may receive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bounds::{RESPONSE, TooMuch};

/// A byte stream to an engine.
pub trait RawStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> RawStream for T {}

/// How many more bytes a connection may receive for the current response.
///
/// The client library reads whole responses of any length. So the connection itself ends when a
/// response is longer than any that the library is used for.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Allowance {
    /// Sets how many bytes the next response may have.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn spend(&self, bytes: u64) -> bool {
        let spent = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        spent.is_ok()
    }
}

/// A stream that fails when it receives more than it is allowed.
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
        if matches!(read, Poll::Ready(Ok(()))) && !self.allowance.spend(count) {
            let error = TooMuch { what: "an answer", limit: RESPONSE };
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
