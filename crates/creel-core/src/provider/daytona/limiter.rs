//! The limiter: spends a budget evenly instead of bursting into a refusal.
//!
//! Daytona counts requests per organisation and throttler, in windows. Every
//! success tells what is left of the window and when it ends; a refusal tells
//! only when to come back. From this each throttler here derives a gap: the
//! time to the reset divided by what is left. Requests take their place one
//! gap after the other, whoever sends them, so that many tasks together never
//! send faster than the budget allows.
//!
//! Where no header ever came there is no limit. What is kept lives in this
//! process alone: after a crash the first answers teach it again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;
use tokio::time::Instant;

use crate::retry;

/// How long to stay away after a refusal that does not say.
const UNTOLD: Duration = Duration::from_secs(10);
/// One part in so many of a window is left unspent, for requests that are counted late.
const RESERVE: u64 = 50;
/// A window that ends later than this is no window: the header means something else.
const LONGEST_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Resets are told in whole seconds: ends this near to each other are the same end.
const SAME_END: Duration = Duration::from_secs(2);

/// What the server counts apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Throttler {
    /// Every request.
    Authenticated,
    /// Creates.
    Create,
    /// Starts, stops, deletes, archives.
    Lifecycle,
}

impl Throttler {
    const ALL: [Self; 3] = [Self::Authenticated, Self::Create, Self::Lifecycle];

    /// Returns the name in the headers.
    const fn name(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Create => "sandbox-create",
            Self::Lifecycle => "sandbox-lifecycle",
        }
    }
}

/// The wait is longer than the caller is ready for; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) Duration);

/// How many requests a second a throttler bears.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rate {
    /// So many.
    Of(f64),
    /// It answers without a word on limits.
    Unlimited,
    /// Nothing was asked yet.
    Unheard,
}

/// A place that was given away; the request counts as under way until this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Permit<'a> {
    limiter: &'a Limiter,
    throttler: Throttler,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let under_way = &mut self.limiter.lock()[self.throttler as usize].under_way;
        *under_way = under_way.saturating_sub(1);
    }
}

/// The budgets of one organisation, shared by all tasks of the process.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    budgets: Mutex<[Budget; 3]>,
}

impl Limiter {
    /// Waits until a request that counts for these throttlers may be sent.
    ///
    /// A caller that is cancelled here loses its place, which nobody else gets.
    pub(super) async fn admit(
        &self,
        throttlers: &[Throttler],
        patience: Duration,
    ) -> Result<Vec<Permit<'_>>, TooLong> {
        let end = Instant::now() + patience;
        loop {
            let mut permits = Vec::with_capacity(throttlers.len());
            // One after the other: a place far off in one queue must not hold up another.
            for &throttler in throttlers {
                let (at, permit) = self.take_place(throttler, end)?;
                permits.push(permit);
                retry::excuse(at.saturating_duration_since(Instant::now()));
                tokio::time::sleep_until(at).await;
            }
            // Somebody may have been refused meanwhile: then these places are worth nothing.
            if !self.is_closed(throttlers) {
                return Ok(permits);
            }
        }
    }

    fn take_place(
        &self,
        throttler: Throttler,
        end: Instant,
    ) -> Result<(Instant, Permit<'_>), TooLong> {
        let now = Instant::now();
        let mut budgets = self.lock();
        let budget = &mut budgets[throttler as usize];
        let at = budget.next_place(now);
        if at > end {
            return Err(TooLong(at - now));
        }
        budget.last = Some(budget.last.map_or(at, |last| last.max(at)));
        budget.under_way += 1;
        Ok((at, Permit { limiter: self, throttler }))
    }

    /// Learns from the headers of an answer.
    pub(super) fn learn(&self, status: u16, headers: &HeaderMap, throttlers: &[Throttler]) {
        let now = Instant::now();
        let mut budgets = self.lock();
        let mut named = false;
        for &throttler in throttlers {
            budgets[throttler as usize].heard = true;
        }
        for throttler in Throttler::ALL {
            let budget = &mut budgets[throttler as usize];
            let told = |prefix: &str| number(headers, &format!("{prefix}-{}", throttler.name()));
            if let (Some(limit), Some(left), Some(reset)) = (
                told("x-ratelimit-limit"),
                told("x-ratelimit-remaining"),
                told("x-ratelimit-reset"),
            ) {
                budget.observe(now, limit, left, Duration::from_secs(reset));
            }
            if let Some(wait) = told("retry-after").filter(|_| status == 429) {
                named = true;
                budget.close(now + Duration::from_secs(wait.max(1)));
            }
        }
        if status == 429 && !named {
            let wait = retry_after(headers).unwrap_or(UNTOLD);
            for &throttler in throttlers {
                budgets[throttler as usize].close(now + wait);
            }
        }
    }

    /// Returns how many deletes a second the server bears.
    pub(super) fn deletes(&self) -> Rate {
        let budget = &self.lock()[Throttler::Lifecycle as usize];
        match budget.window {
            Some(window) => Rate::Of(window.limit as f64 / window.length.as_secs_f64().max(1.0)),
            None if budget.heard => Rate::Unlimited,
            None => Rate::Unheard,
        }
    }

    fn is_closed(&self, throttlers: &[Throttler]) -> bool {
        let now = Instant::now();
        let budgets = self.lock();
        throttlers.iter().any(|&throttler| budgets[throttler as usize].is_closed(now))
    }

    fn lock(&self) -> MutexGuard<'_, [Budget; 3]> {
        // A panic elsewhere leaves plain numbers, which stay usable.
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of one throttler.
#[derive(Debug, Default)]
struct Budget {
    /// Nothing is sent before this.
    closed_until: Option<Instant>,
    /// The window that was heard of last.
    window: Option<Window>,
    /// The last place that was given away.
    last: Option<Instant>,
    /// Places given away whose answer is not here yet: the server may not have counted them.
    under_way: u64,
    /// Whether an answer came at all.
    heard: bool,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    ends_at: Instant,
    /// How long a whole one is, as far as was seen.
    length: Duration,
    limit: u64,
    /// What is left, as the server said last.
    left: u64,
}

impl Budget {
    fn next_place(&self, now: Instant) -> Instant {
        let open = self.closed_until.map_or(now, |until| until.max(now));
        let (Some(window), Some(last)) = (self.window, self.last) else { return open };
        let base = last.max(open);
        if window.ends_at <= base {
            // Nothing is known of the next window yet: go on at the pace of a whole one.
            return open.max(last + window.length.div_f64(window.limit.max(1) as f64));
        }
        match window.left.saturating_sub(self.under_way + window.limit / RESERVE) {
            0 => window.ends_at,
            left => open.max(last + (window.ends_at - base).div_f64(left as f64)),
        }
    }

    fn observe(&mut self, now: Instant, limit: u64, left: u64, reset: Duration) {
        if reset > LONGEST_WINDOW {
            return;
        }
        let (mut ends_at, mut left) = (now + reset, left);
        let mut length = reset;
        if let Some(known) = self.window {
            length = length.max(known.length);
            if known.ends_at > ends_at + SAME_END && known.ends_at > now {
                // An answer of the window before, overtaken by one of this window.
                return;
            }
            if known.ends_at + SAME_END > ends_at {
                // Answers overtake each other: within a window the smallest number is the newest.
                ends_at = ends_at.max(known.ends_at);
                left = left.min(known.left);
            }
        }
        self.window = Some(Window { ends_at, length, limit, left });
    }

    fn close(&mut self, until: Instant) {
        self.closed_until = Some(self.closed_until.map_or(until, |known| known.max(until)));
        if let Some(window) = &mut self.window {
            // What was believed of this window was wrong; after the wait a fresh one begins.
            window.ends_at = window.ends_at.min(until);
            window.left = 0;
        }
        self.last = self.last.map(|last| last.min(until));
    }

    fn is_closed(&self, now: Instant) -> bool {
        self.closed_until.is_some_and(|until| until > now)
    }
}

/// Returns how long an answer asks to stay away, in whatever header it says so.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let throttled = Throttler::ALL
        .into_iter()
        .filter_map(|throttler| number(headers, &format!("retry-after-{}", throttler.name())));
    throttled.chain(number(headers, "retry-after")).max().map(Duration::from_secs)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    const LIFECYCLE: [Throttler; 2] = [Throttler::Lifecycle, Throttler::Authenticated];
    const LONG: Duration = Duration::from_secs(600);

    fn headers(pairs: &[(&str, u64)]) -> HeaderMap {
        let pair = |(name, value): &(&str, u64)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from(*value))
        };
        pairs.iter().map(pair).collect()
    }

    fn window(left: u64, reset: u64) -> HeaderMap {
        headers(&[
            ("X-RateLimit-Limit-sandbox-lifecycle", 100),
            ("X-RateLimit-Remaining-sandbox-lifecycle", left),
            ("X-RateLimit-Reset-sandbox-lifecycle", reset),
        ])
    }

    /// A server that counts in fixed windows and answers after a while.
    #[derive(Default)]
    struct Counting {
        opened_at: std::cell::Cell<Option<Instant>>,
        used: std::cell::Cell<u64>,
    }

    impl Counting {
        async fn answer(&self, limiter: &Limiter, limit: u64) {
            let opened_at = self.opened_at.get().filter(|at| at.elapsed().as_secs() < 60);
            let opened_at = opened_at.unwrap_or_else(|| {
                self.used.set(0);
                Instant::now()
            });
            self.opened_at.set(Some(opened_at));
            self.used.set(self.used.get() + 1);
            assert!(self.used.get() <= limit, "refused");
            let left = limit - self.used.get();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let reset = 60 - opened_at.elapsed().as_secs().min(60);
            limiter.learn(200, &window(left, reset), &LIFECYCLE);
        }
    }

    /// Sends so many requests at once, and returns when each went.
    async fn sent_at(limiter: &Limiter, count: usize, server: Option<&Counting>) -> Vec<u64> {
        let start = Instant::now();
        let sends = (0..count).map(|_| async {
            let permits = limiter.admit(&LIFECYCLE, LONG).await.unwrap();
            let at = u64::try_from(start.elapsed().as_millis()).unwrap();
            if let Some(server) = server {
                server.answer(limiter, 100).await;
            }
            drop(permits);
            at
        });
        let mut times = futures::future::join_all(sends).await;
        times.sort_unstable();
        times
    }

    #[tokio::test(start_paused = true)]
    async fn without_headers_there_is_no_limit() {
        assert_eq!(sent_at(&Limiter::default(), 1000, None).await.last(), Some(&0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_spread_to_the_reset() {
        let limiter = Limiter::default();
        drop(limiter.admit(&LIFECYCLE, LONG).await.unwrap());
        limiter.learn(200, &window(52, 50), &LIFECYCLE);
        let times = sent_at(&limiter, 50, None).await;
        for (index, time) in times.iter().enumerate() {
            let expected = (index as u64 + 1) * 1000;
            assert!(time.abs_diff(expected) < 1000, "request {index} went at {time}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_window_gets_more_than_its_budget_and_little_is_wasted() {
        let (limiter, server) = (Limiter::default(), Counting::default());
        sent_at(&limiter, 1, Some(&server)).await;
        let times = sent_at(&limiter, 300, Some(&server)).await;
        let minutes = times.last().unwrap() / 1000;
        assert!((180..=200).contains(&minutes), "300 requests at 100 a minute took {minutes} s");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_nothing_goes_before_its_time() {
        let limiter = Limiter::default();
        let waiting = async { sent_at(&limiter, 5, None).await };
        limiter.learn(429, &headers(&[("Retry-After-sandbox-lifecycle", 30)]), &LIFECYCLE);
        assert!(waiting.await.iter().all(|&time| time >= 30_000));
        let start = Instant::now();
        limiter.learn(429, &headers(&[("Retry-After", 7)]), &[Throttler::Create]);
        drop(limiter.admit(&[Throttler::Create], LONG).await.unwrap());
        assert_eq!(start.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_calls_back_those_that_already_had_a_place() {
        let limiter = Limiter::default();
        drop(limiter.admit(&LIFECYCLE, LONG).await.unwrap());
        limiter.learn(200, &window(52, 50), &LIFECYCLE);
        let refused = async {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            limiter.learn(429, &headers(&[("Retry-After-sandbox-lifecycle", 20)]), &LIFECYCLE);
        };
        let (times, ()) = tokio::join!(sent_at(&limiter, 10, None), refused);
        assert_eq!(times.iter().filter(|&&time| time < 2500).count(), 2);
        assert!(times[2..].iter().all(|&time| time >= 22_500), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_throttler_does_not_hold_up_another() {
        let limiter = Limiter::default();
        limiter.learn(429, &headers(&[("Retry-After-sandbox-lifecycle", 30)]), &LIFECYCLE);
        let start = Instant::now();
        drop(limiter.admit(&[Throttler::Authenticated], LONG).await.unwrap());
        assert_eq!(start.elapsed(), Duration::ZERO);
        let refused = limiter.admit(&LIFECYCLE, Duration::from_secs(10)).await.unwrap_err();
        assert_eq!(refused, TooLong(Duration::from_secs(30)));
    }

    #[test]
    fn the_longest_word_on_when_to_come_back_counts() {
        let both = headers(&[("Retry-After-authenticated", 3), ("Retry-After", 9)]);
        assert_eq!(retry_after(&both), Some(Duration::from_secs(9)));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
