//! The sanitiser: decides which external text may be stored or shown.
//!
//! Only two types carry such text: [`Masked`] and [`Diagnostic`]. Both come from a [`Masker`],
//! which knows the secrets of a run:
//!
//! ```text
//!   text ─┬─▶ known: the secrets, in every encoding ───┐
//!         ├─▶ rules: shapes of tokens, headers, URLs ──┤
//!         ├─▶ keys: private key blocks ────────────────┼─▶ spans ─▶ merged ─▶ Masked
//!         ├─▶ random: what no person would have named ─┤
//!         └─▶ private: text of the task ───────────────┘      (and cut) ─▶ Diagnostic
//! ```
//!
//! All finders read the same text, so none can split what another would find. Their spans are
//! merged before anything is replaced, and truncation comes last. [`MaskStream`] does the same for
//! text that arrives in chunks.
//!
//! This module writes nothing; a crash leaves nothing behind.

mod clean;
mod forms;
mod hidden;
mod keys;
mod known;
mod mask_rule;
mod masker;
mod multi_search;
mod named_values;
mod private;
mod process;
mod random;
mod rules;
mod scan;
mod secrets;
mod services;
#[cfg(test)]
mod services_tests;
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
