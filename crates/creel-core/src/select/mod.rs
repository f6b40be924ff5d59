//! Which resources a command means, and which it must leave alone.
//!
//! A [`Selector`] says what is meant, [`Ownership`] whose it is, and a
//! [`ProtectRule`] what is never released. All of them are pure: they look at
//! one [`Observed`](crate::provider::Observed) and answer. [`date_images`] asks
//! for the one property that a list lacks and that they need: an image's age.

mod image_age;
mod ownership;
mod preset;
mod protect;
pub(crate) mod selector;

pub use image_age::{Dating, date_images};
pub use ownership::{Ownership, Roll};
pub use preset::Preset;
pub use protect::{ProtectRule, protection};
pub use selector::{
    InvalidSelector, LabelMatch, LedgerChoice, NamePattern, Selector, known_states,
};
