//! The pace: how many concurrent releases a provider handles.
//!
//! Too little concurrency wastes time; too much makes an engine slower. The limit is therefore
//! found by hill climbing: it grows as long as a larger one gets more done per second, and
//! otherwise the best one is kept. A throttled or failing provider halves it. A provider that paces
//! its own requests reports its limit, and that limit is used.

use std::collections::HashMap;
use std::thread::available_parallelism;
use std::time::Instant;

use creel_model::provider::{ErrorClass, ProviderName};

const MOST: usize = 64;
const LEAST: usize = 1;

/// The paces of all providers.
#[derive(Debug)]
pub(super) struct Paces {
    fixed: Option<usize>,
    /// The limits that providers report for themselves.
    reported: HashMap<ProviderName, usize>,
    paces: HashMap<ProviderName, Pace>,
}

impl Paces {
    pub(super) fn new(fixed: Option<usize>) -> Self {
        Self { fixed, reported: HashMap::new(), paces: HashMap::new() }
    }

    /// Uses the limit that a provider reports.
    pub(super) fn set_reported(&mut self, provider: ProviderName, concurrency: usize) {
        self.reported.insert(provider, concurrency);
    }

    pub(super) fn has_room(&self, provider: ProviderName) -> bool {
        let reported = self.fixed.or_else(|| self.reported.get(&provider).copied());
        let limit = |pace: &Pace| reported.unwrap_or(pace.limit);
        self.paces.get(&provider).is_none_or(|pace| pace.in_flight < limit(pace))
    }

    pub(super) fn start(&mut self, provider: ProviderName) {
        let pace = self.paces.entry(provider).or_insert_with(|| Pace::starting(Instant::now()));
        pace.in_flight += 1;
    }

    pub(super) fn finish(&mut self, provider: ProviderName, error: Option<ErrorClass>) {
        if let Some(pace) = self.paces.get_mut(&provider) {
            pace.in_flight -= 1;
            pace.finished(Instant::now(), error);
        }
    }
}

/// The pace of one provider.
#[derive(Debug)]
struct Pace {
    /// The maximum number of concurrent releases.
    limit: usize,
    /// The current number of releases.
    in_flight: usize,
    /// The limit with the highest rate, and that rate in releases per second.
    best: Option<(usize, f64)>,
    /// When the measurement of the current limit started.
    since: Instant,
    /// How many releases have finished since then.
    finished: usize,
}

impl Pace {
    fn starting(now: Instant) -> Self {
        // Measured on two cores: running containers are released fastest with 8 to 16 at once.
        let cores = available_parallelism().map_or(2, usize::from);
        let limit = (cores * 6).clamp(8, MOST / 2);
        Self { limit, in_flight: 0, best: None, since: now, finished: 0 }
    }

    fn finished(&mut self, now: Instant, error: Option<ErrorClass>) {
        if matches!(error, Some(ErrorClass::Throttled | ErrorClass::Unreachable)) {
            self.best = None;
            self.change_to(self.limit / 2, now);
            return;
        }
        self.finished += 1;
        // Two rounds of the current limit are enough to compare.
        if self.finished < self.limit * 2 {
            return;
        }
        let rate = self.finished as f64 / (now - self.since).as_secs_f64().max(0.001);
        match self.best {
            Some((limit, best)) if rate < best * 0.95 => self.change_to(limit, now),
            Some((_, best)) if rate < best * 1.05 => self.change_to(self.limit, now),
            _ => {
                self.best = Some((self.limit, rate));
                self.change_to(self.limit + self.limit / 3, now);
            }
        }
    }

    fn change_to(&mut self, limit: usize, now: Instant) {
        self.limit = limit.clamp(LEAST, MOST);
        self.since = now;
        self.finished = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs a provider whose rate depends on the limit, and returns the final limit.
    fn converges_at(rate_at: impl Fn(usize) -> f64) -> usize {
        let mut now = Instant::now();
        let mut pace = Pace::starting(now);
        pace.limit = 8;
        for _ in 0..2_000 {
            now += Duration::from_secs_f64(1.0 / rate_at(pace.limit));
            pace.finished(now, None);
        }
        pace.limit
    }

    #[test]
    fn concurrency_grows_while_it_increases_the_rate() {
        assert_eq!(converges_at(|limit| limit as f64), MOST);
    }

    #[test]
    fn concurrency_stays_where_more_would_lower_the_rate() {
        let hill = |limit: usize| if limit <= 13 { limit as f64 } else { 26.0 - limit as f64 };
        let limit_reached = converges_at(|limit| hill(limit).max(1.0));
        assert!((8..=17).contains(&limit_reached), "{limit_reached}");
    }

    #[test]
    fn a_throttled_provider_gets_half_the_concurrency() {
        let now = Instant::now();
        let mut pace = Pace::starting(now);
        pace.limit = 16;
        pace.finished(now, Some(ErrorClass::Throttled));
        assert_eq!(pace.limit, 8);
        for _ in 0..10 {
            pace.finished(now, Some(ErrorClass::Throttled));
        }
        assert_eq!(pace.limit, LEAST);
    }
}
