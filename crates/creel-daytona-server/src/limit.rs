//! Rate limits: fixed windows, with the headers of the real service.
//!
//! The first request opens a window. A success reports what is left. A refusal reports only when to
//! retry, in a header with the throttler's own name. A client that exceeds a window is refused for
//! the length of a whole window from then on, as by the real service. Wrong keys have a window too,
//! and once it is full, valid keys are refused as well.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::error::ApiError;
use crate::route::ThrottlerName;
use crate::settings::RateLimits;

/// The remainder of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemainingQuota {
    throttler: ThrottlerName,
    limit: u32,
    remaining: u32,
    reset: Duration,
}

#[derive(Debug, Default)]
struct LimitWindow {
    opened_at: Option<Instant>,
    used: u32,
    /// The time until which all requests are refused.
    blocked_until: Option<Instant>,
}

impl LimitWindow {
    /// Takes one request from the window. Returns what is left, or how long to wait.
    fn take(&mut self, limit: u32, length: Duration) -> Result<(u32, Duration), Duration> {
        let now = Instant::now();
        if let Some(until) = self.blocked_until.filter(|until| now < *until) {
            return Err(until - now);
        }
        let age = self.opened_at.map(|at| now - at).filter(|age| *age < length);
        let age = age.unwrap_or_else(|| {
            *self = Self { opened_at: Some(now), used: 0, blocked_until: None };
            Duration::ZERO
        });
        if self.used >= limit {
            *self = Self { opened_at: None, used: 0, blocked_until: Some(now + length) };
            return Err(length);
        }
        self.used += 1;
        Ok((limit - self.used, length - age))
    }

    fn full_for(&self, limit: u32, length: Duration) -> Option<Duration> {
        let age = self.opened_at?.elapsed();
        (self.used >= limit && age < length).then(|| length.saturating_sub(age))
    }
}

/// The windows of all throttlers.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    limits: RateLimits,
    authenticated: LimitWindow,
    create: LimitWindow,
    lifecycle: LimitWindow,
    failed_auth: LimitWindow,
}

impl RateLimiter {
    /// Starts with empty windows.
    pub(crate) fn new(limits: RateLimits) -> Self {
        let [authenticated, create, lifecycle, failed_auth] =
            [(); 4].map(|()| LimitWindow::default());
        Self { limits, authenticated, create, lifecycle, failed_auth }
    }

    /// Returns the limits.
    pub(crate) fn limits(&self) -> &RateLimits {
        &self.limits
    }

    /// Takes one request from a throttler's window.
    pub(crate) fn take(
        &mut self,
        throttler: ThrottlerName,
    ) -> Result<Option<RemainingQuota>, ApiError> {
        let (limit, window) = match throttler {
            ThrottlerName::Authenticated => (self.limits.authenticated, &mut self.authenticated),
            ThrottlerName::SandboxCreate => (self.limits.sandbox_create, &mut self.create),
            ThrottlerName::SandboxLifecycle => (self.limits.sandbox_lifecycle, &mut self.lifecycle),
        };
        let Some(limit) = limit else { return Ok(None) };
        match window.take(limit, self.limits.window) {
            Ok((remaining, reset)) => {
                Ok(Some(RemainingQuota { throttler, limit, remaining, reset }))
            }
            Err(wait) => {
                Err(too_many(&format!("retry-after-{}", throttler.name()), whole_seconds(wait)))
            }
        }
    }

    /// Refuses all clients while the window of wrong keys is full.
    pub(crate) fn check_lockout(&self) -> Result<(), ApiError> {
        let Some(limit) = self.limits.failed_auth else { return Ok(()) };
        match self.failed_auth.full_for(limit, self.limits.window) {
            Some(wait) => Err(too_many("retry-after", whole_seconds(wait))),
            None => Ok(()),
        }
    }

    /// Records a wrong key.
    pub(crate) fn note_failed_auth(&mut self) {
        if let Some(limit) = self.limits.failed_auth {
            // A full window is refused earlier.
            let _ = self.failed_auth.take(limit, self.limits.window);
        }
    }
}

impl RemainingQuota {
    /// Adds the three headers of a success.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let name = self.throttler.name();
        set(headers, &format!("x-ratelimit-limit-{name}"), u64::from(self.limit));
        set(headers, &format!("x-ratelimit-remaining-{name}"), u64::from(self.remaining));
        set(headers, &format!("x-ratelimit-reset-{name}"), whole_seconds(self.reset));
    }
}

fn set(headers: &mut HeaderMap, name: &str, value: u64) {
    if let Ok(name) = HeaderName::try_from(name) {
        headers.insert(name, HeaderValue::from(value));
    }
}

/// Rounds up, so that a client that waits this long finds a new window.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

fn too_many(header: &str, seconds: u64) -> ApiError {
    let mut error =
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "ThrottlerException: Too Many Requests");
    set(&mut error.headers, header, seconds);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_refuses_with_nothing_but_the_throttlers_own_header() {
        let limits = RateLimits { sandbox_create: Some(2), ..RateLimits::default() };
        let mut limiter = RateLimiter::new(limits);
        for _ in 0..2 {
            assert!(limiter.take(ThrottlerName::SandboxCreate).expect("two are allowed").is_some());
        }
        let error = limiter.take(ThrottlerName::SandboxCreate).expect_err("the third is not");
        assert_eq!(error.headers.len(), 1);
        assert!(error.headers.contains_key("retry-after-sandbox-create"));
        assert!(limiter.take(ThrottlerName::Authenticated).expect("it has no limit").is_none());
    }

    #[test]
    fn an_overdrawn_window_costs_a_whole_one() {
        let length = Duration::from_secs(60);
        let half_over = Instant::now().checked_sub(length / 2);
        let mut window = LimitWindow { opened_at: half_over, used: 5, blocked_until: None };
        assert_eq!(window.take(5, length), Err(length));
        // The old window has ended, but the refusal has not.
        let soon = Instant::now() + length / 2;
        window.blocked_until = Some(soon);
        assert!(window.take(5, length).is_err_and(|wait| wait <= length / 2));
        window.blocked_until = Some(Instant::now());
        assert_eq!(window.take(5, length), Ok((4, length)));
    }

    #[test]
    fn wrong_keys_lock_good_ones_out() {
        let limits = RateLimits { failed_auth: Some(1), ..RateLimits::default() };
        let mut limiter = RateLimiter::new(limits);
        assert!(limiter.check_lockout().is_ok());
        limiter.note_failed_auth();
        let error = limiter.check_lockout().expect_err("the window is full");
        assert!(error.headers.contains_key("retry-after"));
    }
}
