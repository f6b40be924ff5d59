//! The Docker gate: a private socket in front of an engine.
//!
//! It handles one request per connection. It reads the head, asks the engine to close after its
//! response unless the connection is upgraded, and copies bytes in both directions. Only the bodies
//! of creates are read and changed. An HTTP server in the middle would break what clients do with a
//! hijacked connection.
//!
//! - `serve` accepts, `gate` decides, `stream` copies.
//! - `create` forwards containers, networks and volumes, each with its claim.
//! - `images` attributes what builds, pulls, loads, commits and tags make. `references` attributes
//!   the names among it. `tag_times` distinguishes names of the command from those that others
//!   moved.
//! - `response` reads what the engine says about them. `session` reads it from BuildKit's messages,
//!   which `http2` takes from the connection.

mod archive;
mod borrowed;
mod chunked;
mod container;
mod create;
mod gate;
mod head;
mod http2;
mod images;
mod references;
mod response;
mod route;
mod serve;
mod session;
mod stream;
mod tag_times;

use super::json;
pub use gate::DockerGate;
pub use serve::{GateSocket, serve};
