//! Moments in milliseconds since the epoch, and their format in the API.

use serde::{Serialize, Serializer};

/// A moment in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) i64);

impl Moment {
    /// Returns the current moment.
    pub(crate) fn now() -> Self {
        Self(jiff::Timestamp::now().as_millisecond())
    }

    /// Returns a later moment.
    pub(crate) fn plus(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Parses a moment from a query.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|at| Self(at.as_millisecond()))
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = jiff::Timestamp::from_millisecond(self.0).unwrap_or_default();
        write!(formatter, "{at:.3}")
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_with_milliseconds_and_zulu() {
        assert_eq!(Moment(1_700_000_000_120).to_string(), "2023-11-14T22:13:20.120Z");
        assert_eq!(Moment::parse("2023-11-14T22:13:20.120Z"), Some(Moment(1_700_000_000_120)));
    }
}
