//! The turns: starts the bridge, sends it prompts, and handles its events until
//! there is no prompt left.

use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::serve;
use creel_model::crashpoint;
use creel_model::crashpoint::Crashpoint;
use creel_model::run::{
    CauseClass, ConditionStatus, ConditionType, Connection, Phase, RunEvent, TurnOutcome,
};
use creel_sanitise::Diagnostic;
use tokio::time::Instant;
use tracing::{info, warn};

use super::bridge::{HEARTBEAT, millis};
use super::tail::TailMessage;
use super::turn_loop::TurnLoop;
use super::{Drive, Stopped};

/// The number of missed heartbeats after which a sandbox is offline.
const LOST_AFTER: u32 = 3;
/// How long a sandbox may be offline before the run fails. A shorter lease takes precedence.
const OFFLINE_LIMIT: Duration = Duration::from_secs(600);
/// The limit of a turn when the workflow sets none.
const NO_LIMIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The maximum number of bridges per turn loop, including the first.
const MOST_BRIDGES: u32 = 3;
/// What the loop does next.
pub(super) enum LoopAction {
    /// Waits for the next event or command.
    Wait,
    /// Ends, because there is no prompt left.
    Done,
}

impl Drive {
    /// Starts the bridge and runs turns until there is no prompt left.
    pub(super) async fn run_turns(&mut self) -> Result<(), Stopped> {
        let sandbox = self.sandbox();
        if !self.journal.state().phase.is_active() {
            self.start_bridge(sandbox.as_ref()).await?;
        }
        self.has_bridge = true;
        let mut turn_loop = self.turn_loop(sandbox);
        let mut next = self.begin(&mut turn_loop).await?;
        while let LoopAction::Wait = next {
            next = self.wait_for_next(&mut turn_loop).await?;
        }
        Ok(())
    }

    /// Begins with the first turn, or where the previous driver stopped.
    async fn begin(&mut self, turn_loop: &mut TurnLoop) -> Result<LoopAction, Stopped> {
        if self.journal.state().request.is_some() {
            turn_loop.waiting_since = Some(Instant::now());
            self.enter(Phase::AwaitingInput).await?;
            return Ok(LoopAction::Wait);
        }
        self.enter(Phase::Running).await?;
        if turn_loop.is_busy { Ok(LoopAction::Wait) } else { self.continue_or_end(turn_loop).await }
    }

    /// Begins the next turn. Returns whether there is one.
    async fn next_prompt(&mut self, turn_loop: &mut TurnLoop) -> Result<bool, Stopped> {
        let Some(prompt) = turn_loop.prompts.pop_front() else { return Ok(false) };
        let begun = self.journal.state().turns;
        if self.workflow.limits.turns.is_some_and(|most| begun >= most) {
            let message = format!("limits.turns = {begun} was reached, and there is more to do");
            return Err(self.stopped(CauseClass::BudgetExceeded, &message));
        }
        let limits = &self.workflow.limits;
        let command = serve::BridgeCommand::Turn {
            prompt: prompt.text,
            limit_ms: millis(limits.turn.unwrap_or(NO_LIMIT)),
            silence_ms: limits.idle.map(millis),
        };
        turn_loop.is_busy = true;
        let key = prompt.message.clone().unwrap_or_else(|| format!("turn-{}", begun + 1));
        self.send_command(turn_loop, &key, &command).await?;
        crashpoint::reach(Crashpoint::TurnSentNotConfirmed);
        if let Some(key) = prompt.message {
            self.mark_delivered(&key).await?;
        }
        Ok(true)
    }

    /// Sends the bridge a command. Returns the cause if the bridge did not accept it.
    pub(super) async fn send_command(
        &self,
        turn_loop: &TurnLoop,
        key: &str,
        command: &serve::BridgeCommand,
    ) -> Result<(), Stopped> {
        let sandbox = turn_loop.sandbox.as_ref();
        match self.send_to_bridge(sandbox, key, command).await {
            Ok(()) => Ok(()),
            Err(reason) => {
                let message = format!("the bridge accepted no command: {reason}");
                Err(self.lost(sandbox, CauseClass::AgentCrashed, &message).await)
            }
        }
    }

    /// Waits for the next event, command or timeout, and handles it.
    async fn wait_for_next(&mut self, turn_loop: &mut TurnLoop) -> Result<LoopAction, Stopped> {
        let silence = turn_loop.last_seen_at + HEARTBEAT * LOST_AFTER;
        let lease = turn_loop.waiting_since.map(|since| since + self.workflow.sandbox.lease);
        tokio::select! {
            message = turn_loop.tail.messages.recv() => match message {
                Some(message) => self.handle_message(turn_loop, message).await,
                None => Err(self.stopped(CauseClass::SandboxLost, "the sandbox does not answer any more")),
            },
            Some(command) = self.orders.incoming.recv() => self.handle_command(turn_loop, command).await,
            () = tokio::time::sleep_until(silence) => self.handle_silence(turn_loop).await,
            () = until(lease) => {
                Err(self.stopped(CauseClass::LeaseExpired, "the question was not answered before the lease ended"))
            }
        }
    }

    async fn handle_message(
        &mut self,
        turn_loop: &mut TurnLoop,
        message: TailMessage,
    ) -> Result<LoopAction, Stopped> {
        match message {
            TailMessage::Event(seq, event) => {
                self.alive(turn_loop).await?;
                self.handle_event(turn_loop, seq, event).await
            }
            TailMessage::Alive => self.alive(turn_loop).await.map(|()| LoopAction::Wait),
            TailMessage::Broken => {
                self.connect(Connection::Reconnecting).await?;
                Ok(LoopAction::Wait)
            }
            TailMessage::BridgeEnded => self.bridge_died(turn_loop).await,
            TailMessage::SandboxGone(how) => {
                self.connect(Connection::Offline).await?;
                let message = format!("the sandbox was lost on the way: {how}");
                Err(self.stopped(CauseClass::SandboxLost, &message))
            }
        }
    }

    async fn alive(&mut self, turn_loop: &mut TurnLoop) -> Result<(), Stopped> {
        turn_loop.last_seen_at = Instant::now();
        self.connect(Connection::Connected).await?;
        let message = Diagnostic::ours("the bridge answers");
        self.condition(ConditionType::AgentConnected, ConditionStatus::True, "Heard", message).await
    }

    /// Handles a silence of three heartbeats.
    async fn handle_silence(&mut self, turn_loop: &mut TurnLoop) -> Result<LoopAction, Stopped> {
        self.connect(Connection::Offline).await?;
        let message = Diagnostic::ours("no sign of life for three heartbeats");
        self.condition(ConditionType::AgentConnected, ConditionStatus::False, "Silent", message)
            .await?;
        let patience = OFFLINE_LIMIT.min(self.workflow.sandbox.lease);
        if turn_loop.last_seen_at.elapsed() > patience {
            let message =
                format!("the sandbox did not answer for {}", creel_model::duration::show(patience));
            return Err(self.stopped(CauseClass::Offline, &message));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(LoopAction::Wait)
    }

    /// Restarts a bridge that died. The new bridge reports the interrupted turn as such.
    async fn bridge_died(&mut self, turn_loop: &mut TurnLoop) -> Result<LoopAction, Stopped> {
        if turn_loop.bridges >= MOST_BRIDGES {
            return Err(self.stopped(CauseClass::AgentCrashed, "the bridge died again and again"));
        }
        warn!("the bridge died; it is started again");
        turn_loop.bridges += 1;
        self.start_bridge(turn_loop.sandbox.as_ref()).await?;
        turn_loop.tail = self.tail(&turn_loop.sandbox, self.journal.state().spooled + 1);
        Ok(LoopAction::Wait)
    }

    async fn handle_event(
        &mut self,
        turn_loop: &mut TurnLoop,
        seq: u64,
        event: BridgeEvent,
    ) -> Result<LoopAction, Stopped> {
        if turn_loop.is_replayed(seq) {
            if let BridgeEvent::Text { stream, text, .. } = event {
                // The previous driver has shown it already, except for what it held back.
                let _ = turn_loop.feed(stream, &text);
            }
            return Ok(LoopAction::Wait);
        }
        let event = match event {
            BridgeEvent::BridgeStarted { version } => {
                RunEvent::BridgeStarted { version: self.masker.mask(&version) }
            }
            BridgeEvent::RuntimeReady { version } => {
                let version = version.map(|version| self.masker.mask(&version));
                RunEvent::RuntimeReady { version }
            }
            BridgeEvent::CommandTaken { key } => {
                turn_loop.accepted.insert(key);
                return Ok(LoopAction::Wait);
            }
            BridgeEvent::Unknown => return Ok(LoopAction::Wait),
            BridgeEvent::TurnStarted { turn, attempt, model } => {
                for stream in [Stream::Output, Stream::Error] {
                    // A turn begins with nothing held back.
                    let _ = turn_loop.finish(stream, self.masker.stream());
                }
                let model = model.map(|model| self.masker.mask(&model));
                RunEvent::TurnStarted { turn, attempt, model }
            }
            BridgeEvent::Text { turn, stream, text } => {
                let text = turn_loop.feed(stream, &text);
                // Text that is held back entirely comes with the next piece, or with the end of the
                // turn.
                if text.is_empty() {
                    return Ok(LoopAction::Wait);
                }
                RunEvent::Text { turn, stream, text }
            }
            BridgeEvent::InputRequested { turn, request, question } => {
                return self.wait_for_person(turn_loop, seq, (turn, request, question)).await;
            }
            BridgeEvent::InputGiven { request } => {
                turn_loop.waiting_since = None;
                let request = self.masker.mask(&request);
                self.spooled(RunEvent::InputGiven { request }, seq).await?;
                return self.enter(Phase::Running).await.map(|()| LoopAction::Wait);
            }
            BridgeEvent::TurnEnded { turn, how } => {
                return self.turn_ended(turn_loop, seq, turn, how).await;
            }
            BridgeEvent::RuntimeEnded { reason } => {
                let message = format!("the runtime ended: {reason}");
                let sandbox = turn_loop.sandbox.as_ref();
                return Err(self.lost(sandbox, CauseClass::AgentCrashed, &message).await);
            }
        };
        self.spooled(event, seq).await.map(|()| LoopAction::Wait)
    }

    async fn spooled(&mut self, event: RunEvent, seq: u64) -> Result<(), Stopped> {
        Ok(self.journal.record_spooled(event, seq).await?)
    }

    async fn wait_for_person(
        &mut self,
        turn_loop: &mut TurnLoop,
        seq: u64,
        (turn, request, question): (u32, String, String),
    ) -> Result<LoopAction, Stopped> {
        let (request, question) = (self.masker.mask(&request), self.masker.mask(&question));
        self.spooled(RunEvent::InputRequested { turn, request, question }, seq).await?;
        turn_loop.waiting_since = Some(Instant::now());
        self.enter(Phase::AwaitingInput).await.map(|()| LoopAction::Wait)
    }

    async fn turn_ended(
        &mut self,
        turn_loop: &mut TurnLoop,
        seq: u64,
        turn: u32,
        how: TurnEnding,
    ) -> Result<LoopAction, Stopped> {
        let outcome = self.record_end_of_turn(turn_loop, seq, turn, how).await?;
        self.acknowledge(&turn_loop.sandbox, seq);
        turn_loop.is_busy = false;
        if let Some(stopped) = self.failure_of(turn_loop, &outcome).await {
            return Err(stopped);
        }
        info!(turn, "turn ended");
        let pauses = self
            .workflow
            .pause
            .as_ref()
            .is_some_and(|pause| turn.is_multiple_of(pause.after_turns));
        if pauses && !turn_loop.prompts.is_empty() {
            turn_loop.waiting_since = Some(Instant::now());
            return self.enter(Phase::Paused).await.map(|()| LoopAction::Wait);
        }
        self.continue_or_end(turn_loop).await
    }

    /// Records the end of a turn, preceded by the text that was held back.
    async fn record_end_of_turn(
        &mut self,
        turn_loop: &mut TurnLoop,
        seq: u64,
        turn: u32,
        how: TurnEnding,
    ) -> Result<TurnOutcome, Stopped> {
        let held_back = [Stream::Output, Stream::Error].map(|stream| {
            let text = turn_loop.finish(stream, self.masker.stream());
            (!text.is_empty()).then_some(RunEvent::Text { turn, stream, text })
        });
        let held_back = held_back.into_iter().flatten().collect();
        let outcome = TurnOutcome::of(how, |reason| self.masker.diagnostic(reason));
        let ended = RunEvent::TurnEnded { turn, how: outcome.clone() };
        // In one write: a driver that resumes must not repeat the last text.
        self.journal.record_with(held_back, ended, seq).await?;
        Ok(outcome)
    }

    /// Records the last output of an agent that is being stopped. It has no further effect.
    pub(super) async fn record_last_output(
        &mut self,
        turn_loop: &mut TurnLoop,
        seq: u64,
        event: BridgeEvent,
    ) -> Result<(), Stopped> {
        match event {
            BridgeEvent::TurnEnded { turn, how } if !turn_loop.is_replayed(seq) => {
                self.record_end_of_turn(turn_loop, seq, turn, how).await.map(drop)
            }
            BridgeEvent::Text { .. } => self.handle_event(turn_loop, seq, event).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Begins the next turn, waits for a pending message, or ends.
    pub(super) async fn continue_or_end(
        &mut self,
        turn_loop: &mut TurnLoop,
    ) -> Result<LoopAction, Stopped> {
        let continues = self.next_prompt(turn_loop).await? || self.has_pending_message().await;
        Ok(if continues { LoopAction::Wait } else { LoopAction::Done })
    }

    /// Returns the cause for a turn that did not succeed.
    async fn failure_of(&self, turn_loop: &TurnLoop, outcome: &TurnOutcome) -> Option<Stopped> {
        let (class, message) = match outcome {
            TurnOutcome::Exited { code: 0 } => return None,
            TurnOutcome::Exited { code } => {
                (CauseClass::AgentCrashed, format!("the agent program ended with code {code}"))
            }
            TurnOutcome::Killed { signal } => {
                let message = format!("the agent program was ended by signal {signal}");
                let sandbox = turn_loop.sandbox.as_ref();
                // When a sandbox is ended, the program in it is ended first. So the sandbox may be
                // lost.
                return Some(self.lost(sandbox, CauseClass::AgentCrashed, &message).await);
            }
            TurnOutcome::TimedOut => {
                (CauseClass::BudgetExceeded, "limits.turn was reached".to_owned())
            }
            TurnOutcome::Silent => (
                CauseClass::NoProgress,
                "the agent said nothing for as long as limits.idle allows".to_owned(),
            ),
            TurnOutcome::Cancelled => {
                // This driver did not ask for that. The bridge cancels a turn when its lease is not
                // renewed, and when its sandbox ends.
                let message = "the bridge ended the turn, because its lease had run out";
                let sandbox = turn_loop.sandbox.as_ref();
                return Some(self.lost(sandbox, CauseClass::LeaseExpired, message).await);
            }
            TurnOutcome::NotStarted { reason } => (
                CauseClass::AgentLaunchFailed,
                format!("the agent program did not start: {reason}"),
            ),
        };
        Some(self.stopped(class, &message))
    }
}

/// Waits until an instant, or for ever if there is none.
async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
