//! The spool: every event of a bridge, in order, in files.
//!
//! A *segment* is a file of frames, named by the number of its first event. Its first line is a
//! *head*, a frame with number 0, which records the state at the start of the segment. So a bridge
//! can recover from the last segment alone, and older ones can be deleted once they are
//! acknowledged.
//!
//! # What a crash leaves
//!
//! Each append is one write. A bridge that is killed leaves complete lines and perhaps the
//! beginning of one more, which the next bridge cuts off. An event is on disk before any reader
//! receives it: `tail` syncs before it prints, because only `tail` knows what it prints. A segment
//! appears under its name only with its head in it.

mod reader;
mod segment;
mod writer;

pub(crate) use reader::SpoolReader;
pub(crate) use segment::Segment;
pub(crate) use writer::{Recovered, Spool};
