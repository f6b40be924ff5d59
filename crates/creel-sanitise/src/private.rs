//! Finds stretches of the task's own text.
//!
//! People who may not see the task read diagnostics. So every stretch of [`PrivateText::STRETCH`]
//! characters that a text shares with the task is found: verbatim, with other white space and other
//! capitals, and as JSON writes it.

use std::collections::{HashSet, VecDeque};

use super::forms::json_string;
use super::span::MaskSpan;

/// The name shown in place of the masked text.
const NAME: &str = "task";
/// The multiplier of the rolling hash: odd, and with bits spread over all 64.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of every stretch of the private texts.
#[derive(Default)]
pub(super) struct PrivateText {
    /// Stretches verbatim.
    exact: HashSet<u64>,
    /// Stretches in lowercase with single spaces.
    loose: HashSet<u64>,
}

impl PrivateText {
    /// How many shared characters are too many.
    pub(super) const STRETCH: usize = 24;

    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut private = Self::default();
        for text in texts {
            for form in [text.to_owned(), json_string(text)] {
                private.exact.extend(stretches(exact(&form)).map(|(number, _, _)| number));
                private.loose.extend(stretches(loose(&form)).map(|(number, _, _)| number));
            }
        }
        private
    }

    /// Finds every stretch of the private texts in a text.
    pub(super) fn find(&self, text: &str, spans: &mut Vec<MaskSpan<'_>>) {
        if self.exact.is_empty() {
            return;
        }
        let exact = stretches(exact(text)).filter(|(number, _, _)| self.exact.contains(number));
        spans.extend(exact.map(|(_, start, end)| MaskSpan::by_rule(start, end, NAME)));
        let loose = stretches(loose(text)).filter(|(number, _, _)| self.loose.contains(number));
        spans.extend(loose.map(|(_, start, end)| MaskSpan::by_rule(start, end, NAME)));
    }
}

/// A character to compare, and the byte range of the text that it stands for.
type Letter = (char, usize, usize);

fn exact(text: &str) -> impl Iterator<Item = Letter> {
    text.char_indices().map(|(at, one)| (one, at, at + one.len_utf8()))
}

/// Returns the text in lowercase, with one space for any white space.
fn loose(text: &str) -> impl Iterator<Item = Letter> {
    let mut after_space = true;
    let kept = exact(text).filter_map(move |(one, start, end)| {
        let is_space = one.is_whitespace();
        let is_more_space = is_space && after_space;
        after_space = is_space;
        (!is_more_space).then_some((if is_space { ' ' } else { one }, start, end))
    });
    kept.flat_map(|(one, start, end)| one.to_lowercase().map(move |small| (small, start, end)))
}

/// Returns a hash for every stretch, and where it begins and ends.
///
/// Two stretches collide about once in a few billion billion; then too much is masked.
fn stretches(letters: impl Iterator<Item = Letter>) -> impl Iterator<Item = (u64, usize, usize)> {
    let out_factor = (0..PrivateText::STRETCH).fold(1_u64, |power, _| power.wrapping_mul(FACTOR));
    let mut window: VecDeque<Letter> = VecDeque::with_capacity(PrivateText::STRETCH + 1);
    let mut number = 0_u64;
    letters.filter_map(move |letter| {
        window.push_back(letter);
        number = number.wrapping_mul(FACTOR).wrapping_add(u64::from(letter.0).wrapping_add(1));
        if window.len() > PrivateText::STRETCH {
            let (out, _, _) = window.pop_front()?;
            let out = u64::from(out).wrapping_add(1);
            number = number.wrapping_sub(out.wrapping_mul(out_factor));
        }
        let (_, start, _) = *window.front()?;
        (window.len() == PrivateText::STRETCH).then_some((number, start, letter.2))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{render, unite};

    const TASK: &str =
        "Find the Treasure\n  under the old oak, and say nothing. Größe: 7 \"feet\".";

    fn masked(text: &str) -> String {
        let private = PrivateText::new([TASK].into_iter());
        let mut spans = Vec::new();
        private.find(text, &mut spans);
        unite(&mut spans);
        render(text, &spans, 0, text.len())
    }

    #[test]
    fn a_stretch_of_the_task_is_masked_however_it_is_spaced() {
        for text in [
            "E: Treasure\n  under the old oak, end",
            "E: treasure under the OLD oak, end",
            "E: Treasure\t\tunder\nthe old oak, end",
        ] {
            let masked = masked(text);
            assert!(!masked.to_lowercase().contains("under the"), "{masked}");
            assert!(masked.starts_with("E:") && masked.ends_with("end"), "{masked}");
        }
        assert_eq!(masked(r#"say nothing. Größe: 7 \"feet\"."#), "[masked:task]");
    }

    #[test]
    fn the_limit_is_twenty_four_characters() {
        let stretch: String = TASK.chars().skip(20).take(24).collect();
        assert_eq!(masked(&format!("<{stretch}>")), "<[masked:task]>");
        let shorter: String = stretch.chars().take(23).collect();
        assert_eq!(masked(&format!("<{shorter}>")), format!("<{shorter}>"));
    }

    #[test]
    fn other_words_stay() {
        let text = "the old oak is under the treasure, find and say: nothing";
        assert_eq!(masked(text), text);
    }
}
