//! Finds known secrets that escapes, line breaks or separators hide.
//!
//! ```text
//!   text ─┬─▶ joined: lines put together ────────────┐
//!         ├─▶ digits: hexadecimal without separators ┼─▶ known ─▶ spans, back in the text
//!         └─▶ unescaped ─▶ known, joined, digits ────┘
//!                └─▶ unescaped again, at most four deep
//! ```
//!
//! Views are made only of the parts of a text in which such a thing stands, and of those only
//! where the bytes around it occur in a secret; so ordinary text costs one look at its bytes.

use super::known::Known;
use super::scan;
use super::span::Span;
use super::unescape::{Decoded, decode};
use super::view::{Regions, View};

/// How many escapes around each other are decoded.
const DEEPEST: usize = 4;
/// Separated hexadecimal of fewer characters holds no secret that is masked at all.
const DIGITS_WINDOW: usize = 22;

/// An escape has at most so many characters.
const LONGEST_ESCAPE: usize = 12;

/// Finds known secrets in every view of a text.
pub(super) fn find<'a>(known: &'a Known, text: &[u8], spans: &mut Vec<Span<'a>>) {
    if !known.is_empty() {
        find_at(known, text, 0, spans);
    }
}

fn find_at<'a>(known: &'a Known, text: &[u8], depth: usize, spans: &mut Vec<Span<'a>>) {
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

/// Returns by which signs escapes are decoded: all at once, and each by itself where there are
/// several. What begins an escape of one language may be a part of the secret in another.
fn families_in(text: &[u8]) -> Vec<&'static [u8]> {
    const ALL: &[u8] = b"\\%&'";
    const EACH: [&[u8]; 3] = [b"\\'", b"%", b"&"];
    let present = EACH.into_iter().filter(|signs| text.contains(&signs[0]));
    let present: Vec<&[u8]> = present.collect();
    let alone = if present.len() > 1 { present } else { Vec::new() };
    std::iter::once(ALL).chain(alone).collect()
}

fn find_in<'a>(known: &'a Known, view: &View, spans: &mut Vec<Span<'a>>) {
    let mut inside = Vec::new();
    known.find(&view.bytes, &mut inside);
    spans.extend(inside.into_iter().map(|span| view.back(span)));
}

/// Returns where the beginning of a known secret begins at the end of a text, where escapes hide
/// it. One that has come in part counts as not yet written.
pub(super) fn begun(known: &Known, text: &[u8]) -> Option<usize> {
    let whole = &text[..partial_escape(text)];
    let plain = (whole.len() < text.len()).then(|| begun_in_lines(known, whole)).flatten();
    [plain, begun_at(known, whole, 0)].into_iter().flatten().min()
}

fn begun_at(known: &Known, text: &[u8], depth: usize) -> Option<usize> {
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

/// Returns where the beginning of a known secret begins at the end of a text or of its lines put
/// together.
fn begun_in_lines(known: &Known, text: &[u8]) -> Option<usize> {
    let lines = joined(text, (0, text.len()));
    let parted = known.cut_at_end(&lines.bytes).map(|at| lines.place(at));
    [known.cut_at_end(text), parted].into_iter().flatten().min()
}

/// Returns where an escape begins that may go on behind the end of the text, or the end.
fn partial_escape(text: &[u8]) -> usize {
    let from = text.len().saturating_sub(LONGEST_ESCAPE);
    let may_go_on = |at: &usize| {
        let is_sign = matches!(text[*at], b'\\' | b'%' | b'&');
        is_sign && decode(&text[*at..]).is_none_or(|decoded| at + decoded.taken == text.len())
    };
    (from..text.len()).find(may_go_on).unwrap_or(text.len())
}

/// Returns what is around the line breaks that may part a secret.
fn broken_regions(known: &Known, text: &[u8]) -> Regions {
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

/// Returns the text behind a line break and the indentation of the next line.
fn behind_break(text: &[u8], from: usize) -> &[u8] {
    let behind = &text[from..];
    let indentation = behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &behind[indentation..]
}

/// Returns a part of a text with its lines put together.
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

/// Which bytes separated hexadecimal is made of; `x` is that of `0x`.
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

/// Returns whether a whole line is hexadecimal with separators, so that the next may go on.
pub(super) fn is_line_of_digits(line: &[u8]) -> bool {
    line.len() >= DIGITS_WINDOW && line.iter().all(|byte| IN_DIGITS[usize::from(*byte)])
}

/// Returns the small hexadecimal digits of a part of a text, without what is between them.
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

/// Returns what is around the escapes that may stand for a part of a secret.
fn escaped_regions(known: &Known, text: &[u8]) -> Regions {
    let mut regions = Regions::default();
    scan::places(text, *b"\\%&", |at| {
        if may_hide(known, text, at) {
            regions.add(at, known.reach(), text.len());
        }
    });
    regions
}

/// Returns whether the escape at `at` may stand for a part of a secret.
fn may_hide(known: &Known, text: &[u8], at: usize) -> bool {
    if text[at] == b'\\' {
        return may_backslash_hide(known, text, at);
    }
    let Some(decoded) = decode(&text[at..]) else { return false };
    match decoded.bytes() {
        // The escape of an escape.
        b"%" | b"&" => true,
        b"\n" | b"\r" => known.touches(&text[..at], &text[at + decoded.taken..]),
        bytes => known.has(bytes),
    }
}

/// Judges the backslashes that begin at `at` by the letter behind them.
fn may_backslash_hide(known: &Known, text: &[u8], at: usize) -> bool {
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

/// Returns what is behind escaped line breaks.
fn behind_escaped_breaks(mut text: &[u8]) -> &[u8] {
    loop {
        let count = text.iter().take_while(|byte| **byte == b'\\').count();
        match text.get(count) {
            Some(b'n' | b'r') if count > 0 => text = &text[count + 1..],
            _ => return text,
        }
    }
}

/// Returns a part of a text with its escapes decoded that begin with these signs, one level of
/// them.
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
        view.replace(decoded.bytes(), at, at + decoded.taken);
        at += decoded.taken;
        literal = at;
    }
    if literal < end {
        view.push(&text[literal..end], literal);
    }
    view
}
