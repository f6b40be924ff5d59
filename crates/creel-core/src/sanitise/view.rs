//! A text as a reader understands it, and the way back to the text itself.
//!
//! A line break in the middle of base64, a colour in the middle of a token, or an escape for a
//! single letter hides a secret from a search but not from a reader. So the search is repeated
//! on a view in which they are left out or decoded, and what it finds is covered in the text.

use super::span::Span;

/// A text with parts left out or decoded.
#[derive(Debug, Default)]
pub(super) struct View {
    /// What a reader understands.
    pub(super) bytes: Vec<u8>,
    /// Where each piece of it comes from.
    pieces: Vec<Piece>,
}

/// A piece of the view: as long as its source where it is literal, shorter where it was decoded.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Where it begins in the view.
    view: usize,
    /// Where its source begins in the text.
    from: usize,
    /// Where its source ends in the text.
    to: usize,
}

impl View {
    /// Adds a piece that stands at `at` in the text as it is.
    pub(super) fn push(&mut self, piece: &[u8], at: usize) {
        self.replace(piece, at, at + piece.len());
    }

    /// Adds bytes that the text writes as `from..to`.
    pub(super) fn replace(&mut self, bytes: &[u8], from: usize, to: usize) {
        if !bytes.is_empty() {
            self.pieces.push(Piece { view: self.bytes.len(), from, to });
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Returns whether it is the text itself from some place on, so that it hides nothing.
    pub(super) fn is_literal(&self) -> bool {
        // What was decoded is shorter than its source.
        let follow = self.pieces.windows(2).all(|pair| pair[0].to == pair[1].from);
        let written: usize = self.pieces.iter().map(|piece| piece.to - piece.from).sum();
        follow && written == self.bytes.len()
    }

    /// Returns the text of a view of text; decoded bytes that are none become replacements.
    pub(super) fn into_text(self) -> String {
        match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Returns the span in the text that covers a span of the view.
    pub(super) fn back<'a>(&self, span: Span<'a>) -> Span<'a> {
        let (start, end) = (self.place(span.start), self.end_of(span.end.saturating_sub(1)));
        Span { start, end, ..span }
    }

    /// Returns where the source of a byte of the view begins.
    pub(super) fn place(&self, at: usize) -> usize {
        let Some((piece, length)) = self.piece_of(at) else { return 0 };
        if length == piece.to - piece.from { piece.from + (at - piece.view) } else { piece.from }
    }

    /// Returns where the source of a byte of the view ends.
    fn end_of(&self, at: usize) -> usize {
        let Some((piece, length)) = self.piece_of(at) else { return 0 };
        if length == piece.to - piece.from { piece.from + (at - piece.view) + 1 } else { piece.to }
    }

    /// Returns the piece that a byte of the view is in, and its length in the view.
    fn piece_of(&self, at: usize) -> Option<(Piece, usize)> {
        let behind = self.pieces.partition_point(|piece| piece.view <= at);
        let piece = *self.pieces.get(behind.checked_sub(1)?)?;
        let end = self.pieces.get(behind).map_or(self.bytes.len(), |next| next.view);
        Some((piece, end - piece.view))
    }
}

/// Stretches of a text to be viewed, in order and united where they touch.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<(usize, usize)>);

impl Regions {
    /// Adds what is at most `reach` away from a place; places come in order.
    pub(super) fn add(&mut self, at: usize, reach: usize, length: usize) {
        let (start, end) = (at.saturating_sub(reach), (at + reach).min(length));
        match self.0.last_mut() {
            Some((_, last)) if *last >= start => *last = end.max(*last),
            _ => self.0.push((start, end)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_the_view_covers_what_was_left_out_in_its_middle() {
        let text = b"xxsec--retyy";
        let mut view = View::default();
        view.push(&text[..5], 0);
        view.push(&text[7..], 7);
        assert_eq!(view.bytes, b"xxsecretyy");
        let span = view.back(Span::by_rule(2, 8, "rule"));
        assert_eq!(&text[span.start..span.end], b"sec--ret");
        assert!(!view.is_literal());
    }

    #[test]
    fn a_span_that_begins_or_ends_with_a_decoded_byte_covers_its_whole_source() {
        let text = br"<\u0073ecre\u0074>";
        let mut view = View::default();
        view.push(&text[..1], 0);
        view.replace(b"s", 1, 7);
        view.push(&text[7..11], 7);
        view.replace(b"t", 11, 17);
        view.push(&text[17..], 17);
        assert_eq!(view.bytes, b"<secret>");
        let span = view.back(Span::by_rule(1, 7, "rule"));
        assert_eq!(&text[span.start..span.end], br"\u0073ecre\u0074");
    }

    #[test]
    fn regions_that_touch_are_one() {
        let mut regions = Regions::default();
        for at in [5, 12, 40] {
            regions.add(at, 4, 42);
        }
        assert_eq!(regions.iter().collect::<Vec<_>>(), [(1, 16), (36, 42)]);
    }
}
