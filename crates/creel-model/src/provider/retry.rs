//! Retries: exponential backoff with jitter, by error class.
//!
//! The defaults are three retries after 2, 4 and 8 seconds, and 30 seconds for the operation as a
//! whole. Permanent errors are not retried. Two kinds of waits do not count towards the limit:
//! those that a throttling provider requested, and those during which the operation paused its
//! [`Deadline`].

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::duration;
use crate::provider::{Deadline, ErrorClass, ProviderError};

/// When and how often an operation is retried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    /// The number of retries after the first attempt.
    pub retries: u32,
    /// The wait before the first retry.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub initial: Duration,
    /// The factor by which each wait exceeds the previous one.
    pub factor: f32,
    /// The time limit for all attempts together.
    #[serde(deserialize_with = "duration::deserialize", serialize_with = "duration::serialize")]
    pub deadline: Duration,
    /// Whether each wait is lengthened by up to half, so that many clients do not retry in step.
    pub jitter: bool,
    /// The number of retries for specific error classes.
    #[serde(default)]
    pub class: BTreeMap<ErrorClass, u32>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 3,
            initial: Duration::from_secs(2),
            factor: 2.0,
            deadline: Duration::from_secs(30),
            jitter: true,
            class: BTreeMap::new(),
        }
    }
}

/// The result of an operation, and the number of attempts.
#[derive(Debug)]
#[must_use]
pub struct Tried<T> {
    /// The value, or the last error.
    pub result: Result<T, ProviderError>,
    /// The number of attempts.
    pub tries: u32,
}

impl RetryPolicy {
    /// Returns how often an error of this class is retried.
    pub fn retries_for(&self, class: ErrorClass) -> u32 {
        match self.class.get(&class) {
            Some(retries) => *retries,
            None if class.is_retryable() => self.retries,
            None => 0,
        }
    }

    fn waits(&self) -> impl Iterator<Item = Duration> {
        let builder = ExponentialBuilder::default()
            .with_min_delay(self.initial)
            .with_max_delay(self.deadline.max(self.initial))
            .with_factor(self.factor.max(1.0))
            .without_max_times();
        let jitter = self.jitter;
        builder.build().map(move |wait| if jitter { with_jitter(wait) } else { wait })
    }

    /// Runs an operation until it succeeds, fails permanently, or times out.
    ///
    /// Every attempt gets the deadline of the whole, for the calls that can pause it.
    ///
    /// Calls `note` for every failed attempt, with the wait before the next attempt if there is
    /// one.
    pub async fn run<'a, T>(
        &self,
        mut operation: impl FnMut(Deadline) -> BoxFuture<'a, Result<T, ProviderError>>,
        mut note: impl FnMut(u32, &ProviderError, Option<Duration>),
        on_timeout: impl Fn() -> ProviderError,
    ) -> Tried<T> {
        let deadline = Deadline::after(self.deadline);
        let mut waits = self.waits();
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match deadline.limit(operation(deadline.clone())).await {
                Some(Ok(value)) => return Tried { result: Ok(value), tries },
                Some(Err(error)) => error,
                None => on_timeout(),
            };
            let wait = waits.next().unwrap_or(self.deadline);
            // The provider's own `retry_after` takes precedence over our backoff.
            let wait = error.retry_after.unwrap_or(wait);
            if error.class == ErrorClass::Throttled && error.retry_after.is_some() {
                deadline.extend(wait);
            }
            let again = tries <= self.retries_for(error.class) && !deadline.ends_within(wait);
            note(tries, &error, again.then_some(wait));
            if !again {
                return Tried { result: Err(error), tries };
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// Lengthens a wait by up to half of itself.
fn with_jitter(wait: Duration) -> Duration {
    // A random UUID serves as the source of randomness; its low bits are uniform.
    let part = (uuid::Uuid::new_v4().as_u128() & 0xffff) as f64 / f64::from(0x1_0000);
    wait.mul_f64(1.0 + part / 2.0)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::provider::ProviderName;

    fn failing(class: ErrorClass) -> ProviderError {
        ProviderError {
            provider: ProviderName::new("docker"),
            operation: "remove container x".to_owned(),
            message: "no".to_owned(),
            class,
            retry_after: None,
        }
    }

    async fn tries_of(policy: &RetryPolicy, class: ErrorClass, failures: u32) -> (u32, bool) {
        let mut left = failures;
        let tried = policy
            .run(
                |_| {
                    let fails = left > 0;
                    left = left.saturating_sub(1);
                    Box::pin(async move { if fails { Err(failing(class)) } else { Ok(()) } })
                },
                |_, _, _| {},
                || failing(ErrorClass::Unreachable),
            )
            .await;
        (tried.tries, tried.result.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_error_is_tried_four_times_in_all() {
        let policy = RetryPolicy::default();
        assert_eq!(tries_of(&policy, ErrorClass::Transient, 2).await, (3, true));
        assert_eq!(tries_of(&policy, ErrorClass::Transient, 9).await, (4, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_error_is_not_tried_again() {
        let policy = RetryPolicy::default();
        for class in ErrorClass::ALL.into_iter().filter(|class| !class.is_retryable()) {
            assert_eq!(tries_of(&policy, class, 9).await, (1, false), "{class}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn single_classes_may_be_retried_otherwise() {
        let policy = RetryPolicy {
            class: [(ErrorClass::Transient, 1), (ErrorClass::InUse, 2)].into(),
            ..RetryPolicy::default()
        };
        assert_eq!(tries_of(&policy, ErrorClass::Transient, 9).await, (2, false));
        assert_eq!(tries_of(&policy, ErrorClass::InUse, 9).await, (3, false));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_stay_within_the_deadline() {
        let policy = RetryPolicy { jitter: false, ..RetryPolicy::default() };
        let start = Instant::now();
        let mut waits = Vec::new();
        let tried = policy
            .run(
                |_| Box::pin(async { Err::<(), _>(failing(ErrorClass::Transient)) }),
                |_, _, wait| waits.push(wait.map(|wait| wait.as_secs())),
                || failing(ErrorClass::Unreachable),
            )
            .await;
        assert_eq!(waits, [Some(2), Some(4), Some(8), None]);
        assert_eq!((tried.tries, start.elapsed().as_secs()), (4, 14));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_requested_by_the_provider_does_not_count() {
        let start = Instant::now();
        let throttled = || ProviderError {
            retry_after: Some(Duration::from_secs(50)),
            ..failing(ErrorClass::Throttled)
        };
        let mut left = 2;
        let tried = RetryPolicy::default()
            .run(
                |_| {
                    left -= 1;
                    Box::pin(async move { if left >= 0 { Err(throttled()) } else { Ok(()) } })
                },
                |_, _, _| {},
                || failing(ErrorClass::Unreachable),
            )
            .await;
        assert!(tried.result.is_ok());
        assert_eq!((tried.tries, start.elapsed().as_secs()), (3, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_deadline_does_not_count() {
        let start = Instant::now();
        let operation = |deadline: Deadline| async move {
            for _ in 0..3 {
                deadline.pause_during(tokio::time::sleep(Duration::from_secs(40))).await;
            }
            tokio::time::sleep(Duration::from_secs(29)).await;
            Ok::<_, ProviderError>(())
        };
        let timeout = || failing(ErrorClass::Unreachable);
        let tried = RetryPolicy::default()
            .run(|deadline| Box::pin(operation(deadline)), |_, _, _| {}, timeout)
            .await;
        assert!(tried.result.is_ok());
        assert_eq!(start.elapsed().as_secs(), 149);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_never_responds_ends_at_the_deadline() {
        let start = Instant::now();
        let tried = RetryPolicy::default()
            .run(
                |_| Box::pin(std::future::pending::<Result<(), ProviderError>>()),
                |_, _, _| {},
                || failing(ErrorClass::Unreachable),
            )
            .await;
        assert_eq!(tried.result.unwrap_err().class, ErrorClass::Unreachable);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[test]
    fn jitter_adds_up_to_half() {
        let wait = Duration::from_secs(2);
        for _ in 0..100 {
            let longer = with_jitter(wait);
            assert!(longer >= wait && longer <= wait.mul_f64(1.5), "{longer:?}");
        }
    }
}
