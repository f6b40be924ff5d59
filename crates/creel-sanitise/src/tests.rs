//! Plants secrets in every encoding, splits the text, and checks that none is visible.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use secrecy::SecretString;

use super::*;

fn masker(secrets: &[(&str, &str)]) -> Masker {
    let mut all = Secrets::new();
    for (name, secret) in secrets {
        all.add(name, &SecretString::from(*secret));
    }
    Masker::new(&all)
}

fn mask(text: &str) -> String {
    masker(&[]).mask(text).to_string()
}

/// Feeds a text in chunks that end at the given places.
fn streamed(masker: &Masker, text: &str, splits: &[usize]) -> String {
    let mut places: Vec<usize> = splits.iter().map(|split| split % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    let mut stream = masker.stream();
    let mut masked = Masked::default();
    for pair in places.windows(2) {
        masked.append(&stream.feed(&text.as_bytes()[pair[0]..pair[1]]));
    }
    masked.append(&stream.finish());
    masked.to_string()
}

/// How a program may write a secret.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    Plain,
    Base64,
    Base64WithoutPadding,
    Base64ForUrls,
    Base64ForUrlsWithoutPadding,
    Wrapped,
    Percent,
    Form,
    Json,
    JsonInJson,
    Hex,
    UpperHex,
    SingleQuoted,
    Backslashes,
    DollarQuoted,
    Coloured,
    PercentKeepingSlashes,
    PercentInOtherCase,
    EveryLetterAsUnicode,
    JsonFourDeep,
    PercentInJson,
    BackslashX,
    Octal,
    HtmlDecimal,
    HtmlHexadecimal,
    HtmlNamed,
    Base32,
    SmallBase32,
    SpacedHex,
    ColonHex,
    MixedHex,
    HexWithPrefixes,
    OtherCase,
    WithoutWidth,
    ControlCharacters,
    Base64InJsonLines,
}

/// Returns a text with a sign between every two of its characters.
fn between(text: &str, sign: &str) -> String {
    let letters: Vec<String> = text.chars().map(String::from).collect();
    letters.join(sign)
}

impl Encoding {
    const ALL: [Self; 36] = [
        Self::Plain,
        Self::Base64,
        Self::Base64WithoutPadding,
        Self::Base64ForUrls,
        Self::Base64ForUrlsWithoutPadding,
        Self::Wrapped,
        Self::Percent,
        Self::Form,
        Self::Json,
        Self::JsonInJson,
        Self::Hex,
        Self::UpperHex,
        Self::SingleQuoted,
        Self::Backslashes,
        Self::DollarQuoted,
        Self::Coloured,
        Self::PercentKeepingSlashes,
        Self::PercentInOtherCase,
        Self::EveryLetterAsUnicode,
        Self::JsonFourDeep,
        Self::PercentInJson,
        Self::BackslashX,
        Self::Octal,
        Self::HtmlDecimal,
        Self::HtmlHexadecimal,
        Self::HtmlNamed,
        Self::Base32,
        Self::SmallBase32,
        Self::SpacedHex,
        Self::ColonHex,
        Self::MixedHex,
        Self::HexWithPrefixes,
        Self::OtherCase,
        Self::WithoutWidth,
        Self::ControlCharacters,
        Self::Base64InJsonLines,
    ];

    /// Returns its description on the page.
    fn description(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Base64 => "base64",
            Self::Base64WithoutPadding => "base64 without padding",
            Self::Base64ForUrls => "base64 for addresses",
            Self::Base64ForUrlsWithoutPadding => "base64 for addresses, without padding",
            Self::Wrapped => "base64 of a longer text, in lines",
            Self::Percent => "percent-encoded",
            Self::Form => "in a form",
            Self::Json => "in JSON",
            Self::JsonInJson => "in JSON in JSON",
            Self::Hex => "hexadecimal",
            Self::UpperHex => "hexadecimal in capitals",
            Self::SingleQuoted => "in single quotes of a shell",
            Self::Backslashes => "with the backslashes of a shell",
            Self::DollarQuoted => "in `$'…'` of a shell",
            Self::Coloured => "with a colour that begins in its middle",
            Self::PercentKeepingSlashes => "percent-encoded but for `/` and `=`",
            Self::PercentInOtherCase => "percent-encoded in part, in both cases",
            Self::EveryLetterAsUnicode => "every character as `\\uXXXX`",
            Self::JsonFourDeep => "in JSON four deep",
            Self::PercentInJson => "percent-encoded in JSON",
            Self::BackslashX => "every byte as `\\xXX`",
            Self::Octal => "every byte in octal",
            Self::HtmlDecimal => "decimal entities",
            Self::HtmlHexadecimal => "hexadecimal entities",
            Self::HtmlNamed => "named entities",
            Self::Base32 => "base32",
            Self::SmallBase32 => "base32 in small letters",
            Self::SpacedHex => "hexadecimal with spaces",
            Self::ColonHex => "hexadecimal with colons",
            Self::MixedHex => "hexadecimal with dashes, in both cases",
            Self::HexWithPrefixes => "hexadecimal with `0x` and commas",
            Self::OtherCase => "in capitals",
            Self::WithoutWidth => "characters without width between its own",
            Self::ControlCharacters => "control characters between its own",
            Self::Base64InJsonLines => "base64 in lines, in JSON",
        }
    }

    /// Returns whether parts of the encoded text may come from the surrounding text.
    fn is_mixed_with_others(self) -> bool {
        matches!(
            self,
            Self::Wrapped
                | Self::Coloured
                | Self::WithoutWidth
                | Self::ControlCharacters
                | Self::Base64InJsonLines
        )
    }

    /// Encodes a secret that stands between `before` and `behind`.
    fn write(self, secret: &str, before: &str, behind: &str) -> String {
        let within = format!("{before}{secret}{behind}");
        let around = |text: String| format!("{before}{text}{behind}");
        let json = |text: &str| serde_json::to_string(text).unwrap();
        match self {
            Self::Plain => within,
            Self::Base64 => STANDARD.encode(within),
            Self::Base64WithoutPadding => STANDARD_NO_PAD.encode(within),
            Self::Base64ForUrls => URL_SAFE.encode(within),
            Self::Base64ForUrlsWithoutPadding => URL_SAFE_NO_PAD.encode(within),
            Self::Wrapped => {
                let within = format!("the words before it, {within}, and more words behind it");
                let encoded = STANDARD.encode(within);
                let lines: Vec<&[u8]> = encoded.as_bytes().chunks(76).collect();
                String::from_utf8(lines.join(&b"\n"[..])).unwrap()
            }
            Self::Percent => around(
                percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC)
                    .to_string(),
            ),
            Self::Form => around(form_urlencoded::byte_serialize(secret.as_bytes()).collect()),
            Self::Json => json(&within),
            Self::JsonInJson => json(&json(&within)),
            Self::Hex => within.bytes().map(|byte| format!("{byte:02x}")).collect(),
            Self::UpperHex => within.bytes().map(|byte| format!("{byte:02X}")).collect(),
            Self::SingleQuoted => format!("'{}'", secret.replace('\'', "'\\''")),
            Self::Backslashes => {
                let is_plain = |one: char| one.is_alphanumeric() || "_-./:@%+=,".contains(one);
                let quoted = |one: char| if is_plain(one) { "" } else { "\\" };
                secret.chars().map(|one| format!("{}{one}", quoted(one))).collect()
            }
            Self::DollarQuoted => {
                format!("$'{}'", secret.replace('\\', "\\\\").replace('\'', "\\'"))
            }
            Self::Coloured => {
                let middle = secret.char_indices().nth(secret.chars().count() / 2).unwrap().0;
                format!("{}\x1b[1;31m{}\x1b[m", &secret[..middle], &secret[middle..])
            }
            Self::PercentKeepingSlashes => {
                const KEPT: &percent_encoding::AsciiSet =
                    &percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'=');
                around(percent_encoding::utf8_percent_encode(secret, KEPT).to_string())
            }
            Self::PercentInOtherCase => {
                let each = secret.bytes().enumerate().map(|(at, byte)| match at % 3 {
                    0 => format!("%{byte:02x}"),
                    1 => format!("%{byte:02X}"),
                    _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                    _ => format!("%{byte:02x}"),
                });
                around(each.collect())
            }
            Self::EveryLetterAsUnicode => {
                around(secret.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect())
            }
            Self::JsonFourDeep => json(&json(&json(&json(&within)))),
            Self::PercentInJson => json(&Self::Percent.write(secret, before, behind)),
            Self::BackslashX => {
                around(secret.bytes().map(|byte| format!("\\x{byte:02x}")).collect())
            }
            Self::Octal => around(secret.bytes().map(|byte| format!("\\{byte:03o}")).collect()),
            Self::HtmlDecimal => {
                around(secret.chars().map(|one| format!("&#{};", u32::from(one))).collect())
            }
            Self::HtmlHexadecimal => {
                around(secret.chars().map(|one| format!("&#x{:X};", u32::from(one))).collect())
            }
            Self::HtmlNamed => {
                let names = [
                    ("&", "&amp;"),
                    ("<", "&lt;"),
                    (">", "&gt;"),
                    ("\"", "&quot;"),
                    ("'", "&#39;"),
                ];
                let each = names
                    .iter()
                    .fold(secret.to_owned(), |text, (sign, name)| text.replace(sign, name));
                around(each)
            }
            Self::Base32 => base32(within.as_bytes()),
            Self::SmallBase32 => base32(within.as_bytes()).to_lowercase(),
            Self::SpacedHex => hex_with(&within, " "),
            Self::ColonHex => hex_with(&within, ":").to_uppercase(),
            Self::MixedHex => {
                let mixed = within.bytes().map(|byte| format!("{:x}{:X}", byte >> 4, byte & 15));
                mixed.collect::<Vec<_>>().join("-")
            }
            Self::HexWithPrefixes => within.bytes().map(|byte| format!("0x{byte:02x}, ")).collect(),
            Self::OtherCase => around(secret.to_uppercase()),
            Self::WithoutWidth => around(between(secret, "\u{200b}")),
            Self::ControlCharacters => around(between(secret, "\u{1}")),
            Self::Base64InJsonLines => {
                let encoded = STANDARD.encode(format!("the words before it, {within}, behind it"));
                let lines: Vec<&[u8]> = encoded.as_bytes().chunks(64).collect();
                json(&String::from_utf8(lines.join(&b"\n"[..])).unwrap())
            }
        }
    }
}

fn hex_with(text: &str, separator: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut encoded = String::new();
    for group in bytes.chunks(5) {
        let whole = group.iter().fold(0_u64, |whole, byte| whole << 8 | u64::from(*byte));
        let whole = whole << (8 * (5 - group.len()));
        let letters = (group.len() * 8).div_ceil(5);
        for at in 0..8 {
            let value = (whole >> (35 - 5 * at) & 31) as usize;
            encoded.push(if at < letters { char::from(LETTERS[value]) } else { '=' });
        }
    }
    encoded
}

/// Returns a part of the secret, or of its encoded form, that is still visible.
fn leak(seen: &str, secret: &str, written: &str) -> Option<String> {
    // Letters of the mask itself are not part of the secret.
    let seen = &seen.replace("[masked:SECRET]", "\0");
    let windows_of = |text: &str, length: usize| -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        chars.windows(length).map(|piece| piece.iter().collect()).collect()
    };
    let found = windows_of(secret, 8).into_iter().find(|piece| seen.contains(piece));
    // The first and last characters of the encoded form may encode only the neighbours.
    let inner = written.len().checked_sub(8).and_then(|end| written.get(4..end));
    let is_seen = |piece: &String| seen.contains(piece) && !piece.contains("word");
    let as_written = || windows_of(inner.unwrap_or_default(), 14).into_iter().find(is_seen);
    found.or_else(as_written)
}

const WORDS: [&str; 20] = [
    "error:",
    "warning:",
    "cloning",
    "into",
    "/home/agent/work/app",
    "done",
    "in",
    "1.32s",
    "HEAD is now at",
    "e0e0087f3b1c2d4a5968778695a4b3c2d1e0f9a8",
    "\n",
    "\r\n",
    "\t",
    "größer",
    "run_0190a5c8f2b17c3d9e4f5a6b7c8d9e0f",
    "https://example.org/app.git?ref=main",
    "日本",
    "test sanitise::tests::all ... ok",
    "\x1b[32mok\x1b[0m",
    "{\"level\":\"info\",\"n\":3}",
];

fn words() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&WORDS[..]), 0..30)
        .prop_map(|words| words.join(" "))
}

fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9]{12,40}",
        "[A-Za-z0-9_-]{12,60}",
        "[!-~]{12,32}",
        "[!-~][ -~]{10,24}[!-~]",
        "[a-zäöüß€]{12,20}",
        "[!-~]{12,30}\n[!-~]{12,30}",
    ]
    .prop_filter("one character again and again", |secret| {
        secret.chars().any(|one| !secret.starts_with(one))
    })
}

fn encoding() -> impl Strategy<Value = Encoding> {
    proptest::sample::select(&Encoding::ALL[..])
}

/// The secret of the page's table.
const SAMPLE: &str = "Kx7/pQ9&mZ2'vLw4";

/// Encodes a secret.
type Encode = fn(&str) -> String;

/// Encodings in which a secret is not found, with their description on the page.
const UNFOUND: [(&str, Encode); 5] = [
    ("hexadecimal of base64", |secret| hex_with(&STANDARD.encode(secret), "")),
    ("reversed", |secret| secret.chars().rev().collect()),
    ("decimal numbers", |secret| {
        secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ")
    }),
    ("quoted-printable", |secret| secret.bytes().map(|byte| format!("={byte:02X}")).collect()),
    ("split by other text", |secret| {
        let (first, second) = secret.split_at(secret.len() / 2);
        format!("{first} (line 2) {second}")
    }),
];

/// Returns a text in a form that the page can show.
fn shown(text: &str) -> String {
    const MOST: usize = 72;
    let sign = |one: char| match one {
        '\n' => "␤".to_owned(),
        '\x1b' => "␛".to_owned(),
        '\u{1}' => "␁".to_owned(),
        '\u{200b}' => "␣".to_owned(),
        one => one.to_string(),
    };
    let cut = if text.chars().count() > MOST { "…" } else { "" };
    text.chars().take(MOST).map(sign).collect::<String>() + cut
}

fn table_of_encodings() -> String {
    let masker = masker(&[("SECRET", SAMPLE)]);
    let row = |description: &str, written: &str, compared: &str| {
        let seen = masker.mask(&format!("it is {written} now"));
        let is_found = seen.as_str().contains("[masked:SECRET]")
            && leak(seen.as_str(), SAMPLE, compared).is_none();
        let found = if is_found { "found" } else { "**not found**" };
        format!("| {description} | `{}` | {found} |\n", shown(written))
    };
    let mut text = "| how it is written | as here | |\n|---|---|---|\n".to_owned();
    for encoding in Encoding::ALL {
        let written = encoding.write(SAMPLE, "", "");
        let compared = if encoding.is_mixed_with_others() { "" } else { &written };
        text.push_str(&row(encoding.description(), &written, compared));
    }
    for (description, write) in UNFOUND {
        let written = write(SAMPLE);
        text.push_str(&row(description, &written, &written));
    }
    text
}

/// Checks that the page has a table between its marks, or writes it if `CREEL_WRITE_PAGES` is set.
#[track_caller]
pub(super) fn assert_page_has(mark: &str, table: &str) {
    // Two tests write the same page.
    static PAGE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = PAGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/sanitiser.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = text.split_once(&begin).expect("the page has the mark");
    let (_, behind) = rest.split_once(&end).expect("the page has the mark");
    let fresh = format!("{before}{begin}{table}{end}{behind}");
    if std::env::var_os("CREEL_WRITE_PAGES").is_some() {
        std::fs::write(&page, &fresh).unwrap();
        return;
    }
    assert!(
        fresh == text,
        "docs/reference/sanitiser.md is stale: \
         CREEL_WRITE_PAGES=1 cargo test -p creel-sanitise --lib the_page_has_the_table"
    );
}

#[test]
fn the_page_has_the_table_of_encodings() {
    let table = table_of_encodings();
    let lost: Vec<&str> = table.lines().filter(|row| row.contains("**not found**")).collect();
    assert_eq!(lost.len(), UNFOUND.len(), "{lost:#?}");
    assert_page_has("encodings", &table);
}

#[test]
fn a_secret_of_several_lines_with_hidden_signs_is_masked_alike_wherever_a_stream_is_torn() {
    let secret = "AAa!a0!!aA0!\nAAa0AA0!0AaaAa!A0A";
    let masker = masker(&[("SECRET", secret)]);
    let text = format!("error: {} error:", Encoding::WithoutWidth.write(secret, "", ""));
    let whole = masker.mask(&text).to_string();
    for split in 0..text.len() {
        assert_eq!(streamed(&masker, &text, &[split]), whole, "torn at {split}");
    }
}

#[test]
fn a_secret_whose_last_letter_is_escaped_at_the_end_of_the_text_is_found() {
    let masker = masker(&[("SECRET", "Kx7#pQ9!mZ2vLw4&")]);
    for text in
        ["it is Kx7#pQ9!mZ2vLw4&amp;", r"it is Kx7#pQ9!mZ2vLw4\x26", "it is Kx7#pQ9!mZ2vLw4%26"]
    {
        assert_eq!(masker.mask(text).as_str(), "it is [masked:SECRET]");
    }
}

#[test]
fn an_escaped_secret_of_several_lines_is_masked_alike_wherever_a_stream_is_torn() {
    let secret = "aAAAa(!0(0!aAA0\n!aAA\\&%A!a0aAAA0!a";
    let masker = masker(&[("SECRET", secret)]);
    for encoding in Encoding::ALL {
        let text = format!("error:\n at {} error:", encoding.write(secret, "", ""));
        let whole = masker.mask(&text).to_string();
        for split in 0..text.len() {
            assert_eq!(streamed(&masker, &text, &[split]), whole, "{encoding:?} torn at {split}");
        }
    }
}

proptest! {
    #[test]
    fn no_secret_is_seen_in_any_encoding_however_the_text_is_torn(
        secret in secret(),
        encoding in encoding(),
        (before, behind) in ("[a-z]{0,2}", "[a-z]{0,2}"),
        (above, below) in (words(), words()),
        splits in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        // The surrounding text is not a leak, even if the secret has the same letters.
        let [before, behind] =
            [before, behind].map(|around| if secret.contains(&around) { String::new() } else { around });
        let masker = masker(&[("OTHER", "another-secret-4711"), ("SECRET", &secret)]);
        let written = encoding.write(&secret, &before, &behind);
        let text = format!("{above} {written} {below}");
        let seen = [
            masker.mask(&text).to_string(),
            masker.mask_bytes(text.as_bytes()).to_string(),
            streamed(&masker, &text, &splits),
            masker.diagnostic(&text).to_string(),
            masker.tail(text.as_bytes()).to_string(),
            masker.sentence(format_args!("it said: {text}")).to_string(),
        ];
        let written = if encoding.is_mixed_with_others() { "" } else { written.as_str() };
        for seen in &seen {
            prop_assert_eq!(leak(seen, &secret, written), None, "{:?} in {}", encoding, seen);
        }
        prop_assert_eq!(&seen[0], &seen[2], "a stream shows the same");
    }

    #[test]
    fn a_line_break_at_any_place_hides_no_secret(
        secret in "[A-Za-z0-9+/_.-]{16,40}",
        at in 0_usize..60,
        broken in proptest::sample::select(&["\n", "\r\n", "\n    ", "\\\n", "\\n", "%0A"][..]),
        encode in any::<bool>(),
        (above, below) in (words(), words()),
        splits in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        let masker = masker(&[("OTHER", "another-secret-4711"), ("SECRET", &secret)]);
        let written = if encode { STANDARD.encode(&secret) } else { secret.clone() };
        let at = at % written.len();
        let text = format!("{above} {}{broken}{} {below}", &written[..at], &written[at..]);
        for seen in [masker.mask(&text).to_string(), streamed(&masker, &text, &splits)] {
            prop_assert_eq!(leak(&seen, &written, ""), None, "{}", seen);
        }
    }

    #[test]
    fn a_secret_that_was_cut_before_we_saw_it_is_not_seen_either(
        secret in "[A-Za-z0-9+/_-]{16,40}",
        text in words(),
        place in 1_usize..100,
    ) {
        let masker = masker(&[("SECRET", &secret)]);
        let cut = place % secret.len();
        let tail = format!("{} {text}", &secret[cut..]);
        let head = format!("{text} {}", &secret[..cut]);
        let longest = (secret.len() / 3).max(8);
        let windows_of = |seen: &str| {
            let windows = secret.as_bytes().windows(longest);
            windows.filter(|piece| seen.contains(std::str::from_utf8(piece).unwrap())).count()
        };
        prop_assert_eq!(windows_of(masker.tail(tail.as_bytes()).as_str()), 0, "{}", tail);
        prop_assert_eq!(windows_of(masker.mask(&head).as_str()), 0, "{}", head);
        prop_assert_eq!(windows_of(&streamed(&masker, &tail, &[place])), 0, "{}", tail);
        prop_assert_eq!(windows_of(&streamed(&masker, &head, &[place])), 0, "{}", head);
    }

    #[test]
    fn text_without_secrets_comes_through_unchanged(
        text in words(),
        splits in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let masker = masker(&[("SECRET", "correct-horse-battery"), ("SHORT", "hunt3r")]);
        prop_assert_eq!(masker.mask(&text).to_string(), text.clone());
        prop_assert_eq!(streamed(&masker, &text, &splits), text);
    }

    #[test]
    fn any_bytes_come_through_a_stream_as_through_the_whole(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        splits in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        let masker = masker(&[("SECRET", "correct-horse-battery")]);
        let mut stream = masker.stream();
        let mut places: Vec<usize> = splits.iter().map(|at| at % (bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let mut seen = Masked::default();
        for pair in places.windows(2) {
            seen.append(&stream.feed(&bytes[pair[0]..pair[1]]));
        }
        seen.append(&stream.finish());
        prop_assert_eq!(seen, masker.mask_bytes(&bytes));
    }

    #[test]
    fn masking_twice_changes_nothing(secret in secret(), above in words(), encoding in encoding()) {
        let masker = masker(&[("SECRET", &secret)]);
        let text = format!("{above} Authorization: Bearer {}", encoding.write(&secret, "", ""));
        let once = masker.mask(&text);
        prop_assert_eq!(masker.mask(once.as_str()), once);
    }

    #[test]
    fn no_stretch_of_the_task_is_in_a_diagnostic(
        task in "[a-z ]{30,80}",
        above in words(),
        at in 0_usize..6,
    ) {
        let mut secrets = Secrets::new();
        secrets.add_private_text(&task);
        let masker = Masker::new(&secrets);
        let text = format!("{above}:{}", &task[at..]);
        for seen in [masker.diagnostic(&text), masker.tail(text.as_bytes())] {
            let mut stretches = task.as_bytes().windows(24);
            let found = stretches.find(|piece| {
                seen.as_str().contains(std::str::from_utf8(piece).unwrap())
            });
            prop_assert_eq!(found, None, "{}", seen);
            prop_assert!(seen.as_str().chars().count() <= Diagnostic::LONGEST);
        }
        prop_assert_eq!(masker.mask(&text).to_string(), text.clone());
    }
}

/// Letters and digits in no particular sequence, as many as a token needs.
const LONG: &str = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a7B8c9D0e1F2g3H4";

#[test]
fn every_rule_masks_its_token_and_nothing_around_it() {
    let of = |prefix: &str, length: usize| format!("{prefix}{}", &LONG[..length]);
    for (token, name) in [
        (of("ghp_", 36), "github-token"),
        (of("gho_", 36), "github-token"),
        (of("ghu_", 36), "github-token"),
        (of("ghs_", 36), "github-token"),
        (of("ghr_", 36), "github-token"),
        (of("github_pat_", 60), "github-token"),
        (of("glpat-", 20), "gitlab-token"),
        ("xoxb-123456789012-abcdefABCDEF".to_owned(), "slack-token"),
        ("AKIAIOSFODNN7EXAMPLE".to_owned(), "aws-key-id"),
        ("ASIAIOSFODNN7EXAMPLE".to_owned(), "aws-key-id"),
        (of("AIza", 35), "google-key"),
        (of("sk-", 48), "openai-key"),
        (of("sk-proj-", 60), "openai-key"),
        (of("sk-ant-api03-", 60), "anthropic-key"),
        (of("sk-or-v1-", 60), "openrouter-key"),
        (of("dtn_", 64), "daytona-key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl".to_owned(), "jwt"),
    ] {
        assert_eq!(mask(&format!("<{token}> x")), format!("<[masked:{name}]> x"));
        assert_eq!(mask(&format!("a={token}\nb")), format!("a=[masked:{name}]\nb"));
    }
}

#[test]
fn what_a_header_or_an_address_carries_is_masked_and_the_rest_is_shown() {
    for (text, masked) in [
        ("Authorization: Bearer abcdef", "Authorization: Bearer [masked:authorization]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic [masked:authorization]"),
        ("AUTHORIZATION: token abc123", "AUTHORIZATION: token [masked:authorization]"),
        (
            r#"{"Authorization":"Bearer a.b.c"}"#,
            r#"{"Authorization":"Bearer [masked:authorization]"}"#,
        ),
        ("curl -H 'x-api-key: 12345678'", "curl -H 'x-api-key: [masked:api-key]'"),
        ("https://me:pa55@host/x", "https://me:[masked:url-password]@host/x"),
        ("postgres://u:p@ss@db:5432/x", "postgres://u:[masked:url-password]@db:5432/x"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "aws_secret_access_key = [masked:aws-secret-key]",
        ),
    ] {
        assert_eq!(mask(text), masked);
        assert_eq!(mask(masked), masked, "a mask is not masked");
    }
}

#[test]
fn words_that_only_look_like_tokens_stay() {
    for text in [
        "task-abcdefghijklmnopqrstuvwx disk-0123456789012345678901234",
        "sk-learn-is-a-library-for-people-who-learn",
        "authorization: required, authorization failed",
        "ssh://git@example.org/app.git http://localhost:8080/a@b",
        "the bearer of this letter, a bearer certificate",
        "-----BEGIN CERTIFICATE-----",
        "unexpected token: identifier",
    ] {
        assert_eq!(mask(text), text);
    }
}

fn key(lines: usize) -> String {
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n";
    let (begin, end) = ("-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----");
    format!("{begin}{}c2hvcnQ=\n{end}", line.repeat(lines))
}

#[test]
fn a_private_key_is_masked_whole_in_one_line_and_cut() {
    let whole = key(4);
    let escaped = format!("{{\"private_key\":\"{}\\n\",\"x\":1}}", whole.replace('\n', "\\n"));
    for (text, masked) in [
        (format!("a\n{whole}\nb"), "a\n[masked:private-key]\nb"),
        (format!("a\n{}\nb", whole.replace('\n', " ")), "a\n[masked:private-key]\nb"),
        (escaped, "{\"private_key\":\"[masked:private-key]\\n\",\"x\":1}"),
        (format!("a\n{}", &whole[..150]), "a\n[masked:private-key]"),
        (format!("{}\nb", &whole[40..]), "[masked:private-key]\nb"),
    ] {
        assert_eq!(mask(&text), masked, "{text}");
        let masker = masker(&[]);
        for split in 0..text.len() {
            assert_eq!(streamed(&masker, &text, &[split, split / 2]), masked, "{split}");
        }
    }
}

#[test]
fn a_stream_shows_whole_lines_at_once_and_holds_little() {
    let masker = masker(&[("SECRET", "correct-horse-battery")]);
    let mut stream = masker.stream();
    assert_eq!(stream.feed(b"a line\nand a").as_str(), "a line\n");
    assert_eq!(stream.feed(b" half correct-ho").as_str(), "");
    assert_eq!(stream.feed(b"rse-battery\n").as_str(), "and a half [masked:SECRET]\n");
    let fed = "no line break, ".repeat(1000);
    let shown = stream.feed(fed.as_bytes());
    assert!(fed.len() - shown.as_str().len() < 4096);
}

#[test]
fn an_endless_token_takes_no_more_memory_than_is_held_back() {
    let masker = masker(&[]);
    let mut stream = masker.stream();
    let mut seen = stream.feed(b"begin ghp_");
    for _ in 0..2000 {
        seen.append(&stream.feed(&LONG.as_bytes()[..62]));
    }
    seen.append(&stream.feed(b" end"));
    seen.append(&stream.finish());
    assert_eq!(seen.as_str(), "begin [masked:github-token] end");
}

#[test]
fn a_pattern_inside_a_known_secret_leaves_no_rest() {
    let secret = format!("prefix:ghp_{}:suffix", &LONG[..36]);
    let masker = masker(&[("SECRET", &secret)]);
    assert_eq!(masker.mask(&format!("<{secret}>")).as_str(), "<[masked:SECRET]>");
}

#[test]
fn secrets_that_overlap_leave_no_rest_of_either() {
    let masker = masker(&[("ONE", "abcdefgh-12345678"), ("TWO", "12345678-ijklmnop")]);
    assert_eq!(masker.mask("<abcdefgh-12345678-ijklmnop>").as_str(), "<[masked:ONE]>");
}

#[test]
fn redaction_comes_before_truncation() {
    let secret = "correct-horse-battery-staple";
    let masker = masker(&[("SECRET", secret)]);
    for length in 260..310 {
        let text = format!("{}{secret}{}", "x ".repeat(length / 2), " y".repeat(length / 2));
        for seen in [masker.diagnostic(&text), masker.tail(text.as_bytes())] {
            assert_eq!(leak(seen.as_str(), secret, ""), None, "{seen}");
        }
    }
}

#[test]
fn the_masker_says_which_secrets_it_cannot_mask() {
    let masker = masker(&[("PORT", "8080"), ("TOKEN", "correct-horse")]);
    let expected = [Unmasked { name: "PORT".to_owned(), why: Unmaskable::Common }];
    assert_eq!(masker.unmasked(), expected);
    assert!(!format!("{masker:?}").contains("horse"));
}
