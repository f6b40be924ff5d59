//! Providers to ledger: our objects that have no open record.
//!
//! The intent is always recorded first. Such an object therefore means that its record was closed
//! before the object appeared, or that the ledger was restored from an older copy. In both cases it
//! is recorded again before it is released. If the closed record had another object, this one is a
//! copy of it, and foreign.

use std::time::Duration;

use creel_ledger::{Event, Intent, LedgerError, OnOwnerDeath};
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::owner::Liveness;
use creel_model::provider::{Marks, Observed};
use tracing::warn;

use crate::plan::{Binding, PlanItem};
use crate::select::{Ownership, RecordIndex};

use super::{Reconciler, Status};

/// The rule shown in reports.
const RULE: &str = "reconcile: it carries this ledger's label without an open record";

impl Reconciler {
    pub(super) async fn recover(
        &self,
        inventory: &[Observed],
        status: &mut Status,
    ) -> Result<(), LedgerError> {
        // Most objects carry no label of ours. The ledger is read only for the rest.
        let ours =
            |seen: &&Observed| labels::claimed_ledger(&seen.labels) == Some(self.ledger.id());
        let candidates: Vec<Observed> = inventory.iter().filter(ours).cloned().collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let record_index = RecordIndex::read(&self.ledger, &candidates).await?;
        let mut items = Vec::new();
        for seen in &candidates {
            let Ownership::Unrecorded { resource, liveness } = record_index.ownership(seen) else {
                continue;
            };
            if liveness != Liveness::Dead
                || self.was_replaced(resource).await?
                || self.is_inherited(seen).await
            {
                continue;
            }
            warn!(%resource, object = %seen.id, "found an object that no open record knows");
            self.put_on_record(resource, seen).await?;
            status.recovered += 1;
            items.push(PlanItem {
                seen: seen.clone(),
                rule: RULE.to_owned(),
                resource: Some(resource),
                binding: Binding::Identity,
                evidence: None,
            });
        }
        if !items.is_empty() {
            status.add(self.pipeline().release_ours(items).await);
        }
        Ok(())
    }

    /// Returns whether the object only inherited its labels, according to the provider.
    async fn is_inherited(&self, seen: &Observed) -> bool {
        let (Some(resource), Ok(provider)) =
            (labels::claimed_resource(&seen.labels), self.providers.get(seen.provider))
        else {
            return true;
        };
        // If there is a record, use its name, which need not be one of ours.
        let name = match self.ledger.record(resource).await {
            Ok(Some(record)) => record.name,
            Ok(None) | Err(_) => resource.object_name(),
        };
        let found = provider.find(&Marks { kind: seen.kind, resource, name }).await;
        !found.is_ok_and(|found| matches!(found.as_slice(), [only] if only.id == seen.id))
    }

    /// Returns whether the resource was found replaced.
    ///
    /// The object that has its name since then is not ours, whatever its labels say.
    async fn was_replaced(&self, resource: ResourceId) -> Result<bool, LedgerError> {
        let history = self.ledger.history(resource).await?;
        Ok(history.iter().any(|stored| matches!(stored.event, Event::Replaced { .. })))
    }

    async fn put_on_record(&self, id: ResourceId, seen: &Observed) -> Result<(), LedgerError> {
        if self.ledger.record(id).await?.is_none() {
            let intent = Intent {
                id,
                run: seen.labels.get(labels::RUN).and_then(|run| run.parse().ok()),
                provider: seen.provider,
                kind: seen.kind,
                name: seen.name.clone(),
                labels: seen.labels.clone(),
                owner: self.me.clone(),
                on_owner_death: OnOwnerDeath::Release,
                lease: Duration::from_secs(600),
            };
            self.ledger.record_existing(&intent).await?;
        }
        let events = [
            (id, Event::Found { object: seen.id.clone(), identity: seen.identity() }),
            (id, Event::OwnerChanged { owner: self.me.clone() }),
        ];
        self.ledger.append(&events).await?;
        Ok(())
    }
}
