//! Finds random-looking runs of letters and digits that no person would choose as a name.
//!
//! The test counts how often the character class (uppercase, lowercase, digit) changes. Over about
//! thirty characters this separates random text from names better than entropy does. In random text
//! two of three neighbours differ; in `camelCase` and `x86_64-linux-gnu` one of three.
//!
//! Hexadecimal is not masked: commits, digests, UUIDs and our own identifiers consist of it, and
//! nothing in it distinguishes a secret from a digest. Only a name before it does:
//! `API_TOKEN=5f3a…`.

use super::span::MaskSpan;

/// The name shown in place of the masked text.
const NAME: &str = "random";
/// How many characters are judged at once; a shorter run is never random enough.
pub(super) const WINDOW: usize = 20;
/// Minimum number of class changes in a window.
const CHANGES: usize = 11;
/// Minimum number of uppercase letters, and of lowercase letters, in a window.
const LETTERS: usize = 3;
/// Maximum number of signs in a window.
const SIGNS: usize = 2;
/// Minimum length of a run with letters of only one case; names in a Nix store have 32 characters.
const ONE_CASE: usize = 33;
/// Minimum number of digits in such a run.
const FEWEST_DIGITS: usize = 4;
/// Minimum length of hexadecimal after the name of a secret.
const HEX: usize = 20;
/// Suffixes of names whose values are secret.
const SECRET_NAMES: [&str; 10] = [
    "secret",
    "token",
    "password",
    "passwd",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "secret_key",
    "private_key",
];
/// Prefixes of package digests.
const DIGESTS: [&str; 4] = ["sha1-", "sha256-", "sha384-", "sha512-"];

/// Prefixes of pictures, fonts and documents in base64.
const PICTURES: [&[u8]; 9] = [
    b"iVBORw0KGgo",
    b"/9j/",
    b"R0lGOD",
    b"UklGR",
    b"PHN2Zy",
    b"AAABAAEA",
    b"d09GMg",
    b"d09GRg",
    b"JVBERi0",
];
/// Minimum length of a run that counts as a picture.
const FEWEST_IN_PICTURE: usize = 64;

/// A character class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Uppercase,
    Lowercase,
    Digit,
    Sign,
    /// Anything that ends a run.
    Other,
}

const fn class_of(byte: u8) -> CharClass {
    match byte {
        b'A'..=b'Z' => CharClass::Uppercase,
        b'a'..=b'z' => CharClass::Lowercase,
        b'0'..=b'9' => CharClass::Digit,
        b'+' | b'/' | b'-' | b'_' => CharClass::Sign,
        _ => CharClass::Other,
    }
}

/// The class of each byte.
const CLASSES: [CharClass; 256] = {
    let mut table = [CharClass::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = class_of(byte as u8);
        byte += 1;
    }
    table
};

/// What each byte adds to two packed counters: capitals in the high half, digits in the low half.
const COUNTED: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match CLASSES[byte] {
            CharClass::Uppercase => 1 << 32,
            CharClass::Digit => 1,
            CharClass::Lowercase | CharClass::Sign | CharClass::Other => 0,
        };
        byte += 1;
    }
    table
};

/// Which bytes may be part of a run.
const IN_RUN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = !matches!(CLASSES[byte], CharClass::Other);
        byte += 1;
    }
    table
};

/// Returns the next run of at least [`WINDOW`] characters of base64 in either alphabet.
///
/// It probes one byte per [`WINDOW`]. No such run fits between two probes, so most bytes are never
/// read.
pub(super) fn next_run(text: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut at = from + WINDOW - 1;
    while at < text.len() {
        if !IN_RUN[usize::from(text[at])] {
            at += WINDOW;
            continue;
        }
        let before = text[from..at].iter().rev().take_while(|byte| IN_RUN[usize::from(**byte)]);
        let start = at - before.count();
        let behind = text[at..].iter().take_while(|byte| IN_RUN[usize::from(**byte)]);
        let end = at + behind.count();
        if end - start >= WINDOW {
            return Some((start, end));
        }
        at = end + WINDOW;
    }
    None
}

/// Returns the start of the run that ends at `at`.
pub(super) fn run_before(text: &[u8], at: usize) -> usize {
    at - text[..at].iter().rev().take_while(|byte| IN_RUN[usize::from(**byte)]).count()
}

/// Returns whether a run is a picture, a font, a document or other media.
pub(super) fn is_picture(text: &[u8], (start, end): (usize, usize)) -> bool {
    let (before, run) = (&text[start.saturating_sub(64)..start], &text[start..end]);
    let begins_so = || PICTURES.iter().any(|begin| run.starts_with(begin));
    let is_named = || {
        before.ends_with(b";base64,")
            && [&b"data:image/"[..], b"data:font/", b"data:audio/", b"data:video/"]
                .iter()
                .any(|kind| before.windows(kind.len()).any(|window| window == *kind))
    };
    run.len() >= FEWEST_IN_PICTURE && (begins_so() || is_named())
}

/// Finds the random parts of one run.
pub(super) fn find(text: &[u8], (start, end): (usize, usize), spans: &mut Vec<MaskSpan<'_>>) {
    let run = &text[start..end];
    if is_digest(text, start, run) || is_picture(text, (start, end)) {
        return;
    }
    if run.len() >= HEX && run.iter().all(u8::is_ascii_hexdigit) {
        if has_secret_name(&text[..start]) {
            spans.push(MaskSpan::by_rule(start, end, NAME));
        }
        return;
    }
    for (from, to) in islands(run) {
        let padding = text[start + to..].iter().take(2).take_while(|byte| **byte == b'=');
        spans.push(MaskSpan::by_rule(start + from, start + to + padding.count(), NAME));
    }
}

fn is_digest(text: &[u8], start: usize, run: &[u8]) -> bool {
    let behind = &text[start.saturating_sub(7)..start];
    behind.eq_ignore_ascii_case(b"sha256:")
        || DIGESTS.iter().any(|digest| run.starts_with(digest.as_bytes()))
}

/// Returns whether the text before a value names it as a secret.
fn has_secret_name(before: &[u8]) -> bool {
    let before = &before[before.len().saturating_sub(64)..];
    let is_joint = |byte: &u8| b" \t\"'\\=:>".contains(byte);
    let joint = before.iter().rev().take_while(|byte| is_joint(byte)).count();
    let (name, joint) = before.split_at(before.len() - joint);
    let ends_with = |secret: &str| {
        let end = name.len().checked_sub(secret.len()).map(|at| &name[at..]);
        end.is_some_and(|end| end.eq_ignore_ascii_case(secret.as_bytes()))
    };
    joint.iter().any(|byte| b"=:".contains(byte)) && SECRET_NAMES.iter().any(|one| ends_with(one))
}

/// Returns the random parts of a run.
fn islands(run: &[u8]) -> Vec<(usize, usize)> {
    // Most runs are paths: counting capitals and digits first skips the rest for them.
    let counted: u64 = run.iter().map(|byte| COUNTED[usize::from(*byte)]).sum();
    let (capitals, digits) = (counted >> 32, counted & u64::from(u32::MAX));
    let has_one_case = run.len() >= ONE_CASE && digits >= FEWEST_DIGITS as u64;
    if digits == 0 || (capitals < LETTERS as u64 && !has_one_case) {
        return Vec::new();
    }
    let mut islands: Vec<(usize, usize)> = Vec::new();
    let mut window = ClassWindow::default();
    for at in 0..run.len() {
        window.enter(run, at);
        if at >= WINDOW {
            window.leave(run, at - WINDOW);
        }
        if at + 1 >= WINDOW && window.is_random() {
            let start = at + 1 - WINDOW;
            match islands.last_mut() {
                Some((_, end)) if *end >= start => *end = at + 1,
                _ => islands.push((start, at + 1)),
            }
        }
    }
    if islands.is_empty() {
        islands = of_one_case(run);
    }
    islands.iter().map(|island| to_slashes(run, *island)).collect()
}

/// Extends a part to the slashes around it, and past them while the next component is too random
/// for a directory name.
fn to_slashes(run: &[u8], (mut start, mut end): (usize, usize)) -> (usize, usize) {
    let is_inside = |byte: &&u8| **byte != b'/';
    start -= run[..start].iter().rev().take_while(is_inside).count();
    end += run[end..].iter().take_while(is_inside).count();
    while let Some(slash) = start.checked_sub(1) {
        let length = run[..slash].iter().rev().take_while(is_inside).count();
        if !is_wild(&run[slash - length..slash]) {
            break;
        }
        start = slash - length;
    }
    while end < run.len() {
        let length = run[end + 1..].iter().take_while(is_inside).count();
        if !is_wild(&run[end + 1..end + 1 + length]) {
            break;
        }
        end += 1 + length;
    }
    (start, end)
}

/// Returns whether a part has too many class changes for a name.
fn is_wild(part: &[u8]) -> bool {
    let changes = part.windows(2).filter(|pair| changes(pair[0], pair[1])).count();
    changes * 3 >= part.len() && changes > 0
}

/// Counts over the characters of the current window.
#[derive(Default)]
struct ClassWindow {
    capitals: usize,
    smalls: usize,
    digits: usize,
    signs: usize,
    changes: usize,
}

impl ClassWindow {
    fn count(&mut self, class: CharClass) -> &mut usize {
        match class {
            CharClass::Uppercase => &mut self.capitals,
            CharClass::Lowercase => &mut self.smalls,
            CharClass::Digit => &mut self.digits,
            CharClass::Sign | CharClass::Other => &mut self.signs,
        }
    }

    fn enter(&mut self, run: &[u8], at: usize) {
        *self.count(CLASSES[usize::from(run[at])]) += 1;
        self.changes += usize::from(at > 0 && changes(run[at - 1], run[at]));
    }

    fn leave(&mut self, run: &[u8], at: usize) {
        *self.count(CLASSES[usize::from(run[at])]) -= 1;
        self.changes -= usize::from(changes(run[at], run[at + 1]));
    }

    fn is_random(&self) -> bool {
        self.changes >= CHANGES
            && self.capitals >= LETTERS
            && self.smalls >= LETTERS
            && self.digits > 0
            && self.signs <= SIGNS
    }
}

fn changes(one: u8, next: u8) -> bool {
    let (one, next) = (CLASSES[usize::from(one)], CLASSES[usize::from(next)]);
    one != next && one != CharClass::Sign && next != CharClass::Sign
}

/// Returns the parts between signs that are random although their letters have only one case.
fn of_one_case(run: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = 0;
    for part in run.split(|byte| class_of(*byte) == CharClass::Sign) {
        if part.len() >= ONE_CASE && is_random_in_one_case(part) {
            found.push((start, start + part.len()));
        }
        start += part.len() + 1;
    }
    found
}

fn is_random_in_one_case(part: &[u8]) -> bool {
    let count = |wanted: fn(&u8) -> bool| part.iter().filter(|byte| wanted(byte)).count();
    let digits = count(u8::is_ascii_digit);
    let beyond_hex = count(|byte| byte.is_ascii_alphabetic() && !byte.is_ascii_hexdigit());
    let has_one_case = count(u8::is_ascii_uppercase) == 0 || count(u8::is_ascii_lowercase) == 0;
    let changes = part.windows(2).filter(|pair| changes(pair[0], pair[1])).count();
    has_one_case
        && digits >= FEWEST_DIGITS
        && beyond_hex * 5 >= part.len()
        && changes * 10 >= part.len() * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        let mut spans = Vec::new();
        let mut from = 0;
        while let Some((start, end)) = next_run(text.as_bytes(), from) {
            find(text.as_bytes(), (start, end), &mut spans);
            from = end;
        }
        spans.iter().map(|span| &text[span.start..span.end]).collect()
    }

    #[test]
    fn random_keys_are_found_whatever_is_around_them() {
        for key in [
            "Zk3vQ9tXw2LmB7yRp4Ns8Hd1Gf6Jc5Ka",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzq3TkQ0v5w",
            "q9Xe_7bN-2kVtW5zLr8mPc3Yh6Dg4Js1Fa0",
            "k3j9x2m5q8w7z4t6y1p0n5v8b3g7h2r9s4d6f1l",
        ] {
            for text in [key.to_owned(), format!("key={key};"), format!("/home/me/{key}")] {
                assert!(found(&text).concat().contains(key), "{text}: {:?}", found(&text));
            }
        }
    }

    #[test]
    fn names_paths_and_digests_are_left_alone() {
        for text in [
            "commit e0e0087f3b1c2d4a5968778695a4b3c2d1e0f9a8",
            "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "res_0190a5c8f2b17c3d9e4f5a6b7c8d9e0f run_0190a5c8f2b17c3d9e4f5a6b7c8d9e0f",
            "123e4567-e89b-12d3-a456-426614174000 123E4567-E89B-12D3-A456-426614174000",
            "/usr/lib/x86_64-linux-gnu/libstdc++/python3.11/site-packages/requests",
            "/nix/store/3n58xw4373jp0ljirf06d8077j15pc4j-glibc-2.38",
            "crash_after_intent_leaves_nothing_behind AbstractSingletonProxyFactoryBean",
            "getHTTPResponseCodeFromURLAndRetryIfNeeded2 SHA256WithRSAEncryptionUtf8Test",
            "web-frontend-7d9f8b6c5d-x2v9q 2026-11-15T17-48-43Z 20261115T174843Z",
            "_ZN4core3fmt9Formatter9write_str17h0a1b2c3d4e5f6a7bE",
            "sha512-Zk3vQ9tXw2LmB7yRp4Ns8Hd1Gf6Jc5KaZk3vQ9tXw2LmB7yRp4Ns8Hd1Gf6Jc5Ka==",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789012345678901234567890123456789",
        ] {
            assert!(found(text).is_empty(), "{text}: {:?}", found(text));
        }
    }

    #[test]
    fn hexadecimal_is_a_secret_where_its_name_says_so() {
        let digits = "9f86d081884c7d659a2feaa0c55ad015";
        for text in [format!("API_TOKEN={digits}"), format!("\"secret\": \"{digits}\"")] {
            assert_eq!(found(&text), [digits], "{text}");
        }
        assert!(found(&format!("commit: {digits}")).is_empty());
        assert!(found(&format!("the token {digits}")).is_empty());
    }
}
