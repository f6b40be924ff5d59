//! Text without what only a terminal understands.

use super::view::View;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

/// Returns whether a text holds escape sequences at all.
pub(super) fn has_escapes(text: &str) -> bool {
    text.as_bytes().contains(&ESCAPE)
}

/// Returns a text without escape sequences and control characters.
///
/// Tabs and line breaks stay; a carriage return that begins a line anew is a line break.
pub(super) fn view(text: &str) -> View {
    let bytes = text.as_bytes();
    let mut view = View::default();
    let (mut kept_from, mut at) = (0, 0);
    while at < bytes.len() {
        let skipped = skipped(&bytes[at..]);
        if skipped == 0 {
            at += 1;
            continue;
        }
        view.push(&text[kept_from..at], kept_from);
        if bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n') {
            view.push("\n", at);
        }
        at += skipped;
        kept_from = at;
    }
    view.push(&text[kept_from..], kept_from);
    view
}

/// Returns how many bytes at the beginning are no text.
fn skipped(bytes: &[u8]) -> usize {
    match bytes {
        [ESCAPE, b'[', rest @ ..] => {
            let parameters = rest.iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
            let has_end = rest.get(parameters).is_some_and(|byte| (0x40..0x7f).contains(byte));
            2 + parameters + usize::from(has_end)
        }
        [ESCAPE, b']', rest @ ..] => 2 + title(rest),
        [ESCAPE, rest @ ..] => {
            let between = rest.iter().take_while(|byte| (0x20..0x30).contains(*byte)).count();
            let has_end = rest.get(between).is_some_and(|byte| (0x30..0x7f).contains(byte));
            1 + between + usize::from(has_end)
        }
        [b'\n' | b'\t', ..] => 0,
        [byte, ..] if byte.is_ascii_control() => 1,
        _ => 0,
    }
}

/// Returns how long the body of a sequence is that ends with a bell or an escape of its own.
fn title(bytes: &[u8]) -> usize {
    match bytes.iter().position(|byte| [BELL, ESCAPE, b'\n'].contains(byte)) {
        Some(at) if bytes[at] == BELL => at + 1,
        Some(at) if bytes[at..].starts_with(b"\x1b\\") => at + 2,
        Some(at) => at,
        None => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_titles_and_control_characters_go_and_words_stay() {
        let text = "\x1b[1;31merror\x1b[0m:\t\x1b]0;title\x07ä\x08\r\n10 %\r20 %\x1b[K\n\x1b(Bend";
        assert_eq!(view(text).text, "error:\tä\n10 %\n20 %\nend");
    }

    #[test]
    fn a_sequence_that_is_cut_off_is_no_text_either() {
        assert_eq!(view("end\x1b[3").text, "end");
        assert_eq!(view("end\x1b").text, "end");
    }
}
