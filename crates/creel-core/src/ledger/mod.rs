//! The ledger: what may exist, recorded before it does.
//!
//! Every resource has one record. Its events are appended, never changed, and
//! its state is what the one function [`State::next`] makes of them, live and
//! in replay alike.
//!
//! ```text
//!                 Created, Found                 ReleaseRequested
//!   Intended ───────────────────────▶ Created ───────────────────▶ Releasing
//!      │  │                              │                          │     │
//!      │  └── ReleaseRequested ──────────┼─────────────────────▶────┘     │
//!      │ NeverCreated            Vanished│              VerifiedGone│     │Quarantined
//!      ▼                                 ▼                          ▼     ▼
//!     Gone                             Lost                       Gone  Quarantined
//! ```
//!
//! # What a crash can leave
//!
//! Every write is one transaction that appends the event and moves the row, so
//! a crash leaves either both or neither. A record in `Intended` means: there
//! may be an object of that name, look for it. A record in `Releasing` means:
//! finish it. Nothing is ever created without a record, because the intent is
//! durable (WAL, synchronous FULL) before the provider hears of it; a ledger
//! that cannot be written refuses the create instead.
//!
//! The row of a run holds what its events had made of it when it was saved last. The events are
//! in a file of their own, written first: a row may be behind them, never ahead.

mod error;
mod event;
mod lease;
pub(crate) mod presence;
mod record;
mod run;
mod sqlite;
mod state;
mod store;
mod unfinished;
mod window;

pub use error::LedgerError;
pub use event::{Event, StoredEvent};
pub use lease::{Lease, LeaseStatus};
pub use record::{Intent, OnOwnerDeath, OwnerRecord, Record, RecordFilter, Try};
pub use run::{NewOrder, NewRun, PlacedOrder, RunFilter, RunRecord, WorkflowRecord};
pub use sqlite::SqliteStore;
pub(crate) use sqlite::{ballast, columns, database, queue, write};
pub use state::{IllegalTransition, State, StateName};
pub use store::{Ledger, Store};
pub use unfinished::{Noted, UnfinishedDelete};
pub use window::{SearchStatus, SearchWindow};

/// The result of a ledger operation.
pub type Result<T> = std::result::Result<T, LedgerError>;
