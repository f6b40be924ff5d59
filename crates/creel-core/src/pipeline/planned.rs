//! The third stage: what is going to be released, and the checks before the first release.

use std::time::Instant;

use creel_model::provider::{ProviderError, ProviderName, Providers};

use crate::plan::{CapExceeded, Caps, Plan, PlanItem};
use crate::reap::Report;
use crate::select::Selector;

/// What is going to be released.
#[derive(Debug)]
pub struct PlannedRelease {
    /// The plan, without what cannot be tried.
    pub plan: Plan,
    /// The providers of a saved plan that do not respond.
    pub unreachable: Vec<ProviderError>,
    /// Items of these providers.
    pub(super) untried: Vec<PlanItem>,
    /// The selectors that an item must still match at its release.
    pub(super) selectors: Vec<Selector>,
    /// When the items were observed, if that was for this plan.
    pub(super) seen_at: Option<Instant>,
}

/// A planned release that passed its checks: only this can be executed.
#[derive(Debug, Clone, Copy)]
pub struct CheckedRelease<'a>(pub(super) &'a PlannedRelease);

/// Why a saved plan cannot be applied; nothing was released.
#[derive(Debug, thiserror::Error)]
pub enum SavedPlanError {
    /// It was made for another engine or account, so its ids would name other objects here.
    #[error("the plan was made for {provider} at {address}, which is another one than this")]
    OtherProvider {
        /// The name of the provider.
        provider: ProviderName,
        /// Where it was when the plan was made.
        address: String,
        /// How to use the other engine or account.
        hint: &'static str,
    },
    /// A provider that it needs is not configured.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

impl PlannedRelease {
    /// Plans the release of objects that were selected one by one, out of this many.
    pub fn of_items(items: Vec<PlanItem>, listed: usize) -> Self {
        Self::of_plan(Plan { listed, ..Plan::of_ours(items) })
    }

    /// Prepares a saved plan for these providers.
    ///
    /// # Errors
    ///
    /// Fails when a provider is not configured, or is not the one that the plan was made for. One
    /// that does not respond is only noted, and its items are reported as not tried.
    pub async fn of_saved(mut plan: Plan, providers: &Providers) -> Result<Self, SavedPlanError> {
        let mut unreachable: Vec<ProviderError> = Vec::new();
        for planned in &plan.identities {
            let provider = providers.get(planned.provider)?;
            match provider.identity().await {
                Ok(identity) if identity == planned.identity => {}
                Ok(_) => {
                    return Err(SavedPlanError::OtherProvider {
                        provider: planned.provider,
                        address: planned.address.clone(),
                        hint: provider.other_account_hint(),
                    });
                }
                Err(error) => unreachable.push(error),
            }
        }
        let responds = |item: &mut PlanItem| {
            unreachable.iter().all(|error| error.provider != item.seen.provider)
        };
        let items = plan.items.extract_if(.., responds).collect();
        let untried = std::mem::replace(&mut plan.items, items);
        Ok(Self { unreachable, untried, ..Self::of_plan(plan) })
    }

    pub(super) fn of_plan(plan: Plan) -> Self {
        let (unreachable, untried, selectors) = Default::default();
        Self { plan, unreachable, untried, selectors, seen_at: None }
    }

    /// Returns the number of planned items, tried or not.
    pub fn item_count(&self) -> usize {
        self.plan.items.len() + self.untried.len()
    }

    /// Checks that the plan is within its caps.
    ///
    /// # Errors
    ///
    /// Fails when the plan would release more than allowed.
    pub fn check(&self, caps: &Caps) -> Result<CheckedRelease<'_>, CapExceeded> {
        caps.check(&self.plan)?;
        Ok(CheckedRelease(self))
    }

    /// Skips the check: for items that the user named, a saved plan that was reviewed, and the
    /// library, which has no caps.
    pub fn uncapped(&self) -> CheckedRelease<'_> {
        CheckedRelease(self)
    }

    /// Adds the items that could not be tried to a report.
    pub(super) fn report_untried(&self, report: &mut Report) {
        for error in &self.unreachable {
            let is_theirs = |item: &&PlanItem| item.seen.provider == error.provider;
            report.add_untried(self.untried.iter().filter(is_theirs), error);
        }
    }
}
