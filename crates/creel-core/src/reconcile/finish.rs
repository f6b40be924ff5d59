//! Ledger to world: finds what records speak of, and gives it back.

use futures::StreamExt;
use jiff::Timestamp;
use tracing::{debug, info};

use crate::clock::millis;
use crate::ledger::{Event, LedgerError, Record};
use crate::plan::{Binding, Plan, PlanItem, VERSION};
use crate::provider::{Observed, ProviderError};

use super::{Reconciler, Status};

/// How many searches are under way at once.
const SEARCH_CONCURRENCY: usize = 16;

/// The rule named in reports.
const RULE: &str = "reconcile: its owner is gone";

/// What a search for a record's object showed.
pub(super) enum Search {
    /// These are there; the first one is the record's own.
    Found(Vec<Observed>),
    /// Its recorded object is absent.
    Absent,
    /// Nothing came of the create yet; it may land late.
    NothingYet,
    /// Nothing came of the create, and nothing can any more.
    Nothing,
}

impl Reconciler {
    /// Gives back what records speak of; they must be this process's own already.
    pub(super) async fn release(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let found = self.search_all(records, status).await;
        self.act_on(found, status).await
    }

    /// Looks for what records speak of; changes nothing. Records that are in the hands of a
    /// provider that does not answer are left out.
    pub(super) async fn search_all(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Vec<(Record, Search)> {
        let searches = records.into_iter().map(|record| async move {
            let found = self.search(&record).await;
            (record, found)
        });
        let mut searches = futures::stream::iter(searches).buffer_unordered(SEARCH_CONCURRENCY);
        let mut results = Vec::new();
        while let Some((record, found)) = searches.next().await {
            match found {
                Ok(found) => results.push((record, found)),
                Err(error) => status.note_unreachable(&error),
            }
        }
        results
    }

    /// Does what the searches show to be due; the records must be this process's own.
    pub(super) async fn act_on(
        &self,
        searched: Vec<(Record, Search)>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let mut items = Vec::new();
        for (record, found) in searched {
            match found {
                Search::Found(objects) => items.extend(self.plan_release(&record, objects).await?),
                Search::Absent => self.close_absent(&record).await?,
                Search::NothingYet => {
                    debug!(resource = %record.id, "nothing came of the create yet");
                    status.open_intents += 1;
                }
                Search::Nothing => self.close_intent(&record, status).await?,
            }
        }
        if !items.is_empty() {
            let plan = plan_of(items);
            status.add(self.reaper().run(&plan, &self.options, &()).await);
        }
        Ok(())
    }

    async fn search(&self, record: &Record) -> Result<Search, ProviderError> {
        let provider = self.providers.get(record.provider)?;
        if let Some(object) = record.state.object() {
            return Ok(match provider.inspect(record.kind, object).await? {
                Some(seen) => Search::Found(vec![seen]),
                None => Search::Absent,
            });
        }
        // Judged before the search: what lands during it is seen, or is within the window.
        let may_land = self.may_still_land(record);
        let found = provider.find(&record.marks()).await?;
        Ok(match (found.is_empty(), may_land) {
            (false, _) => Search::Found(found),
            (true, true) => Search::NothingYet,
            (true, false) => Search::Nothing,
        })
    }

    fn may_still_land(&self, record: &Record) -> bool {
        let age = self.clock.now().wall_ms - record.intended_at_ms;
        age < millis(self.intent_window)
    }

    /// Records what was found, and makes plan items of it.
    async fn plan_release(
        &self,
        record: &Record,
        objects: Vec<Observed>,
    ) -> Result<Vec<PlanItem>, LedgerError> {
        let mut items = Vec::new();
        for (place, seen) in objects.into_iter().enumerate() {
            // A create that was sent twice can have made two: the second is nobody's record.
            let resource = (place == 0).then_some(record.id);
            if resource.is_some() && record.state.object().is_none() {
                info!(resource = %record.id, object = %seen.id, "found the object of a lost answer");
                let found = Event::Found { object: seen.id.clone() };
                self.ledger.append(&[(record.id, found)]).await?;
            }
            let rule = RULE.to_owned();
            items.push(PlanItem {
                seen,
                rule,
                resource,
                binding: Binding::Identity,
                evidence: None,
            });
        }
        Ok(items)
    }

    /// Closes the records of what would not go and has gone since; changes nothing else.
    pub(super) async fn look_at_stuck(
        &self,
        stuck: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        // One that cannot be looked at is as it was: nothing was to be done about it anyway.
        for (record, found) in self.search_all(stuck, &mut Status::default()).await {
            if matches!(found, Search::Absent) {
                self.close_absent(&record).await?;
                status.quarantined -= 1;
                status.left_quarantine += 1;
            }
        }
        Ok(())
    }

    async fn close_absent(&self, record: &Record) -> Result<(), LedgerError> {
        let why = "found absent after its owner's end".to_owned();
        let events =
            [(record.id, Event::ReleaseRequested { why }), (record.id, Event::VerifiedGone)];
        match self.ledger.append(&events).await {
            // Somebody else closed it first.
            Ok(_) | Err(LedgerError::Illegal { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes an unanswered create whose window has passed.
    async fn close_intent(&self, record: &Record, status: &mut Status) -> Result<(), LedgerError> {
        let evidence = "nothing of its name or label appeared within the window".to_owned();
        self.ledger.append(&[(record.id, Event::NeverCreated { evidence })]).await?;
        status.closed_intents += 1;
        Ok(())
    }

    /// Notes records whose object is absent although their owner lives.
    pub(super) async fn note_lost(
        &self,
        kept: &[Record],
        inventory: &[Observed],
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        for record in kept {
            let crate::ledger::State::Created { object } = &record.state else { continue };
            let listed =
                inventory.iter().any(|seen| seen.provider == record.provider && &seen.id == object);
            let asked = !status.unreachable.iter().any(|u| u.provider == record.provider);
            if listed || !asked {
                continue;
            }
            // A list may be older than the record: only an inspect proves the absence.
            let Ok(provider) = self.providers.get(record.provider) else { continue };
            if let Ok(None) = provider.inspect(record.kind, object).await {
                match self.ledger.append(&[(record.id, Event::Vanished)]).await {
                    Ok(_) => status.lost += 1,
                    Err(LedgerError::Illegal { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// Makes a plan of our own orphans, which needs no worlds: their ids are on record.
pub(crate) fn plan_of(items: Vec<PlanItem>) -> Plan {
    Plan {
        version: VERSION,
        made_at: Timestamp::now(),
        worlds: Vec::new(),
        listed: items.len(),
        items,
        spared: Vec::new(),
    }
}
