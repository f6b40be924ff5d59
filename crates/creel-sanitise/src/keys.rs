//! Finds private key blocks, even if truncated or written in one line of JSON.

use super::span::MaskSpan;

/// The name shown in place of the masked text.
pub(super) const NAME: &str = "private-key";
/// The prefix of the first line of a block.
pub(super) const BEGIN: &str = "-----BEGIN ";
/// The prefix of the last line of a block.
pub(super) const END: &str = "-----END ";
/// What both marks contain.
const KIND: &[u8] = b"PRIVATE KEY";
/// Minimum length of a full line; a shorter one is the last line of a block.
const FULL_LINE: usize = 40;

/// Finds the block that begins at `start`, as far as the text contains it.
pub(super) fn find_block(text: &[u8], start: usize, spans: &mut Vec<MaskSpan<'_>>) {
    let Some(head) = mark_end(text, start + BEGIN.len()) else { return };
    let mut end = head;
    loop {
        let (line, broken) = skip_break(text, end);
        if line == text.len() {
            // In a stream, more may follow.
            end = line;
            break;
        }
        if let Some(tail) = end_mark(text, line) {
            end = tail;
            break;
        }
        let next = line + header(&text[line..]).unwrap_or_else(|| base64_length(&text[line..]));
        let is_full = next - line >= FULL_LINE || next == text.len();
        let (behind, _) = skip_break(text, next);
        let is_last = end_mark(text, behind).is_some();
        if next == line || !(is_full || is_last || broken) {
            break;
        }
        end = next;
        if !is_full && !is_last && header(&text[line..]).is_none() {
            break;
        }
    }
    spans.push(MaskSpan::by_rule(start, end, NAME));
}

/// Finds the lines before an end mark, for a block whose beginning was cut off.
pub(super) fn find_rest(text: &[u8], mark: usize, spans: &mut Vec<MaskSpan<'_>>) {
    let Some(end) = mark_end(text, mark + END.len()) else { return };
    let mut start = mark;
    loop {
        let break_start = skip_break_back(text, start);
        let line = text[..break_start].iter().rev().take_while(|byte| is_base64(byte)).count();
        let is_whole = line > 0 && {
            let before = break_start - line;
            before == 0 || skip_break_back(text, before) < before
        };
        if break_start == start || !is_whole {
            break;
        }
        start = break_start - line;
    }
    if start < mark {
        spans.push(MaskSpan::by_rule(start, end, NAME));
    }
}

/// Returns where a mark ends that names a private key.
fn mark_end(text: &[u8], from: usize) -> Option<usize> {
    let rest = &text[from..];
    let name = rest.iter().take(60).take_while(|byte| is_in_mark(byte)).count();
    let is_key = rest[..name].windows(KIND.len()).any(|window| window == KIND);
    let has_end = rest[name..].starts_with(b"-----");
    (is_key && has_end).then_some(from + name + 5)
}

/// Returns where the end mark at `at` ends; it may be truncated by the end of the text.
fn end_mark(text: &[u8], at: usize) -> Option<usize> {
    let rest = &text[at..];
    if !rest.is_empty() && rest.len() < END.len() && END.as_bytes().starts_with(rest) {
        return Some(text.len());
    }
    if !rest.starts_with(END.as_bytes()) {
        return None;
    }
    let name = rest[END.len()..].iter().take_while(|byte| is_in_mark(byte)).count();
    let dashes = rest[END.len() + name..].iter().take(5).take_while(|byte| **byte == b'-').count();
    Some(at + END.len() + name + dashes)
}

fn is_in_mark(byte: &u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' '
}

fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

fn base64_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| is_base64(byte)).count()
}

/// Returns the length of a header line of the key, such as the one that names its encryption.
fn header(text: &[u8]) -> Option<usize> {
    let names: [&[u8]; 4] = [b"Proc-Type:", b"DEK-Info:", b"Version:", b"Comment:"];
    names
        .iter()
        .any(|name| text.starts_with(name))
        .then(|| text.iter().take_while(|byte| !matches!(byte, b'\n' | b'\r' | b'\\')).count())
}

/// Skips white space and line breaks, literal or escaped; also returns whether there was a line
/// break.
fn skip_break(text: &[u8], from: usize) -> (usize, bool) {
    let (mut at, mut broken) = (from, false);
    loop {
        let slashes = text[at..].iter().take_while(|byte| **byte == b'\\').count();
        match text.get(at + slashes) {
            Some(b'n' | b'r') if slashes > 0 => (at, broken) = (at + slashes + 1, true),
            None if slashes > 0 => return (text.len(), broken),
            Some(byte) if slashes == 0 && byte.is_ascii_whitespace() => {
                broken |= *byte == b'\n';
                at += 1;
            }
            _ => return (at, broken),
        }
    }
}

/// Returns where the white space and line breaks before `to` begin.
fn skip_break_back(text: &[u8], to: usize) -> usize {
    let mut at = to;
    loop {
        match &text[..at] {
            [.., b'\\', b'n' | b'r'] => at -= 2,
            [.., b'\\'] if at < to => at -= 1,
            [.., byte] if byte.is_ascii_whitespace() => at -= 1,
            _ => return at,
        }
    }
}
