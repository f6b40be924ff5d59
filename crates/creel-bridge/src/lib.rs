//! What creel and the program in the sandbox say to each other.
//!
//! One program, `creel-bridge`, is uploaded into every sandbox. What it does is
//! named by its first argument:
//!
//! | command | what it is |
//! |---|---|
//! | `hold` | the *holder*: first process of a Docker sandbox and root of a process sandbox; reaps, and ends when the lease is not renewed |
//! | `exec` | runs one command to its end or its limit, and streams what it writes |
//! | `serve` | the *bridge*: detached, owns the runtime, spools its events |
//! | `tail` | prints the spool from a sequence number on |
//! | `acknowledge` | keeps up to which number the supervisor has the events |
//! | `poke` | makes the bridge look at its commands now |
//! | `put`, `get` | carry a file in or out, see [`file`] |
//! | `alive` | does nothing, and so shows that it can |
//! | `ask` | for programs in the sandbox: asks the person behind the run, and prints the answer |
//!
//! Nothing secret is ever an argument: an [`exec::Order`] or a
//! [`serve::Order`] comes on the standard input, or as a file that is removed
//! as soon as it was read.
//!
//! Everything that comes out is a [`frame`]: one line of ASCII JSON with a
//! sequence number and a checksum. Other bytes are ignored, so a provider that
//! mixes its own words in, or cuts a line, does no harm.

pub mod event;
pub mod exec;
pub mod file;
pub mod frame;
pub mod serve;
