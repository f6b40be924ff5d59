//! Retries of requests that change nothing.

use std::time::Duration;

use creel_model::provider::ErrorClass;

use super::api::DaytonaResult;

/// The waits before a read with a transient failure is retried.
const WAITS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_secs(2)];

/// Retries a request after transient failures; only for requests that change nothing.
pub(super) async fn steadily<T, F>(mut send: impl FnMut() -> F) -> DaytonaResult<T>
where
    F: Future<Output = DaytonaResult<T>>,
{
    for wait in WAITS {
        match send().await {
            Err(refusal) if refusal.class == ErrorClass::Transient => {
                tokio::time::sleep(wait).await;
            }
            result => return result,
        }
    }
    send().await
}
