//! The pipeline itself: it takes a selection or records, and returns a report.

use creel_ledger::{Ledger, LedgerError};
use creel_model::id::ResourceId;
use creel_model::provider::{ProviderError, Providers};

use crate::plan::{self, Binding, Plan, PlanItem};
use crate::reap::{ItemReport, Progress, ReapConditions, ReapOptions, Reaper, Report};

use super::listing::identities;
use super::{CheckedRelease, Listing, PlannedRelease, Selection, Survey};

/// Plans, releases, verifies and reports. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub(super) providers: Providers,
    /// Records the releases; without a ledger, only untracked objects are released.
    pub(super) ledger: Option<Ledger>,
    options: ReapOptions,
}

impl Pipeline {
    /// Creates a pipeline for these providers, with three retries.
    pub fn new(providers: Providers, ledger: Option<Ledger>) -> Self {
        Self { providers, ledger, options: ReapOptions::default() }
    }

    /// Sets retries, stop timeout, fail-fast, protection and cancellation.
    #[must_use]
    pub fn with_options(mut self, options: ReapOptions) -> Self {
        self.options = options;
        self
    }

    /// Lists everything that exists.
    pub async fn list(&self) -> Listing {
        Listing::read(&self.providers, &[]).await
    }

    /// Plans the release of what is selected, bound to the selectors.
    ///
    /// # Errors
    ///
    /// Fails when the age of an image is needed and its provider cannot be reached.
    pub async fn plan(
        &self,
        survey: &mut Survey,
        selection: Selection<'_>,
    ) -> Result<PlannedRelease, ProviderError> {
        let protect = &self.options.protect;
        survey.date_images(selection.selectors, protect, &self.providers).await?;
        Ok(PlannedRelease {
            selectors: selection.selectors.to_vec(),
            seen_at: Some(survey.listing.began_at),
            ..PlannedRelease::of_plan(survey.plan(selection, protect))
        })
    }

    /// Returns a plan to be saved, bound to the providers and to the present state of each object.
    ///
    /// Providers from which the plan releases nothing are left out: the plan does not depend on
    /// them.
    ///
    /// # Errors
    ///
    /// Fails when a provider cannot be reached; an object that vanished is dropped from the plan.
    pub async fn bind(&self, plan: &Plan) -> Result<Plan, ProviderError> {
        let is_used = |name| plan.items.iter().any(|item| item.seen.provider == name);
        let identities = identities(&self.providers, is_used).await?;
        let plan = plan::examine(plan.clone(), &self.providers).await?;
        Ok(Plan { identities, ..plan })
    }

    /// Releases what is planned, verifies it, and reports the outcome of every item.
    pub async fn release(&self, release: CheckedRelease<'_>, progress: &dyn Progress) -> Report {
        let CheckedRelease(planned) = release;
        let conditions = ReapConditions {
            selectors: &planned.selectors,
            seen_at: planned.seen_at,
            is_second_try: false,
        };
        let mut report = self.reap(&planned.plan, conditions, progress).await;
        planned.report_untried(&mut report);
        report
    }

    /// Releases the object of a record that this process owns.
    ///
    /// # Errors
    ///
    /// Fails when the ledger cannot be read. The report has the outcome of the release.
    pub async fn release_record(
        &self,
        resource: ResourceId,
        rule: &str,
    ) -> Result<ItemReport, LedgerError> {
        let unknown = LedgerError::Unknown { id: resource };
        let Some(ledger) = &self.ledger else { return Err(unknown) };
        let record = ledger.record(resource).await?.ok_or(unknown)?;
        let mut report = self
            .release_ours(vec![PlanItem {
                seen: record.as_recorded(),
                rule: rule.to_owned(),
                resource: Some(resource),
                binding: Binding::Identity,
                evidence: None,
            }])
            .await;
        Ok(report.items.remove(0))
    }

    /// Releases objects of records that this process owns.
    pub(crate) async fn release_ours(&self, items: Vec<PlanItem>) -> Report {
        self.reap(&Plan::of_ours(items), ReapConditions::default(), &()).await
    }

    /// Tries once more to release objects of quarantined records, which stay quarantined meanwhile.
    pub(crate) async fn release_again(&self, items: Vec<PlanItem>) -> Report {
        let conditions = ReapConditions { is_second_try: true, ..ReapConditions::default() };
        self.reap(&Plan::of_ours(items), conditions, &()).await
    }

    async fn reap(
        &self,
        plan: &Plan,
        conditions: ReapConditions<'_>,
        progress: &dyn Progress,
    ) -> Report {
        let reaper = Reaper::new(self.providers.clone(), self.ledger.clone());
        reaper.run(plan, &self.options, conditions, progress).await
    }
}
