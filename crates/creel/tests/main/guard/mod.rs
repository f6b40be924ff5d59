//! The guard on real clients and a real engine.
//!
//! - `transparency`: what the docker CLI shows is the same with and without it.
//! - `terminal`: so is what a user at a terminal sees, and what keys do.
//! - `attribution`, `images`: what is the command's goes, what is not stays.
//! - `replaced`: what others put in the place of the command's things stays.
//! - `cut_builds`: whoever dies in a build, none of its images stay.
//! - `certificates`: what a certificate says, the exit code says too.
//! - `clients`: Compose, Buildx, docker-py, testcontainers and bollard, unchanged.
//! - `harbor`: a benchmark harness, with a task of its own.
//! - `unguarded`: the same harnesses without a guard, and what their recipes do.
//! - `weather`: an engine that restarts, is slow, or has no room.
//! - `daytona`: the same for sandboxes, with the official SDKs.
//! - `limits`: refusals, and the file of events.
//! - `endings`: exit codes, what is kept, what the command finds around it.
//! - `kills`: whatever is killed, nothing is left.

mod attribution;
mod certificates;
mod clients;
mod cut_builds;
mod daytona;
mod endings;
mod harbor;
mod images;
pub(crate) mod kills;
mod limits;
mod replaced;
mod replacements;
pub(crate) mod scene;
mod socket;
pub(crate) mod terminal;
mod transparency;
mod unguarded;
mod weather;
