//! The files of a spool.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file extension of a segment.
const EXTENSION: &str = "frames";

/// The state at the start of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentHead {
    /// The number of turns started so far.
    pub turns: u32,
    /// Whether the last of them had not ended.
    pub is_running: bool,
}

/// One file of a spool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// The number of its first event.
    pub first: u64,
    /// The path of the file.
    pub path: PathBuf,
}

impl Segment {
    /// Returns the segment that begins with a number.
    pub(super) fn new(spool: &Path, first: u64) -> Self {
        Self { first, path: spool.join(format!("{first:020}.{EXTENSION}")) }
    }

    /// Returns all segments of a spool in ascending sequence; none if the spool does not exist.
    pub(crate) fn all(spool: &Path) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(spool) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found: Vec<Self> =
            entries.filter_map(|entry| Self::of(entry.ok()?.path())).collect();
        found.sort();
        Ok(found)
    }

    fn of(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        Some(Self { first: name.parse().ok()?, path })
    }
}
