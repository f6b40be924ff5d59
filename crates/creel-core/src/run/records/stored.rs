//! How an event is stored: as JSON, packed where that is smaller.
//!
//! An agent's output is stored in pieces. As plain JSON a piece is larger than its text (escapes,
//! names, half-empty pages); packed it is a fraction of it. A short event stays as it is: people
//! read the file with other tools too.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::run::RunEvent;

/// From how many bytes of JSON on it is packed.
const PACK_FROM: usize = 512;
/// How much one event may unpack to: far beyond what is ever stored, and no danger to the memory.
const MOST_UNPACKED: u64 = 64 << 20;

/// An event as it lies in the table; one of the two is empty.
#[derive(Debug)]
pub(super) struct StoredForm {
    /// Its JSON.
    pub(super) plain: String,
    /// Its JSON, packed.
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
    /// Fails with what is wrong with it.
    pub(super) fn event(self) -> Result<RunEvent, String> {
        let plain = match self.packed {
            Some(packed) => unpack(&packed).map_err(|error| error.to_string())?,
            None => self.plain,
        };
        serde_json::from_str(&plain).map_err(|error| error.to_string())
    }
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    // The fastest: the run waits for it, and text becomes small in any case.
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
    use crate::run::records::tests::output::text;

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
