//! Finds values by the names that stand before them: `password=…`, `"apiKey": "…"`, `--token …`.
//!
//! The name decides how strictly its value is checked. A password may be any text, so only obvious
//! non-values are left unmasked: a placeholder, a call, a type. A `token` or a `key` may be
//! anything in a program's output, so its value must be long and have letters and digits.

use super::span::MaskSpan;

/// Anchors that occur in the names; see [`super::rules`].
///
/// Most omit the first letter, so that one anchor matches two spellings.
pub(super) const ANCHORS: &[&str] = &[
    "assword",
    "ASSWORD",
    "asswd",
    "ASSWD",
    "assphrase",
    "ASSPHRASE",
    "asscode",
    "ASSCODE",
    "_pass",
    "_PASS",
    "_pwd",
    "_PWD",
    "Pwd",
    "pwd",
    "ecret",
    "ECRET",
    "secret_",
    "oken",
    "OKEN",
    "_key",
    "_KEY",
    "-key",
    "-Key",
    "-KEY",
    "Key",
    "apikey",
    "APIKEY",
    "redential",
    "REDENTIAL",
    "_auth",
    "_AUTH",
];
/// Names whose values are always secret, without their signs.
const STRONG: &[(&str, &str)] = &[
    ("password", "password"),
    ("passwd", "password"),
    ("passphrase", "password"),
    ("passcode", "password"),
    ("pwd", "password"),
    ("dbpass", "password"),
    ("userpass", "password"),
    ("rootpass", "password"),
    ("smtppass", "password"),
    ("adminpass", "password"),
    ("apikey", "api-key"),
    ("secretkey", "api-key"),
    ("secretaccesskey", "api-key"),
    ("accesskey", "api-key"),
    ("accountkey", "api-key"),
    ("authkey", "api-key"),
    ("appkey", "api-key"),
    ("privatekey", "api-key"),
    ("signingkey", "api-key"),
    ("encryptionkey", "api-key"),
    ("masterkey", "api-key"),
    ("secretkeybase", "api-key"),
    ("clientsecret", "secret"),
    ("apisecret", "secret"),
    ("appsecret", "secret"),
    ("webhooksecret", "secret"),
    ("accesstoken", "token"),
    ("authtoken", "token"),
    ("apitoken", "token"),
    ("refreshtoken", "token"),
    ("sessiontoken", "token"),
    ("bearertoken", "token"),
    ("bottoken", "token"),
];
/// Names whose values are secret only if they have the form of a key.
const WEAK: &[(&str, &str)] = &[
    ("secret", "secret"),
    ("token", "token"),
    ("key", "api-key"),
    ("auth", "token"),
    ("credential", "secret"),
    ("credentials", "secret"),
    ("pass", "password"),
];
/// Placeholders that are not values.
const PLACEHOLDERS: &[&str] = &[
    "none",
    "null",
    "nil",
    "true",
    "false",
    "undefined",
    "string",
    "str",
    "required",
    "optional",
    "redacted",
    "hidden",
    "masked",
    "empty",
    "missing",
    "invalid",
    "unset",
    "bool",
    "boolean",
    "text",
];
/// Maximum length of a name.
const LONGEST_NAME: usize = 64;
/// Maximum length of a value; the rest of a longer one is not masked.
const LONGEST_VALUE: usize = 4096;
/// Minimum length of the value of a weak name.
const FEWEST_WEAK: usize = 12;
/// Minimum length of a password.
const FEWEST_STRONG: usize = 4;

/// How reliably a name indicates a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confidence {
    Strong,
    Weak,
}

/// Finds the value after the name in which an anchor begins at `at`.
pub(super) fn find(text: &[u8], at: usize) -> Option<MaskSpan<'static>> {
    let (start, end) = name_around(text, at);
    let (label, confidence) = judge_name(&text[start..end])?;
    let is_flag = text[start..end].starts_with(b"-");
    let separator = Separator::at(text, end, is_flag)?;
    let (from, to, quoted) = value_at(text, separator.end)?;
    let value = &text[from..to];
    let is_secret = match confidence {
        Confidence::Strong => is_password(value, quoted, separator.is_tight),
        Confidence::Weak => is_key(value),
    };
    is_secret.then(|| MaskSpan::by_rule(from, to, label))
}

fn is_in_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

fn name_around(text: &[u8], at: usize) -> (usize, usize) {
    let before = text[..at].iter().rev().take(LONGEST_NAME).take_while(|byte| is_in_name(byte));
    let behind = text[at..].iter().take(LONGEST_NAME).take_while(|byte| is_in_name(byte));
    (at - before.count(), at + behind.count())
}

/// Returns the label and the sureness that a name implies for its value.
fn judge_name(name: &[u8]) -> Option<(&'static str, Confidence)> {
    let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    let mut plain: Vec<u8> = letters.map(u8::to_ascii_lowercase).collect();
    while plain.last().is_some_and(u8::is_ascii_digit) {
        plain.pop();
    }
    if matches!(plain.as_slice(), b"pwd" | b"oldpwd") && name.iter().all(u8::is_ascii_uppercase) {
        // The working directory of a shell.
        return None;
    }
    let ends = |(end, _): &&(&str, &'static str)| plain.ends_with(end.as_bytes());
    if let Some((_, label)) = STRONG.iter().find(ends) {
        return Some((label, Confidence::Strong));
    }
    let (_, label) = WEAK.iter().find(ends)?;
    Some((label, Confidence::Weak))
}

/// The separator between a name and its value.
struct Separator {
    end: usize,
    /// Whether only `=` separates them, as in an environment.
    is_tight: bool,
}

impl Separator {
    fn at(text: &[u8], from: usize, is_flag: bool) -> Option<Self> {
        let skip = |from: usize, wanted: fn(&u8) -> bool, most: usize| {
            from + text[from..].iter().take(most).take_while(|byte| wanted(byte)).count()
        };
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let quotes = skip(from, |byte| matches!(byte, b'"' | b'\'' | b'\\' | b']'), 6);
        let sign = skip(quotes, is_blank, 8);
        let (end, is_sign) = match &text[sign..] {
            [b'=', b'=' | b'~', ..] => return None,
            [b':', b'=', ..] | [b'=', b'>', ..] => (sign + 2, true),
            [b'=' | b':', ..] => (sign + 1, true),
            _ => (sign, false),
        };
        let value = skip(end, is_blank, 8);
        let is_tight = text.get(from) == Some(&b'=') && value == from + 1;
        let is_spaced_flag = is_flag && !is_sign && value > from;
        (is_sign || is_spaced_flag)
            .then_some(Self { end: value, is_tight: is_tight || is_spaced_flag })
    }
}

/// Returns where a value begins and ends, and whether it is quoted.
fn value_at(text: &[u8], from: usize) -> Option<(usize, usize, bool)> {
    let slashes = text[from..].iter().take_while(|byte| **byte == b'\\').count();
    if let Some(quote @ (b'"' | b'\'' | b'`')) = text.get(from + slashes) {
        let start = from + slashes + 1;
        let is_inside = |byte: &&u8| **byte != *quote && !matches!(**byte, b'\n' | b'\r');
        let length = text[start..].iter().take(LONGEST_VALUE).take_while(is_inside).count();
        let escapes = text[start..start + length].iter().rev().take(slashes);
        let escapes = escapes.take_while(|byte| **byte == b'\\').count();
        return Some((start, start + length - escapes, true));
    }
    let is_end = |byte: &u8| {
        byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'<' | b'>' | b'&')
    };
    let length = text[from..].iter().take(LONGEST_VALUE).take_while(|byte| !is_end(byte)).count();
    let value = &text[from..from + length];
    Some((from, from + length - tail(value), false))
}

/// Returns the length of what follows a bare value: the next field, or closing signs.
fn tail(value: &[u8]) -> usize {
    let next = value.iter().enumerate().position(|(at, byte)| {
        let rest = &value[at + 1..];
        let name = rest.iter().take_while(|byte| is_in_name(byte)).count();
        matches!(byte, b';' | b',')
            && (rest.is_empty() || (name > 0 && rest.get(name) == Some(&b'=')))
    });
    let kept = &value[..next.unwrap_or(value.len())];
    let closing = kept
        .iter()
        .rev()
        .take_while(|byte| matches!(byte, b',' | b';' | b')' | b'}' | b']' | b'\\'));
    value.len() - kept.len() + closing.count()
}

/// Returns whether the value of a name such as `password` is a password.
fn is_password(value: &[u8], quoted: bool, is_tight: bool) -> bool {
    if value.len() < FEWEST_STRONG || is_placeholder_or_code(value) {
        return false;
    }
    let has = |wanted: fn(&u8) -> bool| value.iter().any(wanted);
    let is_word =
        value.iter().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'.' | b'?' | b'!'));
    let is_sentence = quoted && value.iter().filter(|byte| **byte == b' ').count() >= 3;
    let is_path = value.starts_with(b"/") || value.starts_with(b"./");
    let is_mixed = has(u8::is_ascii_digit)
        || (has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase))
        || has(|byte| byte.is_ascii_punctuation());
    !is_path && !is_sentence && (is_tight || (quoted && !is_sentence) || (is_mixed && !is_word))
}

/// Returns whether the value of a name such as `token` has the form of a key.
fn is_key(value: &[u8]) -> bool {
    let has = |wanted: fn(&u8) -> bool| value.iter().any(wanted);
    let is_of_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=_-.:~!@#%^*".contains(byte);
    value.len() >= FEWEST_WEAK
        && value.iter().all(is_of_key)
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && !value.starts_with(b"/")
        && !value.windows(3).any(|sign| sign == b"://")
        && !is_placeholder_or_code(value)
}

/// Returns whether a value is a placeholder, a call, a type, or a field access.
fn is_placeholder_or_code(value: &[u8]) -> bool {
    let is_placeholder = matches!(value[0], b'$' | b'<' | b'*' | b'[' | b'{' | b'(')
        || value.starts_with(b"%(")
        || value.starts_with(b"%s")
        || value.starts_with(b"...")
        || value.starts_with("…".as_bytes())
        || value.iter().all(|byte| matches!(byte, b'x' | b'X' | b'*' | b'.' | b'-' | b'#'));
    let word = value
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':'));
    let word = word.count();
    let is_code = word > 0 && matches!(value.get(word), Some(b'(' | b'['))
        || (value.contains(&b'.')
            && value.iter().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'.')));
    let lower = value.to_ascii_lowercase();
    let is_no_value = PLACEHOLDERS.iter().any(|word| lower == word.as_bytes());
    is_placeholder || is_code || is_no_value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for anchor in ANCHORS {
            for (at, _) in text.match_indices(anchor) {
                let span = find(text.as_bytes(), at);
                all.extend(span.map(|span| &text[span.start..span.end]));
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn a_value_is_found_by_the_name_before_it() {
        for (text, value) in [
            ("password=hunter2", "hunter2"),
            ("PGPASSWORD=letmein psql", "letmein"),
            ("DB_PASS='it is long' run", "it is long"),
            ("{\"password\": \"correct horse\"}", "correct horse"),
            (r#"{\"apiKey\":\"abc123def456\"}"#, "abc123def456"),
            ("Server=db;Password=p@ss,w0rd;Database=x", "p@ss,w0rd"),
            ("mysql --password hunter2 db", "hunter2"),
            ("--api-key=12345678", "12345678"),
            ("client_secret: Zq8~longish", "Zq8~longish"),
            ("DD_API_KEY=0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
            (
                "HEROKU_AUTH_KEY=123e4567-e89b-12d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("token: 9f86d081884c7d65", "9f86d081884c7d65"),
            ("os.environ[\"APP_SECRET\"] = \"a1b2c3d4e5f6\"", "a1b2c3d4e5f6"),
            ("url?user=me&password=hunter2&x=1", "hunter2"),
        ] {
            assert_eq!(found(text), [value], "{text}");
        }
    }

    #[test]
    fn names_without_a_value_stay() {
        for text in [
            "unexpected token: identifier, expected `;`",
            "password: required",
            "password = get_password()",
            "password=$DB_PASSWORD password=${PASSWORD} password=<your password>",
            "if password == other.password:",
            "self.token = self.settings.token",
            "the secret: there is none",
            "primary_key=id sort_key: created_at key=value",
            "max_tokens=4096 total_tokens: 12000 tokenizer=cl100k_base",
            "PWD=/home/me/work4 OLDPWD=/tmp",
            "key_path=/etc/ssl/key.pem ssl_key: /etc/ssl/private/server2.pem",
            "password: string; token: string;",
            "\"token\": \"identifier\", \"key\": \"ArrowDown\"",
            "password=None, secret=null, token=[masked:token]",
            "--password-file=/run/secrets/db --token-ttl 30m",
        ] {
            assert_eq!(found(text), Vec::<&str>::new(), "{text}");
        }
    }
}
