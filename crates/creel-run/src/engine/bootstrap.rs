//! The bootstrap: runs every step in sequence, so that nothing starts in an incomplete workspace.

use std::sync::Arc;
use std::time::Duration;

use creel_model::run::{ConditionStatus, ConditionType, Phase, RunEvent};
use creel_sanitise::Diagnostic;

use crate::sandbox::{Command, Sandbox};
use crate::workflow::Script;

use super::checklist::{StepResult, StepSpec, run};
use super::{Drive, Stopped};

/// How long a sandbox may take to answer for the first time.
const REACH_LIMIT: Duration = Duration::from_secs(60);
/// How many times it is probed.
const REACH_TRIES: u32 = 3;

impl Drive {
    /// Runs the checklist, from its beginning even if another driver has begun it.
    pub(super) async fn bootstrap(&mut self) -> Result<(), Stopped> {
        if self.journal.state().bootstrap_ok {
            return self.enter(Phase::Ready).await;
        }
        self.enter(Phase::Bootstrapping).await?;
        let sandbox = self.sandbox();
        self.reach(&sandbox).await?;
        for script in self.workflow.setup.clone() {
            self.set_up(&sandbox, &script).await?;
        }
        self.check_runtime_version(&sandbox).await?;
        for plugin in self.workflow.runtime.plugins.clone() {
            self.check_plugin(&sandbox, &plugin).await?;
        }
        self.make_workspace(&sandbox).await?;
        self.probe_capabilities(&sandbox).await?;
        self.check_agent(&sandbox).await?;
        self.record(RunEvent::BootstrapOk).await?;
        self.enter(Phase::Ready).await
    }

    /// Returns the sandbox.
    pub(super) fn sandbox(&self) -> Arc<dyn Sandbox> {
        Arc::clone(self.sandbox.as_ref().expect("the sandbox was made before"))
    }

    async fn reach(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        let expected = Diagnostic::ours("the sandbox runs a command of ours");
        let plan =
            StepSpec { tries: REACH_TRIES, ..StepSpec::new("sandbox", expected, REACH_LIMIT) };
        self.step(plan, || {
            let sandbox = Arc::clone(sandbox);
            async move {
                sandbox.probe().await?;
                Ok(StepResult::passed(Diagnostic::ours("a command ran in it")))
            }
        })
        .await?;
        self.sandbox_is_ready().await
    }

    async fn set_up(&mut self, sandbox: &Arc<dyn Sandbox>, script: &Script) -> Result<(), Stopped> {
        let plan = StepSpec {
            silence: script.inactivity,
            tries: script.tries,
            optional: script.optional,
            ..StepSpec::new(
                format!("setup {}", script.name),
                Diagnostic::ours("the command ends with code 0"),
                script.timeout,
            )
        };
        let command = self.script_command(script);
        self.command_step(sandbox, plan, command).await
    }

    /// Returns the command for a script of the workflow.
    pub(super) fn script_command(&self, script: &Script) -> Command {
        Command {
            silence: script.inactivity,
            env: self.environment(),
            ..Command::shell(&script.run, script.timeout)
        }
    }

    /// Runs a step that is a single command, which must succeed.
    pub(super) async fn command_step(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        plan: StepSpec,
        command: Command,
    ) -> Result<(), Stopped> {
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, masker, command) = (Arc::clone(sandbox), masker.clone(), command.clone());
            async move { Ok(run(sandbox.as_ref(), &command).await?.result(&masker)) }
        })
        .await
        .map(drop)
    }

    pub(super) async fn workspace_is_ready(&mut self) -> Result<(), Stopped> {
        let message = Diagnostic::ours("files and repositories are as the workflow wants them");
        self.condition(ConditionType::WorkspaceReady, ConditionStatus::True, "Verified", message)
            .await
    }
}
