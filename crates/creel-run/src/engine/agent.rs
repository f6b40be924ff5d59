//! The agent: checks its runtime's version, its plugins, its capabilities, and
//! that it runs.

use std::sync::Arc;
use std::time::Duration;

use creel_bridge::exec::ExecEnding;
use creel_model::provider::ProviderError;
use creel_model::run::{
    Ability, Capabilities, Capability, CauseClass, ConditionStatus, ConditionType, RunEvent,
};
use creel_sanitise::{Diagnostic, Masker};

use crate::sandbox::{Command, Finished, Sandbox};
use crate::workflow::RuntimeKind;

use super::checklist::{CommandOutput, StepResult, StepSpec, StepVerdict, run};
use super::{Drive, Stopped};

/// How long the check of a program may take.
const CHECK_LIMIT: Duration = Duration::from_secs(30);
/// The exit codes of a shell for a program that does not exist or cannot be executed.
const CANNOT_RUN: [i32; 2] = [126, 127];
/// Prints the path of a program.
const FIND: &str = "command -v -- \"$1\"";
/// Probes everything that an agent may want to do, without lasting side effects.
///
/// Each line is the name of a capability, `yes` or `no`, and the evidence.
const PROBE: &str = r#"
if [ "$(id -u)" = 0 ]; then echo "elevated yes it is root"
elif sudo -n true 2>/dev/null; then echo "elevated yes sudo needs no password"
else echo "elevated no neither root nor sudo without a password"; fi
found=; for one in chromium chromium-browser google-chrome firefox; do
  command -v "$one" >/dev/null 2>&1 && found=$one && break; done
if [ -n "$found" ]; then echo "browser yes $found is there"; else echo "browser no none is installed"; fi
if probe=$(mktemp ./.creel-probe.XXXXXX 2>/dev/null); then
  rm -f "$probe"; echo "file yes the workspace can be written"
else echo "file no the workspace cannot be written"; fi
echo "process yes this command ran"
if awk 'NR > 1 && $1 != "lo" { found = 1 } END { exit !found }' /proc/net/route 2>/dev/null
then echo "network yes there is a route"; else echo "network no there is no route"; fi
"#;

impl Drive {
    /// Checks that the runtime has the version that the workflow pins.
    pub(super) async fn check_runtime_version(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), Stopped> {
        let Some(version) = self.workflow.runtime.version.clone() else { return Ok(()) };
        let expected = self.masker.diagnostic(&format!("version {version}"));
        let plan = StepSpec::new("runtime", expected, CHECK_LIMIT);
        let command =
            Command { env: self.environment(), ..Command::new(self.check_command(), CHECK_LIMIT) };
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, command) = (Arc::clone(sandbox), command.clone());
            let (masker, version) = (masker.clone(), version.clone());
            async move {
                let ran = run(sandbox.as_ref(), &command).await?;
                let output = String::from_utf8_lossy(&ran.mixed).into_owned();
                let fits =
                    output.split_whitespace().any(|token| token.trim_start_matches('v') == version);
                Ok(match fits {
                    true => StepResult::passed(masker.diagnostic(&format!("version {version}"))),
                    false => StepResult { verdict: StepVerdict::Retryable, ..ran.result(&masker) },
                })
            }
        })
        .await
        .map(drop)
    }

    /// Checks that a plugin's program exists.
    pub(super) async fn check_plugin(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        plugin: &str,
    ) -> Result<(), Stopped> {
        let expected = self.masker.diagnostic(&format!("a program called {plugin}"));
        let plan = StepSpec::new(format!("plugin {plugin}"), expected, CHECK_LIMIT);
        let command = Command {
            env: self.environment(),
            ..Command::new(["sh", "-c", FIND, "sh", plugin], CHECK_LIMIT)
        };
        self.command_step(sandbox, plan, command).await
    }

    /// Determines the capabilities of the agent.
    pub(super) async fn probe_capabilities(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), Stopped> {
        let expected = Diagnostic::ours("what the agent may do is known");
        let plan = StepSpec { tries: 2, ..StepSpec::new("capabilities", expected, CHECK_LIMIT) };
        let command = Command {
            directory: Some(self.workspace_path(sandbox.as_ref())),
            env: self.environment(),
            ..Command::shell(PROBE, CHECK_LIMIT)
        };
        let known = tokio::sync::Mutex::new(Capabilities::new());
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, command) = (Arc::clone(sandbox), command.clone());
            let (masker, known) = (masker.clone(), &known);
            async move {
                let ran = run(sandbox.as_ref(), &command).await?;
                let capabilities = read_capabilities(&ran, &masker);
                let result = capabilities_result(&capabilities, &masker);
                *known.lock().await = capabilities;
                Ok(result)
            }
        })
        .await?;
        let capabilities = known.into_inner();
        self.record(RunEvent::CapabilitiesProbed { capabilities }).await?;
        let message = Diagnostic::ours("each was tried in the sandbox");
        self.condition(ConditionType::CapabilitiesKnown, ConditionStatus::True, "Probed", message)
            .await
    }

    /// Checks that the agent program runs, by running it. A successful installation is not enough.
    pub(super) async fn check_agent(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        let plan = StepSpec {
            class: CauseClass::AgentLaunchFailed,
            ..StepSpec::new("agent", Diagnostic::ours("the agent program runs"), CHECK_LIMIT)
        };
        let command = Command {
            directory: Some(self.workspace_path(sandbox.as_ref())),
            env: self.environment(),
            ..Command::new(self.check_command(), CHECK_LIMIT)
        };
        let strict = self.workflow.runtime.check.is_some();
        let masker = self.masker.clone();
        let checked = self
            .step(plan, || {
                let (sandbox, command, masker) =
                    (Arc::clone(sandbox), command.clone(), masker.clone());
                async move { check_agent_program(sandbox.as_ref(), &command, strict, &masker).await }
            })
            .await;
        let about = ConditionType::AgentLaunchable;
        if let Err(Stopped::Cause(cause)) = &checked {
            let message = cause.message.clone();
            self.condition(about, ConditionStatus::False, "DoesNotRun", message).await?;
        }
        checked?;
        self.condition(about, ConditionStatus::True, "Ran", Diagnostic::ours("it was run")).await
    }

    /// Returns the command that checks whether the agent program runs.
    fn check_command(&self) -> Vec<String> {
        if let Some(check) = &self.workflow.runtime.check {
            return check.clone();
        }
        let RuntimeKind::Command { command, .. } = &self.workflow.runtime.kind;
        let program = command.first().cloned().unwrap_or_default();
        vec![program, "--version".to_owned()]
    }
}

async fn check_agent_program(
    sandbox: &dyn Sandbox,
    command: &Command,
    strict: bool,
    masker: &Masker,
) -> Result<StepResult, ProviderError> {
    let ran = run(sandbox, command).await?;
    let runs = match &ran.finished {
        Finished::NotStarted(_) => false,
        Finished::Ended(ExecEnding::Code { code }) => {
            if strict {
                *code == 0
            } else {
                !CANNOT_RUN.contains(code)
            }
        }
        // The program does not have to end by itself. It is enough that it ran.
        Finished::Ended(ExecEnding::TimedOut | ExecEnding::Silent) => !strict,
        Finished::Ended(ExecEnding::Signal { .. }) => false,
    };
    let result = ran.result(masker);
    Ok(match runs {
        true => StepResult {
            verdict: StepVerdict::Passed,
            found: masker.diagnostic(&format!("it runs ({})", result.found)),
            ..result
        },
        false => StepResult { verdict: StepVerdict::Retryable, ..result },
    })
}

/// Parses the output of the probe. A capability that is missing in it is not available.
fn read_capabilities(ran: &CommandOutput, masker: &Masker) -> Capabilities {
    let output = String::from_utf8_lossy(&ran.output).into_owned();
    let read = |(capability, name): (Capability, &str)| {
        let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let ability = match line.and_then(|line| line.split_once(' ')) {
            Some((available, evidence)) => {
                Ability { available: available == "yes", evidence: masker.diagnostic(evidence) }
            }
            None => Ability {
                available: false,
                evidence: Diagnostic::ours("there is no shell to try it with"),
            },
        };
        (capability, ability)
    };
    [
        (Capability::Elevated, "elevated"),
        (Capability::Browser, "browser"),
        (Capability::File, "file"),
        (Capability::Process, "process"),
        (Capability::Network, "network"),
    ]
    .into_iter()
    .map(read)
    .collect()
}

fn capabilities_result(capabilities: &Capabilities, masker: &Masker) -> StepResult {
    let available = capabilities.iter().filter(|(_, ability)| ability.available);
    let names: Vec<String> =
        available.map(|(capability, _)| capability.name().to_owned()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    StepResult::passed(masker.diagnostic(&format!("available: {names}")))
}

/// Returns the capabilities in one line, for the agent's environment.
pub(super) fn format_capabilities(capabilities: &Capabilities) -> String {
    let yes_or_no = |ability: &Ability| if ability.available { "yes" } else { "no" };
    let each = capabilities
        .iter()
        .map(|(capability, ability)| format!("{}={}", capability.name(), yes_or_no(ability)));
    each.collect::<Vec<_>>().join(" ")
}
