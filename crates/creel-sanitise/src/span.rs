//! Spans to be masked in a text, and the masked text.

/// A part of a text that must not be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaskSpan<'a> {
    /// Where it begins, in bytes.
    pub(super) start: usize,
    /// Where it ends, in bytes.
    pub(super) end: usize,
    /// The name that replaces it: the name of a secret, or of a rule.
    pub(super) name: &'a str,
    /// Whether the secret is known; its name then takes precedence over that of a rule.
    pub(super) is_known: bool,
}

impl<'a> MaskSpan<'a> {
    /// Creates a span that a rule found.
    pub(super) fn by_rule(start: usize, end: usize, name: &'a str) -> Self {
        Self { start, end, name, is_known: false }
    }
}

/// Sorts the spans and merges those that overlap.
///
/// If one span covers another only in part, the rest must not stay visible, so the union is masked
/// as one. The first known secret names it, otherwise the span that begins first.
pub(super) fn unite(spans: &mut Vec<MaskSpan<'_>>) {
    spans.sort_by_key(|span| (span.start, usize::MAX - span.end));
    let mut kept = 0;
    for at in 0..spans.len() {
        let span = spans[at];
        match spans[..kept].last_mut() {
            Some(last) if span.start < last.end => {
                last.end = last.end.max(span.end);
                if span.is_known && !last.is_known {
                    (last.name, last.is_known) = (span.name, true);
                }
            }
            _ => {
                spans[kept] = span;
                kept += 1;
            }
        }
    }
    spans.truncate(kept);
}

/// Renders the part of a text from `from` to `to` with every span replaced by its name.
///
/// The name of a span that begins before `from` is part of the previous output, so the rest of that
/// span is only skipped.
pub(super) fn render(text: &str, spans: &[MaskSpan<'_>], from: usize, to: usize) -> String {
    let mut masked = String::with_capacity(to.saturating_sub(from));
    let mut at = from;
    for span in spans.iter().filter(|span| span.end > from && span.start < to) {
        if span.start >= from {
            masked.push_str(&text[at..span.start]);
            masked.push_str("[masked:");
            masked.push_str(span.name);
            masked.push(']');
        }
        at = span.end;
    }
    if at < to {
        masked.push_str(&text[at..to]);
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(start: usize, end: usize) -> MaskSpan<'static> {
        MaskSpan { start, end, name: "KNOWN", is_known: true }
    }

    #[test]
    fn pieces_that_overlap_become_one_and_the_known_secret_names_it() {
        let mut spans =
            vec![known(4, 8), MaskSpan::by_rule(0, 6, "rule"), MaskSpan::by_rule(8, 9, "next")];
        unite(&mut spans);
        assert_eq!(spans, [known(0, 8), MaskSpan::by_rule(8, 9, "next")]);
        assert_eq!(render("0123456789", &spans, 0, 10), "[masked:KNOWN][masked:next]9");
    }

    #[test]
    fn the_rest_of_a_piece_that_was_named_before_is_left_out() {
        assert_eq!(render("0123456789", &[known(2, 6)], 4, 10), "6789");
    }
}
