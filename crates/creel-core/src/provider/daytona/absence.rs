//! Proof of absence: whether a sandbox that answers 404 is hidden or gone.
//!
//! When a destroy fails, the record stays in `error` and only a listing with
//! `includeErroredDeleted` shows it. Who is alone asks by id. Where many
//! releases are verified at once, one listing of everything that failed
//! answers for all that asked before it began, so that the proof costs a few
//! requests a second however many sandboxes go.
//!
//! Listings lag behind. So one that shows nothing is believed only when a
//! second one, a moment later, shows nothing either.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::retry;

use super::model::Sandbox;
use super::read;
use super::wire::{Answered, ListQuery, Wire};

/// Shared listings begin at least this far apart for each page they have.
const GAP: Duration = Duration::from_millis(250);
/// Where so much has failed that they have many pages, they are no further apart than this.
const LONGEST_GAP: Duration = Duration::from_secs(4);
/// How many rows a page has.
const PAGE: usize = 200;
/// The moment after which a listing that showed nothing is read once more.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Looks up hidden records, alone or for many at once.
#[derive(Debug)]
pub(super) struct Absences {
    wire: Arc<dyn Wire>,
    /// How many ask at the moment.
    asking: AtomicUsize,
    /// The last shared listing.
    shared: tokio::sync::Mutex<Option<Listing>>,
}

/// A listing of everything that failed.
#[derive(Debug)]
struct Listing {
    began_at: Instant,
    ended_at: Instant,
    /// When the next one may begin.
    next_at: Instant,
    hidden: HashMap<String, Sandbox>,
}

/// One who asks, until this is dropped.
struct Asking<'a>(&'a AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Absences {
    pub(super) fn new(wire: Arc<dyn Wire>) -> Self {
        Self { wire, asking: AtomicUsize::new(0), shared: tokio::sync::Mutex::default() }
    }

    /// Returns the hidden record of a sandbox that answers 404, if there is one.
    pub(super) async fn hidden(&self, id: &str) -> Answered<Option<Sandbox>> {
        let others = self.asking.fetch_add(1, Ordering::Relaxed);
        let _asking = Asking(&self.asking);
        let (asked_at, hidden) = self.ask(id, Instant::now(), others == 0).await?;
        if hidden.is_some() {
            return Ok(hidden);
        }
        let alone = self.asking.load(Ordering::Relaxed) == 1;
        let (_, hidden) = self.ask(id, asked_at + CONFIRM_AFTER, alone).await?;
        Ok(hidden)
    }

    /// Asks a listing that begins no sooner than this; returns when it ended, and the record.
    async fn ask(
        &self,
        id: &str,
        at: Instant,
        alone: bool,
    ) -> Answered<(Instant, Option<Sandbox>)> {
        if alone {
            retry::excused(sleep_until(at)).await;
            let hidden = self.ask_by_id(id).await?;
            return Ok((Instant::now(), hidden));
        }
        // Held across the listing on purpose: whoever queues here meanwhile shares the next one.
        let mut shared = retry::excused(self.shared.lock()).await;
        if let Some(listing) = shared.as_ref().filter(|listing| listing.began_at >= at) {
            return Ok((listing.ended_at, listing.hidden.get(id).cloned()));
        }
        let next_at = shared.as_ref().map_or(at, |last| last.next_at.max(at));
        retry::excused(sleep_until(next_at)).await;
        let listing = shared.insert(self.list().await?);
        Ok((listing.ended_at, listing.hidden.get(id).cloned()))
    }

    async fn ask_by_id(&self, id: &str) -> Answered<Option<Sandbox>> {
        let query =
            ListQuery { id: Some(id.to_owned()), errored_deleted: true, ..ListQuery::default() };
        let found = read::all(&*self.wire, &query).await?;
        // Other rows are older than the 404 that was seen: the listing lags behind.
        Ok(found.into_iter().find(|sandbox| sandbox.id == id && sandbox.is_errored_deleted()))
    }

    async fn list(&self) -> Answered<Listing> {
        let began_at = Instant::now();
        let query = ListQuery {
            states: vec!["error".to_owned(), "build_failed".to_owned()],
            errored_deleted: true,
            ..ListQuery::default()
        };
        let failed = read::all(&*self.wire, &query).await?;
        let pages = u32::try_from(failed.len() / PAGE + 1).unwrap_or(u32::MAX);
        let next_at = began_at + GAP.saturating_mul(pages).min(LONGEST_GAP);
        let hidden = failed.into_iter().filter(Sandbox::is_errored_deleted);
        let hidden = hidden.map(|found| (found.id.clone(), found)).collect();
        Ok(Listing { began_at, ended_at: Instant::now(), next_at, hidden })
    }
}
