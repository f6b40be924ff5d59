//! Converts the bytes of a program to text for events.

use std::mem;

/// The maximum length of the text of one event.
const LONGEST: usize = 16 << 10;

/// Converts the bytes of one stream to text, however they are chunked. The concatenated text equals
/// the lossy UTF-8 decoding of all bytes.
#[derive(Debug, Default)]
pub(super) struct TextOf {
    /// The beginning of an incomplete character.
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
                    return chunks(&text);
                }
                Err(error) => error,
            };
            let after = bytes.split_off(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(&bytes));
            let Some(length) = error.error_len() else {
                self.rest = after;
                return chunks(&text);
            };
            text.push(char::REPLACEMENT_CHARACTER);
            bytes = after[length..].to_vec();
        }
    }

    /// Ends the stream. An incomplete character is replaced.
    pub(super) fn end(&mut self) -> Vec<String> {
        let rest = mem::take(&mut self.rest);
        chunks(&String::from_utf8_lossy(&rest))
    }
}

/// Splits a text at character boundaries into pieces of at most [`LONGEST`] bytes.
fn chunks(mut text: &str) -> Vec<String> {
    let mut chunks = Vec::new();
    while !text.is_empty() {
        let (chunk, rest) = text.split_at(text.floor_char_boundary(LONGEST));
        chunks.push(chunk.to_owned());
        text = rest;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], chunk: usize) -> String {
        let mut text = TextOf::default();
        let mut chunks: Vec<String> =
            bytes.chunks(chunk).flat_map(|bytes| text.take(bytes)).collect();
        chunks.extend(text.end());
        assert!(chunks.iter().all(|chunk| (1..=LONGEST).contains(&chunk.len())));
        chunks.concat()
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
