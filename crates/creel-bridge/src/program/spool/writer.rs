//! The writing end of a spool.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use creel_bridge::event::BridgeEvent;
use creel_bridge::frame;
use serde_json::value::RawValue;

use super::segment::{Segment, SegmentHead};

/// The size at which a segment is closed and the next one begins.
const LARGEST: u64 = 1 << 20;

/// A spool to which only this process appends.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    file: File,
    size: u64,
    /// The number of the next event.
    next: u64,
    /// The current state.
    head: SegmentHead,
}

/// What the last segment reveals about the previous bridge.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The turn that was interrupted.
    pub cut_turn: Option<u32>,
    /// Events that belong to a file outside of the spool, which may still exist after a crash.
    pub events: Vec<BridgeEvent>,
}

impl Spool {
    /// Opens an existing spool, or creates it.
    pub(crate) fn open(directory: &Path) -> io::Result<(Self, Recovered)> {
        match Segment::all(directory)?.pop() {
            Some(last) => Self::resume(directory, &last),
            None => {
                let (file, size) = begin(directory, 1, SegmentHead::default())?;
                let directory = directory.to_owned();
                let spool = Self { directory, file, size, next: 1, head: SegmentHead::default() };
                Ok((spool, Recovered::default()))
            }
        }
    }

    fn resume(directory: &Path, last: &Segment) -> io::Result<(Self, Recovered)> {
        let text = fs::read(&last.path)?;
        let mut spool = Self {
            directory: directory.to_owned(),
            file: OpenOptions::new().append(true).open(&last.path)?,
            size: 0,
            next: last.first,
            head: SegmentHead::default(),
        };
        let mut recovered = Recovered::default();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if !line.ends_with(b"\n") || !spool.replay(line, &mut recovered) {
                break;
            }
            spool.size += line.len() as u64;
        }
        // An incomplete event was never passed to a reader.
        spool.file.set_len(spool.size)?;
        spool.file.sync_data()?;
        recovered.cut_turn = spool.head.is_running.then_some(spool.head.turns);
        Ok((spool, recovered))
    }

    /// Applies one line of the last segment. Returns whether it is the expected next line.
    fn replay(&mut self, line: &[u8], recovered: &mut Recovered) -> bool {
        let Some(frame) = frame::decode::<Box<RawValue>>(line) else { return false };
        if frame.seq == 0 {
            let head = serde_json::from_str(frame.body.get());
            head.is_ok_and(|head| {
                self.head = head;
                self.size == 0
            })
        } else if frame.seq == self.next {
            let event = serde_json::from_str(frame.body.get()).unwrap_or(BridgeEvent::Unknown);
            self.note(&event);
            self.next += 1;
            if is_paired(&event) {
                recovered.events.push(event);
            }
            true
        } else {
            false
        }
    }

    /// Updates the state after an event.
    fn note(&mut self, event: &BridgeEvent) {
        match event {
            BridgeEvent::TurnStarted { turn, .. } => {
                self.head = SegmentHead { turns: *turn, is_running: true };
            }
            BridgeEvent::TurnEnded { .. } => self.head.is_running = false,
            _ => {}
        }
    }

    /// Appends events, all in one write as far as a crash of this process is concerned.
    pub(crate) fn append(&mut self, events: &[BridgeEvent]) -> io::Result<()> {
        if self.size >= LARGEST {
            self.file.sync_data()?;
            (self.file, self.size) = begin(&self.directory, self.next, self.head)?;
        }
        let mut lines = Vec::new();
        for event in events {
            lines.extend(frame::encode(self.next, event)?);
            self.note(event);
            self.next += 1;
        }
        self.file.write_all(&lines)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    /// Appends events, and returns when they are on disk.
    pub(crate) fn append_durably(&mut self, events: &[BridgeEvent]) -> io::Result<()> {
        self.append(events)?;
        self.file.sync_data()
    }

    /// Returns the number of the newest event, or 0 if there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.next - 1
    }

    /// Returns the number of turns started.
    pub(crate) fn turns(&self) -> u32 {
        self.head.turns
    }
}

/// Returns whether an event is followed by a file operation that recovery must repeat.
fn is_paired(event: &BridgeEvent) -> bool {
    matches!(event, BridgeEvent::CommandTaken { .. } | BridgeEvent::InputRequested { .. })
}

/// Creates a segment. It gets its name only after its head is written.
fn begin(directory: &Path, first: u64, head: SegmentHead) -> io::Result<(File, u64)> {
    let segment = Segment::new(directory, first);
    let draft = segment.path.with_extension("draft");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
    let line = frame::encode(0, &head)?;
    file.write_all(&line)?;
    file.sync_data()?;
    drop(file);
    fs::rename(&draft, &segment.path)?;
    File::open(directory)?.sync_all()?;
    let file = OpenOptions::new().append(true).open(&segment.path)?;
    Ok((file, line.len() as u64))
}

#[cfg(test)]
mod tests {
    use creel_bridge::event::TurnEnding;

    use super::*;

    fn text(turn: u32, text: &str) -> BridgeEvent {
        let stream = creel_bridge::event::Stream::Output;
        BridgeEvent::Text { turn, stream, text: text.to_owned() }
    }

    fn started(turn: u32) -> BridgeEvent {
        BridgeEvent::TurnStarted { turn, attempt: 1, model: None }
    }

    #[test]
    fn a_spool_goes_on_where_it_was_cut_wherever_that_was() {
        let home = tempfile::tempdir().unwrap();
        let (mut spool, _) = Spool::open(home.path()).unwrap();
        let ended = BridgeEvent::TurnEnded { turn: 1, how: TurnEnding::TimedOut };
        spool.append(&[started(1), text(1, "one"), ended, started(2)]).unwrap();
        let path = Segment::all(home.path()).unwrap()[0].path.clone();
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> =
            (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
        for cut in ends[0]..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut spool, recovered) = Spool::open(home.path()).unwrap();
            let lines = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(spool.newest(), lines as u64 - 1, "cut at {cut}");
            let cut_turn = [None, Some(1), Some(1), None, Some(2)][lines - 1];
            assert_eq!(recovered.cut_turn, cut_turn, "cut at {cut}");
            spool.append(&[text(1, "more")]).unwrap();
            let after = fs::read(&path).unwrap();
            assert!(after.starts_with(&whole[..ends[lines - 1]]));
            let last = after.split_inclusive(|byte| *byte == b'\n').next_back().unwrap();
            assert_eq!(frame::decode::<BridgeEvent>(last).unwrap().seq, lines as u64);
        }
    }

    #[test]
    fn the_last_segment_is_enough_to_recover_the_state() {
        let home = tempfile::tempdir().unwrap();
        let (mut spool, _) = Spool::open(home.path()).unwrap();
        spool.append(&[started(1)]).unwrap();
        while Segment::all(home.path()).unwrap().len() < 3 {
            spool.append(&[text(1, &"x".repeat(16 << 10))]).unwrap();
        }
        let newest = spool.newest();
        for old in &Segment::all(home.path()).unwrap()[..2] {
            fs::remove_file(&old.path).unwrap();
        }
        let (spool, recovered) = Spool::open(home.path()).unwrap();
        assert_eq!((spool.newest(), spool.turns()), (newest, 1));
        assert_eq!(recovered.cut_turn, Some(1));
    }
}
