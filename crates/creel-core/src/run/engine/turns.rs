//! The turns: the bridge is started, told what to do, and listened to until there is nothing more.

use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::serve;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::crashpoint::{self, Crashpoint};
use crate::run::{CauseClass, ConditionType, Connection, Phase, RunEvent, Status, TurnOutcome};
use crate::sanitise::Diagnostic;

use super::bridge::{HEARTBEAT, millis};
use super::course::Course;
use super::tail::Heard;
use super::{Drive, Stopped};

/// After how many missing ones a sandbox is offline.
const LOST_AFTER: u32 = 3;
/// How long a sandbox may be offline before the run is given up, or its lease if that is shorter.
const OFFLINE_LIMIT: Duration = Duration::from_secs(600);
/// How long a turn may take when the workflow sets no limit.
const NO_LIMIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often a bridge that died is started again.
const MOST_BRIDGES: u32 = 3;
/// What the loop does next.
pub(super) enum Next {
    /// Waits for what is heard or asked for.
    Listen,
    /// Ends: there is nothing more to say.
    Done,
}

impl Drive {
    /// Starts the bridge and takes turns until there is nothing more to say.
    pub(super) async fn take_turns(&mut self) -> Result<(), Stopped> {
        let sandbox = self.sandbox();
        if !self.journal.state().phase.is_active() {
            self.start_bridge(sandbox.as_ref()).await?;
        }
        self.has_bridge = true;
        let mut course = self.course(sandbox);
        let mut next = self.begin(&mut course).await?;
        while let Next::Listen = next {
            next = self.listen(&mut course).await?;
        }
        Ok(())
    }

    /// Begins with the first turn, or where the driver before this one stopped.
    async fn begin(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        if self.journal.state().request.is_some() {
            course.waiting_since = Some(Instant::now());
            self.enter(Phase::AwaitingInput).await?;
            return Ok(Next::Listen);
        }
        self.enter(Phase::Running).await?;
        if course.is_busy { Ok(Next::Listen) } else { self.go_on_or_end(course).await }
    }

    /// Begins the next turn; returns whether there is one.
    async fn next_prompt(&mut self, course: &mut Course) -> Result<bool, Stopped> {
        let Some(prompt) = course.prompts.pop_front() else { return Ok(false) };
        let begun = self.journal.state().turns;
        if self.workflow.limits.turns.is_some_and(|most| begun >= most) {
            let message = format!("limits.turns = {begun} was reached, and there is more to do");
            return Err(self.stopped(CauseClass::BudgetExceeded, &message));
        }
        let limits = &self.workflow.limits;
        let order = serve::Command::Turn {
            prompt: prompt.text,
            limit_ms: millis(limits.turn.unwrap_or(NO_LIMIT)),
            silence_ms: limits.idle.map(millis),
        };
        course.is_busy = true;
        let key = prompt.message.clone().unwrap_or_else(|| format!("turn-{}", begun + 1));
        self.tell(course, &key, &order).await?;
        crashpoint::reach(Crashpoint::TurnToldNotHeard);
        if let Some(key) = prompt.message {
            self.note_passed_on(&key).await?;
        }
        Ok(true)
    }

    /// Gives the bridge an order, or names why it did not take it.
    pub(super) async fn tell(
        &self,
        course: &Course,
        key: &str,
        order: &serve::Command,
    ) -> Result<(), Stopped> {
        let sandbox = course.sandbox.as_ref();
        match self.tell_bridge(sandbox, key, order).await {
            Ok(()) => Ok(()),
            Err(reason) => {
                let message = format!("the bridge took no order: {reason}");
                Err(self.lost(sandbox, CauseClass::AgentCrashed, &message).await)
            }
        }
    }

    /// Waits for the next thing to happen, and does what follows from it.
    async fn listen(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        let silence = course.heard_at + HEARTBEAT * LOST_AFTER;
        let lease = course.waiting_since.map(|since| since + self.workflow.sandbox.lease);
        tokio::select! {
            heard = course.tail.heard.recv() => match heard {
                Some(heard) => self.hear(course, heard).await,
                None => Err(self.stopped(CauseClass::SandboxLost, "nothing is heard of the sandbox any more")),
            },
            Some(order) = self.orders.incoming.recv() => self.obey(course, order).await,
            () = tokio::time::sleep_until(silence) => self.silent(course).await,
            () = until(lease) => {
                Err(self.stopped(CauseClass::LeaseExpired, "nobody answered before the lease ended"))
            }
        }
    }

    async fn hear(&mut self, course: &mut Course, heard: Heard) -> Result<Next, Stopped> {
        match heard {
            Heard::Event(seq, event) => {
                self.alive(course).await?;
                self.take_event(course, seq, event).await
            }
            Heard::Alive => self.alive(course).await.map(|()| Next::Listen),
            Heard::Broken => {
                self.connect(Connection::Reconnecting).await?;
                Ok(Next::Listen)
            }
            Heard::BridgeEnded => self.bridge_died(course).await,
            Heard::SandboxGone(how) => {
                self.connect(Connection::Offline).await?;
                let message = format!("the sandbox was lost on the way: {how}");
                Err(self.stopped(CauseClass::SandboxLost, &message))
            }
        }
    }

    async fn alive(&mut self, course: &mut Course) -> Result<(), Stopped> {
        course.heard_at = Instant::now();
        self.connect(Connection::Connected).await?;
        let message = Diagnostic::ours("the bridge is heard");
        self.condition(ConditionType::AgentConnected, Status::True, "Heard", message).await
    }

    /// Nothing was heard for three heartbeats.
    async fn silent(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        self.connect(Connection::Offline).await?;
        let message = Diagnostic::ours("no sign of life for three heartbeats");
        self.condition(ConditionType::AgentConnected, Status::False, "Silent", message).await?;
        let patience = OFFLINE_LIMIT.min(self.workflow.sandbox.lease);
        if course.heard_at.elapsed() > patience {
            let message =
                format!("the sandbox was not heard for {}", crate::duration::show(patience));
            return Err(self.stopped(CauseClass::Offline, &message));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Next::Listen)
    }

    /// Starts a bridge again that died; the turn that was cut is told as such by the new one.
    async fn bridge_died(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        if course.bridges >= MOST_BRIDGES {
            return Err(self.stopped(CauseClass::AgentCrashed, "the bridge died again and again"));
        }
        warn!("the bridge died; it is started again");
        course.bridges += 1;
        self.start_bridge(course.sandbox.as_ref()).await?;
        course.tail = self.tail(&course.sandbox, self.journal.state().spooled + 1);
        Ok(Next::Listen)
    }

    async fn take_event(
        &mut self,
        course: &mut Course,
        seq: u64,
        event: BridgeEvent,
    ) -> Result<Next, Stopped> {
        if course.is_replayed(seq) {
            if let BridgeEvent::Text { stream, text, .. } = event {
                // It was shown by the driver before this one, but for what that held back.
                let _ = course.feed(stream, &text);
            }
            return Ok(Next::Listen);
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
                course.taken.insert(key);
                return Ok(Next::Listen);
            }
            BridgeEvent::Unknown => return Ok(Next::Listen),
            BridgeEvent::TurnStarted { turn, attempt, model } => {
                for stream in [Stream::Output, Stream::Error] {
                    // A turn begins with nothing held back.
                    let _ = course.finish(stream, self.masker.stream());
                }
                let model = model.map(|model| self.masker.mask(&model));
                RunEvent::TurnStarted { turn, attempt, model }
            }
            BridgeEvent::Text { turn, stream, text } => {
                let text = course.feed(stream, &text);
                // What is held back whole comes with what follows it, or with the turn's end.
                if text.is_empty() {
                    return Ok(Next::Listen);
                }
                RunEvent::Text { turn, stream, text }
            }
            BridgeEvent::InputRequested { turn, request, question } => {
                return self.wait_for_person(course, seq, (turn, request, question)).await;
            }
            BridgeEvent::InputGiven { request } => {
                course.waiting_since = None;
                let request = self.masker.mask(&request);
                self.spooled(RunEvent::InputGiven { request }, seq).await?;
                return self.enter(Phase::Running).await.map(|()| Next::Listen);
            }
            BridgeEvent::TurnEnded { turn, how } => {
                return self.turn_ended(course, seq, turn, how).await;
            }
            BridgeEvent::RuntimeEnded { reason } => {
                let message = format!("the runtime ended: {reason}");
                let sandbox = course.sandbox.as_ref();
                return Err(self.lost(sandbox, CauseClass::AgentCrashed, &message).await);
            }
        };
        self.spooled(event, seq).await.map(|()| Next::Listen)
    }

    async fn spooled(&mut self, event: RunEvent, seq: u64) -> Result<(), Stopped> {
        Ok(self.journal.record_spooled(event, seq).await?)
    }

    async fn wait_for_person(
        &mut self,
        course: &mut Course,
        seq: u64,
        (turn, request, question): (u32, String, String),
    ) -> Result<Next, Stopped> {
        let (request, question) = (self.masker.mask(&request), self.masker.mask(&question));
        self.spooled(RunEvent::InputRequested { turn, request, question }, seq).await?;
        course.waiting_since = Some(Instant::now());
        self.enter(Phase::AwaitingInput).await.map(|()| Next::Listen)
    }

    async fn turn_ended(
        &mut self,
        course: &mut Course,
        seq: u64,
        turn: u32,
        how: TurnEnding,
    ) -> Result<Next, Stopped> {
        let outcome = self.record_end_of_turn(course, seq, turn, how).await?;
        self.acknowledge(&course.sandbox, seq);
        course.is_busy = false;
        if let Some(stopped) = self.failure_of(course, &outcome).await {
            return Err(stopped);
        }
        info!(turn, "turn ended");
        let pauses = self
            .workflow
            .pause
            .as_ref()
            .is_some_and(|pause| turn.is_multiple_of(pause.after_turns));
        if pauses && !course.prompts.is_empty() {
            course.waiting_since = Some(Instant::now());
            return self.enter(Phase::Paused).await.map(|()| Next::Listen);
        }
        self.go_on_or_end(course).await
    }

    /// Records the end of a turn, and before it what was held back of its words.
    async fn record_end_of_turn(
        &mut self,
        course: &mut Course,
        seq: u64,
        turn: u32,
        how: TurnEnding,
    ) -> Result<TurnOutcome, Stopped> {
        let held_back = [Stream::Output, Stream::Error].map(|stream| {
            let text = course.finish(stream, self.masker.stream());
            (!text.is_empty()).then_some(RunEvent::Text { turn, stream, text })
        });
        let held_back = held_back.into_iter().flatten().collect();
        let outcome = TurnOutcome::of(how, |reason| self.masker.diagnostic(reason));
        let ended = RunEvent::TurnEnded { turn, how: outcome.clone() };
        // In one write: a driver that comes back must not say the last words again.
        self.journal.record_with(held_back, ended, seq).await?;
        Ok(outcome)
    }

    /// Takes what an agent that is being ended still says; nothing follows from it any more.
    pub(super) async fn take_last_words(
        &mut self,
        course: &mut Course,
        seq: u64,
        event: BridgeEvent,
    ) -> Result<(), Stopped> {
        match event {
            BridgeEvent::TurnEnded { turn, how } if !course.is_replayed(seq) => {
                self.record_end_of_turn(course, seq, turn, how).await.map(drop)
            }
            BridgeEvent::Text { .. } => self.take_event(course, seq, event).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Begins the next turn, waits for a message that is on its way, or ends.
    pub(super) async fn go_on_or_end(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        let goes_on = self.next_prompt(course).await? || self.is_message_on_its_way().await;
        Ok(if goes_on { Next::Listen } else { Next::Done })
    }

    /// Names what a turn that did not succeed means.
    async fn failure_of(&self, course: &Course, outcome: &TurnOutcome) -> Option<Stopped> {
        let (class, message) = match outcome {
            TurnOutcome::Exited { code: 0 } => return None,
            TurnOutcome::Exited { code } => {
                (CauseClass::AgentCrashed, format!("the agent program ended with code {code}"))
            }
            TurnOutcome::Killed { signal } => {
                let message = format!("the agent program was ended by signal {signal}");
                let sandbox = course.sandbox.as_ref();
                // Who ends a sandbox ends the program in it first.
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
                // Nobody here asked for that: the bridge does so when it hears of nobody, and when
                // its sandbox ends.
                let message = "the bridge ended the turn, because its lease had run out";
                let sandbox = course.sandbox.as_ref();
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

/// Waits until an instant; without one, for ever.
async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
