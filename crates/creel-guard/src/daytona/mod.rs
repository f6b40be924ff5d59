//! The Daytona gate: a private loopback endpoint in front of the service.
//!
//! ```text
//!   command ──http──▶ serve ──▶ gate ──▶ route ─┬─▶ create, fork   claim, labels, switches
//!                                               ├─▶ ours           labels, deletes, switches
//!                                               └─▶ forward        everything else, as it is
//! ```
//!
//! For a create, the gate records the intent on the ledger. It adds a generated name where there is
//! none, our labels, and switches by which the sandbox ends itself when it is not renewed. The
//! create is sent once, in a task of its own, so a client that disconnects does not stop it
//! halfway. The outcome is recorded before the client has its response. A crash at any point leaves
//! an open intent, and a sandbox that a search by name or label finds.
//!
//! A fork takes no labels. It gets a generated name where it has none, is claimed by the id in the
//! response, and is labelled then. A crash in between leaves a sandbox that only its time to live
//! ends.
//!
//! Toolbox calls do not pass through the gate. Clients send them to the address in the sandbox's
//! own record, and they create no sandboxes.

mod body;
mod change;
mod create;
mod fork;
mod forward;
mod gate;
mod refusal;
mod route;
mod serve;

pub use gate::{DaytonaGate, GateConfig};
pub use serve::GateListener;
