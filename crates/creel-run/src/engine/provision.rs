//! The creation of the sandbox: recorded before it exists, and verified to be alive.

use std::collections::BTreeMap;
use std::time::Duration;

use creel_model::failure::chain;
use creel_model::provider::ErrorClass;
use creel_model::run::{CauseClass, ConditionStatus, ConditionType, Connection, Phase};
use creel_sanitise::Diagnostic;

use crate::sandbox::{SandboxOptions, SandboxPlan};

use super::checklist::{StepResult, StepSpec};
use super::{Drive, Stopped};

/// How long the pull of an image may take.
const PULL_LIMIT: Duration = Duration::from_secs(60 * 60);
/// How many times the pull is tried.
const PULL_TRIES: u32 = 3;

impl Drive {
    pub(super) async fn provision(&mut self) -> Result<(), Stopped> {
        self.enter(Phase::Provisioning).await?;
        let plan = self.sandbox_plan();
        self.fetch_image(&plan).await?;
        match self.context.sandboxes.create(&self.context.supervisor, &plan).await {
            Ok(created) => {
                self.sandbox = Some(created.sandbox);
                self.held = created.held;
                self.connect(Connection::Connected).await
            }
            Err(error) => {
                let message = chain(&error);
                let found = self.masker.diagnostic(&message);
                self.condition(
                    ConditionType::SandboxReady,
                    ConditionStatus::False,
                    "NotMade",
                    found,
                )
                .await?;
                let class = if error.is_disk_full(&self.context.providers) {
                    CauseClass::DiskFull
                } else {
                    CauseClass::ProvisionFailed
                };
                Err(self.stopped(class, &format!("no sandbox: {message}")))
            }
        }
    }

    /// Pulls the image of the sandbox if the engine does not have it.
    async fn fetch_image(&mut self, plan: &SandboxPlan) -> Result<(), Stopped> {
        // If the engine does not answer, the create reports that.
        let Ok(Some(image)) = self.context.sandboxes.missing_image(plan).await else {
            return Ok(());
        };
        let step = StepSpec {
            tries: PULL_TRIES,
            class: CauseClass::ProvisionFailed,
            ..StepSpec::new(
                "image",
                self.masker.diagnostic(&format!("the engine has {image}")),
                PULL_LIMIT,
            )
        };
        let (sandboxes, masker) = (self.context.sandboxes.clone(), self.masker.clone());
        self.step(step, || {
            let (sandboxes, masker, image) = (sandboxes.clone(), masker.clone(), image.clone());
            async move {
                match sandboxes.fetch_image(plan, &image).await {
                    Ok(()) => Ok(StepResult::passed(Diagnostic::ours("it was pulled"))),
                    Err(error) if is_final(error.class) => {
                        let found = masker.diagnostic(&error.to_string());
                        Ok(StepResult::permanent(CauseClass::ProvisionFailed, found))
                    }
                    Err(error) => Err(error),
                }
            }
        })
        .await
        .map(drop)
    }

    fn sandbox_plan(&self) -> SandboxPlan {
        let settings = &self.workflow.sandbox;
        SandboxPlan {
            run: self.journal.run(),
            provider: settings.provider,
            options: SandboxOptions {
                image: settings.image.clone(),
                snapshot: settings.snapshot.clone(),
                env: settings.env.clone(),
                limits: settings.limits.clone(),
                disk: settings.disk,
                network: settings.network.clone(),
                // A sandbox that is kept for inspection must not expire earlier.
                lease: settings.lease.max(self.workflow.on_failure.keep),
            },
            on_owner_death: self.context.on_owner_death,
        }
    }

    /// Returns the environment of every command of this run.
    pub(super) fn environment(&self) -> BTreeMap<String, secrecy::SecretString> {
        self.workflow.sandbox.env.clone()
    }

    pub(super) async fn sandbox_is_ready(&mut self) -> Result<(), Stopped> {
        self.connect(Connection::Connected).await?;
        let message = Diagnostic::ours("it ran a command of ours");
        self.condition(ConditionType::SandboxReady, ConditionStatus::True, "Answered", message)
            .await
    }
}

/// Returns whether a registry that refused will refuse again.
fn is_final(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Invalid | ErrorClass::Denied | ErrorClass::Quota)
}

/// Returns how often leases are renewed: three times per lease, and at least every minute.
pub fn renewal(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_millis(500), Duration::from_secs(60))
}
