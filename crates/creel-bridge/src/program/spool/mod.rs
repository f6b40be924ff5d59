//! The spool: every event of a bridge, in order, in files.
//!
//! A *segment* is a file of frames named by the number of its first event. Its first
//! line is a *head*, a frame with number 0, which says how things stood when the
//! segment began; so the last segment alone tells a bridge where it was, and older
//! ones can go as soon as they are acknowledged.
//!
//! # What a crash leaves
//!
//! Events are appended with one write each time. A bridge that is killed leaves whole
//! lines and perhaps the beginning of one more, which the next bridge cuts off. An event
//! is on the disk before it is told to anybody: `tail` sees to that, because only it
//! knows what is told. A segment appears under its name with its head in it.

mod reader;
mod segment;
mod writer;

pub(crate) use reader::Reader;
pub(crate) use segment::Segment;
pub(crate) use writer::{Recovered, Spool};
