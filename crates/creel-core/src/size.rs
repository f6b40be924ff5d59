//! Sizes as people write them for containers: `512m`, `4g`.

use serde::{Deserialize, Deserializer, Serializer};

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size such as 512m or 4g")]
pub struct InvalidSize {
    text: String,
}

/// Reads a size in bytes; units are powers of 1024, as the Docker command line has them.
///
/// # Errors
///
/// Fails when it is no number, or has a unit that nobody knows.
pub fn parse(text: &str) -> Result<u64, InvalidSize> {
    let invalid = || InvalidSize { text: text.to_owned() };
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(invalid()),
    };
    let count: u64 = digits.trim().parse().map_err(|_| invalid())?;
    count.checked_mul(unit).ok_or_else(invalid)
}

/// Reads a size from a setting.
///
/// # Errors
///
/// Fails when it is no text, or no size.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// Writes a size as a setting, in bytes.
///
/// # Errors
///
/// Fails when the format takes no text.
pub fn serialize<S: Serializer>(size: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_docker_reads_them() {
        assert_eq!(parse("512m"), Ok(512 << 20));
        assert_eq!(parse("4 GiB"), Ok(4 << 30));
        assert_eq!(parse("100"), Ok(100));
        for text in ["", "g", "4x", "-1g", "99999999999t"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
