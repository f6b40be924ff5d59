//! Container sizes in the usual notation: `512m`, `4g`.

use serde::{Deserialize, Deserializer, Serializer};

/// A text that is not a valid size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size such as 512m or 4g")]
pub struct InvalidSize {
    text: String,
}

/// Parses a size in bytes. Units are powers of 1024, as on the Docker command line.
///
/// # Errors
///
/// Fails when the text is not a number, or has an unknown unit.
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

/// Deserializes a size from a setting.
///
/// # Errors
///
/// Fails when the value is not a string, or not a size.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// Serializes a size as a setting, in bytes.
///
/// # Errors
///
/// Fails when the format does not accept strings.
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
