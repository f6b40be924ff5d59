//! The real program, from outside.

mod bridge;
mod cuts;
mod exec;
mod hold;
mod serve;
mod support;
