//! The ledger: what may exist, recorded before it does.
//!
//! Every resource has one record. Its events are appended and never changed. Its state is the
//! result of one function, [`ResourceState::next`], both live and in replay.
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
//! Every write is one transaction that appends the event and updates the row, so a crash leaves
//! either both or neither. A record in `Intended` means that an object of that name may exist:
//! search for it. A record in `Releasing` means that the release must be finished. Nothing is ever
//! created without a record, because the intent is durable (WAL, synchronous FULL) before the
//! provider receives the request. A ledger that cannot be written refuses the create instead.
//!
//! The row of a run holds the result of its events as of the last save. The events are in a
//! separate file, which is written first. A row may be behind them, but never ahead.
//!
//! # Modules
//!
//! Each depends only on what is below it:
//!
//! ```text
//!   event_log   the journal of a run: log first, then row
//!   ledger      opens a ledger, and chooses its store
//!   sqlite      the store and the event log in SQLite files
//!   presence    whether the expected ledger is there
//!   store       the trait of all stores
//!   error, record, run, unfinished, state, event, owner, lease, window, files
//! ```

mod deferred;
mod error;
mod event;
pub mod event_log;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
mod files;
mod lease;
mod ledger;
mod owner;
pub mod presence;
mod record;
mod run;
mod sqlite;
mod state;
mod store;
mod unfinished;
mod window;

pub use error::{LedgerError, WhenFull};
pub use event::{Event, StoredEvent};
pub use files::make_private_directory;
pub use lease::{Lease, LeaseStatus};
pub use ledger::Ledger;
pub use owner::{OnOwnerDeath, OwnerRecord};
pub use record::{Intent, Record, RecordFilter, Try};
pub use run::{NewCommand, NewRun, PlacedCommand, RunFilter, RunRecord, WorkflowRecord};
pub use sqlite::SqliteStore;
pub use state::{IllegalTransition, ResourceState, StateName};
pub use store::Store;
pub use unfinished::{Noted, UnfinishedDelete};
pub use window::{SearchStatus, SearchWindow};

/// The result of a ledger operation.
pub type Result<T> = std::result::Result<T, LedgerError>;
