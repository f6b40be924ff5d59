//! Proof of absence: whether a sandbox that returns 404 is hidden or gone.
//!
//! When a destroy fails, the record stays in `error` and only a listing with
//! `includeErroredDeleted` shows it. A single lookup queries the sandbox by id. When many releases
//! are verified at once, one listing of all failed sandboxes serves every lookup that began before
//! it. The proof therefore costs a few requests a second, however many sandboxes are released.
//!
//! Listings lag behind. A listing without the record is therefore trusted only when a second one, a
//! moment later, does not show it either.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use creel_model::provider::Deadline;
use tokio::time::{Instant, sleep_until};

use super::api::{DaytonaResult, ListQuery};
use super::listing;
use super::model::DaytonaSandbox;
use super::rest::DaytonaApi;

/// Minimum time between the starts of two shared listings, per page.
const GAP: Duration = Duration::from_millis(250);
/// Maximum time between two shared listings, however many pages they have.
const LONGEST_GAP: Duration = Duration::from_secs(4);
/// Rows per page.
const PAGE: usize = 200;
/// How long to wait before a listing without the record is read once more.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Looks up hidden records, one by one or many at once.
#[derive(Debug)]
pub(super) struct Absences {
    api: DaytonaApi,
    /// The deadline of the current operation, paused while it waits for a listing.
    deadline: Deadline,
    lookups: Arc<Lookups>,
}

/// The lookups of all operations.
#[derive(Debug, Default)]
struct Lookups {
    /// The number of lookups in progress.
    count: AtomicUsize,
    /// The last shared listing.
    listing: tokio::sync::Mutex<Option<FailedListing>>,
}

/// A listing of all failed sandboxes.
#[derive(Debug)]
struct FailedListing {
    began_at: Instant,
    ended_at: Instant,
    /// When the next listing may begin.
    next_at: Instant,
    hidden: HashMap<String, DaytonaSandbox>,
}

/// Counts one lookup as in progress until it is dropped.
struct LookupGuard<'a>(&'a AtomicUsize);

impl Drop for LookupGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Absences {
    pub(super) fn new(api: DaytonaApi) -> Self {
        Self { api, deadline: Deadline::NONE, lookups: Arc::default() }
    }

    /// Returns the same lookups for one operation.
    pub(super) fn within(&self, api: DaytonaApi, deadline: Deadline) -> Self {
        Self { api, deadline, lookups: Arc::clone(&self.lookups) }
    }

    /// Returns the hidden record of a sandbox that returns 404, if there is one.
    pub(super) async fn hidden(&self, id: &str) -> DaytonaResult<Option<DaytonaSandbox>> {
        let others = self.lookups.count.fetch_add(1, Ordering::Relaxed);
        let _lookup = LookupGuard(&self.lookups.count);
        let (ended_at, hidden) = self.search(id, Instant::now(), others == 0).await?;
        if hidden.is_some() {
            return Ok(hidden);
        }
        let alone = self.lookups.count.load(Ordering::Relaxed) == 1;
        let (_, hidden) = self.search(id, ended_at + CONFIRM_AFTER, alone).await?;
        Ok(hidden)
    }

    /// Searches a listing that begins no sooner than `at`; returns when it ended, and the record.
    async fn search(
        &self,
        id: &str,
        at: Instant,
        alone: bool,
    ) -> DaytonaResult<(Instant, Option<DaytonaSandbox>)> {
        if alone {
            self.deadline.pause_during(sleep_until(at)).await;
            let hidden = self.search_by_id(id).await?;
            return Ok((Instant::now(), hidden));
        }
        // Held across the listing on purpose: lookups that queue here meanwhile share the next one.
        let mut shared = self.deadline.pause_during(self.lookups.listing.lock()).await;
        if let Some(listing) = shared.as_ref().filter(|listing| listing.began_at >= at) {
            return Ok((listing.ended_at, listing.hidden.get(id).cloned()));
        }
        let next_at = shared.as_ref().map_or(at, |last| last.next_at.max(at));
        self.deadline.pause_during(sleep_until(next_at)).await;
        let listing = shared.insert(self.list().await?);
        Ok((listing.ended_at, listing.hidden.get(id).cloned()))
    }

    async fn search_by_id(&self, id: &str) -> DaytonaResult<Option<DaytonaSandbox>> {
        let query =
            ListQuery { id: Some(id.to_owned()), errored_deleted: true, ..ListQuery::default() };
        let found = listing::all(&self.api, &query).await?;
        // Other rows are older than the observed 404: the listing lags behind.
        Ok(found.into_iter().find(|sandbox| sandbox.id == id && sandbox.is_errored_deleted()))
    }

    async fn list(&self) -> DaytonaResult<FailedListing> {
        let began_at = Instant::now();
        let query = ListQuery {
            states: vec!["error".to_owned(), "build_failed".to_owned()],
            errored_deleted: true,
            ..ListQuery::default()
        };
        let failed = listing::all(&self.api, &query).await?;
        let pages = u32::try_from(failed.len() / PAGE + 1).unwrap_or(u32::MAX);
        let next_at = began_at + GAP.saturating_mul(pages).min(LONGEST_GAP);
        let hidden = failed.into_iter().filter(DaytonaSandbox::is_errored_deleted);
        let hidden = hidden.map(|found| (found.id.clone(), found)).collect();
        Ok(FailedListing { began_at, ended_at: Instant::now(), next_at, hidden })
    }
}
