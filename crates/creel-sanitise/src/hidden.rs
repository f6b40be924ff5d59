//! Finds known secrets that escapes, line breaks or separators hide.
//!
//! ```text
//!   text ─┬─▶ joined: lines put together ────────────┐
//!         ├─▶ digits: hexadecimal without separators ┼─▶ known ─▶ spans, back in the text
//!         └─▶ unescaped ─▶ known, joined, digits ────┘
//!                └─▶ unescaped again, at most four deep
//! ```
//!
//! Views are made only of the regions around such escapes, breaks and separators, and for breaks
//! and escapes only where the bytes around them occur in a secret. So ordinary text costs one pass
//! over its bytes.

use super::known::KnownSecrets;
use super::scan;
use super::span::MaskSpan;
use super::unescape::{Decoded, decode};
use super::view::{Regions, View};

/// Maximum depth of nested escapes that are decoded.
const DEEPEST: usize = 4;
/// Shorter separated hexadecimal cannot hold a secret that is long enough to be masked.
const DIGITS_WINDOW: usize = 22;

/// Maximum length of an escape.
const LONGEST_ESCAPE: usize = 12;

/// Finds known secrets in every view of a text.
pub(super) fn find<'a>(known: &'a KnownSecrets, text: &[u8], spans: &mut Vec<MaskSpan<'a>>) {
    if !known.is_empty() {
        find_at(known, text, 0, spans);
    }
}

fn find_at<'a>(known: &'a KnownSecrets, text: &[u8], depth: usize, spans: &mut Vec<MaskSpan<'a>>) {
    for region in broken_regions(known, text).iter() {
        find_in(known, &joined(text, region), spans);
    }
    for region in digit_runs(text) {
        find_in(known, &digits(text, region), spans);
    }
    if depth == DEEPEST {
        return;
    }
    for region in escaped_regions(known, text).iter() {
        for signs in families_in(&text[region.0..region.1]) {
            let view = unescaped(text, region, signs);
            if view.is_literal() {
                continue;
            }
            let mut inside = Vec::new();
            known.find(&view.bytes, &mut inside);
            find_at(known, &view.bytes, depth + 1, &mut inside);
            spans.extend(inside.into_iter().map(|span| view.back(span)));
        }
    }
}

/// Returns the sets of escape signs to decode: all together and, if several occur, each alone.
///
/// The sign that begins an escape in one language may be part of the secret in another.
fn families_in(text: &[u8]) -> Vec<&'static [u8]> {
    const ALL: &[u8] = b"\\%&'";
    const EACH: [&[u8]; 3] = [b"\\'", b"%", b"&"];
    let present = EACH.into_iter().filter(|signs| text.contains(&signs[0]));
    let present: Vec<&[u8]> = present.collect();
    let single = if present.len() > 1 { present } else { Vec::new() };
    std::iter::once(ALL).chain(single).collect()
}

fn find_in<'a>(known: &'a KnownSecrets, view: &View, spans: &mut Vec<MaskSpan<'a>>) {
    let mut inside = Vec::new();
    known.find(&view.bytes, &mut inside);
    spans.extend(inside.into_iter().map(|span| view.back(span)));
}

/// Returns where a partial known secret that escapes hide begins at the end of a text.
///
/// An incomplete escape at the end counts as not yet written.
pub(super) fn begun(known: &KnownSecrets, text: &[u8]) -> Option<usize> {
    let whole = &text[..partial_escape(text)];
    let plain = (whole.len() < text.len()).then(|| begun_in_lines(known, whole)).flatten();
    [plain, begun_at(known, whole, 0)].into_iter().flatten().min()
}

fn begun_at(known: &KnownSecrets, text: &[u8], depth: usize) -> Option<usize> {
    let last = escaped_regions(known, text).iter().last();
    let region = last.filter(|region| region.1 == text.len() && depth < DEEPEST)?;
    let views = families_in(&text[region.0..region.1]).into_iter().map(|signs| {
        let view = unescaped(text, region, signs);
        if view.is_literal() {
            return None;
        }
        let nested = begun_at(known, &view.bytes, depth + 1);
        let first = [begun_in_lines(known, &view.bytes), nested].into_iter().flatten().min();
        first.map(|at| view.place(at))
    });
    views.flatten().min()
}

/// Returns where a partial known secret begins at the end of a text or of its joined lines.
fn begun_in_lines(known: &KnownSecrets, text: &[u8]) -> Option<usize> {
    let lines = joined(text, (0, text.len()));
    let parted = known.cut_at_end(&lines.bytes).map(|at| lines.place(at));
    [known.cut_at_end(text), parted].into_iter().flatten().min()
}

/// Returns where an escape begins that may continue after the end of the text, or the end.
fn partial_escape(text: &[u8]) -> usize {
    let from = text.len().saturating_sub(LONGEST_ESCAPE);
    let may_go_on = |at: &usize| {
        let is_sign = matches!(text[*at], b'\\' | b'%' | b'&');
        is_sign && decode(&text[*at..]).is_none_or(|decoded| at + decoded.consumed == text.len())
    };
    (from..text.len()).find(may_go_on).unwrap_or(text.len())
}

/// Returns the regions around line breaks that may split a secret.
fn broken_regions(known: &KnownSecrets, text: &[u8]) -> Regions {
    let mut regions = Regions::default();
    scan::places(text, *b"\n", |at| {
        if known.touches(before_break(text, at), behind_break(text, at + 1)) {
            regions.add(at, known.reach(), text.len());
        }
    });
    regions
}

/// Returns the text before a line break.
fn before_break(text: &[u8], at: usize) -> &[u8] {
    let before = &text[..at];
    let before = before.strip_suffix(b"\r").unwrap_or(before);
    before.strip_suffix(b"\\").unwrap_or(before)
}

/// Returns the text after a line break and the indentation of the next line.
fn behind_break(text: &[u8], from: usize) -> &[u8] {
    let behind = &text[from..];
    let indentation = behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &behind[indentation..]
}

/// Returns a view of a part of a text with its lines joined.
pub(super) fn joined(text: &[u8], (start, end): (usize, usize)) -> View {
    let mut view = View::default();
    let mut at = start;
    scan::places(&text[start..end], *b"\n", |place| {
        let place = start + place;
        if place >= at {
            view.push(before_break(&text[at..], place - at), at);
            at = (text.len() - behind_break(text, place + 1).len()).min(end);
        }
    });
    view.push(&text[at..end], at);
    view
}

/// Returns the runs of hexadecimal with separators.
fn digit_runs(text: &[u8]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut from = 0;
    let mut at = DIGITS_WINDOW - 1;
    while at < text.len() {
        if !IN_DIGITS[usize::from(text[at])] {
            at += DIGITS_WINDOW;
            continue;
        }
        let is_in = |byte: &&u8| IN_DIGITS[usize::from(**byte)];
        let start = at - text[from..at].iter().rev().take_while(is_in).count();
        let end = at + text[at..].iter().take_while(is_in).count();
        let run = &text[start..end];
        if run.len() >= DIGITS_WINDOW && run.iter().any(|byte| !byte.is_ascii_hexdigit()) {
            runs.push((start, end));
        }
        from = end;
        at = end + DIGITS_WINDOW;
    }
    runs
}

/// Which bytes separated hexadecimal consists of; `x` is the one of `0x`.
const IN_DIGITS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_hexdigit()
            || matches!(byte, b' ' | b':' | b'-' | b',' | b'_' | b'\n' | b'\r' | b'\t' | b'x');
        byte += 1;
    }
    table
};

/// Returns whether a whole line is separated hexadecimal, so that the next line may continue it.
pub(super) fn is_line_of_digits(line: &[u8]) -> bool {
    line.len() >= DIGITS_WINDOW && line.iter().all(|byte| IN_DIGITS[usize::from(*byte)])
}

/// Returns a view of the hexadecimal digits of a part of a text, in lowercase and without
/// separators.
fn digits(text: &[u8], (start, end): (usize, usize)) -> View {
    let mut view = View::default();
    for at in start..end {
        let byte = text[at];
        let is_prefix = byte == b'0' && text.get(at + 1) == Some(&b'x');
        if byte.is_ascii_hexdigit() && !is_prefix {
            view.push(&[byte.to_ascii_lowercase()], at);
        }
    }
    view
}

/// Returns the regions around escapes that may encode part of a secret.
fn escaped_regions(known: &KnownSecrets, text: &[u8]) -> Regions {
    let mut regions = Regions::default();
    scan::places(text, *b"\\%&", |at| {
        if may_hide(known, text, at) {
            regions.add(at, known.reach(), text.len());
        }
    });
    regions
}

/// Returns whether the escape at `at` may encode part of a secret.
fn may_hide(known: &KnownSecrets, text: &[u8], at: usize) -> bool {
    if text[at] == b'\\' {
        return may_backslash_hide(known, text, at);
    }
    let Some(decoded) = decode(&text[at..]) else { return false };
    match decoded.bytes() {
        // The escape of an escape.
        b"%" | b"&" => true,
        b"\n" | b"\r" => known.touches(&text[..at], &text[at + decoded.consumed..]),
        bytes => known.has(bytes),
    }
}

/// Returns whether the backslashes at `at` may hide part of a secret, by the letter after them.
fn may_backslash_hide(known: &KnownSecrets, text: &[u8], at: usize) -> bool {
    if at > 0 && text[at - 1] == b'\\' {
        return false;
    }
    let count = text[at..].iter().take_while(|byte| **byte == b'\\').count();
    match text.get(at + count) {
        Some(b'u' | b'U' | b'x' | b'0'..=b'3') => true,
        Some(b'n' | b'r') => known.touches(&text[..at], behind_escaped_breaks(&text[at..])),
        Some(b't') => known.has(b"\t"),
        Some(other) => known.has(&[*other]) || known.has(b"\\"),
        None => count > 1 && known.has(b"\\"),
    }
}

/// Returns the text after escaped line breaks.
fn behind_escaped_breaks(mut text: &[u8]) -> &[u8] {
    loop {
        let count = text.iter().take_while(|byte| **byte == b'\\').count();
        match text.get(count) {
            Some(b'n' | b'r') if count > 0 => text = &text[count + 1..],
            _ => return text,
        }
    }
}

/// Returns a view of a part of a text with one level of escapes decoded, for these signs only.
fn unescaped(text: &[u8], (start, end): (usize, usize), signs: &[u8]) -> View {
    let mut view = View::default();
    let (mut literal, mut at) = (start, start);
    while at < end {
        let decoded = if signs.contains(&text[at]) { decode(&text[at..]) } else { None };
        let Some(decoded): Option<Decoded> = decoded else {
            at += 1;
            continue;
        };
        view.push(&text[literal..at], literal);
        view.replace(decoded.bytes(), at, at + decoded.consumed);
        at += decoded.consumed;
        literal = at;
    }
    if literal < end {
        view.push(&text[literal..end], literal);
    }
    view
}
