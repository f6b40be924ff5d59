//! How much of a stream was handed on, in its two forms.
//!
//! A followed log is bytes. A polled one is text, in which whatever is no
//! UTF-8 was replaced, so the same place has another number in each. A
//! character may be cut by the end of either.

/// What stands in a polled log for bytes that are no text.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// How much of one stream was handed on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// As bytes.
    bytes: usize,
    /// As text, whole characters only.
    text: usize,
    /// The beginning of a character, handed on as bytes, whose rest was not there yet.
    open: Vec<u8>,
}

impl Progress {
    /// Returns what is new of bytes that begin at this place of the stream.
    pub(super) fn advance<'a>(&mut self, place: usize, bytes: &'a [u8]) -> &'a [u8] {
        let known = self.bytes.saturating_sub(place).min(bytes.len());
        let new = &bytes[known..];
        self.bytes += new.len();
        self.count(new);
        new
    }

    /// Returns what is new of the whole stream as text; a character that may be cut is left for
    /// the next time, unless nothing more will come.
    pub(super) fn advance_text<'a>(&mut self, all: &'a str, ended: bool) -> &'a [u8] {
        let sure = if ended { all } else { all.trim_end_matches(REPLACEMENT) };
        // Text that is shorter than before, or parts otherwise, has nothing new to say.
        let Some(rest) = sure.get(self.text..) else { return &[] };
        let Some(first) = rest.chars().next() else { return &[] };
        let rest = rest.as_bytes();
        // Of the character that was begun as bytes the rest is missing; one that came to
        // nothing was handed on already.
        let begun = if self.open.is_empty() {
            0
        } else if rest.starts_with(&self.open) {
            self.open.len()
        } else {
            first.len_utf8()
        };
        self.open.clear();
        self.text += rest.len();
        &rest[begun..]
    }

    /// Counts how long bytes are as text.
    fn count(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.open);
        let mut rest = all.as_slice();
        while let Err(error) = std::str::from_utf8(rest) {
            self.text += error.valid_up_to();
            rest = &rest[error.valid_up_to()..];
            let Some(wrong) = error.error_len() else {
                self.open = rest.to_vec();
                return;
            };
            self.text += REPLACEMENT.len_utf8();
            rest = &rest[wrong..];
        }
        self.text += rest.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("a".as_bytes().to_vec()),
            Just("ü".as_bytes().to_vec()),
            Just("€".as_bytes().to_vec()),
            Just("🦞".as_bytes().to_vec()),
            Just(vec![0xff]),
            Just(vec![0xe2, 0x82]),
            Just(vec![0xf0, 0x9f]),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    proptest! {
        #[test]
        fn connections_that_begin_anew_hand_on_everything_once(
            stream in any_stream(),
            cuts in proptest::collection::vec(0usize..40, 0..5),
        ) {
            let (mut progress, mut given) = (Progress::default(), Vec::new());
            for cut in cuts.into_iter().map(|cut| cut.min(stream.len())).chain([stream.len()]) {
                for (place, byte) in stream[..cut].iter().enumerate() {
                    given.extend_from_slice(progress.advance(place, &[*byte]));
                }
            }
            prop_assert_eq!(given, stream);
        }

        #[test]
        fn a_poll_goes_on_where_the_bytes_ended(
            stream in any_stream(),
            cut in 0usize..40,
            polls in proptest::collection::vec(0usize..40, 0..4),
        ) {
            let cut = cut.min(stream.len());
            let (mut progress, mut given) = (Progress::default(), Vec::new());
            given.extend_from_slice(progress.advance(0, &stream[..cut]));
            let mut polls: Vec<usize> =
                polls.into_iter().map(|end| end.clamp(cut, stream.len())).collect();
            polls.sort_unstable();
            for end in polls {
                given.extend_from_slice(progress.advance_text(&text(&stream[..end]), false));
            }
            given.extend_from_slice(progress.advance_text(&text(&stream), true));
            prop_assert_eq!(text(&given), text(&stream));
            prop_assert!(given.starts_with(&stream[..cut]));
        }
    }
}
