//! The sandbox: on record before it exists, made, and proven to be alive.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::run::{CauseClass, ConditionType, Connection, Phase, Status};
use crate::sandbox::SandboxPlan;
use crate::sanitise::Diagnostic;

use super::{Drive, Stopped};

impl Drive {
    pub(super) async fn provision(&mut self) -> Result<(), Stopped> {
        self.enter(Phase::Provisioning).await?;
        let plan = self.sandbox_plan();
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
                Err(self.stopped(CauseClass::ProvisionFailed, &format!("no sandbox: {message}")))
            }
        }
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
            disk_gib: settings.disk_gib,
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
