//! The response to a command, assembled from frames.
//!
//! Frames are numbered. A duplicate frame is ignored. A missing frame stops the
//! delivery there, so the listener never receives output with a gap in it. A
//! transport that can read the response again does so from its beginning.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::ExecEvent;
use creel_bridge::frame::{Decoder, Frame};

use super::{Finished, OutputListener};

/// The response to an exec request, as it arrives.
pub struct ExecResponse<'a> {
    decoder: Decoder,
    receiver: FrameReceiver<'a>,
}

struct FrameReceiver<'a> {
    /// The number of the newest frame that was delivered.
    newest: u64,
    finished: Option<Finished>,
    listener: OutputListener<'a>,
}

impl<'a> ExecResponse<'a> {
    /// Creates an empty response that passes output to a listener.
    pub fn new(listener: OutputListener<'a>) -> Self {
        let receiver = FrameReceiver { newest: 0, finished: None, listener };
        Self { decoder: Decoder::default(), receiver }
    }

    /// Takes bytes as they arrive.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Self { decoder, receiver } = self;
        decoder.feed(bytes, |frame| receiver.receive(frame));
    }

    /// Starts to read the same response again. Frames that were delivered are not delivered twice.
    pub fn read_again(&mut self) {
        self.decoder = Decoder::default();
    }

    /// Returns whether any frame was received.
    pub fn has_begun(&self) -> bool {
        self.receiver.newest > 0
    }

    /// Returns whether the final frame was received.
    pub fn is_finished(&self) -> bool {
        self.receiver.finished.is_some()
    }

    /// Returns the result, if the final frame was received.
    pub fn finished(self) -> Option<Finished> {
        self.receiver.finished
    }
}

impl FrameReceiver<'_> {
    fn receive(&mut self, frame: Frame<ExecEvent>) {
        if self.finished.is_some() || frame.seq != self.newest + 1 {
            return;
        }
        match frame.body {
            ExecEvent::Started { .. } => {}
            ExecEvent::Output { stream, bytes } => match BASE64_STANDARD.decode(bytes) {
                Ok(bytes) => (self.listener)(stream, &bytes),
                // The checksum was right, so this was never valid output. The delivery ends here.
                Err(_) => return,
            },
            ExecEvent::Ended(ending) => self.finished = Some(Finished::Ended(ending)),
            ExecEvent::NotStarted { reason } => self.finished = Some(Finished::NotStarted(reason)),
        }
        self.newest = frame.seq;
    }
}

#[cfg(test)]
mod tests {
    use creel_bridge::event::Stream;
    use creel_bridge::exec::ExecEnding;
    use creel_bridge::frame::encode;

    use super::*;

    fn frames() -> Vec<Vec<u8>> {
        let output = |text: &str| ExecEvent::Output {
            stream: Stream::Output,
            bytes: BASE64_STANDARD.encode(text),
        };
        let all = [
            ExecEvent::Started { pid: 7 },
            output("one "),
            output("two "),
            output("three"),
            ExecEvent::Ended(ExecEnding::Code { code: 4 }),
        ];
        (1..).zip(&all).map(|(seq, received)| encode(seq, received).unwrap()).collect()
    }

    /// Feeds chunks. A `None` restarts the reading.
    fn received(chunks: &[Option<&[u8]>]) -> (String, Option<Finished>) {
        let mut text = String::new();
        let mut listener =
            |_: Stream, bytes: &[u8]| text.push_str(std::str::from_utf8(bytes).unwrap());
        let mut response = ExecResponse::new(&mut listener);
        for chunk in chunks {
            match chunk {
                Some(bytes) => response.feed(bytes),
                None => response.read_again(),
            }
        }
        let finished = response.finished();
        (text, finished)
    }

    const FOUR: Finished = Finished::Ended(ExecEnding::Code { code: 4 });

    #[test]
    fn duplicate_frames_are_delivered_once() {
        let frames = frames();
        let doubled: Vec<Option<&[u8]>> =
            frames.iter().flat_map(|frame| [Some(&frame[..]), Some(&frame[..])]).collect();
        assert_eq!(received(&doubled), ("one two three".to_owned(), Some(FOUR)));
    }

    #[test]
    fn nothing_is_delivered_after_a_gap() {
        let frames = frames();
        let holed: Vec<Option<&[u8]>> = frames
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != 2)
            .map(|(_, f)| Some(&f[..]))
            .collect();
        assert_eq!(received(&holed), ("one ".to_owned(), None));
    }

    #[test]
    fn a_response_that_is_read_again_is_completed() {
        let frames = frames();
        let whole = frames.concat();
        let chunks =
            [Some(&frames[0][..]), Some(&frames[1][..]), Some(&frames[3][..9]), None, Some(&whole)];
        assert_eq!(received(&chunks), ("one two three".to_owned(), Some(FOUR)));
    }

    #[test]
    fn nothing_is_delivered_after_the_final_frame() {
        let frames = frames();
        let whole = frames.concat();
        let late = encode(6, &ExecEvent::NotStarted { reason: "late".to_owned() }).unwrap();
        let (_, finished) = received(&[Some(&whole), Some(&late)]);
        assert_eq!(finished, Some(FOUR));
    }
}
