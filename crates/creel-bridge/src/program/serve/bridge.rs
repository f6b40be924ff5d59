//! The bridge itself: one loop over commands, questions, the turn and the clocks.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use creel_bridge::event::{BridgeEvent, TurnEnding};
use creel_bridge::serve::{BridgeCommand, Runtime, ServeRequest};
use rustix::event::PollFlags;

use crate::program::ask::DIRECTORY_VARIABLE;
use crate::program::directory::{BridgeDirectory, ReaderSettings, write_whole};
use crate::program::error::BridgeError;
use crate::program::lease::FileLease;
use crate::program::poll::wait_for;
use crate::program::processes::{self, ProcessScope};
use crate::program::signals::Signals;
use crate::program::spool::{Recovered, Spool};
use crate::program::watch::PathWatch;

use super::commands::{Inbox, InboxCommand};
use super::questions::Questions;
use super::turn::{RunningTurn, TurnParams};

/// The variable that names the bridge program for programs of a runtime.
const PROGRAM_VARIABLE: &str = "CREEL_BRIDGE";
/// How long the program may take to end when the sandbox ends; less than a holder waits.
const LAST_GRACE: Duration = Duration::from_secs(3);
/// How long the rest of the runtime may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// The bridge.
#[derive(Debug)]
pub(super) struct Bridge {
    request: ServeRequest,
    directory: BridgeDirectory,
    signals: Signals,
    watch: PathWatch,
    lease: FileLease,
    spool: Spool,
    inbox: Inbox,
    questions: Questions,
    turn: Option<RunningTurn>,
    stop: Option<StopRequest>,
}

/// A requested turn.
#[derive(Debug)]
struct TurnRequest {
    /// The prompt for the agent.
    prompt: String,
    /// The time after which the turn is killed.
    limit: Duration,
    /// The longest time without output.
    silence: Option<Duration>,
}

/// A requested stop.
#[derive(Debug)]
struct StopRequest {
    /// The key of the command that requested it.
    key: Option<String>,
    /// The reason, in one sentence.
    reason: String,
    /// When the program is killed.
    force_at: Instant,
}

impl Bridge {
    /// Opens a new or existing directory, and writes the first events to the spool.
    pub(super) fn open(
        request: ServeRequest,
        directory: BridgeDirectory,
        signals: Signals,
    ) -> Result<Self, BridgeError> {
        let open = |directory: &BridgeDirectory| {
            directory.store_settings(ReaderSettings { heartbeat_ms: request.heartbeat_ms })?;
            // The file must exist to be watched, and the process that starts a bridge is alive.
            directory.leave_sign()?;
            Spool::open(&directory.spool())
        };
        let (mut spool, recovered) = open(&directory).map_err(BridgeError::of("open the spool"))?;
        let (keys, requests) = paired(&recovered);
        let inbox = Inbox::open(directory.commands(), keys);
        let questions = Questions::open(directory.questions(), requests);
        let events = first_events(&recovered);
        spool.append_durably(&events).map_err(BridgeError::of("write to the spool"))?;
        let (commands, question_files) = (directory.commands(), directory.questions());
        let watch =
            PathWatch::over([directory.path(), commands.as_path(), question_files.as_path()]);
        let lease = FileLease::start(directory.sign(), Duration::from_millis(request.lease_ms));
        let (turn, stop) = (None, None);
        Ok(Self { request, directory, signals, watch, lease, spool, inbox, questions, turn, stop })
    }

    /// Returns the number of the newest event.
    pub(super) fn newest(&self) -> u64 {
        self.spool.newest()
    }

    /// Serves until a command, a signal or an expired lease stops it.
    pub(super) fn serve(mut self) -> Result<(), BridgeError> {
        let served = self.run();
        if served.is_err()
            && let Some(turn) = self.turn.take()
        {
            turn.close();
        }
        let _ = processes::end(ProcessScope::Everything, DEATH_PATIENCE, |_, _| {});
        served.map_err(BridgeError::of("write to the spool"))
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.read_output()?;
            self.check_questions()?;
            self.check_commands()?;
            self.check_clocks();
            if self.turn.is_none()
                && let Some(stop) = self.stop.take()
            {
                return self.end(stop);
            }
            self.wait();
        }
    }

    /// Waits for the next event.
    fn wait(&mut self) {
        let now = Instant::now();
        let mut until = now + self.watch.period().min(self.lease.period());
        let due = self.turn.as_ref().and_then(RunningTurn::due_at);
        let force = self.stop.as_ref().map(|stop| stop.force_at).filter(|at| *at > now);
        until = [due, force].into_iter().flatten().fold(until, Instant::min);
        let mut watched = vec![(self.signals.as_fd(), PollFlags::IN)];
        watched.extend(self.watch.watched());
        watched.extend(self.turn.as_ref().map(RunningTurn::watched));
        wait_for(&watched, Some(until));
        self.watch.drain();
        self.signals.drain();
    }

    /// Reads the output of the turn. Its end makes room for the next turn.
    fn read_output(&mut self) -> io::Result<()> {
        let Some(turn) = &mut self.turn else { return Ok(()) };
        let events = turn.read_output();
        if events.is_empty() {
            return Ok(());
        }
        self.spool.append(&events)?;
        if matches!(events.last(), Some(BridgeEvent::TurnEnded { .. }))
            && let Some(turn) = self.turn.take()
        {
            turn.close();
        }
        Ok(())
    }

    fn check_questions(&mut self) -> io::Result<()> {
        let turn = self.turn.as_ref().map_or(self.spool.turns(), RunningTurn::number);
        for question in self.questions.scan() {
            let (request, question) = (question.request, question.text);
            self.spool.append(&[BridgeEvent::InputRequested { turn, request, question }])?;
        }
        Ok(())
    }

    fn check_commands(&mut self) -> io::Result<()> {
        let mut queue: Vec<String> = Vec::new();
        for InboxCommand { key, command } in self.inbox.pending() {
            match command {
                BridgeCommand::Turn { prompt, limit_ms, silence_ms } => {
                    if self.turn.is_some() || self.stop.is_some() {
                        queue.push(key);
                        continue;
                    }
                    let limit = Duration::from_millis(limit_ms);
                    let silence = silence_ms.map(Duration::from_millis);
                    self.start_turn(&key, &TurnRequest { prompt, limit, silence })?;
                }
                BridgeCommand::Answer { request, text } => self.answer(&key, request, &text)?,
                BridgeCommand::Cancel => {
                    queue.push(key);
                    self.cancel(&queue)?;
                    queue.clear();
                }
                BridgeCommand::Stop { grace_ms } => self.begin_stop(key, grace_ms),
            }
        }
        Ok(())
    }

    /// Starts a turn. The events for the command and the start are on disk before the turn starts.
    fn start_turn(&mut self, key: &str, turn_request: &TurnRequest) -> io::Result<()> {
        let number = self.spool.turns() + 1;
        self.spool.append_durably(&[
            BridgeEvent::CommandTaken { key: key.to_owned() },
            BridgeEvent::TurnStarted { turn: number, attempt: 1, model: None },
        ])?;
        self.close(key);
        let Runtime::Command { command } = &self.request.runtime;
        let started = RunningTurn::start(&TurnParams {
            number,
            command,
            prompt: &turn_request.prompt,
            env: self.environment()?,
            workspace: &self.request.workspace,
            turn_file: &self.directory.turn(),
            limit: turn_request.limit,
            silence: turn_request.silence,
        });
        match started {
            Ok(turn) => self.turn = Some(turn),
            Err(error) => {
                let how = TurnEnding::NotStarted { reason: error.to_string() };
                self.spool.append(&[BridgeEvent::TurnEnded { turn: number, how }])?;
            }
        }
        Ok(())
    }

    /// Returns the variables of the runtime: those of the request, and how to reach this bridge.
    fn environment(&self) -> io::Result<BTreeMap<String, String>> {
        let mut env = self.request.env.clone();
        let program = std::env::current_exe()?;
        env.insert(PROGRAM_VARIABLE.to_owned(), program.to_string_lossy().into_owned());
        let directory = self.directory.path().to_string_lossy().into_owned();
        env.insert(DIRECTORY_VARIABLE.to_owned(), directory);
        Ok(env)
    }

    /// Marks a command as taken, which also renews the lease.
    fn close(&mut self, key: &str) {
        self.inbox.close(key);
        self.lease.renew();
    }

    /// Writes an answer. Writing it twice does no harm, so it precedes the event.
    fn answer(&mut self, key: &str, request: String, text: &str) -> io::Result<()> {
        let is_name = !request.is_empty() && !request.contains('/') && !request.starts_with('.');
        let mut events = vec![BridgeEvent::CommandTaken { key: key.to_owned() }];
        if is_name {
            write_whole(&self.directory.answers().join(&request), text.as_bytes())?;
            self.questions.close(&request);
            events.push(BridgeEvent::InputGiven { request });
        }
        self.spool.append_durably(&events)?;
        self.close(key);
        Ok(())
    }

    /// Takes the queued commands and the cancel itself, and ends the current turn.
    fn cancel(&mut self, keys: &[String]) -> io::Result<()> {
        let taken = |key: &String| BridgeEvent::CommandTaken { key: key.clone() };
        self.spool.append_durably(&keys.iter().map(taken).collect::<Vec<_>>())?;
        keys.iter().for_each(|key| self.close(key));
        if let Some(turn) = &mut self.turn {
            turn.cut(TurnEnding::Cancelled);
        }
        Ok(())
    }

    /// Begins to stop. The command is taken only at the end, so if the bridge dies in between, the
    /// next one finds it again.
    fn begin_stop(&mut self, key: String, grace_ms: u64) {
        if self.stop.is_some() {
            return;
        }
        if let Some(turn) = &self.turn {
            turn.ask_to_end();
        }
        let now = Instant::now();
        let force_at = now.checked_add(Duration::from_millis(grace_ms)).unwrap_or(now);
        self.stop = Some(StopRequest {
            key: Some(key),
            reason: "it was asked to stop".to_owned(),
            force_at,
        });
    }

    fn check_clocks(&mut self) {
        let now = Instant::now();
        processes::reap(|_, _| {});
        if let Some(turn) = &mut self.turn {
            turn.tick(self.questions.is_any_open());
        }
        if self.stop.is_none() && self.signals.asked_to_end() {
            // The process that ends the sandbox has signalled the program too.
            let reason = "the sandbox ends".to_owned();
            self.stop = Some(StopRequest { key: None, reason, force_at: now + LAST_GRACE });
        }
        if self.stop.is_none() && self.lease.has_run_out() {
            let seconds = self.lease.length().as_secs();
            let reason = format!("no message from the supervisor for {seconds} s");
            self.stop = Some(StopRequest { key: None, reason, force_at: now });
        }
        if let Some(stop) = &self.stop
            && stop.force_at <= now
            && let Some(turn) = &mut self.turn
        {
            turn.cut(TurnEnding::Cancelled);
        }
    }

    /// Records that the runtime has ended.
    fn end(&mut self, stop: StopRequest) -> io::Result<()> {
        let taken = stop.key.clone().map(|key| BridgeEvent::CommandTaken { key });
        let mut events: Vec<BridgeEvent> = taken.into_iter().collect();
        events.push(BridgeEvent::RuntimeEnded { reason: stop.reason });
        self.spool.append_durably(&events)?;
        if let Some(key) = stop.key {
            self.close(&key);
        }
        Ok(())
    }
}

/// Returns the keys and requests that were taken before the restart.
fn paired(recovered: &Recovered) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut requests) = (Vec::new(), Vec::new());
    for event in &recovered.events {
        match event {
            BridgeEvent::CommandTaken { key } => keys.push(key.clone()),
            BridgeEvent::InputRequested { request, .. } => requests.push(request.clone()),
            _ => {}
        }
    }
    (keys, requests)
}

/// Returns the first events after a start.
fn first_events(recovered: &Recovered) -> Vec<BridgeEvent> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let mut events = vec![BridgeEvent::BridgeStarted { version }];
    if let Some(turn) = recovered.cut_turn {
        events.push(BridgeEvent::TurnEnded { turn, how: TurnEnding::Killed { signal: 9 } });
    }
    events.push(BridgeEvent::RuntimeReady { version: None });
    events
}
