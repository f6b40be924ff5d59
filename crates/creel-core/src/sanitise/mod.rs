//! The sanitiser: what of the outside's words may be kept or shown.
//!
//! Two types and no third way: [`Masked`] and [`Diagnostic`].

mod text;

pub use text::{Diagnostic, Masked};
