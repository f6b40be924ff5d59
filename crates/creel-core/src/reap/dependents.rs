//! Audit rows for objects that a provider removes together with another one, such as the anonymous
//! volumes of a container.
//!
//! The first row is written before the release, like that of an untracked object. The last one says
//! whether the object was really removed. The engine keeps an object that something else uses.

use creel_ledger::Try;
use creel_model::provider::{Observed, Provider};

use crate::plan::PlanItem;

use super::item::{Job, try_of};
use super::send::RELEASE;

/// Returns the rows of the objects that are removed together with this object.
pub(super) fn rows(
    provider: &dyn Provider,
    item: &PlanItem,
    seen: &Observed,
    evidence: &str,
) -> Vec<Try> {
    let evidence = format!("it goes with {} {}: {evidence}", item.seen.kind, item.seen.name);
    let dependents = provider.dependents(seen).into_iter();
    let rows = dependents.map(|(kind, object)| Try {
        kind,
        name: Some(object.as_str().into()),
        object,
        evidence: Some(evidence.as_str().into()),
        ..try_of(item, RELEASE, 0, "planned", "")
    });
    rows.collect()
}

impl Job<'_> {
    /// Returns the rows of an object's dependents, and writes those that the plan did not contain.
    pub(super) async fn announce_dependents(
        &self,
        provider: &dyn Provider,
        item: &PlanItem,
        seen: &Observed,
        evidence: &str,
    ) -> Vec<Try> {
        let rows = rows(provider, item, seen, evidence);
        let known = provider.dependents(&item.seen);
        let is_new = |row: &&Try| !known.iter().any(|(_, object)| *object == row.object);
        self.audit.write_ahead(rows.iter().filter(is_new).cloned().collect()).await;
        rows
    }

    /// Records whether the dependents of a removed object are gone as well.
    pub(super) async fn note_dependents(&self, provider: &dyn Provider, rows: Vec<Try>) {
        for row in rows {
            let (outcome, detail) = match provider.verify(row.kind, &row.object).await {
                Ok(None) => ("ok", String::new()),
                Ok(Some(_)) => ("kept", "its provider left it".to_owned()),
                Err(error) => (error.class.name(), error.message),
            };
            let (outcome, detail) = (outcome.into(), detail.into());
            self.audit.note(Try { attempt: 1, outcome, detail, ..row });
        }
    }
}
