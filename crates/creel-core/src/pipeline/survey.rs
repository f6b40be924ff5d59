//! The second stage: whose the listed objects are, and which of them are selected.

use creel_ledger::{Ledger, LedgerError};
use creel_model::provider::{ProviderError, Providers};
use jiff::Timestamp;

use crate::plan::{self, Plan, PlanInput, SparedItem};
use crate::recipe::{self, Findings, LocalEvidence, RecipeContext, RecipeEntry};
use crate::select::{Dating, Ownership, ProtectRule, RecordIndex, Selector, date_images};

use super::Listing;

/// What exists, and whose it is.
#[derive(Debug)]
pub struct Survey {
    /// Everything that was listed.
    pub listing: Listing,
    /// The records that say whose it is.
    pub record_index: RecordIndex,
    /// Whether a release could not be recorded, so that what is tracked must stay.
    spares_tracked: bool,
}

/// What to select in a survey.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The selectors; an object is selected if one of them matches.
    pub selectors: &'a [Selector],
    /// The findings of a recipe, if one narrows the selectors.
    pub findings: Option<&'a Findings>,
    /// Whether to release even what a live owner holds.
    pub force: bool,
}

impl Survey {
    /// Looks up in the ledger whose these objects are. Without a ledger their labels say it.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read.
    pub async fn new(listing: Listing, ledger: Option<&Ledger>) -> Result<Self, LedgerError> {
        let record_index = match ledger {
            Some(ledger) => RecordIndex::read(ledger, &listing.inventory).await?,
            None => RecordIndex::default(),
        };
        Ok(Self { listing, record_index, spares_tracked: false })
    }

    /// Surveys with a ledger that cannot be written.
    ///
    /// A plan then spares what creel tracks, because its release could not be recorded.
    pub fn sparing_tracked(listing: Listing, record_index: RecordIndex) -> Self {
        Self { listing, record_index, spares_tracked: true }
    }

    /// Examines what bears a recipe's marks, and judges whether each object has finished.
    ///
    /// # Errors
    ///
    /// Fails when a provider cannot be reached.
    pub async fn judge(
        &mut self,
        entry: &RecipeEntry,
        providers: &Providers,
        ended: bool,
    ) -> Result<Findings, ProviderError> {
        let listed = std::mem::take(&mut self.listing.inventory);
        let mut inventory = recipe::examine_marked(&entry.recipe, listed, providers).await?;
        inventory.iter_mut().for_each(|seen| self.record_index.date(seen));
        let evidence = LocalEvidence::gather(&entry.recipe, &inventory, providers).await?;
        let context = RecipeContext { inventory: &inventory, evidence: &evidence, ended };
        let findings = entry.recipe.judge(&entry.name, &context);
        self.listing.inventory = inventory;
        Ok(findings)
    }

    /// Determines the age of those images for which it makes a difference.
    ///
    /// # Errors
    ///
    /// Fails when a provider cannot be reached.
    pub async fn date_images(
        &mut self,
        selectors: &[Selector],
        protect: &[ProtectRule],
        providers: &Providers,
    ) -> Result<(), ProviderError> {
        let (record_index, now) = (&self.record_index, Timestamp::now());
        let dating = Dating { selectors, protect, record_index, providers, now };
        let listed = std::mem::take(&mut self.listing.inventory);
        self.listing.inventory = date_images(listed, dating).await?;
        Ok(())
    }

    /// Decides for every listed object whether it is released.
    pub(super) fn plan(&self, selection: Selection<'_>, protect: &[ProtectRule]) -> Plan {
        let plan = plan::build(PlanInput {
            inventory: &self.listing.inventory,
            record_index: &self.record_index,
            selectors: selection.selectors,
            findings: selection.findings,
            protect,
            force: selection.force,
            now: Timestamp::now(),
        });
        if self.spares_tracked { self.spare_tracked(plan) } else { plan }
    }

    fn spare_tracked(&self, mut plan: Plan) -> Plan {
        let (free, tracked): (Vec<_>, Vec<_>) = std::mem::take(&mut plan.items)
            .into_iter()
            .partition(|item| self.record_index.ownership(&item.seen) == Ownership::Foreign);
        plan.items = free;
        plan.spared.extend(tracked.into_iter().map(|item| SparedItem {
            seen: item.seen,
            rule: item.rule,
            reason: "creel tracks it, and the ledger cannot be written".to_owned(),
        }));
        plan
    }
}
