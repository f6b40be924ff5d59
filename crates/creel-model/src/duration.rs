//! Durations in human-readable notation: `90s`, `2h 30m`, `1d`.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serializer};

/// A text that is not a valid duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration such as 90s, 2h 30m or 1d")]
pub struct InvalidDuration {
    text: String,
}

/// Parses a duration. A day is 24 hours.
///
/// # Errors
///
/// Fails when the text has no unit, is negative, or uses months or years.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.to_owned() };
    let span: Span = text.trim().parse().map_err(|_| invalid())?;
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| invalid())?;
    Duration::try_from(signed).map_err(|_| invalid())
}

/// Formats a duration for display: `2s`, `1h 30m`, `250ms`.
pub fn show(duration: Duration) -> String {
    let signed = jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX);
    // Nanoseconds are noise for readers.
    let rounded =
        jiff::SignedDuration::from_millis(i64::try_from(signed.as_millis()).unwrap_or(i64::MAX));
    format!("{rounded:#}")
}

/// Formats a limit for display: `7d` for whole days, otherwise like [`show`].
pub fn show_limit(duration: Duration) -> String {
    const DAY: u64 = 86_400;
    match duration.as_secs() {
        seconds if seconds > 0 && seconds.is_multiple_of(DAY) => format!("{}d", seconds / DAY),
        _ => show(duration),
    }
}

/// Formats a duration in its largest unit: `5s`, `12m`, `3h`, `9d`.
pub fn show_roughly(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// For `#[serde(deserialize_with)]`.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(serde::de::Error::custom)
}

/// For `#[serde(serialize_with)]`.
pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&show(*duration))
}

/// The same for a duration that may be missing.
pub mod optional {
    use super::{Deserialize, Deserializer, Duration, Serializer, parse, show};

    /// Reads a duration, or none.
    ///
    /// # Errors
    ///
    /// Fails when the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| parse(&text).map_err(serde::de::Error::custom)).transpose()
    }

    /// Writes a duration as users write it, or none.
    ///
    /// # Errors
    ///
    /// Fails when the serializer does.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => to.serialize_some(&show(*duration)),
            None => to.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_in_days_and_ages_in_their_largest_unit() {
        let limit = |text: &str| show_limit(parse(text).unwrap());
        assert_eq!([limit("7d"), limit("90m"), limit("0s")], ["7d", "1h 30m", "0s"]);
        let age = |seconds| show_roughly(Duration::from_secs(seconds));
        assert_eq!([age(59), age(3_599), age(172_799), age(172_800)], ["59s", "59m", "47h", "2d"]);
    }

    #[test]
    fn durations_are_written_with_units() {
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("2h 30m"), Ok(Duration::from_secs(9_000)));
        assert_eq!(parse("1d"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "10", "-5s", "1y", "soon"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_shown_short() {
        assert_eq!(show(Duration::from_millis(2_000)), "2s");
        assert_eq!(show(Duration::from_secs(5_400)), "1h 30m");
    }
}
