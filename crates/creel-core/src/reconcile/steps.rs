//! Steps of interrupted builds: found by the images they are built on, and put on record.

use std::collections::BTreeSet;
use std::time::Duration;

use creel_ledger::{Event, Intent, LedgerError, OnOwnerDeath, Record, RecordFilter};
use creel_model::id::{ResourceId, RunId};
use creel_model::labels::Labels;
use creel_model::provider::{Identity, Kind, Observed};
use futures::future::join_all;
use tracing::info;

use super::{Reconciler, Status};

impl Reconciler {
    /// Records the unrecorded steps that were built on the images of these records.
    ///
    /// Returns the given records followed by those of the steps.
    pub(super) async fn with_steps(
        &self,
        mut records: Vec<Record>,
        status: &mut Status,
    ) -> Result<Vec<Record>, LedgerError> {
        let nameless: Vec<&Record> = records.iter().filter(|one| is_nameless_image(one)).collect();
        if nameless.is_empty() {
            return Ok(records);
        }
        let recorded = self.names_of_runs(&nameless).await?;
        let searches = self.providers.iter().map(|provider| {
            let recorded = &recorded;
            let images: Vec<String> = nameless
                .iter()
                .filter(|record| record.provider == provider.name())
                .filter_map(|record| record.state.object().map(str::to_owned))
                .collect();
            async move { provider.unrecorded_steps(&images, recorded).await }
        });
        let mut steps = Vec::new();
        for found in join_all(searches).await {
            match found {
                Ok(found) => steps.extend(found),
                Err(error) => status.note_unreachable(&error),
            }
        }
        let run = nameless.first().and_then(|record| record.run);
        for step in steps {
            if records.iter().any(|record| record.state.object() == Some(&step.id)) {
                continue;
            }
            info!(image = %step.id, "found a step of a build that was cut");
            match self.record_step(&step, run).await {
                Ok(record) => {
                    status.recovered += 1;
                    records.push(record);
                }
                // It stays until there is space to record it; the next round finds it again.
                Err(error) => status.tolerate_full(Err(error))?,
            }
        }
        Ok(records)
    }

    /// Returns the names of all images that were ever recorded for the same runs.
    async fn names_of_runs(&self, records: &[&Record]) -> Result<Vec<String>, LedgerError> {
        let runs: BTreeSet<RunId> = records.iter().filter_map(|record| record.run).collect();
        let mut names = Vec::new();
        for run in runs {
            let records = self.ledger.records(&RecordFilter::of_run(run)).await?;
            let images = records.into_iter().filter(|record| record.kind == Kind::Image);
            names.extend(images.map(|record| record.name));
        }
        Ok(names)
    }

    async fn record_step(
        &self,
        step: &Observed,
        run: Option<RunId>,
    ) -> Result<Record, LedgerError> {
        let intent = Intent {
            id: ResourceId::new(),
            run,
            provider: step.provider,
            kind: step.kind,
            name: step.id.clone(),
            labels: Labels::new(),
            owner: self.me.clone(),
            on_owner_death: OnOwnerDeath::Release,
            lease: LEASE,
        };
        let record = self.ledger.record_existing(&intent).await?;
        let found = Event::Found { object: step.id.clone(), identity: step.identity() };
        let mut records = self.ledger.append(&[(record.id, found)]).await?;
        Ok(records.pop().unwrap_or(record))
    }
}

/// How long a step may stay on record without a renewal. It is released immediately.
const LEASE: Duration = Duration::from_secs(600);

/// Returns whether a record is for an image that its create left without a name.
fn is_nameless_image(record: &Record) -> bool {
    record.kind == Kind::Image
        && record.state.object().is_some()
        && matches!(&record.identity, Some(Identity::Image { tags, .. }) if tags.is_empty())
}
