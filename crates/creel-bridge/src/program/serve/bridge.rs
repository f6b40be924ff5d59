//! The bridge proper: one loop over commands, questions, the turn and the clocks.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use creel_bridge::event::{BridgeEvent, TurnEnding};
use creel_bridge::serve::{Command, Order, Runtime};
use rustix::event::PollFlags;

use crate::program::ask::DIRECTORY_VARIABLE;
use crate::program::directory::{Directory, Terms, write_whole};
use crate::program::failure::Failure;
use crate::program::lease::Lease;
use crate::program::lookout::wait_for;
use crate::program::processes::{self, Scope};
use crate::program::signals::Signals;
use crate::program::spool::{Recovered, Spool};
use crate::program::watch::Watch;

use super::commands::{Inbox, Waiting};
use super::questions::Questions;
use super::turn::{Task, Turn};

/// The variable that tells programs of a runtime which program speaks to their bridge.
const PROGRAM_VARIABLE: &str = "CREEL_BRIDGE";
/// How long the program may take to end when the sandbox ends: less than a holder waits.
const LAST_GRACE: Duration = Duration::from_secs(3);
/// How long what is left of the runtime may take to die.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// The bridge.
#[derive(Debug)]
pub(super) struct Bridge {
    order: Order,
    directory: Directory,
    signals: Signals,
    watch: Watch,
    lease: Lease,
    spool: Spool,
    inbox: Inbox,
    questions: Questions,
    turn: Option<Turn>,
    stop: Option<Stop>,
}

/// A turn, as it was asked for.
#[derive(Debug)]
struct Asked {
    /// What the agent is told.
    prompt: String,
    /// When the turn is cut off.
    limit: Duration,
    /// How long it may say nothing.
    silence: Option<Duration>,
}

/// The end, as it was asked for.
#[derive(Debug)]
struct Stop {
    /// The command that asked for it.
    key: Option<String>,
    /// In one sentence, why.
    reason: String,
    /// When the program is killed.
    force_at: Instant,
}

impl Bridge {
    /// Goes on in the directory, or begins there; the events of that are in the spool.
    pub(super) fn open(
        order: Order,
        directory: Directory,
        signals: Signals,
    ) -> Result<Self, Failure> {
        let open = |directory: &Directory| {
            directory.keep_terms(Terms { heartbeat_ms: order.heartbeat_ms })?;
            // It must be there to be watched; and whoever starts a bridge lives.
            directory.leave_sign()?;
            Spool::open(&directory.spool())
        };
        let (mut spool, recovered) = open(&directory).map_err(Failure::of("open the spool"))?;
        let (keys, requests) = paired(&recovered);
        let inbox = Inbox::open(directory.commands(), keys);
        let questions = Questions::open(directory.questions(), requests);
        let events = first_events(&recovered);
        spool.append_durably(&events).map_err(Failure::of("write to the spool"))?;
        let (commands, asked) = (directory.commands(), directory.questions());
        let watch = Watch::over([directory.path(), commands.as_path(), asked.as_path()]);
        let lease = Lease::start(directory.sign(), Duration::from_millis(order.lease_ms));
        let (turn, stop) = (None, None);
        Ok(Self { order, directory, signals, watch, lease, spool, inbox, questions, turn, stop })
    }

    /// Returns the number of the newest event.
    pub(super) fn newest(&self) -> u64 {
        self.spool.newest()
    }

    /// Serves until it is told to stop, or nobody is there any more.
    pub(super) fn serve(mut self) -> Result<(), Failure> {
        let served = self.run();
        if served.is_err()
            && let Some(turn) = self.turn.take()
        {
            turn.close();
        }
        let _ = processes::end(Scope::Everything, DEATH_PATIENCE, |_, _| {});
        served.map_err(Failure::of("write to the spool"))
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.listen()?;
            self.look_at_questions()?;
            self.look_at_commands()?;
            self.look_at_clocks();
            if self.turn.is_none()
                && let Some(stop) = self.stop.take()
            {
                return self.end(stop);
            }
            self.wait();
        }
    }

    /// Waits until something is to be done.
    fn wait(&mut self) {
        let now = Instant::now();
        let mut until = now + self.watch.period().min(self.lease.period());
        let due = self.turn.as_ref().and_then(Turn::due_at);
        let force = self.stop.as_ref().map(|stop| stop.force_at).filter(|at| *at > now);
        until = [due, force].into_iter().flatten().fold(until, Instant::min);
        let mut watched = vec![(self.signals.as_fd(), PollFlags::IN)];
        watched.extend(self.watch.watched());
        watched.extend(self.turn.as_ref().map(Turn::watched));
        wait_for(&watched, Some(until));
        self.watch.drain();
        self.signals.drain();
    }

    /// Reads what the turn has to say; its end makes room for the next one.
    fn listen(&mut self) -> io::Result<()> {
        let Some(turn) = &mut self.turn else { return Ok(()) };
        let events = turn.listen();
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

    fn look_at_questions(&mut self) -> io::Result<()> {
        let turn = self.turn.as_ref().map_or(self.spool.turns(), Turn::number);
        for question in self.questions.look() {
            let (request, question) = (question.request, question.text);
            self.spool.append(&[BridgeEvent::InputRequested { turn, request, question }])?;
        }
        Ok(())
    }

    fn look_at_commands(&mut self) -> io::Result<()> {
        let mut queue: Vec<String> = Vec::new();
        for Waiting { key, command } in self.inbox.waiting() {
            match command {
                Command::Turn { prompt, limit_ms, silence_ms } => {
                    if self.turn.is_some() || self.stop.is_some() {
                        queue.push(key);
                        continue;
                    }
                    let limit = Duration::from_millis(limit_ms);
                    let silence = silence_ms.map(Duration::from_millis);
                    self.start_turn(&key, &Asked { prompt, limit, silence })?;
                }
                Command::Answer { request, text } => self.answer(&key, request, &text)?,
                Command::Cancel => {
                    queue.push(key);
                    self.cancel(&queue)?;
                    queue.clear();
                }
                Command::Stop { grace_ms } => self.begin_stop(key, grace_ms),
            }
        }
        Ok(())
    }

    /// Starts a turn. That it was taken and began is on the disk before it does.
    fn start_turn(&mut self, key: &str, asked: &Asked) -> io::Result<()> {
        let number = self.spool.turns() + 1;
        self.spool.append_durably(&[
            BridgeEvent::CommandTaken { key: key.to_owned() },
            BridgeEvent::TurnStarted { turn: number, attempt: 1, model: None },
        ])?;
        self.close(key);
        let Runtime::Command { command } = &self.order.runtime;
        let started = Turn::start(&Task {
            number,
            command,
            prompt: &asked.prompt,
            env: self.environment()?,
            workspace: &self.order.workspace,
            turn_file: &self.directory.turn(),
            limit: asked.limit,
            silence: asked.silence,
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

    /// Returns the variables of the runtime: those of the order, and how to reach this bridge.
    fn environment(&self) -> io::Result<BTreeMap<String, String>> {
        let mut env = self.order.env.clone();
        let program = std::env::current_exe()?;
        env.insert(PROGRAM_VARIABLE.to_owned(), program.to_string_lossy().into_owned());
        let directory = self.directory.path().to_string_lossy().into_owned();
        env.insert(DIRECTORY_VARIABLE.to_owned(), directory);
        Ok(env)
    }

    /// Keeps that a command was taken, which is also a sign of the supervisor.
    fn close(&mut self, key: &str) {
        self.inbox.close(key);
        self.lease.renew();
    }

    /// Gives an answer. It may be given twice without harm, so that comes first.
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

    /// Takes what is queued, with the cancel itself, and ends the turn that is under way.
    fn cancel(&mut self, keys: &[String]) -> io::Result<()> {
        let taken = |key: &String| BridgeEvent::CommandTaken { key: key.clone() };
        self.spool.append_durably(&keys.iter().map(taken).collect::<Vec<_>>())?;
        keys.iter().for_each(|key| self.close(key));
        if let Some(turn) = &mut self.turn {
            turn.cut(TurnEnding::Cancelled);
        }
        Ok(())
    }

    /// Begins to stop. The command is taken at the end: a bridge that dies in between is told
    /// again.
    fn begin_stop(&mut self, key: String, grace_ms: u64) {
        if self.stop.is_some() {
            return;
        }
        if let Some(turn) = &self.turn {
            turn.ask_to_end();
        }
        let now = Instant::now();
        let force_at = now.checked_add(Duration::from_millis(grace_ms)).unwrap_or(now);
        self.stop =
            Some(Stop { key: Some(key), reason: "it was told to stop".to_owned(), force_at });
    }

    fn look_at_clocks(&mut self) {
        let now = Instant::now();
        processes::reap(|_, _| {});
        if let Some(turn) = &mut self.turn {
            turn.tick(self.questions.is_somebody_waiting());
        }
        if self.stop.is_none() && self.signals.asked_to_end() {
            // Whoever ends the sandbox has asked the program too.
            let reason = "the sandbox ends".to_owned();
            self.stop = Some(Stop { key: None, reason, force_at: now + LAST_GRACE });
        }
        if self.stop.is_none() && self.lease.has_run_out() {
            let seconds = self.lease.length().as_secs();
            let reason = format!("nothing was heard of the supervisor for {seconds} s");
            self.stop = Some(Stop { key: None, reason, force_at: now });
        }
        if let Some(stop) = &self.stop
            && stop.force_at <= now
            && let Some(turn) = &mut self.turn
        {
            turn.cut(TurnEnding::Cancelled);
        }
    }

    /// Says that nothing more will come.
    fn end(&mut self, stop: Stop) -> io::Result<()> {
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

/// Returns the keys and the requests that were taken in the life before.
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

/// Returns the events with which a life begins.
fn first_events(recovered: &Recovered) -> Vec<BridgeEvent> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let mut events = vec![BridgeEvent::BridgeStarted { version }];
    if let Some(turn) = recovered.cut_turn {
        events.push(BridgeEvent::TurnEnded { turn, how: TurnEnding::Killed { signal: 9 } });
    }
    events.push(BridgeEvent::RuntimeReady { version: None });
    events
}
