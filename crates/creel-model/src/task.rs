//! The only place that starts background work.
//!
//! Every spawn function defines what happens when its caller is cancelled. Work in [`finish`] runs
//! to its end, so a dropped caller cannot cut a transaction in half.

use std::future::Future;

use tokio::task::JoinHandle;

/// Runs work to its end, even when the caller is cancelled while it waits.
///
/// # Panics
///
/// Propagates a panic of the work to the caller.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub async fn finish<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, so no caller can receive the value.
        Err(_) => std::future::pending().await,
    }
}

/// Starts background work that ends when the handle's `abort` is called.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub fn background(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(work)
}

/// Runs blocking work on its own thread, to its end even when the caller is cancelled.
///
/// # Panics
///
/// Propagates a panic of the work to the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, so no caller can receive the value.
        Err(_) => std::future::pending().await,
    }
}

/// Runs work that may block forever on a thread that process exit does not wait for.
///
/// Returns `None` when the work panicked.
pub async fn on_detached_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Option<T>> {
    let (done, result) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        // A caller that was dropped does not need the value. Dropping it here releases what it
        // holds.
        drop(done.send(work()));
    })?;
    Ok(result.await.ok())
}
