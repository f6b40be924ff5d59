//! The protocol between creel and the program in the sandbox.
//!
//! One program, `creel-bridge`, is uploaded into every sandbox. Its first argument selects what it
//! does:
//!
//! | command | what it is |
//! |---|---|
//! | `hold` | the *holder*: reaps orphans, and ends when its lease is not renewed |
//! | `exec` | runs one command to its end or its limit, and streams its output |
//! | `serve` | the *bridge*: detached, owns the runtime, spools its events |
//! | `tail` | prints the spool from a sequence number on |
//! | `acknowledge` | records the last event number that the supervisor has stored |
//! | `poke` | makes the bridge check for commands now |
//! | `put`, `get` | copy a file into or out of the sandbox, see [`file`] |
//! | `alive` | does nothing, which proves that the program can run |
//! | `ask` | for programs in the sandbox: asks the person behind the run, and prints the answer |
//!
//! The holder is the first process of a Docker sandbox and the root of a process sandbox.
//!
//! Secrets are never passed as arguments. An [`exec::ExecRequest`] or a [`serve::ServeRequest`]
//! comes on standard input, or in a file that is removed as soon as it is read.
//!
//! All output consists of [`frame`]s: lines of ASCII JSON with a sequence number and a checksum. A
//! reader ignores other bytes, so a provider that mixes in its own output, or cuts a line, does no
//! harm.

pub mod event;
pub mod exec;
pub mod file;
pub mod frame;
pub mod serve;
