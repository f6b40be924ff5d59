//! Communication with the bridge: starts it, sends it commands, and acknowledges its events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_bridge::serve;
use creel_model::failure::chain;
use creel_model::provider::ProviderError;
use creel_model::run::CauseClass;
use secrecy::ExposeSecret;

use crate::sandbox::{Command, Sandbox};
use crate::spool::BRIDGE_PREFIX;
use crate::workflow::{PromptBy, RuntimeKind};

use super::checklist::run;
use super::{Drive, Stopped, agent};

/// The interval between two signs of life of the bridge.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a short command may take.
const SHORT: Duration = Duration::from_secs(60);
/// How many times a short command is tried.
const SHORT_TRIES: u32 = 5;
/// The placeholder for the prompt in an argument.
const PROMPT: &str = "{prompt}";

impl Drive {
    /// Returns the bridge's directory in a sandbox.
    ///
    /// It depends on the attempt: a kept sandbox also has the directory of an earlier attempt,
    /// which is not touched.
    pub(super) fn bridge_directory(&self, sandbox: &dyn Sandbox) -> String {
        format!("{}/{BRIDGE_PREFIX}{}", sandbox.creel_directory(), self.journal.state().attempt)
    }

    /// Starts the bridge. Must only be called after `bootstrap_ok`.
    pub(super) async fn start_bridge(&mut self, sandbox: &dyn Sandbox) -> Result<(), Stopped> {
        let request = self.serve_request(sandbox);
        let input = serde_json::to_string(&request).expect("a request is plain data");
        let command = Command {
            input: Some(input.into()),
            ..Command::new([sandbox.bridge_path(), "serve"], SHORT)
        };
        match self.short(sandbox, &command).await {
            Ok(()) => Ok(()),
            Err(reason) => {
                let message = format!("the bridge did not start: {reason}");
                Err(self.lost(sandbox, CauseClass::AgentLaunchFailed, &message).await)
            }
        }
    }

    /// Returns the cause of a failed request: the loss of the sandbox if it does not answer a
    /// probe.
    pub(super) async fn lost(
        &self,
        sandbox: &dyn Sandbox,
        otherwise: CauseClass,
        message: &str,
    ) -> Stopped {
        match sandbox.probe().await {
            Ok(()) => self.stopped(otherwise, message),
            Err(_) => {
                self.stopped(CauseClass::SandboxLost, &format!("the sandbox is lost: {message}"))
            }
        }
    }

    fn serve_request(&self, sandbox: &dyn Sandbox) -> serve::ServeRequest {
        let RuntimeKind::Command { command, prompt } = &self.workflow.runtime.kind;
        let mut command = command.clone();
        let is_placed = command.iter().any(|arg| arg.contains(PROMPT));
        if *prompt == PromptBy::Argument && !is_placed {
            command.push(PROMPT.to_owned());
        }
        let env = self.environment().into_iter();
        let mut env: std::collections::BTreeMap<String, String> =
            env.map(|(name, value)| (name, value.expose_secret().to_owned())).collect();
        let capabilities = agent::format_capabilities(&self.journal.state().capabilities);
        env.insert("CREEL_CAPABILITIES".to_owned(), capabilities);
        env.insert("CREEL_RUN".to_owned(), self.journal.run().to_string());
        serve::ServeRequest {
            directory: self.bridge_directory(sandbox),
            runtime: serve::Runtime::Command { command },
            workspace: self.workspace_path(sandbox),
            env,
            heartbeat_ms: millis(HEARTBEAT),
            lease_ms: millis(self.workflow.sandbox.lease),
        }
    }

    /// Runs a short command, and retries it if the sandbox does not answer.
    async fn short(&self, sandbox: &dyn Sandbox, command: &Command) -> Result<(), String> {
        let mut pause = Duration::from_millis(100);
        let mut last = String::new();
        for _ in 0..SHORT_TRIES {
            match run(sandbox, command).await {
                Ok(ran) if ran.is_success() => return Ok(()),
                Ok(ran) => {
                    return Err(format!(
                        "{} {}",
                        ran.found(&self.masker),
                        self.masker.tail(&ran.mixed)
                    ));
                }
                Err(error) => last = chain(&error),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(last)
    }

    /// Sends the bridge a command. The bridge accepts each key only once, however often it is sent.
    pub(super) async fn send_to_bridge(
        &self,
        sandbox: &dyn Sandbox,
        key: &str,
        command: &serve::BridgeCommand,
    ) -> Result<(), String> {
        let directory = self.bridge_directory(sandbox);
        let text = serde_json::to_vec(command).expect("a command is plain data");
        let path = format!("{directory}/commands/{key}.json");
        let mut last = String::new();
        for _ in 0..SHORT_TRIES {
            match sandbox.upload(&path, Bytes::from(text.clone()), 0o600).await {
                Ok(()) => {
                    let poke = [sandbox.bridge_path(), "poke", "--directory", &directory];
                    return self.short(sandbox, &Command::new(poke, SHORT)).await;
                }
                Err(error) => last = chain(&error),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(last)
    }

    /// Lets the bridge forget events that are recorded here. Best effort: otherwise it keeps them.
    pub(super) fn acknowledge(&self, sandbox: &Arc<dyn Sandbox>, seq: u64) {
        let sandbox = Arc::clone(sandbox);
        let directory = self.bridge_directory(sandbox.as_ref());
        creel_model::task::background(async move {
            let (program, to) = (sandbox.bridge_path(), seq.to_string());
            let command = [program, "acknowledge", "--directory", &directory, "--to", &to];
            let _: Result<_, ProviderError> =
                run(sandbox.as_ref(), &Command::new(command, SHORT)).await;
        });
    }
}

/// Returns a duration in milliseconds, the unit of the bridge's requests.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
