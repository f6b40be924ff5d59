//! Decodes one character as programs escape it: for URLs, JSON, shells, C and markup.

/// A decoded character, and the length of its escape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decoded {
    bytes: [u8; 4],
    length: usize,
    /// How many bytes of the text encode it.
    pub(super) consumed: usize,
}

impl Decoded {
    fn byte(byte: u8, consumed: usize) -> Self {
        Self { bytes: [byte, 0, 0, 0], length: 1, consumed }
    }

    fn letter(letter: char, consumed: usize) -> Self {
        let mut bytes = [0; 4];
        let length = letter.encode_utf8(&mut bytes).len();
        Self { bytes, length, consumed }
    }

    /// Returns the bytes of the character.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Named entities of the characters that occur in secrets.
const ENTITIES: [(&[u8], char); 45] = [
    (b"amp", '&'),
    (b"lt", '<'),
    (b"gt", '>'),
    (b"quot", '"'),
    (b"apos", '\''),
    (b"AMP", '&'),
    (b"LT", '<'),
    (b"GT", '>'),
    (b"QUOT", '"'),
    (b"nbsp", ' '),
    (b"Tab", '\t'),
    (b"NewLine", '\n'),
    (b"excl", '!'),
    (b"num", '#'),
    (b"dollar", '$'),
    (b"percnt", '%'),
    (b"lpar", '('),
    (b"rpar", ')'),
    (b"ast", '*'),
    (b"midast", '*'),
    (b"plus", '+'),
    (b"comma", ','),
    (b"hyphen", '-'),
    (b"dash", '-'),
    (b"minus", '-'),
    (b"period", '.'),
    (b"sol", '/'),
    (b"colon", ':'),
    (b"semi", ';'),
    (b"equals", '='),
    (b"quest", '?'),
    (b"commat", '@'),
    (b"lsqb", '['),
    (b"lbrack", '['),
    (b"bsol", '\\'),
    (b"rsqb", ']'),
    (b"rbrack", ']'),
    (b"Hat", '^'),
    (b"lowbar", '_'),
    (b"grave", '`'),
    (b"lcub", '{'),
    (b"lbrace", '{'),
    (b"verbar", '|'),
    (b"rcub", '}'),
    (b"tilde", '~'),
];
/// Maximum length of an entity.
const LONGEST_ENTITY: usize = 12;

/// Decodes the escape at the beginning of a text; returns `None` if there is none.
pub(super) fn decode(text: &[u8]) -> Option<Decoded> {
    match text {
        [b'%', high, low, ..] => Some(Decoded::byte(pair(*high, *low)?, 3)),
        [b'\'', b'\\', b'\'', b'\'', ..] => Some(Decoded::byte(b'\'', 4)),
        [b'\'', b'"', b'\'', b'"', b'\'', ..] => Some(Decoded::byte(b'\'', 5)),
        [b'\\', rest @ ..] => behind_backslash(rest),
        [b'&', rest @ ..] => entity(rest),
        _ => None,
    }
}

fn behind_backslash(rest: &[u8]) -> Option<Decoded> {
    let byte = |byte| Some(Decoded::byte(byte, 2));
    match rest {
        [b'u', b'{', digits @ ..] => in_braces(digits),
        [b'u', digits @ ..] => four_digits(digits),
        [b'U', digits @ ..] => Some(Decoded::letter(number(digits.get(..8)?)?, 10)),
        [b'x', high, low, ..] => Some(Decoded::byte(pair(*high, *low)?, 4)),
        [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
            Some(Decoded::byte((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), 4))
        }
        [b'n', ..] => byte(b'\n'),
        [b'r', ..] => byte(b'\r'),
        [b't', ..] => byte(b'\t'),
        [b'b', ..] => byte(0x08),
        [b'f', ..] => byte(0x0c),
        [b'v', ..] => byte(0x0b),
        [b'a', ..] => byte(0x07),
        [b'e' | b'E', ..] => byte(0x1b),
        // A line continuation.
        [b'\n', ..] => Some(Decoded { bytes: [0; 4], length: 0, consumed: 2 }),
        [other, ..] if other.is_ascii_punctuation() || *other == b' ' => byte(*other),
        _ => None,
    }
}

/// Decodes `\u{1f600}`, given the text after its brace.
fn in_braces(digits: &[u8]) -> Option<Decoded> {
    let length = digits.iter().take(7).position(|byte| *byte == b'}')?;
    Some(Decoded::letter(number(&digits[..length])?, length + 4))
}

/// Decodes `\u00e4`, given the text after the `u`, and surrogate pairs of two such escapes.
fn four_digits(digits: &[u8]) -> Option<Decoded> {
    let first = value(digits.get(..4)?)?;
    if let Some(letter) = char::from_u32(first) {
        return Some(Decoded::letter(letter, 6));
    }
    let second = digits.get(4..10)?;
    let second = second.strip_prefix(b"\\u").and_then(value)?;
    let pair = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
    let letter = char::decode_utf16(pair).next()?.ok()?;
    Some(Decoded::letter(letter, 12))
}

/// Decodes `&amp;`, `&#38;` and `&#x26;`, given the text after the ampersand.
fn entity(rest: &[u8]) -> Option<Decoded> {
    let length = rest.iter().take(LONGEST_ENTITY).position(|byte| *byte == b';')?;
    let consumed = length + 2;
    let letter = match &rest[..length] {
        [b'#', b'x' | b'X', digits @ ..] => number(digits)?,
        [b'#', digits @ ..] => {
            let digits = std::str::from_utf8(digits).ok()?;
            char::from_u32(digits.parse().ok()?)?
        }
        name => ENTITIES.iter().find(|(known, _)| *known == name)?.1,
    };
    Some(Decoded::letter(letter, consumed))
}

fn number(digits: &[u8]) -> Option<char> {
    char::from_u32(value(digits)?)
}

fn value(digits: &[u8]) -> Option<u32> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    u32::from_str_radix(digits, 16).ok()
}

fn pair(high: u8, low: u8) -> Option<u8> {
    u8::try_from(value(&[high, low])?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> String {
        let (mut decoded, mut at) = (Vec::new(), 0);
        while at < text.len() {
            match decode(&text.as_bytes()[at..]) {
                Some(one) => {
                    decoded.extend_from_slice(one.bytes());
                    at += one.consumed;
                }
                None => {
                    decoded.push(text.as_bytes()[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8(decoded).unwrap()
    }

    #[test]
    fn escapes_of_many_languages_are_decoded() {
        for (written, meant) in [
            ("a%2Fb%c3%A4", "a/bä"),
            (r"\u0061\u00e4\ud83d\ude00\u{1f600}\U0001f600", "aä😀😀😀"),
            (r"\x61\141\n\t\/\\", "aa\n\t/\\"),
            ("&amp;&#97;&#x62;&sol;&lowbar;", "&ab/_"),
            (r#"it'\''s it'"'"'s"#, "it's it's"),
            ("a\\\nb", "ab"),
        ] {
            assert_eq!(all(written), meant, "{written}");
        }
    }

    #[test]
    fn what_only_looks_like_an_escape_stays() {
        for text in
            [r"C:\Users\me", "100% of it", "a & b; c", r"\ud83d alone", r"\u12", "&nothing;"]
        {
            assert_eq!(all(text), text);
        }
    }
}
