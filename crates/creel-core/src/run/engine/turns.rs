//! The turns: the bridge is started, told what to do, and listened to until there is nothing more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_bridge::event::{BridgeEvent, Stream, TurnEnding};
use creel_bridge::serve;
use secrecy::ExposeSecret;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::id::ResourceId;
use crate::ledger::PlacedOrder;
use crate::provider::ProviderError;
use crate::run::orders::Order;
use crate::run::{CauseClass, ConditionType, Connection, Phase, RunEvent, Status, TurnOutcome};
use crate::sandbox::{Command, Sandbox};
use crate::sanitise::{Diagnostic, MaskStream};
use crate::workflow::{PromptBy, RuntimeKind};

use super::checklist::run;
use super::provision::chain;
use super::tail::{Heard, Tail};
use super::{Drive, Stopped, agent};

/// How often the bridge gives a sign of life.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// After how many missing ones a sandbox is offline.
const LOST_AFTER: u32 = 3;
/// How long a sandbox may be offline before the run is given up, or its lease if that is shorter.
const OFFLINE_LIMIT: Duration = Duration::from_secs(600);
/// How long a short command of ours may take.
const SHORT: Duration = Duration::from_secs(60);
/// How long a turn may take when the workflow sets no limit.
const NO_LIMIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often a bridge that died is started again.
const MOST_BRIDGES: u32 = 3;
/// How often a short command of ours is tried.
const SHORT_TRIES: u32 = 5;
/// What stands for the prompt in an argument.
const PROMPT: &str = "{prompt}";

/// What the loop of turns knows beside the records.
struct Course {
    sandbox: Arc<dyn Sandbox>,
    tail: Tail,
    /// What is still to be said to the agent.
    prompts: VecDeque<String>,
    /// Whether a turn is under way.
    is_busy: bool,
    /// What is masked across the pieces of each stream.
    streams: [MaskStream; 2],
    /// When something was heard last.
    heard_at: Instant,
    /// When the run began to wait for a person.
    waiting_since: Option<Instant>,
    /// How many bridges were started.
    bridges: u32,
}

/// What the loop does next.
enum Next {
    Listen,
    Done,
}

impl Drive {
    /// Starts the bridge and takes turns until there is nothing more to say.
    pub(super) async fn take_turns(&mut self) -> Result<(), Stopped> {
        let sandbox = self.sandbox();
        let going_on = self.journal.state().phase.is_active();
        if !going_on {
            self.start_bridge(sandbox.as_ref()).await?;
        }
        self.has_bridge = true;
        let mut course = self.course(sandbox);
        self.enter(Phase::Running).await?;
        if !going_on {
            self.next_prompt(&mut course).await?;
        }
        loop {
            match self.listen(&mut course).await? {
                Next::Listen => {}
                Next::Done => return Ok(()),
            }
        }
    }

    fn course(&self, sandbox: Arc<dyn Sandbox>) -> Course {
        let from = self.journal.state().spooled + 1;
        let tail = Tail::follow(Arc::clone(&sandbox), bridge_directory(sandbox.as_ref()), from);
        let task = &self.workflow.task;
        let prompts = std::iter::once(&task.prompt).chain(&task.follow_ups).cloned();
        // A driver that came back goes on behind the turns that began already.
        let begun = usize::try_from(self.journal.state().turns).unwrap_or(usize::MAX);
        Course {
            sandbox,
            tail,
            prompts: prompts.skip(begun).collect(),
            is_busy: begun > 0,
            streams: [self.masker.stream(), self.masker.stream()],
            heard_at: Instant::now(),
            waiting_since: None,
            bridges: 1,
        }
    }

    /// Starts the bridge: only ever after `bootstrap_ok`.
    async fn start_bridge(&mut self, sandbox: &dyn Sandbox) -> Result<(), Stopped> {
        let order = self.bridge_order(sandbox);
        let input = serde_json::to_string(&order).expect("an order is plain data");
        let command = Command {
            input: Some(input.into()),
            ..Command::new([sandbox.bridge_path(), "serve"], SHORT)
        };
        let started = self.short(sandbox, &command).await;
        started.map_err(|reason| {
            self.stopped(
                CauseClass::AgentLaunchFailed,
                &format!("the bridge did not start: {reason}"),
            )
        })
    }

    fn bridge_order(&self, sandbox: &dyn Sandbox) -> serve::Order {
        let RuntimeKind::Command { command, prompt } = &self.workflow.runtime.kind;
        let mut command = command.clone();
        let is_placed = command.iter().any(|word| word.contains(PROMPT));
        if *prompt == PromptBy::Argument && !is_placed {
            command.push(PROMPT.to_owned());
        }
        let env = self.environment().into_iter();
        let mut env: std::collections::BTreeMap<String, String> =
            env.map(|(name, value)| (name, value.expose_secret().to_owned())).collect();
        let told = agent::told(&self.journal.state().capabilities);
        env.insert("CREEL_CAPABILITIES".to_owned(), told);
        env.insert("CREEL_RUN".to_owned(), self.journal.run().to_string());
        serve::Order {
            directory: bridge_directory(sandbox),
            runtime: serve::Runtime::Command { command },
            workspace: self.workspace_path(sandbox),
            env,
            heartbeat_ms: millis(HEARTBEAT),
            lease_ms: millis(self.workflow.sandbox.lease),
        }
    }

    /// Runs a short command of ours, again if the sandbox did not answer.
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

    /// Gives the bridge an order, once however often it is sent.
    pub(super) async fn tell_bridge(
        &self,
        sandbox: &dyn Sandbox,
        order: &serve::Command,
    ) -> Result<(), String> {
        let key = ResourceId::new().digits();
        let directory = bridge_directory(sandbox);
        let text = serde_json::to_vec(order).expect("an order is plain data");
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
            prompt,
            limit_ms: millis(limits.turn.unwrap_or(NO_LIMIT)),
            silence_ms: limits.idle.map(millis),
        };
        course.is_busy = true;
        match self.tell_bridge(course.sandbox.as_ref(), &order).await {
            Ok(()) => Ok(true),
            Err(reason) => Err(self.lost(course, &reason).await),
        }
    }

    /// Names what it means that the sandbox did not take an order.
    async fn lost(&self, course: &Course, reason: &str) -> Stopped {
        match course.sandbox.probe().await {
            Ok(()) => self
                .stopped(CauseClass::AgentCrashed, &format!("the bridge took no order: {reason}")),
            Err(_) => {
                self.stopped(CauseClass::SandboxLost, &format!("the sandbox is lost: {reason}"))
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
            Heard::SandboxGone => {
                self.connect(Connection::Offline).await?;
                Err(self.stopped(
                    CauseClass::SandboxLost,
                    "the sandbox vanished while the agent worked",
                ))
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
        let from = self.journal.state().spooled + 1;
        let directory = bridge_directory(course.sandbox.as_ref());
        course.tail = Tail::follow(Arc::clone(&course.sandbox), directory, from);
        Ok(Next::Listen)
    }

    async fn take_event(
        &mut self,
        course: &mut Course,
        seq: u64,
        event: BridgeEvent,
    ) -> Result<Next, Stopped> {
        let event = match event {
            BridgeEvent::BridgeStarted { version } => RunEvent::BridgeStarted { version },
            BridgeEvent::RuntimeReady { version } => RunEvent::RuntimeReady { version },
            BridgeEvent::CommandTaken { .. } | BridgeEvent::Unknown => return Ok(Next::Listen),
            BridgeEvent::TurnStarted { turn, attempt, model } => {
                course.streams = [self.masker.stream(), self.masker.stream()];
                RunEvent::TurnStarted { turn, attempt, model }
            }
            BridgeEvent::Text { turn, stream, text } => {
                let text = course.streams[stream as usize].feed(text.as_bytes());
                RunEvent::Text { turn, stream, text }
            }
            BridgeEvent::InputRequested { turn, request, question } => {
                return self.wait_for_person(course, seq, (turn, request, question)).await;
            }
            BridgeEvent::InputGiven { request } => {
                course.waiting_since = None;
                self.spooled(RunEvent::InputGiven { request }, seq).await?;
                return self.enter(Phase::Running).await.map(|()| Next::Listen);
            }
            BridgeEvent::TurnEnded { turn, how } => {
                return self.turn_ended(course, seq, turn, how).await;
            }
            BridgeEvent::RuntimeEnded { reason } => {
                return Err(
                    self.stopped(CauseClass::AgentCrashed, &format!("the runtime ended: {reason}"))
                );
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
        let question = self.masker.mask(&question);
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
        for stream in [Stream::Output, Stream::Error] {
            let rest =
                std::mem::replace(&mut course.streams[stream as usize], self.masker.stream());
            let text = rest.finish();
            if !text.is_empty() {
                self.record(RunEvent::Text { turn, stream, text }).await?;
            }
        }
        let outcome = TurnOutcome::of(how, |reason| self.masker.diagnostic(reason));
        self.spooled(RunEvent::TurnEnded { turn, how: outcome.clone() }, seq).await?;
        self.acknowledge(course, seq);
        course.is_busy = false;
        if let Some(stopped) = self.failure_of(&outcome) {
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

    async fn go_on_or_end(&mut self, course: &mut Course) -> Result<Next, Stopped> {
        Ok(if self.next_prompt(course).await? { Next::Listen } else { Next::Done })
    }

    /// Names what a turn that did not succeed means.
    fn failure_of(&self, outcome: &TurnOutcome) -> Option<Stopped> {
        let (class, message) = match outcome {
            TurnOutcome::Exited { code: 0 } => return None,
            TurnOutcome::Exited { code } => {
                (CauseClass::AgentCrashed, format!("the agent program ended with code {code}"))
            }
            TurnOutcome::Killed { signal } => (
                CauseClass::AgentCrashed,
                format!("the agent program was ended by signal {signal}"),
            ),
            TurnOutcome::TimedOut => {
                (CauseClass::BudgetExceeded, "limits.turn was reached".to_owned())
            }
            TurnOutcome::Silent => (
                CauseClass::NoProgress,
                "the agent said nothing for as long as limits.idle allows".to_owned(),
            ),
            TurnOutcome::Cancelled => (CauseClass::Cancelled, "the turn was cancelled".to_owned()),
            TurnOutcome::NotStarted { reason } => (
                CauseClass::AgentLaunchFailed,
                format!("the agent program did not start: {reason}"),
            ),
        };
        Some(self.stopped(class, &message))
    }

    /// Lets the bridge forget what is recorded here for good; if it is not told, it keeps it.
    fn acknowledge(&self, course: &Course, seq: u64) {
        let sandbox = Arc::clone(&course.sandbox);
        crate::task::background(async move {
            let (directory, to) = (bridge_directory(sandbox.as_ref()), seq.to_string());
            let program = sandbox.bridge_path();
            let command = [program, "acknowledge", "--directory", &directory, "--to", &to];
            let _: Result<_, ProviderError> =
                run(sandbox.as_ref(), &Command::new(command, SHORT)).await;
        });
    }

    /// Does what somebody asked for, and notes that it was done.
    async fn obey(&mut self, course: &mut Course, placed: PlacedOrder) -> Result<Next, Stopped> {
        let PlacedOrder { key, order, .. } = placed;
        let next = match order {
            Order::Message { text, .. } => {
                self.record(RunEvent::MessageTaken { key: key.clone() }).await?;
                self.hide_text(&text);
                self.pass_on(course, text).await?
            }
            Order::Resume if self.journal.state().phase == Phase::Paused => {
                course.waiting_since = None;
                self.enter(Phase::Running).await?;
                self.go_on_or_end(course).await?
            }
            Order::Resume => Next::Listen,
            Order::Cancel => {
                self.orders.cancel.cancel();
                Next::Listen
            }
        };
        if let Err(error) = self.means.ledger.take_order(&key).await {
            // Whoever drives the run next would do it again; nothing worse comes of it.
            warn!(%error, "an order could not be marked as done");
        }
        Ok(next)
    }

    /// Gives a message to a question that waits, or keeps it for the next turn.
    async fn pass_on(&mut self, course: &mut Course, text: String) -> Result<Next, Stopped> {
        let Some(open) = self.journal.state().request.clone() else {
            course.prompts.push_back(text);
            return Ok(Next::Listen);
        };
        let answer = serve::Command::Answer { request: open.request, text };
        match self.tell_bridge(course.sandbox.as_ref(), &answer).await {
            Ok(()) => Ok(Next::Listen),
            Err(reason) => Err(self.lost(course, &reason).await),
        }
    }
}

/// Returns the bridge's directory in a sandbox.
pub(super) fn bridge_directory(sandbox: &dyn Sandbox) -> String {
    format!("{}/bridge", sandbox.creel_directory())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Waits until an instant; without one, for ever.
async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
