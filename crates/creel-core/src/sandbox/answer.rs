//! What is heard of a command, put together from frames.
//!
//! Frames come numbered. One that comes twice is heard once; one that is
//! missing stops the hearing there, so that nothing is ever handed on with a
//! hole in it. Whoever can read the answer again does so from its beginning.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::Heard;
use creel_bridge::frame::{Decoder, Frame};

use super::{Finished, Listener};

/// The answer to an order, as it comes.
pub(super) struct Answer<'a> {
    decoder: Decoder,
    hearing: Hearing<'a>,
}

struct Hearing<'a> {
    /// The number of the newest frame that was handed on.
    newest: u64,
    finished: Option<Finished>,
    listener: Listener<'a>,
}

impl<'a> Answer<'a> {
    /// Begins to hear.
    pub(super) fn new(listener: Listener<'a>) -> Self {
        let hearing = Hearing { newest: 0, finished: None, listener };
        Self { decoder: Decoder::default(), hearing }
    }

    /// Takes bytes as they come.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let Self { decoder, hearing } = self;
        decoder.feed(bytes, |frame| hearing.take(frame));
    }

    /// Begins to read the same answer again; what was heard is not handed on twice.
    pub(super) fn read_again(&mut self) {
        self.decoder = Decoder::default();
    }

    /// Returns whether anything was heard.
    pub(super) fn has_begun(&self) -> bool {
        self.hearing.newest > 0
    }

    /// Returns whether the last word was heard.
    pub(super) fn is_finished(&self) -> bool {
        self.hearing.finished.is_some()
    }

    /// Returns the last word, if it was heard.
    pub(super) fn finished(self) -> Option<Finished> {
        self.hearing.finished
    }
}

impl Hearing<'_> {
    fn take(&mut self, frame: Frame<Heard>) {
        if self.finished.is_some() || frame.seq != self.newest + 1 {
            return;
        }
        match frame.body {
            Heard::Started { .. } => {}
            Heard::Output { stream, bytes } => match BASE64_STANDARD.decode(bytes) {
                Ok(bytes) => (self.listener)(stream, &bytes),
                // The checksum was right, so this was never output; the hearing ends here.
                Err(_) => return,
            },
            Heard::Ended(ending) => self.finished = Some(Finished::Ended(ending)),
            Heard::NotStarted { reason } => self.finished = Some(Finished::NotStarted(reason)),
        }
        self.newest = frame.seq;
    }
}

#[cfg(test)]
mod tests {
    use creel_bridge::event::Stream;
    use creel_bridge::exec::Ending;
    use creel_bridge::frame::encode;

    use super::*;

    fn frames() -> Vec<Vec<u8>> {
        let output = |text: &str| Heard::Output {
            stream: Stream::Output,
            bytes: BASE64_STANDARD.encode(text),
        };
        let all = [
            Heard::Started { pid: 7 },
            output("one "),
            output("two "),
            output("three"),
            Heard::Ended(Ending::Code { code: 4 }),
        ];
        (1..).zip(&all).map(|(seq, heard)| encode(seq, heard).unwrap()).collect()
    }

    /// Feeds pieces; a `None` begins the reading anew.
    fn heard(pieces: &[Option<&[u8]>]) -> (String, Option<Finished>) {
        let mut text = String::new();
        let mut listener =
            |_: Stream, bytes: &[u8]| text.push_str(std::str::from_utf8(bytes).unwrap());
        let mut answer = Answer::new(&mut listener);
        for piece in pieces {
            match piece {
                Some(bytes) => answer.feed(bytes),
                None => answer.read_again(),
            }
        }
        let finished = answer.finished();
        (text, finished)
    }

    const FOUR: Finished = Finished::Ended(Ending::Code { code: 4 });

    #[test]
    fn frames_that_come_twice_are_heard_once() {
        let frames = frames();
        let doubled: Vec<Option<&[u8]>> =
            frames.iter().flat_map(|frame| [Some(&frame[..]), Some(&frame[..])]).collect();
        assert_eq!(heard(&doubled), ("one two three".to_owned(), Some(FOUR)));
    }

    #[test]
    fn nothing_is_handed_on_after_a_hole() {
        let frames = frames();
        let holed: Vec<Option<&[u8]>> = frames
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != 2)
            .map(|(_, f)| Some(&f[..]))
            .collect();
        assert_eq!(heard(&holed), ("one ".to_owned(), None));
    }

    #[test]
    fn an_answer_that_is_read_again_is_completed() {
        let frames = frames();
        let whole = frames.concat();
        let pieces =
            [Some(&frames[0][..]), Some(&frames[1][..]), Some(&frames[3][..9]), None, Some(&whole)];
        assert_eq!(heard(&pieces), ("one two three".to_owned(), Some(FOUR)));
    }

    #[test]
    fn nothing_is_heard_after_the_last_word() {
        let frames = frames();
        let whole = frames.concat();
        let late = encode(6, &Heard::NotStarted { reason: "late".to_owned() }).unwrap();
        let (_, finished) = heard(&[Some(&whole), Some(&late)]);
        assert_eq!(finished, Some(FOUR));
    }
}
