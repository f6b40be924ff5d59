//! The Daytona gate: a private loopback endpoint in front of the service.
//!
//! ```text
//!   command ──http──▶ serve ──▶ gate ──▶ route ─┬─▶ create, fork   claim, labels, switches
//!                                               ├─▶ ours           labels, deletes, switches
//!                                               └─▶ forward        everything else, as it is
//! ```
//!
//! A create gets its intent on the ledger, a name of ours where it has none,
//! our labels, and switches by which the sandbox ends itself when nobody
//! renews it. It is sent once, in a task of its own: a client that hangs up
//! does not stop it half-way. What came of it is on record before the client
//! has its answer. A crash at any place leaves an open intent, and a sandbox
//! that a search by name or label finds.
//!
//! A fork takes no labels. It gets a name of ours where it has none, is claimed by the id in the
//! answer, and is labelled then; a crash in between leaves one that only its time to live ends.
//!
//! Toolbox calls do not come by here: clients send them where the sandbox's
//! own record says, and they create no sandboxes.

mod body;
mod create;
mod fork;
mod forward;
mod gate;
mod ours;
mod refusal;
mod route;
mod serve;

pub use gate::{DaytonaGate, GateOrder};
pub use serve::GateListener;
