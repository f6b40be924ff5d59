//! The event stream: `tail` runs in the sandbox, and is restarted whenever it breaks off.
//!
//! ```text
//!   sandbox: bridge ─▶ spool ─▶ tail --from N ══ exec ══▶ frames in order, without gaps ─▶ turns
//! ```
//!
//! A stream may break at any byte. The next one starts at the number after the
//! last complete frame, so no event is lost or repeated.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use creel_bridge::event::{BridgeEvent, Stream};
use creel_bridge::frame::Decoder;
use creel_bridge::serve::{Sign, TailItem};
use creel_model::provider::ProviderError;
use creel_model::task;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::debug;

use crate::sandbox::{Command, Sandbox, SandboxStatus};

/// The maximum lifetime of one stream. A sandbox that lives longer gets another stream.
const STREAM_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// The first pause before a stream is restarted, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of events that wait to be recorded.
const QUEUE: usize = 1024;
/// The maximum number of bytes that wait to be decoded.
const MOST_WAITING: usize = 1024 * 1024;

/// What the driver receives from a sandbox.
#[derive(Debug)]
pub(super) enum TailMessage {
    /// An event, with its number in the spool.
    Event(u64, BridgeEvent),
    /// A sign of life of the bridge.
    Alive,
    /// The bridge has ended.
    BridgeEnded,
    /// The stream broke off and is being restarted.
    Broken,
    /// The sandbox is gone or no longer runs. The text describes its state.
    SandboxGone(String),
}

/// A running tail. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) messages: mpsc::Receiver<TailMessage>,
    follower: JoinHandle<()>,
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Tail {
    /// Follows the spool, starting at an event number.
    pub(super) fn follow(sandbox: Arc<dyn Sandbox>, directory: String, from: u64) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE);
        let follower = task::background(Follower { sandbox, directory, next: from, sender }.run());
        Self { messages, follower }
    }
}

/// What follows after a frame.
enum FrameAction {
    /// The next frame.
    Continue,
    /// Nothing, because the bridge has ended.
    Ended,
    /// Another stream, which starts at the first missing frame.
    Gap,
}

struct Follower {
    sandbox: Arc<dyn Sandbox>,
    directory: String,
    /// The number of the next expected event.
    next: u64,
    sender: mpsc::Sender<TailMessage>,
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
            let message = match ended {
                Ok(true) => TailMessage::BridgeEnded,
                Ok(false) => TailMessage::Broken,
                Err(error) => self.explain(&error).await,
            };
            debug!(next = self.next, end = ?message, "the stream of events ended");
            let is_over = matches!(message, TailMessage::BridgeEnded | TailMessage::SandboxGone(_));
            if self.sender.send(message).await.is_err() || is_over {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows one stream to its end. Returns whether the bridge has ended.
    async fn stream_once(&mut self) -> Result<bool, ProviderError> {
        let from = self.next.to_string();
        let program = self.sandbox.bridge_path().to_owned();
        let command =
            [&program, "tail", "--directory", &self.directory, "--from", &from, "--follow"];
        let command = Command::new(command, STREAM_LIMIT);
        let (bytes, mut arrived) = mpsc::unbounded_channel::<Vec<u8>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let arriving = Arc::clone(&waiting);
        let mut on_output = move |stream: Stream, chunk: &[u8]| {
            if stream == Stream::Output {
                arriving.fetch_add(chunk.len(), Ordering::Relaxed);
                // If the receiver is gone, this stream is being dropped.
                let _ = bytes.send(chunk.to_vec());
            }
        };
        let sandbox = Arc::clone(&self.sandbox);
        let read = async {
            let mut decoder = Decoder::default();
            while let Some(chunk) = arrived.recv().await {
                waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
                let mut frames = Vec::new();
                decoder.feed::<TailItem>(&chunk, |frame| frames.push(frame));
                for frame in frames {
                    match self.handle_frame(frame.seq, frame.body).await {
                        FrameAction::Continue => {}
                        FrameAction::Ended => return true,
                        FrameAction::Gap => return false,
                    }
                }
            }
            false
        };
        let exec = async move {
            let finished = sandbox.exec(&command, &mut on_output).await;
            // Dropping the sender ends the reader's loop.
            drop(on_output);
            finished
        };
        let (mut read, mut exec) = (pin!(read), pin!(exec));
        let mut finished = Ok(());
        let mut is_running = true;
        poll_fn(|context| {
            if let Poll::Ready(ended) = read.as_mut().poll(context) {
                return Poll::Ready(std::mem::replace(&mut finished, Ok(())).map(|()| ended));
            }
            // Backpressure: while the agent writes faster than its output is recorded, the exec is
            // not polled. The stream fills up, and the spool holds the rest.
            let has_room = waiting.load(Ordering::Relaxed) < MOST_WAITING;
            if is_running
                && has_room
                && let Poll::Ready(response) = exec.as_mut().poll(context)
            {
                is_running = false;
                finished = response.map(drop);
            }
            Poll::Pending
        })
        .await
    }

    /// Handles a frame: forwards the expected event, and detects gaps.
    async fn handle_frame(&mut self, seq: u64, frame: TailItem) -> FrameAction {
        match frame {
            TailItem::Sign(Sign::Alive { .. }) => {
                let _ = self.sender.send(TailMessage::Alive).await;
                FrameAction::Continue
            }
            // If events are still missing, another stream delivers them.
            TailItem::Sign(Sign::Ended { newest }) if self.next > newest => FrameAction::Ended,
            TailItem::Sign(Sign::Ended { .. }) => FrameAction::Gap,
            TailItem::Event(event) if seq == self.next => {
                self.next += 1;
                let _ = self.sender.send(TailMessage::Event(seq, event)).await;
                FrameAction::Continue
            }
            TailItem::Event(_) if seq < self.next => FrameAction::Continue,
            TailItem::Event(_) => FrameAction::Gap,
        }
    }

    async fn explain(&self, error: &ProviderError) -> TailMessage {
        debug!(%error, "the stream of events could not be followed");
        match self.sandbox.status().await {
            Ok(SandboxStatus::Absent) => {
                TailMessage::SandboxGone("it does not exist any more".to_owned())
            }
            // This process never stops a sandbox that is in use, and whatever ran in it is gone.
            Ok(SandboxStatus::Resting(state)) => TailMessage::SandboxGone(format!("it is {state}")),
            Ok(SandboxStatus::Running) | Err(_) => TailMessage::Broken,
        }
    }
}
