//! Cloud sandboxes.
//!
//! ```text
//!   <home>/.creel/creel-bridge-<digest>  the program
//!   <home>/.creel/orders/                orders on their way, and signs of life
//!   <home>/workspace/                    where a relative workspace path begins
//! ```
//!
//! There is no stream that goes both ways. An order is a file, which the
//! program removes as soon as it has read it; the command runs in a session of
//! its own, whose log is followed. Whether whoever ordered it is still there
//! shows in a second file: it changes every few seconds for as long as the
//! order is waited for, and is removed when it is not. When it does not change
//! any more, or is gone, the command is killed. Its limits are the program's
//! own, and hold without any connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use creel_bridge::exec::Order;
use secrecy::SecretString;
use tokio::sync::{Notify, OnceCell};
use tracing::debug;
use uuid::Uuid;

use crate::provider::daytona::DaytonaProvider;
use crate::provider::daytona::toolbox::{Exec, Executed, SessionCommand, Stream, Toolbox};
use crate::provider::{ErrorClass, Kind, Observed, Provider, ProviderError, ProviderName, Usage};
use crate::task;

use super::BridgeProgram;
use super::Sight;
use super::answer::Answer;
use super::entered::Way;
use super::place::Place;

/// How often a sign of life is given.
const SIGN_PERIOD: Duration = Duration::from_secs(8);
/// Without a sign of life for this long, a command is killed.
const SIGN_PATIENCE_MS: u64 = 30_000;
/// How long a step of the furnishing may take.
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// How long a command that was hung up on may take to end before its session does.
const HANG_UP_PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two looks whether it has.
const HANG_UP_PAUSE: Duration = Duration::from_secs(1);

/// The way into a cloud sandbox.
#[derive(Debug)]
pub(super) struct DaytonaWay {
    pub provider: Arc<DaytonaProvider>,
    /// The sandbox's id.
    pub id: String,
    /// The program that is put into it.
    pub program: BridgeProgram,
    toolbox: OnceCell<Toolbox>,
}

impl DaytonaWay {
    /// Makes the way to a sandbox.
    pub(super) fn new(provider: Arc<DaytonaProvider>, id: String, program: BridgeProgram) -> Self {
        Self { provider, id, program, toolbox: OnceCell::new() }
    }

    async fn toolbox(&self) -> Result<&Toolbox, ProviderError> {
        self.toolbox.get_or_try_init(|| self.provider.toolbox(&self.id)).await
    }

    /// Finds out what is where.
    pub(super) async fn place(
        &self,
        program: &str,
        env: BTreeMap<String, SecretString>,
    ) -> Result<Place, ProviderError> {
        let home = self.toolbox().await?.home().await?;
        Ok(Place::below(&home, program, env))
    }

    /// Makes the directories, and puts the program there unless it is there already.
    pub(super) async fn furnish(&self, place: &Place) -> Result<(), ProviderError> {
        let (creel, program) = (quoted(&place.creel_directory), quoted(&place.bridge_path));
        let workspace = quoted(&place.workspace_root);
        let make = format!(
            "mkdir -p {creel}/orders {workspace} && chmod 700 {creel} && \
             if test -x {program}; then echo there; else echo missing; fi"
        );
        if self.step("make its directories", make).await?.trim() == "there" {
            return Ok(());
        }
        let draft = format!("{}.{}", place.bridge_path, Uuid::new_v4().simple());
        let content = Bytes::from_static(self.program.bytes);
        self.toolbox().await?.upload(&draft, content).await?;
        let draft = quoted(&draft);
        // Renamed as a whole, so that nobody ever starts half of it; and started, so that a
        // sandbox for another machine is known here and not at the first command.
        let place = format!("chmod 755 {draft} && {draft} alive && mv {draft} {program}");
        self.step("place creel-bridge", place).await.map(drop)
    }

    /// Runs a line of shell that holds nothing but our own paths; returns what it wrote.
    async fn step(&self, what: &str, command: String) -> Result<String, ProviderError> {
        let exec = Exec { command, limit: STEP_LIMIT, ..Exec::default() };
        match self.toolbox().await?.exec(&exec).await? {
            Executed::Ended { code: 0, output } => Ok(output),
            Executed::Ended { code, output } => {
                let message = format!("code {code}: {}", shortened(&output));
                Err(self.failure(what, ErrorClass::Invalid, message))
            }
            Executed::TimedOut => {
                Err(self.failure(what, ErrorClass::Transient, "it took too long".to_owned()))
            }
        }
    }

    fn failure(&self, what: &str, class: ErrorClass, message: String) -> ProviderError {
        ProviderError {
            provider: ProviderName::Daytona,
            operation: format!("{what} in sandbox {}", self.id),
            message,
            class,
            retry_after: None,
        }
    }
}

/// One order on its way; when this is dropped, whatever came of it is cleared away, and a
/// command that runs is killed.
#[derive(Debug)]
struct Errand {
    toolbox: Toolbox,
    /// The name of the session, too.
    name: String,
    order_file: String,
    sign_file: String,
    /// The command, once it was started.
    command: Option<SessionCommand>,
    is_finished: bool,
}

impl Errand {
    fn new(toolbox: &Toolbox, place: &Place) -> Self {
        let name = format!("creel-{}", Uuid::new_v4().simple());
        let file = |ending: &str| format!("{}/orders/{name}.{ending}", place.creel_directory);
        Self {
            toolbox: toolbox.clone(),
            order_file: file("json"),
            sign_file: file("sign"),
            name,
            command: None,
            is_finished: false,
        }
    }

    /// Sends the order and starts its command.
    async fn begin(&mut self, place: &Place, order: &Order) -> Result<(), ProviderError> {
        let order = Bytes::from(serde_json::to_vec(order).unwrap_or_default());
        let files = vec![(self.sign_file.clone(), sign()), (self.order_file.clone(), order)];
        self.toolbox.upload_all(files).await?;
        self.toolbox.create_session(&self.name).await?;
        let line = format!(
            "{} exec --order {} --while-file {} --while-ms {SIGN_PATIENCE_MS} </dev/null",
            quoted(&place.bridge_path),
            quoted(&self.order_file),
            quoted(&self.sign_file),
        );
        self.command = Some(self.toolbox.start_command(&self.name, &line).await?);
        Ok(())
    }

    /// Gives signs of life for as long as it is polled.
    async fn give_signs(&self) {
        loop {
            tokio::time::sleep(SIGN_PERIOD).await;
            if let Err(error) = self.toolbox.upload(&self.sign_file, sign()).await {
                debug!(%error, "a sign of life did not get through");
            }
        }
    }

    /// Hears the command until its last word.
    async fn hear(&self, answer: &mut Answer<'_>) -> Result<(), ProviderError> {
        let Some(command) = &self.command else { return Ok(()) };
        let last_word = Notify::new();
        let followed = {
            let mut take = |stream: Stream, bytes: &[u8]| {
                if stream == Stream::Output {
                    answer.feed(bytes);
                }
                if answer.is_finished() {
                    last_word.notify_one();
                }
            };
            tokio::select! {
                followed = self.toolbox.follow(command, &mut take) => followed.map(drop),
                () = last_word.notified() => Ok(()),
                () = self.give_signs() => Ok(()),
            }
        };
        if answer.is_finished() {
            return Ok(());
        }
        followed?;
        // Something was lost on the way; the log still has it.
        answer.read_again();
        answer.feed(self.toolbox.logs(command).await?.output.as_bytes());
        Ok(())
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let errand = Ended {
            toolbox: self.toolbox.clone(),
            name: std::mem::take(&mut self.name),
            files: [std::mem::take(&mut self.sign_file), std::mem::take(&mut self.order_file)],
            running: self.command.take().filter(|_| !self.is_finished),
        };
        task::background(errand.clear());
    }
}

/// An errand that is over, one way or the other.
struct Ended {
    toolbox: Toolbox,
    name: String,
    files: [String; 2],
    /// The command, if it may still run.
    running: Option<SessionCommand>,
}

impl Ended {
    /// Clears away what an errand left. What fails here ends with the sandbox.
    async fn clear(self) {
        for file in &self.files {
            // The sign goes first: without it the command is killed.
            let _ = self.toolbox.remove(file).await;
        }
        if let Some(command) = &self.running {
            // Its session is its program's: that one is to clear up before it goes.
            let ended = async {
                while let Ok(None) = self.toolbox.exit_code(command).await {
                    tokio::time::sleep(HANG_UP_PAUSE).await;
                }
            };
            let _ = tokio::time::timeout(HANG_UP_PATIENCE, ended).await;
        }
        let _ = self.toolbox.delete_session(&self.name).await;
    }
}

#[async_trait]
impl Way for DaytonaWay {
    fn provider(&self) -> ProviderName {
        ProviderName::Daytona
    }

    fn id(&self) -> &str {
        &self.id
    }

    async fn carry(
        &self,
        place: &Place,
        order: Order,
        answer: &mut Answer<'_>,
    ) -> Result<(), ProviderError> {
        let mut errand = Errand::new(self.toolbox().await?, place);
        errand.begin(place, &order).await?;
        let heard = errand.hear(answer).await;
        errand.is_finished = answer.is_finished();
        heard
    }

    async fn look(&self) -> Result<Sight, ProviderError> {
        let seen = self.provider.inspect(Kind::Sandbox, &self.id).await?;
        Ok(match seen {
            None => Sight::Absent,
            // Nothing brings it back.
            Some(seen) if is_leaving(&seen) => Sight::Absent,
            Some(seen) if seen.state == "started" => Sight::Running,
            Some(seen) => Sight::Resting(seen.state),
        })
    }

    async fn start(&self, place: &Place) -> Result<(), ProviderError> {
        self.provider.start(&self.id).await?;
        self.furnish(place).await
    }

    async fn stop(&self, patience: Duration) -> Result<(), ProviderError> {
        self.provider.stop(Kind::Sandbox, &self.id, patience).await
    }

    async fn usage(&self) -> Result<Usage, ProviderError> {
        self.toolbox().await?.usage().await
    }

    async fn renew(&self) -> Result<(), ProviderError> {
        self.provider.renew(Kind::Sandbox, &self.id).await
    }
}

/// Returns whether its delete was accepted, whatever came of it.
fn is_leaving(seen: &Observed) -> bool {
    matches!(seen.state.as_str(), "destroying" | "destroyed")
        || seen.desired.as_deref() == Some("destroyed")
        || seen.retained.is_some()
}

/// Returns a sign of life, unlike every other.
fn sign() -> Bytes {
    Bytes::from(Uuid::new_v4().to_string())
}

/// Quotes a path for a shell.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// Returns the beginning of what a step wrote, in one line.
fn shortened(output: &str) -> String {
    let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_whatever_is_in_it() {
        assert_eq!(quoted("/home/o'b r"), r"'/home/o'\''b r'");
    }
}
