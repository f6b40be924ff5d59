//! Tests of the real program, from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod bridge;
mod exec;
mod files;
mod hold;
mod interruptions;
mod serve;
mod signs;
mod support;
