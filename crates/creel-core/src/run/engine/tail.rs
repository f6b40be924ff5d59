//! The way events come in: `tail` in the sandbox, started again wherever it breaks off.
//!
//! ```text
//!   sandbox: bridge ─▶ spool ─▶ tail --from N ══ exec ══▶ frames in order, without gaps ─▶ turns
//! ```
//!
//! A stream may be cut at any byte. The next one asks for the number after the
//! last whole frame, so nothing is lost and nothing comes twice.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream};
use creel_bridge::frame::Decoder;
use creel_bridge::serve::{Sign, Told};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::debug;

use crate::provider::ProviderError;
use crate::sandbox::{Command, Sandbox, Sight};
use crate::task;

/// How long one stream may live; a sandbox that lives longer gets another.
const STREAM_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// The first pause before a stream is made again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many events may wait to be recorded.
const QUEUE: usize = 1024;
/// How many bytes may wait to be taken apart.
const MOST_WAITING: usize = 1024 * 1024;

/// What is heard of a sandbox.
#[derive(Debug)]
pub(super) enum Heard {
    /// An event, with its number in the spool.
    Event(u64, BridgeEvent),
    /// The bridge lives.
    Alive,
    /// The bridge is gone.
    BridgeEnded,
    /// The stream broke off, and is made again.
    Broken,
    /// The sandbox is gone, or does not run any more: how it is.
    SandboxGone(String),
}

/// A tail that runs; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) heard: mpsc::Receiver<Heard>,
    follower: JoinHandle<()>,
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Tail {
    /// Follows the spool from an event on.
    pub(super) fn follow(sandbox: Arc<dyn Sandbox>, directory: String, from: u64) -> Self {
        let (sender, heard) = mpsc::channel(QUEUE);
        let follower = task::background(Follower { sandbox, directory, next: from, sender }.run());
        Self { heard, follower }
    }
}

/// What follows after a frame.
enum Next {
    /// Another one.
    GoOn,
    /// Nothing more: the bridge has ended.
    Ended,
    /// Another stream, which begins where frames are missing.
    Gap,
}

struct Follower {
    sandbox: Arc<dyn Sandbox>,
    directory: String,
    /// The number of the event that is wanted next.
    next: u64,
    sender: mpsc::Sender<Heard>,
}

impl Follower {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.next;
            let ended = self.stream_once().await;
            if self.next > before {
                pause = FIRST_PAUSE;
            }
            let heard = match ended {
                Ok(true) => Heard::BridgeEnded,
                Ok(false) => Heard::Broken,
                Err(error) => self.explain(&error).await,
            };
            debug!(next = self.next, ?heard, "the stream of events ended");
            let is_over = matches!(heard, Heard::BridgeEnded | Heard::SandboxGone(_));
            if self.sender.send(heard).await.is_err() || is_over {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows one stream to its end; returns whether the bridge said that it is its last.
    async fn stream_once(&mut self) -> Result<bool, ProviderError> {
        let from = self.next.to_string();
        let program = self.sandbox.bridge_path().to_owned();
        let command =
            [&program, "tail", "--directory", &self.directory, "--from", &from, "--follow"];
        let command = Command::new(command, STREAM_LIMIT);
        let (bytes, mut arrived) = mpsc::unbounded_channel::<Vec<u8>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let arriving = Arc::clone(&waiting);
        let mut listen = move |stream: Stream, chunk: &[u8]| {
            if stream == Stream::Output {
                arriving.fetch_add(chunk.len(), Ordering::Relaxed);
                // A receiver that is gone means that this stream is being dropped.
                let _ = bytes.send(chunk.to_vec());
            }
        };
        let sandbox = Arc::clone(&self.sandbox);
        let read = async {
            let mut decoder = Decoder::default();
            while let Some(chunk) = arrived.recv().await {
                waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
                let mut frames = Vec::new();
                decoder.feed::<Told>(&chunk, |frame| frames.push(frame));
                for frame in frames {
                    match self.take(frame.seq, frame.body).await {
                        Next::GoOn => {}
                        Next::Ended => return true,
                        Next::Gap => return false,
                    }
                }
            }
            false
        };
        let exec = async move {
            let finished = sandbox.exec(&command, &mut listen).await;
            // Dropping it tells the reader that nothing more comes.
            drop(listen);
            finished
        };
        let (mut read, mut exec) = (pin!(read), pin!(exec));
        let mut finished = Ok(());
        let mut is_running = true;
        poll_fn(|context| {
            if let Poll::Ready(ended) = read.as_mut().poll(context) {
                return Poll::Ready(std::mem::replace(&mut finished, Ok(())).map(|()| ended));
            }
            // An agent that writes faster than its words are recorded is not listened to
            // meanwhile: the stream fills, and the spool holds the rest.
            let has_room = waiting.load(Ordering::Relaxed) < MOST_WAITING;
            if is_running
                && has_room
                && let Poll::Ready(answer) = exec.as_mut().poll(context)
            {
                is_running = false;
                finished = answer.map(drop);
            }
            Poll::Pending
        })
        .await
    }

    /// Hands on what is wanted.
    async fn take(&mut self, seq: u64, told: Told) -> Next {
        match told {
            Told::Sign(Sign::Alive { .. }) => {
                let _ = self.sender.send(Heard::Alive).await;
                Next::GoOn
            }
            // Events may be missing still: then another stream brings them.
            Told::Sign(Sign::Ended { newest }) if self.next > newest => Next::Ended,
            Told::Sign(Sign::Ended { .. }) => Next::Gap,
            Told::Event(event) if seq == self.next => {
                self.next += 1;
                let _ = self.sender.send(Heard::Event(seq, event)).await;
                Next::GoOn
            }
            Told::Event(_) if seq < self.next => Next::GoOn,
            Told::Event(_) => Next::Gap,
        }
    }

    async fn explain(&self, error: &ProviderError) -> Heard {
        debug!(%error, "the stream of events could not be followed");
        match self.sandbox.look().await {
            Ok(Sight::Absent) => Heard::SandboxGone("it does not exist any more".to_owned()),
            // Nobody here stops a sandbox that is in use, and what ran in it is gone.
            Ok(Sight::Resting(state)) => Heard::SandboxGone(format!("it is {state}")),
            Ok(Sight::Running) | Err(_) => Heard::Broken,
        }
    }
}
