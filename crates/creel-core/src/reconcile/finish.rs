//! Ledger to providers: finds the objects of records, and releases them.

use creel_ledger::{Event, LedgerError, Record};
use creel_model::labels;
use creel_model::provider::{ErrorClass, Identity, Kind, Observed, ProviderError};
use futures::StreamExt;
use tracing::{debug, info};

use crate::plan::{Binding, PlanItem};
use crate::reap::ItemReport;

use super::intent::LateCreate;
use super::{Reconciler, Status};

/// Maximum number of concurrent searches.
const SEARCH_CONCURRENCY: usize = 16;

/// The rule shown in reports.
const RULE: &str = "on record, and its owner has ended or is ending";

/// The evidence for a create whose name belongs to an object that may be foreign.
const DOUBTFUL: &str = "kept, nothing proves that what has its name came of it";

/// The result of the search for a record's object.
pub(super) enum SearchResult {
    /// The object was found.
    Found(Box<Observed>),
    /// Several objects match one create, possibly including a copy: none can be proven ours.
    Several(Vec<Observed>),
    /// Its recorded object is absent.
    Absent,
    /// The create has made no object yet; it may complete late.
    Pending(LateCreate, Doubtful),
    /// The create made no object and no longer can. Contains the evidence.
    NeverCreated(&'static str, Doubtful),
}

/// An object that has the name of a create, but nothing that proves its origin.
pub(super) type Doubtful = Option<Box<Observed>>;

impl Reconciler {
    /// Releases the objects of records. This process must already own the records.
    pub(super) async fn release(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let found = self.search_all(records, status).await;
        self.act_on(found, status).await
    }

    /// Searches for the objects of records, and changes nothing.
    ///
    /// Records whose provider does not respond are left out.
    pub(super) async fn search_all(
        &self,
        records: Vec<Record>,
        status: &mut Status,
    ) -> Vec<(Record, SearchResult)> {
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

    /// Acts on the results of searches. This process must own the records.
    pub(super) async fn act_on(
        &self,
        searched: Vec<(Record, SearchResult)>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        self.prepare_release(&searched).await;
        let (mut items, mut last) = (Vec::new(), Vec::new());
        for (record, found) in searched {
            match found {
                // What cannot be recorded on a full disk must not keep the others from being released.
                SearchResult::Found(seen) => match self.plan_release(&record, *seen).await {
                    Ok(item) if is_released_last(&record) => last.push(item),
                    Ok(item) => items.push(item),
                    Err(error) => status.tolerate_full(Err(error))?,
                },
                SearchResult::Several(objects) => {
                    let kept = self.quarantine_all(&record, objects, status).await;
                    status.tolerate_full(kept)?;
                }
                SearchResult::Absent => {
                    let closed = self.close_absent(&record).await;
                    status.tolerate_full(closed)?;
                }
                SearchResult::Pending(late_create, doubtful) => {
                    debug!(resource = %record.id, "nothing came of the create yet");
                    let noted = self.note_waiting(&record, late_create, status).await;
                    status.tolerate_full(noted)?;
                    status.report_doubtful(&record, doubtful);
                }
                SearchResult::NeverCreated(evidence, doubtful) => {
                    let evidence = doubtful.as_ref().map_or(evidence, |_| DOUBTFUL);
                    let closed = self.close_intent(&record, evidence, status).await;
                    status.tolerate_full(closed)?;
                    status.report_doubtful(&record, doubtful);
                }
            }
        }
        for items in [items, last].into_iter().filter(|items| !items.is_empty()) {
            status.add(self.pipeline().release_ours(items).await);
        }
        Ok(())
    }

    async fn search(&self, record: &Record) -> Result<SearchResult, ProviderError> {
        let provider = self.providers.get(record.provider)?;
        if let Some(object) = record.state.object() {
            return Ok(match provider.inspect(record.kind, object).await? {
                Some(seen) => SearchResult::Found(Box::new(seen)),
                None => SearchResult::Absent,
            });
        }
        // Decide before the search: an object that appears during it is either found or within the
        // window.
        let late_create = self.late_create(record, provider.as_ref());
        let mut found = provider.find(&record.marks()).await?;
        if found.len() > 1 {
            return Ok(SearchResult::Several(found));
        }
        if let Some(seen) = found.pop() {
            return Ok(SearchResult::Found(Box::new(seen)));
        }
        // Images carry no label: one of that name may come from this create or from another.
        let doubtful = match record.kind {
            Kind::Image => match provider.inspect(record.kind, &record.name).await {
                // The name is not a reference: a build step has a description instead.
                Err(error) if error.class == ErrorClass::Invalid => None,
                seen => seen?,
            },
            _ => None,
        };
        let doubtful = doubtful.filter(|seen| !is_unchanged_tag(record, seen)).map(Box::new);
        Ok(match late_create {
            LateCreate::Never(evidence) => SearchResult::NeverCreated(evidence, doubtful),
            late_create => SearchResult::Pending(late_create, doubtful),
        })
    }

    /// Records the object that was found, and creates a plan item for it.
    pub(super) async fn plan_release(
        &self,
        record: &Record,
        seen: Observed,
    ) -> Result<PlanItem, LedgerError> {
        if record.state.object().is_none() {
            info!(resource = %record.id, object = %seen.id, "found the object of a lost answer");
            let (object, identity) = (seen.id.clone(), seen.identity());
            self.ledger.append(&[(record.id, Event::Found { object, identity })]).await?;
        }
        Ok(item_of(record, seen))
    }

    /// Keeps all objects that match one create.
    ///
    /// At most one of them is ours, and nothing shows which one.
    async fn quarantine_all(
        &self,
        record: &Record,
        objects: Vec<Observed>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let ids: Vec<&str> = objects.iter().map(|seen| seen.id.as_str()).collect();
        let reason = format!(
            "kept, several objects have the name and the label of one create: {}",
            ids.join(", ")
        );
        let event = Event::Quarantined { reason: reason.as_str().into() };
        self.ledger.append(&[(record.id, event)]).await?;
        status.quarantined += 1;
        for seen in objects {
            status.items.push(ItemReport::kept(&item_of(record, seen), reason.clone()));
        }
        Ok(())
    }

    /// Closes quarantined records whose object is gone. Changes nothing else.
    pub(super) async fn close_absent_quarantined(
        &self,
        stuck: Vec<Record>,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        // A record that cannot be checked stays unchanged, since there was nothing to do for it
        // anyway.
        for (record, found) in self.search_all(stuck, &mut Status::default()).await {
            if matches!(found, SearchResult::Absent) {
                self.close_absent(&record).await?;
                status.quarantined -= 1;
                status.left_quarantine += 1;
            }
        }
        Ok(())
    }

    pub(super) async fn close_absent(&self, record: &Record) -> Result<(), LedgerError> {
        let why = "found absent after its owner's end".to_owned();
        let events = [
            (record.id, Event::ReleaseRequested { why: why.into() }),
            (record.id, Event::VerifiedGone),
        ];
        match self.ledger.append(&events).await {
            // Another process closed it first.
            Ok(_) | Err(LedgerError::Illegal { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes an unanswered create that can no longer complete.
    async fn close_intent(
        &self,
        record: &Record,
        evidence: &str,
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        let evidence = evidence.into();
        self.ledger.append(&[(record.id, Event::NeverCreated { evidence })]).await?;
        status.closed_intents += 1;
        Ok(())
    }

    /// Records that an object is absent although its owner lives.
    pub(super) async fn note_lost(
        &self,
        kept: &[Record],
        inventory: &[Observed],
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        for record in kept {
            let creel_ledger::ResourceState::Created { object } = &record.state else { continue };
            let listed =
                inventory.iter().any(|seen| seen.provider == record.provider && &seen.id == object);
            let was_reachable = !status.unreachable.iter().any(|u| u.provider == record.provider);
            if listed || !was_reachable {
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

/// Returns whether a record must be released after all others.
///
/// This applies to a name that is moved back to an image: it changes when that image was last
/// tagged, and thereby the proof of its other names. It also applies to images, which are released
/// after their names.
fn is_released_last(record: &Record) -> bool {
    matches!(
        &record.identity,
        Some(Identity::Tag { replaces: Some(_), .. } | Identity::Image { .. })
    )
}

/// Returns whether a reference names the same image as before its create.
fn is_unchanged_tag(record: &Record, seen: &Observed) -> bool {
    let before = record.labels.get(labels::REPLACED_IMAGE);
    before.is_some() && before == seen.references().last()
}

impl Status {
    /// Reports an object that has the name of a create and may be foreign.
    pub(super) fn report_doubtful(&mut self, record: &Record, doubtful: Doubtful) {
        let Some(seen) = doubtful else { return };
        let reason = "kept, nothing proves that it came from the create on record: \
                      anyone who builds or tags it again gets the same name"
            .to_owned();
        self.items.push(ItemReport::kept(&item_of(record, *seen), reason));
    }
}

pub(super) fn item_of(record: &Record, seen: Observed) -> PlanItem {
    PlanItem {
        seen,
        rule: RULE.to_owned(),
        resource: Some(record.id),
        binding: Binding::Identity,
        evidence: None,
    }
}
