//! Decodes chunked bodies as they arrive.

/// Extracts the data from chunks, however the bytes are split.
#[derive(Debug, Default)]
pub(super) struct Dechunker {
    state: ChunkState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ChunkState {
    /// In the line with the length of a chunk: the number so far, and whether it is complete.
    #[default]
    Start,
    Length(u64, bool),
    /// In the data, with the number of bytes left.
    Data(u64),
    /// In the line ending after the data.
    AfterData,
    /// After the last chunk, in a line of the trailer. The flag says whether it is empty so far.
    Trailer(bool),
    Done,
}

impl Dechunker {
    /// Consumes the next bytes, and passes on the data among them. Returns how many bytes belong to
    /// the body.
    pub(super) fn feed(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> usize {
        let mut place = 0;
        while place < bytes.len() && self.state != ChunkState::Done {
            if let ChunkState::Data(left) = self.state {
                let rest = &bytes[place..];
                let length = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                data(&rest[..length]);
                place += length;
                let left = left - length as u64;
                self.state = if left == 0 { ChunkState::AfterData } else { ChunkState::Data(left) };
            } else {
                self.state = step(self.state, bytes[place]);
                place += 1;
            }
        }
        place
    }

    /// Returns whether the body is complete.
    pub(super) fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }
}

/// Consumes one byte that is not data.
fn step(state: ChunkState, byte: u8) -> ChunkState {
    match (state, byte) {
        (ChunkState::Length(0, _), b'\n') => ChunkState::Trailer(true),
        (ChunkState::Length(length, _), b'\n') => ChunkState::Data(length),
        (ChunkState::Start, _) => step(ChunkState::Length(0, false), byte),
        (ChunkState::Length(length, false), _) => match char::from(byte).to_digit(16) {
            Some(digit) => ChunkState::Length(length.saturating_mul(16) + u64::from(digit), false),
            // An extension or the end of the line follows.
            None => ChunkState::Length(length, true),
        },
        (ChunkState::AfterData, b'\n') | (ChunkState::Done, _) => {
            if state == ChunkState::Done {
                ChunkState::Done
            } else {
                ChunkState::Start
            }
        }
        (ChunkState::Trailer(true), b'\n') => ChunkState::Done,
        (ChunkState::Trailer(false), b'\n') => ChunkState::Trailer(true),
        (ChunkState::Trailer(is_empty), _) => ChunkState::Trailer(is_empty && byte == b'\r'),
        (ChunkState::Length(..) | ChunkState::AfterData | ChunkState::Data(_), _) => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_decoded_whatever_the_chunk_boundaries() {
        let text =
            b"5;name=x\r\nhello\r\nB\r\n beautiful \r\n5\r\nworld\r\n0\r\nX-T: 1\r\n\r\nmore";
        for size in 1..text.len() {
            let (mut chunks, mut data, mut used) = (Dechunker::default(), Vec::new(), 0);
            for part in text.chunks(size) {
                used += chunks.feed(part, |bytes| data.extend_from_slice(bytes));
            }
            assert_eq!(data, b"hello beautiful world");
            assert!(chunks.is_done());
            assert_eq!(&text[used..], b"more");
        }
    }
}
