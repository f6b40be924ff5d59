//! One macro for enums whose members have fixed names.

/// Declares an enum whose members have fixed names in JSON, in storage and on the command line.
///
/// The name of a member is written once, so serialized and printed names cannot differ. An unknown
/// name is an [`UnknownName`](crate::provider::UnknownName), which suggests the nearest one. The
/// crate that uses this needs `serde`.
///
/// ```
/// creel_model::named_enum! {
///     /// A direction.
///     pub enum Direction: "direction" {
///         /// Towards the engine.
///         Up = "up",
///         /// Towards the client.
///         Down = "down",
///     }
/// }
/// assert_eq!(Direction::ALL.map(Direction::name), ["up", "down"]);
/// assert_eq!("down".parse(), Ok(Direction::Down));
/// let error = "dwn".parse::<Direction>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown direction `dwn`; did you mean `down`?");
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident: $what:literal {
            $($(#[$member_meta:meta])* $member:ident = $text:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord,
            ::serde::Serialize, ::serde::Deserialize,
        )]
        $visibility enum $name {
            $($(#[$member_meta])* #[serde(rename = $text)] $member,)+
        }

        impl $name {
            /// All members, in the order of their declaration.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$member),+];

            /// Returns the name used in JSON, in storage and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $text,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::provider::UnknownName;

            fn from_str(text: &str) -> ::std::result::Result<Self, Self::Err> {
                $crate::provider::UnknownName::pick(text, $what, &Self::ALL, Self::name)
            }
        }
    };
}
