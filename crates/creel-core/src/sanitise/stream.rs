//! Masks text that comes in pieces.
//!
//! What is fed is held back until nothing that follows could make a secret of it: up to the
//! beginning of the line, where that is not too far, of a block of base64, of a key block, and of
//! whatever could be the beginning of a known secret. So whole lines pass at once, and a stream
//! takes bounded memory whatever comes.

use super::clean;
use super::hidden;
use super::known::is_base64;
use super::masker::Masker;
use super::random;
use super::span::{Span, render, unite};
use super::text::Masked;

/// How far a line is held back at least, where no secret is longer.
const LINE: usize = 2048;
/// How much already shown text is kept, to know what stands before a piece.
const CONTEXT: usize = 128;
/// How much is held back at most. A longer secret, which no rule knows, is named when this much
/// of it has come, and its rest left out.
const MOST: usize = 64 * 1024;
/// A line of base64 that goes on in the next one is at least this long.
const WRAPPED: usize = 40;
/// How many bytes of a secret of several lines are not yet recognised as its beginning.
const UNRECOGNISED: usize = 8;

/// Masks one stream; see [`Masker::stream`].
#[derive(Debug)]
pub struct MaskStream {
    masker: Masker,
    /// Some text that was shown, and all that is held back.
    text: String,
    /// Where that begins which is held back.
    shown: usize,
    /// The beginning of a character whose end has not come.
    partial: Vec<u8>,
    /// Whether nothing was shown yet.
    is_first: bool,
    /// Whether the rest of a secret is being left out.
    swallows: bool,
    /// How far a line is held back.
    reach: usize,
    /// Where a picture in base64 begins, or goes on, that was shown in part.
    picture: Option<usize>,
    /// Whether the last few bytes are held back also behind a line break.
    breaks_early: bool,
}

impl MaskStream {
    pub(super) fn new(masker: Masker) -> Self {
        let reach = LINE.max(masker.known().reach()).min(MOST / 2);
        let breaks_early = masker.known().breaks_early();
        Self {
            masker,
            text: String::new(),
            shown: 0,
            partial: Vec::new(),
            is_first: true,
            swallows: false,
            reach,
            picture: None,
            breaks_early,
        }
    }

    /// Takes the next bytes and returns what can be shown by now.
    pub fn feed(&mut self, bytes: &[u8]) -> Masked {
        self.decode(bytes);
        self.swallow();
        let cut = self.settled();
        if cut <= self.shown && self.text.len() - self.shown <= MOST {
            return Masked::default();
        }
        let masker = self.masker.clone();
        let mut spans = masker.find(&self.text, self.picture);
        if self.is_first {
            masker.known().find_at_start(&self.text, &mut spans);
        }
        unite(&mut spans);
        let cut = self.before_open(cut, &spans);
        Masked::of(self.show(cut, &spans))
    }

    /// Returns what was held back.
    pub fn finish(mut self) -> Masked {
        let rest = std::mem::take(&mut self.partial);
        self.text.push_str(&String::from_utf8_lossy(&rest));
        self.swallow();
        let masker = self.masker.clone();
        let mut spans = masker.find(&self.text, self.picture);
        if self.is_first {
            masker.known().find_at_start(&self.text, &mut spans);
        }
        masker.known().find_at_end(&self.text, &mut spans);
        unite(&mut spans);
        Masked::of(self.show(self.text.len(), &spans))
    }

    /// Adds bytes to the text, but for a character that is not there as a whole.
    fn decode(&mut self, bytes: &[u8]) {
        if let (true, Ok(text)) = (self.partial.is_empty(), std::str::from_utf8(bytes)) {
            self.text.push_str(text);
            return;
        }
        self.partial.extend_from_slice(bytes);
        let whole = self.partial.len() - unfinished(&self.partial);
        let rest = self.partial.split_off(whole);
        self.text.push_str(&String::from_utf8_lossy(&self.partial));
        self.partial = rest;
    }

    /// Leaves out the rest of a secret that was too long to be held back.
    fn swallow(&mut self) {
        if self.swallows {
            let is_rest = |byte: &u8| is_base64(byte) || matches!(byte, b'=' | b'.');
            let rest = self.text.bytes().take_while(is_rest).count();
            self.swallows = rest == self.text.len();
            self.text.drain(..rest);
        }
    }

    /// Returns up to where a line that goes on cannot make a secret of the text.
    fn settled(&self) -> usize {
        let bytes = self.text.as_bytes();
        let line = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut cut = line;
        if self.breaks_early {
            cut = cut.min(bytes.len().saturating_sub(UNRECOGNISED));
        }
        cut = cut.min(self.begun().unwrap_or(cut));
        cut = cut.min(block_start(bytes, cut));
        let cut = cut.max(bytes.len().saturating_sub(self.reach)).max(self.shown);
        self.text.floor_char_boundary(cut)
    }

    /// Returns where the beginning of a known secret begins at the end of the text, also where
    /// line breaks or colours part it.
    fn begun(&self) -> Option<usize> {
        let known = self.masker.known();
        let bytes = self.text.as_bytes();
        let from = bytes.len().saturating_sub(self.reach);
        let plain = known.cut_at_end(&bytes[from..]).map(|at| from + at);
        let lines = hidden::joined(bytes, (from, bytes.len()));
        let joined = known.cut_at_end(&lines.bytes).map(|at| lines.place(at));
        let seen = clean::has_hidden(&lines.bytes).then(|| {
            let view = clean::view(&lines.bytes);
            known.cut_at_end(&view.bytes).map(|at| lines.place(view.place(at)))
        });
        // A secret of several lines has its line breaks, whatever hides between its letters.
        let of_lines = clean::has_hidden(&bytes[from..]).then(|| {
            let view = clean::view(&bytes[from..]);
            known.cut_at_end(&view.bytes).map(|at| from + view.place(at))
        });
        let escaped = hidden::begun(known, &bytes[from..]).map(|at| from + at);
        [plain, joined, seen.flatten(), of_lines.flatten(), escaped].into_iter().flatten().min()
    }

    /// Returns the cut, moved before a secret that it would part or that may go on.
    fn before_open(&mut self, cut: usize, spans: &[Span<'_>]) -> usize {
        let length = self.text.len();
        let is_open = |span: &&Span<'_>| span.end > cut || span.end == length;
        let open = spans.iter().find(|span| span.start < cut && is_open(span));
        match open {
            Some(span) if length - span.start > MOST => {
                self.swallows = span.end == length;
                span.end
            }
            Some(span) => span.start.max(self.shown),
            None => cut,
        }
    }

    /// Returns where the picture begins that the cut is in the middle of.
    fn picture_at(&self, cut: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let start = random::run_before(bytes, cut);
        let is_picture =
            self.picture == Some(start) || random::is_picture(bytes, (start, bytes.len()));
        (start < cut && is_picture).then_some(start)
    }

    /// Renders up to the cut and forgets what is not needed any more.
    fn show(&mut self, cut: usize, spans: &[Span<'_>]) -> String {
        let masked = render(&self.text, spans, self.shown, cut);
        self.is_first &= cut == self.shown;
        let keep = self.text.floor_char_boundary(cut.saturating_sub(CONTEXT));
        let keep = if self.swallows { cut } else { keep };
        self.picture = self.picture_at(cut).map(|start| start.saturating_sub(keep));
        self.text.drain(..keep);
        self.shown = cut - keep;
        masked
    }
}

/// Returns how many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(3);
    let Some(start) = bytes[last..].iter().rposition(|byte| *byte >= 0xc0) else { return 0 };
    let have = bytes.len() - (last + start);
    let wanted = match bytes[last + start] {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if have < wanted { have } else { 0 }
}

/// Returns where the lines of base64 or of separated hexadecimal before `to` begin, or `to`.
fn block_start(text: &[u8], to: usize) -> usize {
    let (mut start, mut full) = (to, to);
    while start > 0 && text[start - 1] == b'\n' {
        let end = start - 1 - usize::from(text[..start - 1].ends_with(b"\r"));
        let is_in = |byte: &&u8| is_base64(byte) || **byte == b'=';
        let line = text[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let is_line_of_digits = hidden::is_line_of_digits(&text[line..end]);
        let run = text[..end].iter().rev().take_while(is_in).count();
        if is_line_of_digits {
            full = line;
        } else if run >= WRAPPED {
            full = end - run;
        }
        start = if is_line_of_digits { line } else { end - run };
        if start == end || start != line {
            break;
        }
    }
    full
}
