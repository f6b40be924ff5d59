//! The guard: everything a command creates through it is owned, limited and given back.
//!
//! ```text
//!   command ──DOCKER_HOST──▶ docker gate ──▶ engine      head read, creates parsed,
//!           ──DAYTONA_API_URL▶ daytona gate ─▶ service     the rest streams through
//!                               │
//!                               ▼
//!                            claims ──▶ ledger             intent before every create
//! ```
//!
//! A gate never keeps a request it does not have to understand. For those that
//! create, the intent is on the ledger before the request is passed on, and
//! the object carries the intent's own label where its kind can. A crash at
//! any place leaves intents that a search by label settles; what carries no
//! label (images, volumes nobody named) is known from the engine's answers and
//! from the container that uses it.

mod claims;
pub mod daytona;
pub mod docker;
mod json;
mod place;
mod policy;

pub use claims::{Claims, Happening, Listener, Terms};
pub use place::SocketPlace;
pub use policy::Policy;
