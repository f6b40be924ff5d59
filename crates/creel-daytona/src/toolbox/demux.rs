//! Splits a followed log into its two streams.
//!
//! Each chunk begins with three equal bytes that identify its stream. Frames may be cut anywhere,
//! even inside these three bytes. Output before the first mark counts as standard output.

/// One of a command's two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

const MARK: usize = 3;

/// Splits bytes as they arrive.
#[derive(Debug)]
pub(super) struct Demux {
    stream: Stream,
    /// Bytes that may be the beginning of a mark.
    held: Vec<u8>,
}

impl Default for Demux {
    fn default() -> Self {
        Self { stream: Stream::Output, held: Vec::new() }
    }
}

impl Demux {
    /// Consumes the next bytes and forwards those whose stream is certain.
    pub(super) fn feed(&mut self, bytes: &[u8], mut to: impl FnMut(Stream, &[u8])) {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let (mut start, mut place) = (0, 0);
        while place < all.len() {
            let Some(stream) = marked(all[place]) else {
                place += 1;
                continue;
            };
            let same = all[place..].iter().take(MARK).take_while(|&&b| b == all[place]).count();
            if same < MARK && place + same < all.len() {
                place += same;
                continue;
            }
            if place > start {
                to(self.stream, &all[start..place]);
            }
            if same < MARK {
                self.held = all[place..].to_vec();
                return;
            }
            self.stream = stream;
            place += MARK;
            start = place;
        }
        if all.len() > start {
            to(self.stream, &all[start..]);
        }
    }

    /// Forwards the held bytes at the end of the log.
    pub(super) fn finish(mut self, mut to: impl FnMut(Stream, &[u8])) {
        if !self.held.is_empty() {
            to(self.stream, &std::mem::take(&mut self.held));
        }
    }
}

fn marked(byte: u8) -> Option<Stream> {
    match byte {
        1 => Some(Stream::Output),
        2 => Some(Stream::Error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parted<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<u8>) {
        let (mut output, mut error) = (Vec::new(), Vec::new());
        let mut sink = |stream, bytes: &[u8]| match stream {
            Stream::Output => output.extend_from_slice(bytes),
            Stream::Error => error.extend_from_slice(bytes),
        };
        let mut demux = Demux::default();
        for chunk in chunks {
            demux.feed(chunk, &mut sink);
        }
        demux.finish(&mut sink);
        (output, error)
    }

    #[test]
    fn streams_are_separated() {
        let log = b"\x01\x01\x01out\x02\x02\x02err\x01\x01\x01put";
        assert_eq!(parted([&log[..]]), (b"output".to_vec(), b"err".to_vec()));
        assert_eq!(parted([&b"bare"[..]]), (b"bare".to_vec(), Vec::new()));
        assert_eq!(parted([&b"a\x01\x01"[..]]), (b"a\x01\x01".to_vec(), Vec::new()));
    }

    proptest! {
        #[test]
        fn frames_are_parsed_whatever_the_chunk_boundaries(
            log in proptest::collection::vec(prop_oneof![Just(1u8), Just(2u8), Just(b'x')], 0..40),
            size in 1usize..5,
        ) {
            prop_assert_eq!(parted([&log[..]]), parted(log.chunks(size)));
        }
    }
}
