//! The forms in which a secret may appear: plain, and as programs encode it.
//!
//! Base64 of a longer text encodes a secret in one of three forms, depending on its offset in a
//! group of three bytes. The search uses only the characters that encode nothing but the secret.
//! The characters at the edges, which also encode its neighbours, and the padding are masked with
//! it.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};

/// A shorter secret is matched only as a whole word.
const SHORT: usize = 8;
/// A shorter piece of base64 or hexadecimal would match by chance.
const FEWEST_ENCODED: usize = 8;
/// A shorter piece of base32 would match by chance.
const FEWEST_BASE32: usize = 10;
/// Minimum length at which one line of a multi-line secret becomes a form of its own.
const FEWEST_IN_LINE: usize = 12;

/// Characters that strict encoders leave unescaped: letters, digits and `-._~`.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters that scripts in browsers also leave unescaped: `!*'()`.
const COMPONENT: &AsciiSet =
    &UNRESERVED.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
/// Characters that must be escaped in the user part of a URL.
const USER: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'/')
    .add(b':')
    .add(b';')
    .add(b'=')
    .add(b'@')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'|')
    .add(b'%');

/// What a match may have, or must not have, around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Around {
    /// Anything.
    Free,
    /// No letter or digit on either side.
    Word,
    /// Base64 and base32: one more character on the left or right also encodes part of the secret.
    Shared {
        /// The character before the match.
        left: bool,
        /// The character after the match.
        right: bool,
    },
}

/// One form of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SecretForm {
    /// The text to search for.
    pub(super) text: String,
    /// What may be around it.
    pub(super) around: Around,
}

/// Returns every form of a secret, each once.
pub(super) fn of(secret: &str) -> Vec<SecretForm> {
    let mut forms = Forms::default();
    let around = if secret.len() < SHORT { Around::Word } else { Around::Free };
    forms.add(secret.to_owned(), around);
    quoted(secret).into_iter().for_each(|text| forms.add(text, around));
    let lines: Vec<&str> = secret.lines().map(str::trim).collect();
    let single = lines.iter().filter(|line| lines.len() > 1 && line.len() >= FEWEST_IN_LINE);
    for line in single.filter(|line| !line.starts_with("-----")) {
        forms.add((*line).to_owned(), Around::Free);
        quoted(line).into_iter().for_each(|text| forms.add(text, Around::Free));
    }
    if secret.len() >= SHORT {
        forms.add(secret.to_lowercase(), Around::Free);
        forms.add(secret.to_uppercase(), Around::Free);
    }
    for form in hex(secret).into_iter().filter(|form| form.len() >= FEWEST_ENCODED) {
        forms.add(form, Around::Free);
    }
    for form in base32(secret.as_bytes()) {
        forms.add(form.text, form.around);
    }
    for form in base64(secret.as_bytes()) {
        forms.add(form.text, form.around);
    }
    forms.all
}

/// Returns the forms in which characters are escaped one by one.
fn quoted(text: &str) -> Vec<String> {
    percent(text).into_iter().chain(json(text)).chain(shell(text)).collect()
}

/// A list of distinct forms.
#[derive(Default)]
struct Forms {
    all: Vec<SecretForm>,
    seen: HashSet<String>,
}

impl Forms {
    fn add(&mut self, text: String, around: Around) {
        if !text.is_empty() && self.seen.insert(text.clone()) {
            self.all.push(SecretForm { text, around });
        }
    }
}

/// Returns the percent-encoded forms, with hexadecimal digits in both cases.
fn percent(secret: &str) -> Vec<String> {
    let bytes = secret.as_bytes();
    let sets = [UNRESERVED, COMPONENT, USER, NON_ALPHANUMERIC];
    let mut texts: Vec<String> =
        sets.into_iter().map(|set| percent_encode(bytes, set).to_string()).collect();
    texts.push(form_urlencoded::byte_serialize(bytes).collect());
    texts.push(bytes.iter().map(|byte| format!("%{byte:02X}")).collect());
    let lower: Vec<String> = texts.iter().map(|text| with_lower_digits(text)).collect();
    texts.extend(lower);
    texts
}

fn with_lower_digits(text: &str) -> String {
    let mut parts = text.split('%');
    let mut lower = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len().min(2);
        lower.push('%');
        lower.push_str(&part[..digits].to_ascii_lowercase());
        lower.push_str(&part[digits..]);
    }
    lower
}

/// Returns the forms in JSON strings, and in JSON inside such a string.
fn json(secret: &str) -> Vec<String> {
    let escaped = json_string(secret);
    let slashes = escaped.replace('/', "\\/");
    // Some encoders escape markup characters in strings that may end up in a page.
    let markup = ['<', '>', '&', '\''].into_iter().fold(escaped.clone(), |text, sign| {
        text.replace(sign, &format!("\\u{:04x}", u32::from(sign)))
    });
    let ascii = escape_beyond_ascii(&escaped);
    let twice = json_string(&escaped);
    vec![escaped, slashes, markup, ascii, twice]
}

/// Returns a text as JSON writes it between quotes.
pub(super) fn json_string(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn escape_beyond_ascii(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        if one.is_ascii() {
            escaped.push(one);
        } else {
            let mut units = [0; 2];
            let units = one.encode_utf16(&mut units);
            escaped.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    escaped
}

/// Returns the forms in which shells quote.
fn shell(secret: &str) -> Vec<String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "_-./:@%+=,".contains(one);
    let each = |escape: &dyn Fn(char) -> String| secret.chars().map(escape).collect::<String>();
    let before = |wanted: &dyn Fn(char) -> bool, one: char| {
        if wanted(one) { format!("\\{one}") } else { one.to_string() }
    };
    let backslashes = each(&|one| before(&|one| !is_plain(one) && one.is_ascii(), one));
    let all_backslashes = each(&|one| before(&|one| !is_plain(one) && !one.is_alphanumeric(), one));
    let in_double_quotes = each(&|one| before(&|one| "$`\"\\!".contains(one), one));
    vec![
        secret.replace('\'', "'\\''"),
        secret.replace('\'', "'\"'\"'"),
        backslashes,
        all_backslashes,
        in_double_quotes,
        each(&|one| dollar_quoted(one, false)),
        each(&|one| dollar_quoted(one, true)),
    ]
}

/// Returns a character as `$'…'` writes it; some shells write non-ASCII characters in octal.
fn dollar_quoted(one: char, octal: bool) -> String {
    match one {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\'' | '\\' => format!("\\{one}"),
        _ if octal && !one.is_ascii() => {
            let mut bytes = [0; 4];
            one.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")).collect()
        }
        _ => one.to_string(),
    }
}

fn hex(secret: &str) -> [String; 2] {
    let lower: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let upper = lower.to_uppercase();
    [lower, upper]
}

/// Returns the base64 forms, at the three offsets and in both alphabets.
fn base64(secret: &[u8]) -> Vec<SecretForm> {
    let mut forms = Vec::new();
    for offset in 0..3 {
        let shifted = [&[0; 2][..offset], secret].concat();
        // The first characters also encode what comes before, and the last one may also encode what
        // follows.
        let first = if offset == 0 { 0 } else { offset + 1 };
        let bits = shifted.len() * 8;
        let (last, right) = (bits / 6, bits % 6 != 0);
        let around = Around::Shared { left: offset > 0, right };
        if last < first + FEWEST_ENCODED {
            continue;
        }
        let standard = STANDARD_NO_PAD.encode(&shifted)[first..last].to_owned();
        let in_address = percent_encode(standard.as_bytes(), UNRESERVED).to_string();
        let in_json = standard.replace('/', "\\/");
        let other = URL_SAFE_NO_PAD.encode(&shifted)[first..last].to_owned();
        for text in [standard, other, with_lower_digits(&in_address), in_address, in_json] {
            forms.push(SecretForm { text, around });
        }
    }
    forms
}

/// Returns the base32 forms, at the five offsets and in both cases.
fn base32(secret: &[u8]) -> Vec<SecretForm> {
    let mut forms = Vec::new();
    for offset in 0..5 {
        let shifted = [&[0; 4][..offset], secret].concat();
        let first = (offset * 8).div_ceil(5);
        let bits = shifted.len() * 8;
        let (last, right) = (bits / 5, bits % 5 != 0);
        if last < first + FEWEST_BASE32 {
            continue;
        }
        let around = Around::Shared { left: offset * 8 % 5 != 0, right };
        let upper = base32_letters(&shifted)[first..last].to_owned();
        let lower = upper.to_ascii_lowercase();
        forms.extend([upper, lower].map(|text| SecretForm { text, around }));
    }
    forms
}

/// Encodes bytes in base32 without padding; missing bits at the end are zero.
fn base32_letters(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let letter = |number: usize| {
        let value = (0..5).fold(0, |value, at| value << 1 | bit(number * 5 + at));
        char::from(LETTERS[usize::from(value)])
    };
    (0..(bytes.len() * 8).div_ceil(5)).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(secret: &str) -> Vec<String> {
        of(secret).into_iter().map(|form| form.text).collect()
    }

    #[test]
    fn the_secret_is_found_in_base64_wherever_it_begins() {
        let secret = "correct-horse-9";
        let forms = texts(secret);
        for before in ["", "a", "ab", "abc", "abcd"] {
            for behind in ["", "x", "xy"] {
                let encoded = STANDARD_NO_PAD.encode(format!("{before}{secret}{behind}"));
                let found = forms.iter().any(|form| form.len() > 16 && encoded.contains(form));
                assert!(found, "{before}|{behind}");
            }
        }
    }

    #[test]
    fn quotes_slashes_and_spaces_are_found_as_programs_write_them() {
        let forms = texts("it's a/b \"c\" ä");
        for form in [
            "it%27s%20a%2Fb%20%22c%22%20%C3%A4",
            "it%27s%20a%2fb%20%22c%22%20%c3%a4",
            "it%27s+a%2Fb+%22c%22+%C3%A4",
            "it's a/b \\\"c\\\" ä",
            "it's a\\/b \\\"c\\\" ä",
            "it's a/b \\\"c\\\" \\u00e4",
            "it'\\''s a/b \"c\" ä",
            "it\\'s\\ a/b\\ \\\"c\\\"\\ ä",
            "it\\'s a/b \"c\" \\303\\244",
        ] {
            assert!(forms.iter().any(|known| known == form), "{form}");
        }
    }

    #[test]
    fn a_secret_of_several_lines_is_known_line_by_line_too() {
        let forms = texts("first line of it\nsecond line of it\nend");
        assert!(forms.contains(&"second line of it".to_owned()));
        assert!(forms.contains(&"first line of it\\nsecond line of it\\nend".to_owned()));
        assert!(!forms.contains(&"end".to_owned()));
    }

    #[test]
    fn a_short_secret_is_no_part_of_a_word_and_no_piece_of_base64() {
        let forms = of("hunt3r");
        assert!(forms.iter().any(|form| form.around == Around::Word && form.text == "hunt3r"));
        assert!(forms.iter().all(|form| form.text.len() >= 6));
    }

    #[test]
    fn base32_is_written_as_its_standard_says() {
        for (text, encoded) in [("f", "MY"), ("fo", "MZXQ"), ("foobar", "MZXW6YTBOI")] {
            assert_eq!(base32_letters(text.as_bytes()), encoded);
        }
    }
}
