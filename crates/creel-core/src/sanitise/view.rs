//! A text with parts left out, and the way back to the text itself.
//!
//! A line break in the middle of base64, or a colour in the middle of a token, hides a secret
//! from a search but not from a reader. So the search is repeated on a view without them, and
//! what it finds is covered in the text, with what was left out.

use super::span::Span;

/// A text with parts left out.
#[derive(Debug, Default)]
pub(super) struct View {
    /// What is left.
    pub(super) text: String,
    /// Where each piece that is left begins: in the view, and in the text.
    pieces: Vec<(usize, usize)>,
}

impl View {
    /// Adds a piece that begins at `at` in the text.
    pub(super) fn push(&mut self, piece: &str, at: usize) {
        if !piece.is_empty() {
            self.pieces.push((self.text.len(), at));
            self.text.push_str(piece);
        }
    }

    /// Returns the span in the text that covers a span of the view.
    pub(super) fn back<'a>(&self, span: Span<'a>) -> Span<'a> {
        let (start, end) = (self.place(span.start), self.place(span.end.saturating_sub(1)) + 1);
        Span { start, end, ..span }
    }

    /// Returns where a byte of the view is in the text.
    pub(super) fn place(&self, at: usize) -> usize {
        let behind = self.pieces.partition_point(|(start, _)| *start <= at);
        let (start, place) = behind.checked_sub(1).map_or((0, 0), |piece| self.pieces[piece]);
        place + (at - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_the_view_covers_what_was_left_out_in_its_middle() {
        let text = "xxsec--retyy";
        let mut view = View::default();
        view.push(&text[..5], 0);
        view.push(&text[7..], 7);
        assert_eq!(view.text, "xxsecretyy");
        let span = view.back(Span::by_rule(2, 8, "rule"));
        assert_eq!(&text[span.start..span.end], "sec--ret");
    }
}
