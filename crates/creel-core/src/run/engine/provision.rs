//! The sandbox: on record before it exists, made, and proven to be alive.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::provider::ErrorClass;
use crate::run::{CauseClass, ConditionType, Connection, Phase, Status};
use crate::sandbox::SandboxPlan;
use crate::sanitise::Diagnostic;

use super::checklist::{Look, Plan};
use super::{Drive, Stopped};

/// How long the pull of an image may take.
const PULL_LIMIT: Duration = Duration::from_secs(60 * 60);
/// How often it is tried.
const PULL_TRIES: u32 = 3;

impl Drive {
    pub(super) async fn provision(&mut self) -> Result<(), Stopped> {
        self.enter(Phase::Provisioning).await?;
        let plan = self.sandbox_plan();
        self.fetch_image(&plan).await?;
        match self.means.sandboxes.create(&self.means.supervisor, &plan).await {
            Ok(taken) => {
                self.sandbox = Some(taken.sandbox);
                self.held = taken.held;
                self.connect(Connection::Connected).await
            }
            Err(error) => {
                let message = chain(&error);
                let found = self.masker.diagnostic(&message);
                self.condition(ConditionType::SandboxReady, Status::False, "NotMade", found)
                    .await?;
                let class = if error.is_disk_full() {
                    CauseClass::DiskFull
                } else {
                    CauseClass::ProvisionFailed
                };
                Err(self.stopped(class, &format!("no sandbox: {message}")))
            }
        }
    }

    /// Fetches the image of the sandbox, if its engine does not have it.
    async fn fetch_image(&mut self, plan: &SandboxPlan) -> Result<(), Stopped> {
        // An engine that does not answer is told of by the create.
        let Ok(Some(image)) = self.means.sandboxes.missing_image(plan).await else { return Ok(()) };
        let step = Plan {
            tries: PULL_TRIES,
            class: CauseClass::ProvisionFailed,
            ..Plan::new(
                "image",
                self.masker.diagnostic(&format!("the engine has {image}")),
                PULL_LIMIT,
            )
        };
        let (sandboxes, masker) = (self.means.sandboxes.clone(), self.masker.clone());
        self.step(step, || {
            let (sandboxes, masker, image) = (sandboxes.clone(), masker.clone(), image.clone());
            async move {
                match sandboxes.fetch_image(&image).await {
                    Ok(()) => Ok(Look::good(Diagnostic::ours("it was pulled"))),
                    Err(error) if is_final(error.class) => {
                        let found = masker.diagnostic(&error.to_string());
                        Ok(Look::hopeless(CauseClass::ProvisionFailed, found))
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
            image: settings.image.clone(),
            snapshot: settings.snapshot.clone(),
            env: settings.env.clone(),
            limits: settings.limits.clone(),
            disk: settings.disk,
            network: settings.network.clone(),
            // What is kept for people to look at must not end by itself before.
            lease: settings.lease.max(self.workflow.on_failure.keep),
            on_owner_death: self.means.on_owner_death,
        }
    }

    /// Returns the environment of every command of this run.
    pub(super) fn environment(&self) -> BTreeMap<String, secrecy::SecretString> {
        self.workflow.sandbox.env.clone()
    }

    pub(super) async fn sandbox_is_ready(&mut self) -> Result<(), Stopped> {
        self.connect(Connection::Connected).await?;
        let message = Diagnostic::ours("it ran a command of ours");
        self.condition(ConditionType::SandboxReady, Status::True, "Answered", message).await
    }
}

/// Returns whether a registry that said no will say so again.
fn is_final(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Invalid | ErrorClass::Denied | ErrorClass::Quota)
}

/// How often leases are renewed: three times in their length, and at least every minute.
pub fn renewal(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_millis(500), Duration::from_secs(60))
}

/// Writes an error with everything that caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
