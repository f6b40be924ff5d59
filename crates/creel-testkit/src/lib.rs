//! Real parts for creel's tests.
//!
//! The promise under test is about the world outside the program, so the tests
//! run against a real Docker Engine and the real binary; a fake stands in only
//! where the real thing cannot be brought into the wanted state. Nothing here
//! skips: a missing part is an error that names the command that provides it.
//!
//! ```text
//!   test ──▶ Creel (the real binary) ──▶ Wire (faults) ──▶ PrivateEngine
//!     │                                                        ▲
//!     └── World, Decoys: what exists, what was touched ────────┘
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | [`engine`] | a Docker Engine of our own, and how tests find it |
//! | [`api`] | one HTTP request over a unix socket |
//! | [`docker`] | creates and inspects objects, by the API or the CLI |
//! | [`image`] | the busybox image every test container runs |
//! | [`world`] | what exists on an engine, and what differs from before |
//! | [`decoys`] | look-alikes that must survive |
//! | [`wire`] | a proxy that cuts, delays and falsifies answers |
//! | [`fake_engine`] | scripted answers a real engine cannot give |
//! | [`http`] | one HTTP request over TCP |
//! | [`creel`] | runs the real binary with a deadline |
//! | [`daytona`] | `creel dev daytona`, and what it is told and asked |
//! | [`git`] | a git server with logins and faults |
//! | [`github`] | hands out tokens to an app's installation |
//! | [`machine`] | a whole machine with another kernel, and a plug to pull |
//! | [`registry`] | a registry with one image |
//! | [`podman`], [`sshd`] | the other ways an engine is reached |
//! | [`wait`] | polls for a condition with a deadline |
//! | [`leftovers`] | ends everything that lives below a directory of ours |

pub mod api;
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
pub mod leftovers;
mod listener;
pub mod machine;
pub mod podman;
pub mod registry;
pub mod sshd;
pub mod wait;
pub mod web;
pub mod wire;
pub mod world;
