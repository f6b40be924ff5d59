//! Bytes of a program as text for events.

use std::mem;

/// How long the text of one event is at most.
const LONGEST: usize = 16 << 10;

/// Makes text of one stream's bytes, however they are cut. Put together, it is what the bytes are
/// as a whole, with bytes that are no UTF-8 replaced.
#[derive(Debug, Default)]
pub(super) struct TextOf {
    /// The beginning of a character.
    rest: Vec<u8>,
}

impl TextOf {
    /// Takes bytes in, and returns text in pieces that fit into events.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut bytes = [mem::take(&mut self.rest).as_slice(), bytes].concat();
        let mut text = String::new();
        loop {
            let error = match str::from_utf8(&bytes) {
                Ok(valid) => {
                    text.push_str(valid);
                    return pieces(&text);
                }
                Err(error) => error,
            };
            let after = bytes.split_off(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(&bytes));
            let Some(length) = error.error_len() else {
                self.rest = after;
                return pieces(&text);
            };
            text.push(char::REPLACEMENT_CHARACTER);
            bytes = after[length..].to_vec();
        }
    }

    /// Ends the stream; a character that was begun is none.
    pub(super) fn end(&mut self) -> Vec<String> {
        let rest = mem::take(&mut self.rest);
        pieces(&String::from_utf8_lossy(&rest))
    }
}

/// Cuts a text between characters into pieces of at most the longest length.
fn pieces(mut text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let (piece, rest) = text.split_at(text.floor_char_boundary(LONGEST));
        pieces.push(piece.to_owned());
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], chunk: usize) -> String {
        let mut text = TextOf::default();
        let mut pieces: Vec<String> =
            bytes.chunks(chunk).flat_map(|bytes| text.take(bytes)).collect();
        pieces.extend(text.end());
        assert!(pieces.iter().all(|piece| (1..=LONGEST).contains(&piece.len())));
        pieces.concat()
    }

    #[test]
    fn however_bytes_are_cut_the_text_is_that_of_the_whole() {
        let bytes = b"snow \xe2\x98\x83, bad \xff\xe2\x98, rocket \xf0\x9f\x9a\x80, half \xf0\x9f";
        for chunk in 1..=bytes.len() {
            assert_eq!(whole(bytes, chunk), String::from_utf8_lossy(bytes), "in {chunk}");
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "☃".repeat(20_000);
        assert_eq!(whole(text.as_bytes(), 1 << 15), text);
    }
}
