//! Frames: lines of ASCII JSON with a sequence number and a checksum.
//!
//! ```text
//! {"seq":7,"crc":"1c291ca3","body":{"event":"turn_started","turn":1}}
//! ```
//!
//! The checksum (CRC-32) covers the sequence number in decimal, a colon, and the body exactly as it
//! stands in the line. A reader drops everything that is not a complete, valid frame. Missing
//! frames show as a gap in the numbers, and the reader requests them again.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::ser::{CompactFormatter, Formatter};
use serde_json::value::RawValue;

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<T> {
    /// The frame's number. Frames of one source are numbered from 1 without gaps.
    pub seq: u64,
    /// The payload.
    pub body: T,
}

#[derive(Deserialize)]
struct RawFrame<'a> {
    seq: u64,
    crc: &'a str,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Encodes a frame as one line, including the line end.
///
/// # Errors
///
/// Fails only for a body that has no JSON form.
pub fn encode(seq: u64, body: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    body.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text,
        Ascii(CompactFormatter),
    ))?;
    let mut line =
        format!("{{\"seq\":{seq},\"crc\":\"{:08x}\",\"body\":", checksum(seq, &text)).into_bytes();
    line.extend_from_slice(&text);
    line.extend_from_slice(b"}\n");
    Ok(line)
}

/// Decodes one line. Returns `None` unless it is a complete, valid frame with a body of this type.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Option<Frame<T>> {
    let line: RawFrame<'_> = serde_json::from_slice(line.trim_ascii()).ok()?;
    let text = line.body.get();
    (line.crc == format!("{:08x}", checksum(line.seq, text.as_bytes()))).then_some(())?;
    Some(Frame { seq: line.seq, body: serde_json::from_str(text).ok()? })
}

fn checksum(seq: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(seq.to_string().as_bytes());
    hasher.update(b":");
    hasher.update(body);
    hasher.finalize()
}

/// Escapes every character outside of ASCII, so that terminals, logs and proxies cannot damage it.
struct Ascii(CompactFormatter);

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, character) in fragment.char_indices() {
            // A delete character is ASCII, but terminals do not pass it on.
            if character.is_ascii() && character != '\u{7f}' {
                continue;
            }
            self.0.write_string_fragment(writer, &fragment[plain..at])?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + character.len_utf8();
        }
        self.0.write_string_fragment(writer, &fragment[plain..])
    }
}

/// Splits a stream of bytes into frames, across chunks, and drops everything else.
#[derive(Debug, Default)]
pub struct Decoder {
    rest: Vec<u8>,
}

/// The maximum length of a line. A longer line is not a frame.
const LONGEST_LINE: usize = 1 << 20;

impl Decoder {
    /// Takes bytes in and passes every complete frame to `each`.
    pub fn feed<T: DeserializeOwned>(&mut self, bytes: &[u8], mut each: impl FnMut(Frame<T>)) {
        self.rest.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(length) = self.rest[from..].iter().position(|byte| *byte == b'\n') {
            // Output of another program may precede the frame in the same line.
            let line = &self.rest[from..from + length];
            let start = find(line, b"{\"seq\":").unwrap_or(0);
            if let Some(frame) = decode(&line[start..]) {
                each(frame);
            }
            from += length + 1;
        }
        self.rest.drain(..from);
        if self.rest.len() > LONGEST_LINE {
            self.rest.clear();
        }
    }
}

fn find(text: &[u8], sought: &[u8]) -> Option<usize> {
    text.windows(sought.len()).position(|window| window == sought)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_frame_is_ascii_and_decodes_to_itself() {
        let body = json!({ "text": "snow ☃, rocket 🚀, \u{7f}, \"quoted\"\n" });
        let line = encode(3, &body).unwrap();
        assert!(line.is_ascii() && line.iter().filter(|byte| **byte == b'\n').count() == 1);
        assert_eq!(decode::<Value>(&line), Some(Frame { seq: 3, body }));
    }

    #[test]
    fn any_damage_makes_it_no_frame() {
        let line = encode(3, &json!({ "turn": 12 })).unwrap();
        for at in 0..line.len() - 1 {
            let mut damaged = line.clone();
            damaged[at] ^= 1;
            assert_eq!(decode::<Value>(&damaged), None, "byte {at}");
            assert_eq!(decode::<Value>(&line[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn frames_are_found_among_other_bytes_however_they_are_cut() {
        let mut stream = b"motd: welcome\r\n\xff\xfe".to_vec();
        for seq in 1..=3 {
            stream.extend(encode(seq, &json!(seq)).unwrap());
            stream.extend(b"noise ");
        }
        for chunk in 1..stream.len() {
            let (mut decoder, mut seen) = (Decoder::default(), Vec::new());
            for bytes in stream.chunks(chunk) {
                decoder.feed::<u64>(bytes, |frame| seen.push((frame.seq, frame.body)));
            }
            assert_eq!(seen, [(1, 1), (2, 2), (3, 3)], "in chunks of {chunk}");
        }
    }
}
