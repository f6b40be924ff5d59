//! Real parts for creel's tests.
//!
//! creel promises effects outside of its own process. So the tests run against a real Docker Engine
//! and the real binary. A fake is used only where a real part cannot be brought into the wanted
//! state. Nothing here skips: a missing part is an error that names the command that provides it.
//!
//! ```text
//!   test ──▶ Creel (the real binary) ──▶ Wire (faults) ──▶ PrivateEngine
//!     │                                                        ▲
//!     └── Inventory, Decoys: what exists, what was touched ────┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`engine`] | a private Docker Engine, and how tests find it |
//! | [`api`] | one HTTP request over a unix socket |
//! | [`docker`] | creates and inspects objects, through the API or the CLI |
//! | [`image`] | the busybox image every test container runs |
//! | [`inventory`] | the objects on an engine, and the difference from before |
//! | [`decoys`] | similar objects that must survive |
//! | [`wire`] | a proxy that cuts, delays and falsifies responses |
//! | [`fake_engine`] | scripted responses a real engine cannot give |
//! | [`http`] | one HTTP request over TCP |
//! | `conformance` | the suite that every provider passes (feature `conformance`) |
//! | [`creel`] | runs the real binary with a deadline |
//! | [`daytona`] | `creel dev daytona`, with its admin requests |
//! | [`git`] | a git server with logins and faults |
//! | [`github`] | issues tokens to an app's installation |
//! | [`machine`] | a virtual machine with another kernel, whose power can be cut |
//! | [`registry`] | a registry with one image |
//! | [`podman`], [`sshd`] | the other transports to an engine |
//! | [`wait`] | polls for a condition with a deadline |
//! | [`leftovers`] | ends all processes below one of our directories |

pub mod api;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod creel;
pub mod daytona;
pub mod decoys;
pub mod docker;
pub mod engine;
pub mod fake_engine;
pub mod git;
pub mod github;
pub mod http;
pub mod image;
pub mod inventory;
pub mod leftovers;
mod listener;
pub mod machine;
pub mod podman;
pub mod registry;
pub mod sshd;
pub mod wait;
pub mod web;
pub mod wire;

/// The earlier names of [`inventory`], for test modules that are not renamed yet.
#[doc(hidden)]
pub mod world {
    pub use crate::inventory::{Inventory, Inventory as World, Kind, Object};
}
