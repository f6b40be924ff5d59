//! The sanitiser: what of the outside's words may be kept or shown.
//!
//! Two types and no third way: [`Masked`] and [`Diagnostic`]. Both come out of a [`Masker`],
//! which knows the secrets of a run:
//!
//! ```text
//!   text ─┬─▶ known: the secrets, in every encoding ───┐
//!         ├─▶ rules: shapes of tokens, headers, URLs ──┤
//!         ├─▶ keys: private key blocks ────────────────┼─▶ spans ─▶ merged ─▶ Masked
//!         ├─▶ random: what no person would have named ─┤
//!         └─▶ private: words of the task ──────────────┘      (and cut) ─▶ Diagnostic
//! ```
//!
//! All finders look at the same text, so none can tear apart what another would have found; what
//! they found is united before anything is replaced, and cutting comes last. [`MaskStream`] does
//! the same for text that comes in pieces.
//!
//! Nothing is written here; a crash leaves nothing behind.

mod clean;
mod forms;
mod hidden;
mod keys;
mod known;
mod masker;
mod named;
mod private;
mod process;
mod random;
mod rules;
mod scan;
mod secrets;
mod services;
#[cfg(test)]
mod services_tests;
mod sieve;
mod span;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod unescape;
mod view;

pub use masker::Masker;
pub use process::{process_masker, remember};
pub use rules::{patterns, tokens};
pub use secrets::{Secrets, Unmaskable, Unmasked};
pub use stream::MaskStream;
pub use text::{Diagnostic, Masked, Plain};
