//! The commands that a run receives while it is driven: messages, resume and cancel.
//!
//! A command stays open until it was carried out, so the next driver receives it
//! again. A message is sent to the bridge under the command's key, which the
//! bridge accepts only once. The key of the last delivered message is part of the run's state.

use creel_bridge::serve;
use creel_ledger::PlacedCommand;
use creel_model::run::RunCommand;
use creel_model::run::{Phase, RunEvent};
use secrecy::ExposeSecret;
use tracing::warn;

use crate::messages;

use super::turn_loop::{Prompt, TurnLoop};
use super::turns::LoopAction;
use super::{Drive, Stopped};

impl Drive {
    /// Carries out a command, and marks it as done.
    pub(super) async fn handle_command(
        &mut self,
        turn_loop: &mut TurnLoop,
        placed: PlacedCommand,
    ) -> Result<LoopAction, Stopped> {
        let PlacedCommand { key, command, .. } = placed;
        let next = match command {
            RunCommand::Message { .. } => return self.deliver_message(turn_loop, key).await,
            RunCommand::Resume if self.journal.state().phase == Phase::Paused => {
                turn_loop.waiting_since = None;
                self.enter(Phase::Running).await?;
                self.continue_or_end(turn_loop).await?
            }
            RunCommand::Resume => LoopAction::Wait,
            RunCommand::Cancel => {
                self.orders.cancel.cancel();
                LoopAction::Wait
            }
        };
        self.close_command(&key).await;
        Ok(next)
    }

    /// Sends a message as the answer to an open question, or queues it as a new turn.
    async fn deliver_message(
        &mut self,
        turn_loop: &mut TurnLoop,
        key: String,
    ) -> Result<LoopAction, Stopped> {
        let was_delivered = self.was_delivered(&key) || turn_loop.accepted.contains(&key);
        let text = messages::read(self.context.ledger.home(), self.journal.run(), &key);
        if let Ok(text) = &text {
            self.hide_text(text.expose_secret());
        }
        if was_delivered {
            // The previous driver died before it could record that.
            self.mark_delivered(&key).await?;
            return Ok(LoopAction::Wait);
        }
        let text = match text {
            Ok(text) => text.expose_secret().to_owned(),
            Err(error) => {
                warn!(%error, key, "the text of a message is not there; it is left out");
                self.close_command(&key).await;
                return Ok(LoopAction::Wait);
            }
        };
        if let Some(open) = self.journal.state().request.clone() {
            let request = open.request.to_string();
            let command = serve::BridgeCommand::Answer { request, text };
            self.send_command(turn_loop, &key, &command).await?;
            self.mark_delivered(&key).await?;
            return Ok(LoopAction::Wait);
        }
        turn_loop.prompts.push_back(Prompt { text, message: Some(key) });
        let is_idle = !turn_loop.is_busy && self.journal.state().phase == Phase::Running;
        if is_idle { self.continue_or_end(turn_loop).await } else { Ok(LoopAction::Wait) }
    }

    fn was_delivered(&self, key: &str) -> bool {
        self.journal.state().passed_on.as_ref().is_some_and(|last| last.as_str() == key)
    }

    /// Records that a message reached the agent, and closes its command.
    pub(super) async fn mark_delivered(&mut self, key: &str) -> Result<(), Stopped> {
        if !self.was_delivered(key) {
            self.record(RunEvent::MessageTaken { key: key.into() }).await?;
        }
        messages::remove(self.context.ledger.home(), self.journal.run(), key);
        self.close_command(key).await;
        Ok(())
    }

    async fn close_command(&self, key: &str) {
        if let Err(error) = self.context.ledger.complete_command(key).await {
            // The next driver receives it again, and its key shows that it was carried out.
            warn!(%error, "an command could not be marked as done");
        }
    }

    /// Returns whether there is a message that has not been delivered yet.
    pub(super) async fn has_pending_message(&self) -> bool {
        match self.context.ledger.open_commands(self.journal.run()).await {
            Ok(open) => open.iter().any(|placed| {
                matches!(placed.command, RunCommand::Message { .. })
                    && !self.was_delivered(&placed.key)
            }),
            Err(error) => {
                warn!(%error, "whether there are messages could not be looked up");
                false
            }
        }
    }
}
