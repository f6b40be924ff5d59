//! The stored form of an event: JSON, packed where that is smaller.
//!
//! An agent's output is stored in pieces. As plain JSON a piece is larger than
//! its text, because of escapes, names and half-empty pages. Packed, it is a
//! fraction of the text. A short event stays plain, because people also read the
//! file with other tools.

use std::io::{Read, Write};

use creel_model::run::RunEvent;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// The minimum size in bytes of JSON that is packed.
const PACK_FROM: usize = 512;
/// The maximum unpacked size of an event: far more than is ever stored, and safe for the memory.
const MOST_UNPACKED: u64 = 64 << 20;

/// An event as it is in the table. One of the two fields is empty.
#[derive(Debug)]
pub(super) struct StoredForm {
    /// The plain JSON.
    pub(super) plain: String,
    /// The packed JSON.
    pub(super) packed: Option<Vec<u8>>,
}

impl StoredForm {
    /// Returns the form in which an event is stored.
    pub(super) fn of(event: &RunEvent) -> Self {
        let plain = serde_json::to_string(event).expect("events are plain data");
        if plain.len() < PACK_FROM {
            return Self { plain, packed: None };
        }
        let packed = pack(plain.as_bytes());
        match packed.len() < plain.len() {
            true => Self { plain: String::new(), packed: Some(packed) },
            false => Self { plain, packed: None },
        }
    }

    /// Returns the event.
    ///
    /// # Errors
    ///
    /// Fails with a description of the damage.
    pub(super) fn event(self) -> Result<RunEvent, String> {
        let plain = match self.packed {
            Some(packed) => unpack(&packed).map_err(|error| error.to_string())?,
            None => self.plain,
        };
        serde_json::from_str(&plain).map_err(|error| error.to_string())
    }
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    // The fastest level: the run waits for it, and text becomes small at any level.
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

fn unpack(packed: &[u8]) -> std::io::Result<String> {
    let mut text = String::new();
    let read = DeflateDecoder::new(packed).take(MOST_UNPACKED).read_to_string(&mut text)?;
    if read as u64 == MOST_UNPACKED {
        return Err(std::io::Error::other("it unpacks to more than any event has"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::tests::output::text;

    #[test]
    fn short_events_stay_readable_and_long_ones_become_small() {
        let short = StoredForm::of(&text("hello"));
        assert!(short.packed.is_none() && short.plain.contains("hello"));
        assert_eq!(short.event().unwrap(), text("hello"));
        let long = "\"make\" says:\tall is well\n".repeat(1000);
        let stored = StoredForm::of(&text(&long));
        assert!(stored.plain.is_empty());
        assert!(stored.packed.as_ref().unwrap().len() < long.len() / 10);
        assert_eq!(stored.event().unwrap(), text(&long));
    }

    #[test]
    fn damage_is_named_and_a_bomb_is_refused() {
        let damaged = StoredForm { plain: String::new(), packed: Some(vec![0xff; 30]) };
        assert!(damaged.event().is_err());
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let block = vec![b' '; 1 << 20];
        for _ in 0..65 {
            encoder.write_all(&block).unwrap();
        }
        let bomb = StoredForm { plain: String::new(), packed: Some(encoder.finish().unwrap()) };
        assert!(bomb.event().unwrap_err().contains("more than any event has"));
    }
}
