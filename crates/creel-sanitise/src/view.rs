//! A text as a reader understands it, with a mapping back to the original text.
//!
//! A line break in base64, a colour in a token, or an escaped letter hides a secret from a search
//! but not from a reader. So the search is repeated on a view in which these are removed or
//! decoded. Its matches are mapped back and masked in the original text.

use super::span::MaskSpan;

/// A text with parts removed or decoded.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The bytes that a reader understands.
    pub(super) bytes: Vec<u8>,
    /// Where each piece of the view comes from.
    segments: Vec<ViewSegment>,
}

/// A piece of the view: as long as its source if literal, shorter if decoded.
#[derive(Debug, Clone, Copy)]
struct ViewSegment {
    /// Where it begins in the view.
    view: usize,
    /// Where its source begins in the text.
    from: usize,
    /// Where its source ends in the text.
    to: usize,
}

impl View {
    /// Appends a literal piece that begins at `at` in the text.
    pub(super) fn push(&mut self, segment: &[u8], at: usize) {
        self.replace(segment, at, at + segment.len());
    }

    /// Appends bytes that the text encodes as `from..to`.
    pub(super) fn replace(&mut self, bytes: &[u8], from: usize, to: usize) {
        if !bytes.is_empty() {
            self.segments.push(ViewSegment { view: self.bytes.len(), from, to });
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Returns whether the view is an unchanged part of the text, so that it hides nothing.
    pub(super) fn is_literal(&self) -> bool {
        // A decoded piece is shorter than its source.
        let follow = self.segments.windows(2).all(|pair| pair[0].to == pair[1].from);
        let written: usize = self.segments.iter().map(|segment| segment.to - segment.from).sum();
        follow && written == self.bytes.len()
    }

    /// Returns the view as a string; invalid UTF-8 becomes replacement characters.
    pub(super) fn into_text(self) -> String {
        match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Returns the span in the text that covers a span of the view.
    pub(super) fn back<'a>(&self, span: MaskSpan<'a>) -> MaskSpan<'a> {
        let (start, end) = (self.place(span.start), self.end_of(span.end.saturating_sub(1)));
        MaskSpan { start, end, ..span }
    }

    /// Returns where the source of a byte of the view begins.
    pub(super) fn place(&self, at: usize) -> usize {
        let Some((segment, length)) = self.segment_of(at) else { return 0 };
        if length == segment.to - segment.from {
            segment.from + (at - segment.view)
        } else {
            segment.from
        }
    }

    /// Returns where the source of a byte of the view ends.
    fn end_of(&self, at: usize) -> usize {
        let Some((segment, length)) = self.segment_of(at) else { return 0 };
        if length == segment.to - segment.from {
            segment.from + (at - segment.view) + 1
        } else {
            segment.to
        }
    }

    /// Returns the piece that contains a byte of the view, and its length in the view.
    fn segment_of(&self, at: usize) -> Option<(ViewSegment, usize)> {
        let behind = self.segments.partition_point(|segment| segment.view <= at);
        let segment = *self.segments.get(behind.checked_sub(1)?)?;
        let end = self.segments.get(behind).map_or(self.bytes.len(), |next| next.view);
        Some((segment, end - segment.view))
    }
}

/// Regions of a text to be viewed, sorted, and merged where they touch.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<(usize, usize)>);

impl Regions {
    /// Adds the region within `reach` of a place; places must be added in ascending order.
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
        let span = view.back(MaskSpan::by_rule(2, 8, "rule"));
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
        let span = view.back(MaskSpan::by_rule(1, 7, "rule"));
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
