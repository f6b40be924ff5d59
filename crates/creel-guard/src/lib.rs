//! The guard: everything a command creates through it is owned, limited and released.
//!
//! ```text
//!   command ──DOCKER_HOST──▶ docker gate ──▶ engine      head read, creates parsed,
//!           ──DAYTONA_API_URL▶ daytona gate ─▶ service     the rest streams through
//!                               │
//!                               ▼
//!                            claims ──▶ ledger             intent before every create
//! ```
//!
//! A gate never buffers a request it does not have to understand. For a create, the intent is on
//! the ledger before the request is forwarded. The object carries the label of that intent if its
//! kind supports labels. A crash at any point leaves intents that a search by label resolves.
//! Images and anonymous volumes carry no label. They are identified from the engine's responses,
//! and from the container that uses them.

mod claims;
pub mod daytona;
pub mod docker;
mod json;
mod place;
mod policy;

pub use claims::{ClaimDefaults, Claims, GuardEvent, GuardListener};
pub use place::SocketPlace;
pub use policy::Policy;
