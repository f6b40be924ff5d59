//! The limiter: spends what a window allows, and never more.
//!
//! Daytona counts requests per organisation and throttler, in fixed windows that the first request
//! opens. Every successful response reports what is left of the window and in how many seconds,
//! rounded up, it ends. A refusal reports only when to retry, and costs a whole window. Each
//! throttler here therefore tracks what is left, subtracts the requests in flight, and admits
//! requests one after another, whichever task sends them:
//!
//! ```text
//!   nothing known, or the window has ended ─▶ one probe is sent, the others wait for it
//!   half of the window                      ─▶ at once
//!   the other half                          ─▶ evenly, to the window's end
//!   the last two percent                    ─▶ never
//! ```
//!
//! The unspent part remains available to other clients of the same organisation, which may not know
//! how to wait. If the server never sent a rate limit header, there is no limit. The state lives in
//! this process alone; after a crash the first responses rebuild it.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderMap;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long to wait after a refusal without a retry time.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// The minimum wait after any refusal.
const SHORTEST: Duration = Duration::from_secs(1);
/// One part in this many of a window is left unspent.
const RESERVE: u64 = 50;
/// The part of a window that may be spent at once.
const AT_ONCE: f64 = 0.5;
/// A window that ends later than this is not a window: the header means something else.
const LONGEST_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Resets come in whole seconds: ends this close to each other are the same end.
const SAME_END: Duration = Duration::from_secs(2);
/// The resolution of the timer.
const TICK: Duration = Duration::from_millis(1);
/// How long the other requests wait for the response to the probe.
const AHEAD: Duration = Duration::from_secs(1);

/// The request counters of the server; a request counts for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Throttler {
    /// All requests that no other throttler counts.
    Authenticated,
    /// Creates.
    Create,
    /// Starts, stops, deletes, archives.
    Lifecycle,
}

impl Throttler {
    const ALL: [Self; 3] = [Self::Authenticated, Self::Create, Self::Lifecycle];

    /// Returns its name in the headers.
    const fn name(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Create => "sandbox-create",
            Self::Lifecycle => "sandbox-lifecycle",
        }
    }

    /// Returns how many probes may be sent while nothing is known.
    const fn ahead(self) -> u32 {
        match self {
            Self::Authenticated | Self::Lifecycle => 1,
            // Their responses take seconds, and few are sent at all.
            Self::Create => 16,
        }
    }
}

/// The wait is longer than the caller accepts; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong(pub(super) Duration);

/// How far a request got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestProgress {
    /// It was not sent.
    Admitted,
    /// It was sent; the server may have counted it.
    Sent,
    /// The response reported what is left.
    Responded,
}

/// Permission to send one request, which counts as in flight until this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct RequestPermit {
    limiter: Arc<RequestLimiter>,
    throttler: Throttler,
    admitted: Admitted,
    progress: RequestProgress,
}

impl RequestPermit {
    /// Returns whether this permit is for a request that this throttler counts.
    pub(super) fn is_for(&self, throttler: Throttler) -> bool {
        self.throttler == throttler
    }

    /// Returns whether a refusal arrived since this permit was issued.
    pub(super) fn is_void(&self) -> bool {
        self.limiter.throttle(self.throttler).lock().closed_at(Instant::now()).is_some()
    }

    /// Records that the request is being sent.
    pub(super) fn sent(&mut self) {
        self.progress = RequestProgress::Sent;
    }

    /// Updates the budgets from the response.
    pub(super) fn learn(mut self, status: u16, headers: &HeaderMap) {
        self.progress = RequestProgress::Responded;
        self.limiter.learn(status, headers, self.throttler);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let throttle = self.limiter.throttle(self.throttler);
        throttle.lock().release(self.admitted, self.progress);
        throttle.changed.notify_waiters();
    }
}

/// The budgets of one organisation, shared by all tasks of the process.
#[derive(Debug, Default)]
pub(super) struct RequestLimiter {
    throttles: [Throttle; 3],
}

/// One throttler: its budget, and the requests that wait for it.
#[derive(Debug, Default)]
struct Throttle {
    budget: Mutex<Budget>,
    /// Held by the next request to be admitted; the others queue in order of arrival.
    front: tokio::sync::Mutex<()>,
    /// Wakes the request at the front when the budget changes.
    changed: Notify,
}

impl Throttle {
    fn lock(&self) -> MutexGuard<'_, Budget> {
        // A panic elsewhere leaves plain numbers, which stay usable.
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestLimiter {
    /// Waits until a request may be sent.
    pub(super) async fn admit(
        self: &Arc<Self>,
        throttler: Throttler,
        patience: Duration,
    ) -> Result<RequestPermit, TooLong> {
        let end = Instant::now() + patience;
        let admission = tokio::time::timeout_at(end, self.admit_next(throttler, end));
        match admission.await {
            Ok(admitted) => admitted,
            // It never reached the front of the queue.
            Err(_) => Err(TooLong(AHEAD)),
        }
    }

    /// Waits until a request may be sent, however long that takes.
    pub(super) async fn admit_in_any_time(self: &Arc<Self>, throttler: Throttler) -> RequestPermit {
        loop {
            match self.admit(throttler, LONGEST_WINDOW).await {
                Ok(permit) => return permit,
                Err(TooLong(wait)) => tokio::time::sleep(wait).await,
            }
        }
    }

    async fn admit_next(
        self: &Arc<Self>,
        throttler: Throttler,
        end: Instant,
    ) -> Result<RequestPermit, TooLong> {
        let throttle = self.throttle(throttler);
        let _front = throttle.front.lock().await;
        loop {
            // Subscribes before it checks the budget, so that no change in between is missed.
            let mut changed = pin!(throttle.changed.notified());
            changed.as_mut().enable();
            let now = Instant::now();
            let admission = throttle.lock().try_admit(now, throttler);
            match admission {
                Ok(admitted) => {
                    let (limiter, progress) = (Arc::clone(self), RequestProgress::Admitted);
                    return Ok(RequestPermit { limiter, throttler, admitted, progress });
                }
                Err(at) if at > end => return Err(TooLong(at - now)),
                Err(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    fn learn(&self, status: u16, headers: &HeaderMap, of: Throttler) {
        let now = Instant::now();
        for throttler in Throttler::ALL {
            let mut budget = self.throttle(throttler).lock();
            let reported =
                |prefix: &str| number(headers, &format!("{prefix}-{}", throttler.name()));
            let window = (
                reported("x-ratelimit-limit"),
                reported("x-ratelimit-remaining"),
                reported("x-ratelimit-reset"),
            );
            match window {
                (Some(limit), Some(left), Some(reset)) => {
                    budget.observe(now, limit, left, Duration::from_secs(reset));
                }
                // A proxy in front of the server knows nothing of its limits.
                _ if throttler == of && status < 500 && status != 429 => {
                    budget.observe_unlimited(now)
                }
                _ => {}
            }
        }
        if status == 429 {
            self.close(now, headers);
        }
        for throttle in &self.throttles {
            throttle.changed.notify_waiters();
        }
    }

    /// Blocks requests until the time that a refusal names.
    fn close(&self, now: Instant, headers: &HeaderMap) {
        let wait_of = |throttler: Throttler| {
            let wait = number(headers, &format!("retry-after-{}", throttler.name()))?;
            Some(Duration::from_secs(wait))
        };
        let names_throttler =
            Throttler::ALL.into_iter().any(|throttler| wait_of(throttler).is_some());
        for throttler in Throttler::ALL {
            // A refusal without a throttler's name applies to this IP address, whatever it sends.
            let unnamed =
                || (!names_throttler).then(|| retry_after(headers).unwrap_or(DEFAULT_WAIT));
            if let Some(wait) = wait_of(throttler).or_else(unnamed) {
                self.throttle(throttler).lock().close(now + wait.max(SHORTEST));
            }
        }
    }

    fn throttle(&self, throttler: Throttler) -> &Throttle {
        &self.throttles[throttler as usize]
    }
}

/// Why a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admitted {
    /// It fits the known window.
    Known,
    /// It is a probe.
    Ahead,
}

/// The known state of one throttler.
#[derive(Debug, Default)]
struct Budget {
    /// Nothing is sent before this.
    closed_until: Option<Instant>,
    /// The window that was reported last.
    window: Option<RateWindow>,
    /// Admitted requests without a response yet: the server may not have counted them.
    in_flight: u64,
    /// Whether a response came without rate limit headers.
    unlimited: bool,
    /// How many probes were sent, and since when.
    ahead: Option<(u32, Instant)>,
}

#[derive(Debug, Clone, Copy)]
struct RateWindow {
    /// The earliest end, within the precision of whole seconds.
    ends_at: Instant,
    /// The length of a whole window, as far as observed.
    length: Duration,
    limit: u64,
    /// What is left, as the server reported last.
    left: u64,
}

impl RateWindow {
    fn reserve(&self) -> f64 {
        (self.limit / RESERVE) as f64
    }

    /// Returns the part that is spent evenly, until the end of the window.
    fn spread(&self) -> f64 {
        (self.limit as f64 - self.reserve()) * (1.0 - AT_ONCE)
    }

    /// Returns when one more request may be sent besides those in flight; `None` means now.
    fn wait(&self, in_flight: u64, now: Instant) -> Option<Instant> {
        let free = self.left as f64 - in_flight as f64 - self.reserve();
        if free <= 0.0 {
            return Some(self.ends_at);
        }
        let (length, to_end) = (self.length.as_secs_f64(), self.ends_at - now);
        if free > self.spread() * to_end.as_secs_f64() / length {
            return None;
        }
        let before_end = Duration::from_secs_f64(length * free / self.spread());
        Some((self.ends_at - before_end).max(now + TICK))
    }
}

impl Budget {
    /// Admits one more request, or returns when to try again.
    fn try_admit(&mut self, now: Instant, throttler: Throttler) -> Result<Admitted, Instant> {
        if let Some(until) = self.closed_at(now) {
            return Err(until);
        }
        let (wait, admitted) = match self.window {
            Some(window) if window.ends_at > now => {
                (window.wait(self.in_flight, now), Admitted::Known)
            }
            None if self.unlimited => (None, Admitted::Known),
            Some(_) | None => (self.go_ahead(now, throttler.ahead()), Admitted::Ahead),
        };
        match wait {
            Some(at) => Err(at),
            None => {
                self.in_flight += 1;
                Ok(admitted)
            }
        }
    }

    /// Admits a few probes to learn the limit; returns until when the others wait for them.
    fn go_ahead(&mut self, now: Instant, most: u32) -> Option<Instant> {
        self.ahead = match self.ahead {
            Some((count, at)) if count < most => Some((count + 1, at)),
            Some((_, at)) if now < at + AHEAD => return Some(at + AHEAD),
            Some(_) | None => Some((1, now)),
        };
        None
    }

    fn release(&mut self, admitted: Admitted, progress: RequestProgress) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if progress == RequestProgress::Responded {
            return;
        }
        if let Some(window) = self.window.as_mut().filter(|_| progress == RequestProgress::Sent) {
            // The server may have counted it, so it counts as spent.
            window.left = window.left.saturating_sub(1);
        }
        if let Some((count, _)) = self.ahead.as_mut().filter(|_| admitted == Admitted::Ahead) {
            // It learned nothing: the next request probes again.
            *count = count.saturating_sub(1);
        }
    }

    fn observe(&mut self, now: Instant, limit: u64, left: u64, reset: Duration) {
        if reset > LONGEST_WINDOW {
            return;
        }
        let ends_at = now + reset;
        let Some(known) = self.window else {
            self.window = Some(RateWindow { ends_at, length: reset, limit, left });
            self.ahead = None;
            return;
        };
        let length = reset.max(known.length);
        let has_ended = known.ends_at <= now;
        if !has_ended && known.ends_at > ends_at + SAME_END {
            // A late response of the previous window, which arrived after one of this window.
            return;
        }
        let is_same = ends_at <= known.ends_at + SAME_END && !(has_ended && left > known.left);
        self.window = Some(if is_same {
            // Responses overtake each other: within a window the smallest number is the newest.
            // Each reports an end that is at most a second too late.
            let (ends_at, left) = (ends_at.min(known.ends_at), left.min(known.left));
            RateWindow { ends_at, length, limit, left }
        } else {
            self.ahead = None;
            RateWindow { ends_at, length, limit, left }
        });
    }

    /// Handles a response without rate limit headers: there is no limit, unless a window is open.
    fn observe_unlimited(&mut self, now: Instant) {
        if self.window.is_none_or(|window| window.ends_at <= now) {
            self.window = None;
            self.unlimited = true;
            self.ahead = None;
        }
    }

    fn close(&mut self, until: Instant) {
        self.closed_until = Some(self.closed_until.map_or(until, |known| known.max(until)));
        // The known state was wrong; after the wait nothing is known.
        self.window = None;
        self.unlimited = false;
        self.ahead = None;
    }

    fn closed_at(&self, now: Instant) -> Option<Instant> {
        self.closed_until.filter(|until| *until > now)
    }
}

/// Returns how long a response asks to wait, in whichever header it says so.
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
    use std::cell::Cell;

    use futures::future::join_all;
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const LATENCY: Duration = Duration::from_millis(20);

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

    /// A server that counts in fixed windows of 100 a minute, and responds after a delay.
    struct Counting {
        limiter: Arc<RequestLimiter>,
        opened_at: Cell<Option<Instant>>,
        used: Cell<u64>,
        /// One in this many responses is lost.
        losing: u64,
    }

    impl Counting {
        fn losing(losing: u64) -> Self {
            Self {
                limiter: Arc::default(),
                opened_at: Cell::default(),
                used: Cell::default(),
                losing,
            }
        }

        fn count(&self) -> (u64, u64) {
            let age = |at: &Instant| at.elapsed().as_secs() < 60;
            let opened_at = self.opened_at.get().filter(age).unwrap_or_else(|| {
                self.used.set(0);
                Instant::now()
            });
            self.opened_at.set(Some(opened_at));
            self.used.set(self.used.get() + 1);
            assert!(self.used.get() <= 100, "refused");
            (100 - self.used.get(), 60 - opened_at.elapsed().as_secs())
        }

        async fn send(&self) {
            let mut permit = self.limiter.admit(Throttler::Lifecycle, LONG).await.unwrap();
            permit.sent();
            tokio::time::sleep(LATENCY / 2).await;
            let (left, reset) = self.count();
            tokio::time::sleep(LATENCY / 2).await;
            if !self.used.get().is_multiple_of(self.losing) {
                permit.learn(200, &window(left, reset));
            }
        }

        /// Sends this many requests at once, and returns in which second each was done.
        async fn send_all(&self, count: usize) -> Vec<u64> {
            let start = Instant::now();
            let sends = (0..count).map(|_| async {
                self.send().await;
                start.elapsed().as_secs()
            });
            let mut seconds = join_all(sends).await;
            seconds.sort_unstable();
            seconds
        }
    }

    /// Requests this many admissions at once without sending anything, and returns when each came.
    async fn admitted_at(limiter: &Arc<RequestLimiter>, count: usize) -> Vec<u64> {
        let start = Instant::now();
        let waits = (0..count).map(|_| async {
            let permit = limiter.admit(Throttler::Lifecycle, LONG).await.unwrap();
            (start.elapsed().as_secs(), permit)
        });
        join_all(waits).await.into_iter().map(|(at, _)| at).collect()
    }

    async fn respond(limiter: &Arc<RequestLimiter>, status: u16, headers: &HeaderMap) {
        let mut permit = limiter.admit(Throttler::Lifecycle, LONG).await.unwrap();
        permit.sent();
        permit.learn(status, headers);
    }

    #[tokio::test(start_paused = true)]
    async fn without_headers_there_is_no_limit() {
        let limiter = Arc::default();
        respond(&limiter, 200, &HeaderMap::new()).await;
        assert_eq!(admitted_at(&limiter, 1000).await.last(), Some(&0));
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_a_window_goes_at_once_and_the_rest_evenly() {
        let server = Counting::losing(u64::MAX);
        let seconds = server.send_all(98).await;
        let at_once = seconds.iter().filter(|&&second| second == 0).count();
        assert!((48..=52).contains(&at_once), "{seconds:?}");
        for (index, second) in seconds.iter().enumerate().skip(50) {
            let evenly = (index as u64 - 49) * 60 / 49;
            assert!(second.abs_diff(evenly) <= 2, "request {index} in second {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_window_gets_more_than_its_budget_and_little_is_wasted() {
        for losing in [u64::MAX, 20, 3] {
            let server = Counting::losing(losing);
            // Four windows less their reserves, and a few more.
            let seconds = server.send_all(4 * 98 + 20).await;
            let last = *seconds.last().unwrap();
            assert!((240..=250).contains(&last), "412 at 100 a minute took {last} s ({losing})");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_is_sent_and_the_others_wait_for_its_response() {
        let limiter: Arc<RequestLimiter> = Arc::default();
        let first = limiter.admit(Throttler::Lifecycle, LONG).await.unwrap();
        let start = Instant::now();
        let respond_later = async {
            tokio::time::sleep(LATENCY).await;
            first.learn(200, &window(99, 60));
        };
        let (second, ()) = tokio::join!(limiter.admit(Throttler::Lifecycle, LONG), respond_later);
        assert_eq!(start.elapsed(), LATENCY);
        drop(second);
        // A probe that is never sent, or whose response takes too long, does not block the others.
        let limiter: Arc<RequestLimiter> = Arc::default();
        drop(limiter.admit(Throttler::Lifecycle, LONG).await);
        let slow = limiter.admit(Throttler::Lifecycle, LONG).await;
        assert_eq!(start.elapsed(), LATENCY);
        drop(limiter.admit(Throttler::Lifecycle, LONG).await);
        assert_eq!(start.elapsed(), LATENCY + AHEAD);
        drop(slow);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_nothing_goes_before_its_time() {
        let limiter = Arc::default();
        respond(&limiter, 429, &headers(&[("Retry-After-sandbox-lifecycle", 30)])).await;
        assert!(admitted_at(&limiter, 5).await.iter().all(|&second| second >= 30));
        let start = Instant::now();
        respond(&limiter, 429, &headers(&[("Retry-After", 7)])).await;
        drop(limiter.admit(Throttler::Create, LONG).await.unwrap());
        assert_eq!(start.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_calls_back_those_that_were_admitted_before() {
        let limiter: Arc<RequestLimiter> = Arc::default();
        respond(&limiter, 200, &window(52, 50)).await;
        let early = limiter.admit(Throttler::Lifecycle, LONG).await.unwrap();
        assert!(!early.is_void());
        respond(&limiter, 429, &headers(&[("Retry-After-sandbox-lifecycle", 20)])).await;
        assert!(early.is_void());
    }

    #[tokio::test(start_paused = true)]
    async fn one_throttler_does_not_hold_up_another() {
        let limiter = Arc::default();
        respond(&limiter, 429, &headers(&[("Retry-After-sandbox-lifecycle", 30)])).await;
        let start = Instant::now();
        drop(limiter.admit(Throttler::Authenticated, LONG).await.unwrap());
        assert_eq!(start.elapsed(), Duration::ZERO);
        let refused = limiter.admit(Throttler::Lifecycle, Duration::from_secs(10)).await;
        assert_eq!(refused.unwrap_err(), TooLong(Duration::from_secs(30)));
    }

    #[test]
    fn the_longest_retry_after_counts() {
        let both = headers(&[("Retry-After-authenticated", 3), ("Retry-After", 9)]);
        assert_eq!(retry_after(&both), Some(Duration::from_secs(9)));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
