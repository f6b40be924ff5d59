//! Finds the end of one command in the output of a shell that runs many.
//!
//! After each command, the shell writes a mark to both outputs. The mark begins with a byte that
//! text does not contain. So only a possible beginning of it is held back, and everything else
//! passes at once.

/// The byte that a mark begins and ends with.
const EDGE: u8 = 0x1e;

/// Searches for one mark in one output.
#[derive(Debug)]
pub(super) struct Splitter {
    /// `EDGE`, the mark and a space. The code and `EDGE` follow.
    opening: Vec<u8>,
    pending: Vec<u8>,
    /// The code at the mark, once the mark is found.
    code: Option<i32>,
}

impl Splitter {
    /// Searches for a mark.
    pub(super) fn new(mark: &str) -> Self {
        let mut opening = vec![EDGE];
        opening.extend_from_slice(mark.as_bytes());
        opening.push(b' ');
        Self { opening, pending: Vec::new(), code: None }
    }

    /// Returns the code at the mark, once the mark is found.
    pub(super) fn code(&self) -> Option<i32> {
        self.code
    }

    /// Takes a piece of output, and returns the part that belongs to the command.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(chunk);
        let mut from = 0;
        while let Some(at) = self.pending[from..].iter().position(|byte| *byte == EDGE) {
            let at = from + at;
            let rest = &self.pending[at..];
            if let Some((code, length)) = self.code_in(rest) {
                self.code = Some(code);
                let rest = self.pending.split_off(at + length);
                let mut output = std::mem::replace(&mut self.pending, rest);
                output.truncate(at);
                return output;
            }
            if rest.starts_with(&self.opening) || self.opening.starts_with(rest) {
                // This may be the mark, whose end is still to come.
                let rest = self.pending.split_off(at);
                return std::mem::replace(&mut self.pending, rest);
            }
            from = at + 1;
        }
        std::mem::take(&mut self.pending)
    }

    /// Returns what follows the mark, once the mark is found.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        match self.code {
            Some(_) => std::mem::take(&mut self.pending),
            None => Vec::new(),
        }
    }

    /// Returns the code and the length of a mark that a text begins with.
    fn code_in(&self, text: &[u8]) -> Option<(i32, usize)> {
        let after = text.strip_prefix(self.opening.as_slice())?;
        let end = after.iter().position(|byte| *byte == EDGE)?;
        let code = std::str::from_utf8(&after[..end]).ok()?.trim().parse().ok()?;
        Some((code, self.opening.len() + end + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_however_it_is_cut() {
        let whole = b"some text\x1eM 17\x1e";
        for cut in 0..whole.len() {
            let mut splitter = Splitter::new("M");
            let mut output = splitter.feed(&whole[..cut]);
            output.extend(splitter.feed(&whole[cut..]));
            assert_eq!(
                (output.as_slice(), splitter.code()),
                (&b"some text"[..], Some(17)),
                "{cut}"
            );
        }
    }

    #[test]
    fn what_follows_a_mark_is_kept() {
        let mut splitter = Splitter::new("M");
        assert_eq!(splitter.feed(b"a\x1eM 0\x1eb"), b"a");
        assert_eq!(splitter.rest(), b"b");
    }

    #[test]
    fn text_is_never_held_back() {
        let mut splitter = Splitter::new("M");
        assert_eq!(splitter.feed(b"a"), b"a");
        assert_eq!(splitter.feed(b"b\x1eX"), b"b\x1eX");
        assert_eq!(splitter.code(), None);
    }
}
