//! Decides which resources a command selects, and which it must not touch.
//!
//! A [`Selector`] describes what is selected, [`Ownership`] who owns it, and a [`ProtectRule`] what
//! is never released. All of them are pure functions of one
//! [`Observed`](creel_model::provider::Observed). [`date_images`] fetches the one property that they need
//! and a list lacks: an image's age.

mod image_age;
mod ownership;
mod preset;
mod protect;
pub(crate) mod selector;

pub use image_age::{Dating, date_images};
pub use ownership::{Ownership, RecordIndex};
pub use preset::preset_selectors;
pub use protect::{ProtectRule, protection};
pub use selector::{InvalidSelector, LabelMatch, LedgerChoice, NamePattern, Selector};
