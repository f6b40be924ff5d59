//! The real program, from outside.

mod exec;
mod hold;
mod support;
