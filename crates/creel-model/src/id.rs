//! Identifiers: a prefix that names the type, and a UUIDv7.
//!
//! The time-ordered UUID makes rows sort by age, and the prefix makes a pasted identifier
//! self-explanatory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not an identifier of the expected type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an identifier of the form {prefix}_<32 hexadecimal digits>")]
pub struct InvalidId {
    /// The given text.
    text: String,
    /// The expected prefix.
    prefix: &'static str,
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// Creates a new identifier from the current time and randomness.
            #[expect(clippy::new_without_default, reason = "each call gives another value")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// Returns the 32 hexadecimal digits without the prefix.
            pub fn digits(&self) -> String {
                self.0.simple().to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.simple())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|digits| digits.len() == 32)
                    .and_then(|digits| Uuid::try_parse(digits).ok())
                    .map(Self)
                    .ok_or_else(|| InvalidId { text: text.to_owned(), prefix: $prefix })
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

identifier!(
    /// Identifies one resource on one ledger.
    ResourceId,
    "res"
);
identifier!(
    /// Identifies one ledger. Resources that carry another ledger's id are foreign.
    LedgerId,
    "led"
);
identifier!(
    /// Identifies one run: the work that a set of resources was acquired for.
    RunId,
    "run"
);

impl ResourceId {
    /// Returns the deterministic name of the resource's object in its provider.
    pub fn object_name(&self) -> String {
        format!("creel-{}", self.digits())
    }

    /// Returns the resource whose object has exactly this name.
    pub fn of_object(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("creel-")?;
        let resource: Self = format!("res_{digits}").parse().ok()?;
        // Upper-case digits parse too, but our names never contain them.
        (resource.digits() == digits).then_some(resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_the_round_trip_through_text() {
        let id = ResourceId::new();
        assert_eq!(id.to_string().parse::<ResourceId>(), Ok(id));
    }

    #[test]
    fn another_prefix_is_refused() {
        assert!(LedgerId::new().to_string().parse::<ResourceId>().is_err());
        assert!("res_123".parse::<ResourceId>().is_err());
    }

    #[test]
    fn an_object_name_maps_to_its_resource_and_a_similar_one_to_none() {
        let resource = ResourceId::new();
        let name = resource.object_name();
        assert_eq!(ResourceId::of_object(&name), Some(resource));
        for near in [format!("{name}0"), name.to_uppercase(), format!("x{name}"), String::new()] {
            assert_eq!(ResourceId::of_object(&near), None, "{near}");
        }
    }
}
