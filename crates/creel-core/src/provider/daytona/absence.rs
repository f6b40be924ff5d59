//! Proof of absence: whether a sandbox that answers 404 is hidden or gone.
//!
//! When a destroy fails, the record stays in `error` and only a listing with
//! `includeErroredDeleted` shows it. A single question is asked by id. Where
//! many releases are verified at once, one listing of everything that failed
//! answers for all that asked before it began, so that the proof costs a few
//! requests a second however many sandboxes go.
//!
//! Listings lag behind. So one that shows nothing is believed only when a
//! second one, a moment later, shows nothing either.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::retry;

use super::model::Sandbox;
use super::read;
use super::wire::{Answered, ListQuery, Wire};

/// Single questions are at least this far apart; what asks sooner shares a listing.
const SINGLE_GAP: Duration = Duration::from_millis(500);
/// Shared listings begin at least this far apart, so that many share one.
const ROUND_GAP: Duration = Duration::from_secs(1);

/// The moment after which a listing that showed nothing is read once more.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Looks up hidden records, alone or for many at once.
#[derive(Debug)]
pub(super) struct Absences {
    wire: Arc<dyn Wire>,
    /// When the last single question was asked.
    single_at: Mutex<Option<Instant>>,
    /// The last shared listing.
    round: tokio::sync::Mutex<Round>,
}

#[derive(Debug, Default)]
struct Round {
    started_at: Option<Instant>,
    hidden: HashMap<String, Sandbox>,
}

impl Absences {
    pub(super) fn new(wire: Arc<dyn Wire>) -> Self {
        Self { wire, single_at: Mutex::default(), round: tokio::sync::Mutex::default() }
    }

    /// Returns the hidden record of a sandbox that answers 404, if there is one.
    pub(super) async fn hidden(&self, id: &str) -> Answered<Option<Sandbox>> {
        if let Some(hidden) = self.ask(id).await? {
            return Ok(Some(hidden));
        }
        retry::excuse(CONFIRM_AFTER);
        tokio::time::sleep(CONFIRM_AFTER).await;
        self.ask(id).await
    }

    async fn ask(&self, id: &str) -> Answered<Option<Sandbox>> {
        if self.may_ask_alone() { self.ask_alone(id).await } else { self.ask_with_others(id).await }
    }

    fn may_ask_alone(&self) -> bool {
        let now = Instant::now();
        let mut last = self.single_at.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| now - last >= SINGLE_GAP);
        if may {
            *last = Some(now);
        }
        may
    }

    async fn ask_alone(&self, id: &str) -> Answered<Option<Sandbox>> {
        let query =
            ListQuery { id: Some(id.to_owned()), errored_deleted: true, ..ListQuery::default() };
        let found = read::all(&*self.wire, &query).await?;
        // Other rows are older than the 404 that was seen: the listing lags behind.
        Ok(found.into_iter().find(|sandbox| sandbox.id == id && sandbox.is_errored_deleted()))
    }

    async fn ask_with_others(&self, id: &str) -> Answered<Option<Sandbox>> {
        let asked_at = Instant::now();
        // Held across the listing on purpose: whoever queues here meanwhile shares the next one.
        let mut round = self.round.lock().await;
        if round.started_at.is_none_or(|started_at| started_at < asked_at) {
            if let Some(last) = round.started_at {
                retry::excuse(ROUND_GAP);
                tokio::time::sleep_until(last + ROUND_GAP).await;
            }
            let started_at = Instant::now();
            let query = ListQuery {
                states: vec!["error".to_owned(), "build_failed".to_owned()],
                errored_deleted: true,
                ..ListQuery::default()
            };
            let failed = read::all(&*self.wire, &query).await?;
            let hidden = failed.into_iter().filter(Sandbox::is_errored_deleted);
            round.hidden = hidden.map(|found| (found.id.clone(), found)).collect();
            round.started_at = Some(started_at);
        }
        Ok(round.hidden.get(id).cloned())
    }
}
