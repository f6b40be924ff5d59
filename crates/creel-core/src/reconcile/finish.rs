//! Ledger to world: finds what records speak of, and gives it back.

use futures::StreamExt;
use tracing::{debug, info};

use crate::labels;
use crate::ledger::{Event, LedgerError, Record};
use crate::plan::{Binding, Plan, PlanItem};
use crate::provider::{ErrorClass, Identity, Kind, Observed, ProviderError};
use crate::reap::ItemReport;

use super::intent::Landing;
use super::{Reconciler, Status};

/// How many searches are under way at once.
const SEARCH_CONCURRENCY: usize = 16;

/// The rule named in reports.
const RULE: &str = "on record, and its owner has ended or is ending";

/// Said of a create when something has its name that may be somebody else's.
const DOUBTFUL: &str = "kept, nothing proves that what has its name came of it";

/// What a search for a record's object showed.
pub(super) enum Search {
    /// This is it.
    Found(Box<Observed>),
    /// Several came of one create, or a copy of it is among them: none can be proven ours.
    Several(Vec<Observed>),
    /// Its recorded object is absent.
    Absent,
    /// Nothing came of the create yet; it may land late.
    NothingYet(Landing, Doubtful),
    /// Nothing came of the create, and nothing can any more: how that is known.
    Nothing(&'static str, Doubtful),
}

/// What has the name of a create and nothing that proves where it came from.
pub(super) type Doubtful = Option<Box<Observed>>;

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
        let (mut items, mut last) = (Vec::new(), Vec::new());
        for (record, found) in searched {
            match found {
                Search::Found(seen) => {
                    let item = self.plan_release(&record, *seen).await?;
                    if goes_last(&record) { last.push(item) } else { items.push(item) }
                }
                Search::Several(objects) => self.keep_all(&record, objects, status).await?,
                Search::Absent => self.close_absent(&record).await?,
                Search::NothingYet(landing, doubtful) => {
                    debug!(resource = %record.id, "nothing came of the create yet");
                    self.note_waiting(&record, landing, status).await?;
                    status.spare_doubtful(&record, doubtful);
                }
                Search::Nothing(evidence, doubtful) => {
                    let evidence = doubtful.as_ref().map_or(evidence, |_| DOUBTFUL);
                    self.close_intent(&record, evidence, status).await?;
                    status.spare_doubtful(&record, doubtful);
                }
            }
        }
        for items in [items, last].into_iter().filter(|items| !items.is_empty()) {
            let plan = Plan::of_ours(items);
            status.add(self.reaper().run(&plan, &self.options, &()).await);
        }
        Ok(())
    }

    async fn search(&self, record: &Record) -> Result<Search, ProviderError> {
        let provider = self.providers.get(record.provider)?;
        if let Some(object) = record.state.object() {
            return Ok(match provider.inspect(record.kind, object).await? {
                Some(seen) => Search::Found(Box::new(seen)),
                None => Search::Absent,
            });
        }
        // Judged before the search: what lands during it is seen, or is within the window.
        let landing = self.landing(record, provider.as_ref());
        let mut found = provider.find(&record.marks()).await?;
        if found.len() > 1 {
            return Ok(Search::Several(found));
        }
        if let Some(seen) = found.pop() {
            return Ok(Search::Found(Box::new(seen)));
        }
        // Images carry no label: one of that name may have come of the create, or of another.
        let doubtful = match record.kind {
            Kind::Image => match provider.inspect(record.kind, &record.name).await {
                // No reference at all: that of a step of a build is a description.
                Err(error) if error.class == ErrorClass::Invalid => None,
                seen => seen?,
            },
            _ => None,
        };
        let doubtful = doubtful.filter(|seen| !names_what_it_named(record, seen)).map(Box::new);
        Ok(match landing {
            Landing::Never(evidence) => Search::Nothing(evidence, doubtful),
            landing => Search::NothingYet(landing, doubtful),
        })
    }

    /// Records what was found, and makes a plan item of it.
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

    /// Keeps everything that has the marks of one create: at most one of them is ours, and
    /// nothing tells which.
    async fn keep_all(
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

    pub(super) async fn close_absent(&self, record: &Record) -> Result<(), LedgerError> {
        let why = "found absent after its owner's end".to_owned();
        let events = [
            (record.id, Event::ReleaseRequested { why: why.into() }),
            (record.id, Event::VerifiedGone),
        ];
        match self.ledger.append(&events).await {
            // Somebody else closed it first.
            Ok(_) | Err(LedgerError::Illegal { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes an unanswered create of which nothing can come any more.
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

/// Returns whether something goes after everything else: a name that is put back on an image, which
/// changes when that image was tagged last and so the proof of its other names; and images
/// themselves, which go after their names.
fn goes_last(record: &Record) -> bool {
    matches!(
        &record.identity,
        Some(Identity::Tag { replaces: Some(_), .. } | Identity::Image { .. })
    )
}

/// Returns whether a reference names the image that it named before its create.
fn names_what_it_named(record: &Record, seen: &Observed) -> bool {
    let before = record.labels.get(labels::REPLACED_IMAGE);
    before.is_some() && before == seen.references().last()
}

impl Status {
    /// Reports something that has the name of a create and may be somebody else's.
    pub(super) fn spare_doubtful(&mut self, record: &Record, doubtful: Doubtful) {
        let Some(seen) = doubtful else { return };
        let reason = "kept, nothing proves that it came of the create on record: \
                      whoever builds or tags it again gets the same name"
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
