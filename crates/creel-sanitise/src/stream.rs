//! Masks text that arrives in chunks.
//!
//! Input is held back until nothing that follows could turn it into a secret. The cut moves back to
//! the start of the current line (if that is not too far), of a base64 block, of a key block, and
//! of a possible partial known secret. So whole lines pass at once, and a stream uses bounded
//! memory for any input.

use super::clean;
use super::hidden;
use super::known::is_base64;
use super::masker::Masker;
use super::random;
use super::span::{MaskSpan, render, unite};
use super::text::Masked;

/// Minimum distance that a line is held back; more if a known secret is longer.
const LINE: usize = 2048;
/// How much emitted text is kept as context for the next chunk.
const CONTEXT: usize = 128;
/// Maximum amount held back. A longer secret, which no rule knows, is masked when this much of it
/// has arrived, and the rest of it is dropped.
const MOST: usize = 64 * 1024;
/// Minimum length of a base64 line that may continue in the next line.
const WRAPPED: usize = 40;
/// How many bytes of a multi-line secret may arrive before its beginning is recognised.
const UNRECOGNISED: usize = 8;

/// Masks one stream; see [`Masker::stream`].
#[derive(Debug)]
pub struct MaskStream {
    masker: Masker,
    /// Some emitted text as context, and everything held back.
    text: String,
    /// Where the held-back part of the text begins.
    shown: usize,
    /// The first bytes of an incomplete UTF-8 character.
    partial: Vec<u8>,
    /// Whether nothing was emitted yet.
    is_first: bool,
    /// Whether the rest of a secret is being dropped.
    swallows: bool,
    /// How far a line is held back.
    reach: usize,
    /// Where a partly emitted base64 picture begins or continues.
    picture: Option<usize>,
    /// Whether the last few bytes are also held back after a line break.
    breaks_early: bool,
}

impl Masker {
    /// Returns a masker for text that arrives in chunks.
    pub fn stream(&self) -> MaskStream {
        MaskStream::new(self.clone())
    }
}

impl MaskStream {
    fn new(masker: Masker) -> Self {
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

    /// Takes the next bytes and returns what can be emitted now.
    pub fn feed(&mut self, bytes: &[u8]) -> Masked {
        self.decode(bytes);
        self.swallow();
        let cut = self.final_end();
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

    /// Returns the held-back text, masked.
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

    /// Appends bytes to the text, except an incomplete character at the end.
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

    /// Drops the rest of a secret that was too long to be held back.
    fn swallow(&mut self) {
        if self.swallows {
            let is_rest = |byte: &u8| is_base64(byte) || matches!(byte, b'=' | b'.');
            let rest = self.text.bytes().take_while(is_rest).count();
            self.swallows = rest == self.text.len();
            self.text.drain(..rest);
        }
    }

    /// Returns the position up to which a continued line cannot turn the text into a secret.
    fn final_end(&self) -> usize {
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

    /// Returns where a partial known secret begins at the end of the text, even if line breaks,
    /// colours or escapes split it.
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
        // A multi-line secret contains its own line breaks, whatever is hidden between its letters.
        let of_lines = clean::has_hidden(&bytes[from..]).then(|| {
            let view = clean::view(&bytes[from..]);
            known.cut_at_end(&view.bytes).map(|at| from + view.place(at))
        });
        let escaped = hidden::begun(known, &bytes[from..]).map(|at| from + at);
        [plain, joined, seen.flatten(), of_lines.flatten(), escaped].into_iter().flatten().min()
    }

    /// Returns the cut, moved before a secret that it would split or that may continue.
    fn before_open(&mut self, cut: usize, spans: &[MaskSpan<'_>]) -> usize {
        let length = self.text.len();
        let is_open = |span: &&MaskSpan<'_>| span.end > cut || span.end == length;
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

    /// Returns where the picture begins that the cut would split.
    fn picture_at(&self, cut: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let start = random::run_before(bytes, cut);
        let is_picture =
            self.picture == Some(start) || random::is_picture(bytes, (start, bytes.len()));
        (start < cut && is_picture).then_some(start)
    }

    /// Renders up to the cut and drops the text that is no longer needed.
    fn show(&mut self, cut: usize, spans: &[MaskSpan<'_>]) -> String {
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

/// Returns how many bytes at the end belong to an incomplete character.
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

/// Returns where the lines of base64 or separated hexadecimal before `to` begin, or `to`.
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
