//! What was found in a text, and the text without it.

/// A piece of a text that must not be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span<'a> {
    /// Where it begins, in bytes.
    pub(super) start: usize,
    /// Where it ends, in bytes.
    pub(super) end: usize,
    /// What stands in its place: the name of a secret, or of a rule.
    pub(super) name: &'a str,
    /// Whether the secret is known, so that its name says more than that of a rule.
    pub(super) is_known: bool,
}

impl<'a> Span<'a> {
    /// Describes a piece that a rule found.
    pub(super) fn by_rule(start: usize, end: usize, name: &'a str) -> Self {
        Self { start, end, name, is_known: false }
    }
}

/// Sorts the pieces and unites those that overlap.
///
/// The rest of a piece that another one covers in part must not stay visible, so the union is
/// masked as one; a known secret names it, else whoever began first.
pub(super) fn unite(spans: &mut Vec<Span<'_>>) {
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

/// Writes the part of a text from `from` to `to` with every piece replaced by its name.
///
/// A piece that began before `from` was named by whoever wrote that part, so only its rest is
/// left out.
pub(super) fn render(text: &str, spans: &[Span<'_>], from: usize, to: usize) -> String {
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

    fn known(start: usize, end: usize) -> Span<'static> {
        Span { start, end, name: "KNOWN", is_known: true }
    }

    #[test]
    fn pieces_that_overlap_become_one_and_the_known_secret_names_it() {
        let mut spans = vec![known(4, 8), Span::by_rule(0, 6, "rule"), Span::by_rule(8, 9, "next")];
        unite(&mut spans);
        assert_eq!(spans, [known(0, 8), Span::by_rule(8, 9, "next")]);
        assert_eq!(render("0123456789", &spans, 0, 10), "[masked:KNOWN][masked:next]9");
    }

    #[test]
    fn the_rest_of_a_piece_that_was_named_before_is_left_out() {
        assert_eq!(render("0123456789", &[known(2, 6)], 4, 10), "6789");
    }
}
