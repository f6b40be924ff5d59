//! creel-model: the vocabulary that all parts of creel share.
//!
//! Types, traits and total functions, without a database, an engine or a terminal. What is here
//! depends on nothing else of creel except the masking of secrets and the bridge's protocol.
//!
//! | module | contents |
//! |---|---|
//! | [`id`], [`labels`], [`names`] | how resources and runs are named and marked |
//! | [`owner`], [`os`], [`clock`] | which process holds a resource, and whether it is still alive |
//! | [`provider`] | the [`Provider`](provider::Provider) trait, its errors, identities and retries |
//! | [`backend`] | the [`Backend`](backend::Backend) trait: everything that differs between providers |
//! | [`run`] | the model of a run: phase, cause, event, state |
//! | [`sandbox`] | access to a sandbox of any provider, and how a provider makes one |
//! | [`certificate`] | an object in a leak certificate |
//! | [`failure`] | error codes, their pages, and the next command to type |
//! | [`crashpoint`] | the named places at which tests kill the process |
//! | [`duration`], [`size`] | values that users write |
//! | [`task`] | the one place that spawns background tasks |

pub mod backend;
pub mod certificate;
pub mod clock;
pub mod crashpoint;
pub mod duration;
pub mod failure;
pub mod id;
pub mod labels;
pub mod names;
pub mod os;
pub mod owner;
pub mod provider;
pub mod run;
pub mod sandbox;
pub mod size;
pub mod task;
