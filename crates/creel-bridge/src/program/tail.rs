//! `tail`: prints the spool from a number on.
//!
//! Events are printed as they stand in the spool; signs have number 0. Each printed sign of life
//! also renews the bridge's lease, because a reader took it. So the bridge does not end as long as
//! it has a reader.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use creel_bridge::frame;
use creel_bridge::serve::{Sign, TailItem};
use rustix::event::PollFlags;

use super::arguments::Arguments;
use super::directory::BridgeDirectory;
use super::error::BridgeError;
use super::poll::wait_for;
use super::spool::SpoolReader;
use super::watch::PathWatch;

/// The interval between two signs of life if no bridge has set one.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Prints the events from `--from` on, and a sign. With `--follow`, runs until the bridge is gone.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, BridgeError> {
    let directory = BridgeDirectory::new(arguments.needed_path("directory")?);
    let reader = SpoolReader::new(&directory.spool(), arguments.needed_number("from")?);
    let (lock, spool) = (directory.lock_file(), directory.spool());
    // Watch before the first read, so that no change is missed.
    let watch = PathWatch::over([lock.as_path(), spool.as_path()]);
    let mut tail = TailPrinter { directory, reader, watch, output: io::stdout() };
    match tail.run(arguments.has("follow")) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(BridgeError::Refused("the reader is gone".to_owned()))
        }
        Err(error) => Err(BridgeError::of("tell the events")(error)),
    }
}

struct TailPrinter {
    directory: BridgeDirectory,
    reader: SpoolReader,
    watch: PathWatch,
    output: io::Stdout,
}

impl TailPrinter {
    fn run(&mut self, follows: bool) -> io::Result<()> {
        let mut heartbeat_at = Instant::now();
        loop {
            // Check the bridge before the spool: once the bridge is gone, it appends nothing more.
            let is_served = self.directory.is_served();
            self.print_events()?;
            let newest = self.reader.newest();
            if !is_served {
                return self.print_sign(Sign::Ended { newest });
            }
            if Instant::now() >= heartbeat_at {
                self.print_sign(Sign::Alive { newest })?;
                // A failure here affects the bridge's lease, not the reader.
                let _ = self.directory.leave_sign();
                heartbeat_at = Instant::now() + self.heartbeat();
            }
            if !follows {
                return Ok(());
            }
            self.wait(heartbeat_at)?;
        }
    }

    fn heartbeat(&self) -> Duration {
        let settings = self.directory.settings();
        settings.map_or(HEARTBEAT, |settings| Duration::from_millis(settings.heartbeat_ms.max(1)))
    }

    fn print_events(&mut self) -> io::Result<()> {
        let mut output = &self.output;
        self.reader.read(|lines| {
            output.write_all(lines)?;
            output.flush()
        })
    }

    fn print_sign(&self, sign: Sign) -> io::Result<()> {
        let mut output = &self.output;
        output.write_all(&frame::encode(0, &TailItem::Sign(sign))?)?;
        output.flush()
    }

    /// Waits until something may have changed. Fails when the output has no reader any more.
    fn wait(&self, heartbeat_at: Instant) -> io::Result<()> {
        let mut watched = vec![(self.output.as_fd(), PollFlags::empty())];
        watched.extend(self.watch.watched());
        let until = heartbeat_at.min(Instant::now() + self.watch.period());
        let ready = wait_for(&watched, Some(until));
        self.watch.drain();
        if ready[0].intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }
}
