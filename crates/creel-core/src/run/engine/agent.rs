//! The agent: its runtime's version, its plugins, what it may do, and the proof that it runs.

use std::sync::Arc;
use std::time::Duration;

use creel_bridge::exec::Ending;

use crate::provider::ProviderError;
use crate::run::{Ability, Capabilities, Capability, CauseClass, ConditionType, RunEvent, Status};
use crate::sandbox::{Command, Finished, Sandbox};
use crate::sanitise::{Diagnostic, Masker};
use crate::workflow::RuntimeKind;

use super::checklist::{Look, Plan, Ran, Verdict, run};
use super::{Drive, Stopped};

/// How long a look at a program may take.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// The codes with which a shell says that there is no such program, or that it cannot run.
const CANNOT_RUN: [i32; 2] = [126, 127];
/// Says where a program is.
const FIND: &str = "command -v -- \"$1\"";
/// Tries everything an agent may want to do; each line is a word, `yes` or `no`, and how it is
/// known. Nothing of it changes anything.
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
    /// Proves that the runtime has the version that the workflow pins.
    pub(super) async fn prove_runtime_version(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), Stopped> {
        let Some(version) = self.workflow.runtime.version.clone() else { return Ok(()) };
        let expected = self.masker.diagnostic(&format!("version {version}"));
        let plan = Plan::new("runtime", expected, LOOK_LIMIT);
        let command =
            Command { env: self.environment(), ..Command::new(self.check_command(), LOOK_LIMIT) };
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, command) = (Arc::clone(sandbox), command.clone());
            let (masker, version) = (masker.clone(), version.clone());
            async move {
                let ran = run(sandbox.as_ref(), &command).await?;
                let said = String::from_utf8_lossy(&ran.mixed).into_owned();
                let fits =
                    said.split_whitespace().any(|word| word.trim_start_matches('v') == version);
                Ok(match fits {
                    true => Look::good(masker.diagnostic(&format!("version {version}"))),
                    false => Look { verdict: Verdict::Bad, ..ran.look(&masker) },
                })
            }
        })
        .await
        .map(drop)
    }

    /// Proves that a plugin's program is there.
    pub(super) async fn prove_plugin(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
        plugin: &str,
    ) -> Result<(), Stopped> {
        let expected = self.masker.diagnostic(&format!("a program called {plugin}"));
        let plan = Plan::new(format!("plugin {plugin}"), expected, LOOK_LIMIT);
        let command = Command {
            env: self.environment(),
            ..Command::new(["sh", "-c", FIND, "sh", plugin], LOOK_LIMIT)
        };
        self.command_step(sandbox, plan, command).await
    }

    /// Finds out what the agent may do.
    pub(super) async fn probe_capabilities(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), Stopped> {
        let expected = Diagnostic::ours("what the agent may do is known");
        let plan = Plan { tries: 2, ..Plan::new("capabilities", expected, LOOK_LIMIT) };
        let command = Command {
            directory: Some(self.workspace_path(sandbox.as_ref())),
            env: self.environment(),
            ..Command::shell(PROBE, LOOK_LIMIT)
        };
        let known = tokio::sync::Mutex::new(Capabilities::new());
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, command) = (Arc::clone(sandbox), command.clone());
            let (masker, known) = (masker.clone(), &known);
            async move {
                let ran = run(sandbox.as_ref(), &command).await?;
                let capabilities = read_capabilities(&ran, &masker);
                let look = shown(&capabilities, &masker);
                *known.lock().await = capabilities;
                Ok(look)
            }
        })
        .await?;
        let capabilities = known.into_inner();
        self.record(RunEvent::CapabilitiesProbed { capabilities }).await?;
        let message = Diagnostic::ours("each was tried in the sandbox");
        self.condition(ConditionType::CapabilitiesKnown, Status::True, "Probed", message).await
    }

    /// Proves by running it that the agent program runs: an installer's word is not enough.
    pub(super) async fn prove_agent(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        let plan = Plan {
            class: CauseClass::AgentLaunchFailed,
            ..Plan::new("agent", Diagnostic::ours("the agent program runs"), LOOK_LIMIT)
        };
        let command = Command {
            directory: Some(self.workspace_path(sandbox.as_ref())),
            env: self.environment(),
            ..Command::new(self.check_command(), LOOK_LIMIT)
        };
        let strict = self.workflow.runtime.check.is_some();
        let masker = self.masker.clone();
        let proven = self
            .step(plan, || {
                let (sandbox, command, masker) =
                    (Arc::clone(sandbox), command.clone(), masker.clone());
                async move { prove(sandbox.as_ref(), &command, strict, &masker).await }
            })
            .await;
        let about = ConditionType::AgentLaunchable;
        if let Err(Stopped::Cause(cause)) = &proven {
            let message = cause.message.clone();
            self.condition(about, Status::False, "DoesNotRun", message).await?;
        }
        proven?;
        self.condition(about, Status::True, "Ran", Diagnostic::ours("it was run")).await
    }

    /// Returns the command that shows whether the agent program runs.
    fn check_command(&self) -> Vec<String> {
        if let Some(check) = &self.workflow.runtime.check {
            return check.clone();
        }
        let RuntimeKind::Command { command, .. } = &self.workflow.runtime.kind;
        let program = command.first().cloned().unwrap_or_default();
        vec![program, "--version".to_owned()]
    }
}

async fn prove(
    sandbox: &dyn Sandbox,
    command: &Command,
    strict: bool,
    masker: &Masker,
) -> Result<Look, ProviderError> {
    let ran = run(sandbox, command).await?;
    let runs = match &ran.finished {
        Finished::NotStarted(_) => false,
        Finished::Ended(Ending::Code { code }) => {
            if strict {
                *code == 0
            } else {
                !CANNOT_RUN.contains(code)
            }
        }
        // It was not asked to end by itself: that it ran is all that is to be known.
        Finished::Ended(Ending::TimedOut | Ending::Silent) => !strict,
        Finished::Ended(Ending::Signal { .. }) => false,
    };
    let look = ran.look(masker);
    Ok(match runs {
        true => Look {
            verdict: Verdict::Good,
            found: masker.diagnostic(&format!("it runs ({})", look.found)),
            ..look
        },
        false => Look { verdict: Verdict::Bad, ..look },
    })
}

/// Reads what the probe printed; what it did not say is not available.
fn read_capabilities(ran: &Ran, masker: &Masker) -> Capabilities {
    let said = String::from_utf8_lossy(&ran.output).into_owned();
    let read = |(capability, word): (Capability, &str)| {
        let line = said.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        let ability = match line.and_then(|line| line.split_once(' ')) {
            Some((answer, evidence)) => {
                Ability { available: answer == "yes", evidence: masker.diagnostic(evidence) }
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

fn shown(capabilities: &Capabilities, masker: &Masker) -> Look {
    let available = capabilities.iter().filter(|(_, ability)| ability.available);
    let names: Vec<String> =
        available.map(|(capability, _)| capability.name().to_owned()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Look::good(masker.diagnostic(&format!("available: {names}")))
}

/// Says in one line what the agent may do, for its environment.
pub(super) fn told(capabilities: &Capabilities) -> String {
    let word = |ability: &Ability| if ability.available { "yes" } else { "no" };
    let each = capabilities
        .iter()
        .map(|(capability, ability)| format!("{}={}", capability.name(), word(ability)));
    each.collect::<Vec<_>>().join(" ")
}
