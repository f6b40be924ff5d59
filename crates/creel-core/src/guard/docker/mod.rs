//! The Docker gate: a private socket in front of an engine.
//!
//! It handles one request a connection: it reads the head, asks the engine to
//! close after its answer unless the connection is upgraded, and copies bytes
//! both ways. Only the bodies of creates are read and changed. A server in the
//! middle would break what clients do with a hijacked connection.
//!
//! - `serve` accepts, `gate` decides, `stream` copies.
//! - `create` passes containers, networks and volumes on, each with its claim.
//! - `images` attributes what builds, pulls, loads, commits and tags make, `references` the names
//!   among it, and `tag_times` tells names of the command from those that others moved.

mod answer;
mod archive;
mod borrowed;
mod chunked;
mod container;
mod create;
mod gate;
mod head;
mod images;
mod references;
mod route;
mod serve;
mod stream;
mod tag_times;

use super::json;
pub use gate::DockerGate;
pub use serve::{GateSocket, serve};
