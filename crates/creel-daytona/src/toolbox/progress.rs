//! How much of a stream was forwarded, in its two forms.
//!
//! A followed log is bytes. A polled log is text, in which invalid UTF-8 was replaced, so the same
//! position has a different offset in each. Either form may end in the middle of a character.

/// What replaces invalid UTF-8 in a polled log.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// How much of one stream was forwarded.
#[derive(Debug, Default)]
pub(super) struct StreamProgress {
    /// As bytes.
    bytes: usize,
    /// As text, whole characters only.
    text: usize,
    /// The first bytes of a character that was forwarded incomplete.
    open: Vec<u8>,
}

impl StreamProgress {
    /// Returns the new part of bytes that begin at this offset of the stream.
    pub(super) fn advance<'a>(&mut self, place: usize, bytes: &'a [u8]) -> &'a [u8] {
        let known = self.bytes.saturating_sub(place).min(bytes.len());
        let new = &bytes[known..];
        self.bytes += new.len();
        self.count(new);
        new
    }

    /// Returns the new part of the whole stream as text.
    ///
    /// A character that may be incomplete is left for the next call, unless the stream has ended.
    pub(super) fn advance_text<'a>(&mut self, all: &'a str, ended: bool) -> &'a [u8] {
        let sure = if ended { all } else { all.trim_end_matches(REPLACEMENT) };
        // Text that is shorter than before, or that splits differently, has nothing new.
        let Some(rest) = sure.get(self.text..) else { return &[] };
        let Some(first) = rest.chars().next() else { return &[] };
        let rest = rest.as_bytes();
        // Only the rest of a character that was begun as bytes is missing. If it turned out
        // invalid, it was already forwarded.
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

    /// Counts the length of bytes as text.
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
        let chunk = prop_oneof![
            Just("a".as_bytes().to_vec()),
            Just("ü".as_bytes().to_vec()),
            Just("€".as_bytes().to_vec()),
            Just("🦞".as_bytes().to_vec()),
            Just(vec![0xff]),
            Just(vec![0xe2, 0x82]),
            Just(vec![0xf0, 0x9f]),
        ];
        proptest::collection::vec(chunk, 0..12).prop_map(|chunks| chunks.concat())
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
            let (mut progress, mut forwarded) = (StreamProgress::default(), Vec::new());
            for cut in cuts.into_iter().map(|cut| cut.min(stream.len())).chain([stream.len()]) {
                for (place, byte) in stream[..cut].iter().enumerate() {
                    forwarded.extend_from_slice(progress.advance(place, &[*byte]));
                }
            }
            prop_assert_eq!(forwarded, stream);
        }

        #[test]
        fn a_poll_goes_on_where_the_bytes_ended(
            stream in any_stream(),
            cut in 0usize..40,
            polls in proptest::collection::vec(0usize..40, 0..4),
        ) {
            let cut = cut.min(stream.len());
            let (mut progress, mut forwarded) = (StreamProgress::default(), Vec::new());
            forwarded.extend_from_slice(progress.advance(0, &stream[..cut]));
            let mut polls: Vec<usize> =
                polls.into_iter().map(|end| end.clamp(cut, stream.len())).collect();
            polls.sort_unstable();
            for end in polls {
                forwarded.extend_from_slice(progress.advance_text(&text(&stream[..end]), false));
            }
            forwarded.extend_from_slice(progress.advance_text(&text(&stream), true));
            prop_assert_eq!(text(&forwarded), text(&stream));
            prop_assert!(forwarded.starts_with(&stream[..cut]));
        }
    }
}
