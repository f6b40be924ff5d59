//! Chunked bodies, taken apart as they come.

/// Takes the data out of chunks, whatever pieces the bytes come in.
#[derive(Debug, Default)]
pub(super) struct Dechunker {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// In the line that says how long a chunk is; the number so far, and whether it is over.
    #[default]
    Start,
    Length(u64, bool),
    /// So many bytes of data are still to come.
    Data(u64),
    /// In the end of line after the data.
    AfterData,
    /// After the last chunk: in a line of the trailer, empty so far or not.
    Trailer(bool),
    Done,
}

impl Dechunker {
    /// Takes the next bytes, and hands the data among them over. Returns how many bytes belong
    /// to the body.
    pub(super) fn feed(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> usize {
        let mut place = 0;
        while place < bytes.len() && self.state != State::Done {
            if let State::Data(left) = self.state {
                let rest = &bytes[place..];
                let length = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                data(&rest[..length]);
                place += length;
                let left = left - length as u64;
                self.state = if left == 0 { State::AfterData } else { State::Data(left) };
            } else {
                self.state = step(self.state, bytes[place]);
                place += 1;
            }
        }
        place
    }

    /// Returns whether the body is complete.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

/// Takes one byte that is no data.
fn step(state: State, byte: u8) -> State {
    match (state, byte) {
        (State::Length(0, _), b'\n') => State::Trailer(true),
        (State::Length(length, _), b'\n') => State::Data(length),
        (State::Start, _) => step(State::Length(0, false), byte),
        (State::Length(length, false), _) => match char::from(byte).to_digit(16) {
            Some(digit) => State::Length(length.saturating_mul(16) + u64::from(digit), false),
            // What follows is an extension, or the end of the line.
            None => State::Length(length, true),
        },
        (State::AfterData, b'\n') | (State::Done, _) => {
            if state == State::Done {
                State::Done
            } else {
                State::Start
            }
        }
        (State::Trailer(true), b'\n') => State::Done,
        (State::Trailer(false), b'\n') => State::Trailer(true),
        (State::Trailer(is_empty), _) => State::Trailer(is_empty && byte == b'\r'),
        (State::Length(..) | State::AfterData | State::Data(_), _) => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_out_whatever_the_pieces() {
        let text =
            b"5;name=x\r\nhello\r\nB\r\n beautiful \r\n5\r\nworld\r\n0\r\nX-T: 1\r\n\r\nmore";
        for size in 1..text.len() {
            let (mut chunks, mut data, mut used) = (Dechunker::default(), Vec::new(), 0);
            for piece in text.chunks(size) {
                used += chunks.feed(piece, |bytes| data.extend_from_slice(bytes));
            }
            assert_eq!(data, b"hello beautiful world");
            assert!(chunks.is_done());
            assert_eq!(&text[used..], b"more");
        }
    }
}
