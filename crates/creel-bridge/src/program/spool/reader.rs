//! The reading end of a spool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use creel_bridge::frame;
use serde::de::IgnoredAny;

use super::segment::Segment;

/// The number of bytes read at once.
const CHUNK: usize = 256 << 10;

/// Reads a spool from a number on, while another process appends to it.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    directory: PathBuf,
    current: Option<(Segment, File)>,
    /// The offset of the first line that was not read completely. Only complete lines are consumed,
    /// because a restarted bridge cuts off incomplete ones.
    offset: u64,
    /// The number of the next wanted event.
    next: u64,
    /// The newest number seen, wanted or not.
    newest: u64,
    buffer: Vec<u8>,
}

impl SpoolReader {
    /// Starts at an event number.
    pub(crate) fn new(directory: &Path, from: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            current: None,
            offset: 0,
            next: from.max(1),
            newest: 0,
            buffer: vec![0; CHUNK],
        }
    }

    /// Returns the newest number seen, or 0.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Passes on all complete lines that were not read yet, in pieces. They are on disk before they
    /// are passed on.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        loop {
            // List the segments before reading the file: a segment that is not the last does not
            // grow.
            let segments = Segment::all(&self.directory)?;
            if self.current.is_none() {
                self.go_to(start(&segments, self.next))?;
            }
            let Some((segment, _)) = &self.current else { return Ok(()) };
            let after = segments.into_iter().find(|other| other.first > segment.first);
            self.read_segment(&mut each)?;
            match after {
                Some(after) => self.go_to(Some(after))?,
                None => return Ok(()),
            }
        }
    }

    fn go_to(&mut self, segment: Option<Segment>) -> io::Result<()> {
        self.offset = 0;
        self.current = None;
        let Some(segment) = segment else { return Ok(()) };
        match File::open(&segment.path) {
            Ok(file) => {
                self.newest = self.newest.max(segment.first.saturating_sub(1));
                self.current = Some((segment, file));
            }
            // It was acknowledged and removed just now. The next scan finds its successor.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read_segment(&mut self, each: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some((_, file)) = &self.current else { return Ok(()) };
        loop {
            let count = file.read_at(&mut self.buffer, self.offset)?;
            let read = &self.buffer[..count];
            let Some(end) = read.iter().rposition(|byte| *byte == b'\n') else {
                if count < self.buffer.len() {
                    return Ok(());
                }
                // One line is longer than the whole buffer.
                self.buffer.resize(count * 2, 0);
                continue;
            };
            let lines = &read[..=end];
            self.offset += lines.len() as u64;
            let wanted = wanted(lines, self.next);
            self.newest = self.newest.max(wanted.newest);
            if !wanted.lines.is_empty() {
                file.sync_data()?;
                each(&wanted.lines)?;
                self.next = wanted.newest + 1;
            }
        }
    }
}

/// Returns the segment that contains a number, or the first one after it.
fn start(segments: &[Segment], number: u64) -> Option<Segment> {
    let before = segments.iter().rev().find(|segment| segment.first <= number);
    before.or(segments.first()).cloned()
}

/// The result of filtering the lines of a segment.
struct Wanted {
    /// The wanted lines.
    lines: Vec<u8>,
    /// The newest number among all lines.
    newest: u64,
}

/// Selects the lines that are events from a number on.
fn wanted(lines: &[u8], from: u64) -> Wanted {
    let mut wanted = Wanted { lines: Vec::new(), newest: 0 };
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let Some(frame) = frame::decode::<IgnoredAny>(line) else { continue };
        if frame.seq >= from && frame.seq > wanted.newest {
            wanted.lines.extend_from_slice(line);
        }
        wanted.newest = wanted.newest.max(frame.seq);
    }
    wanted
}
