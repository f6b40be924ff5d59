//! The one place where background work starts.
//!
//! Every spawn says what happens to it when its starter is cancelled: the
//! [`finish`] kind goes on to its end, so a dropped caller cannot cut a
//! transaction in half.

use std::future::Future;

use tokio::task::JoinHandle;

/// Runs work to its end even when the caller is cancelled while it waits.
///
/// # Panics
///
/// Carries a panic of the work over to the caller.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub async fn finish<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down under us; nobody can see the value any more.
        Err(_) => std::future::pending().await,
    }
}

/// Starts work in the background that ends when the handle's `abort` is called.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub fn background(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(work)
}

/// Runs work that blocks on a thread of its own, to its end even when the caller is cancelled.
///
/// # Panics
///
/// Carries a panic of the work over to the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down under us; nobody can see the value any more.
        Err(_) => std::future::pending().await,
    }
}

/// Runs work that may block without end on a thread that the end of the process does not wait for.
///
/// Returns nothing when the work panicked.
pub async fn on_detached_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Option<T>> {
    let (done, result) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        // A caller that has gone does not want the value; dropping it here releases what it holds.
        drop(done.send(work()));
    })?;
    Ok(result.await.ok())
}
