//! `tail`: the spool, from a number on.
//!
//! Events come as they stand in the spool, signs have number 0. A sign of life that
//! was written is also a sign of the supervisor, because somebody took it; so the
//! bridge does not end as long as somebody listens.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use creel_bridge::frame;
use creel_bridge::serve::{Sign, Told};
use rustix::event::PollFlags;

use super::arguments::Arguments;
use super::directory::Directory;
use super::failure::Failure;
use super::lookout::wait_for;
use super::spool::Reader;
use super::watch::Watch;

/// How often a sign of life is due where no bridge has said so.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Prints the events from `--from` on, and a sign; with `--follow` until the bridge is gone.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let directory = Directory::new(arguments.needed_path("directory")?);
    let reader = Reader::new(&directory.spool(), arguments.needed_number("from")?);
    let (lock, spool) = (directory.lock_file(), directory.spool());
    // Before the first look, so that nothing comes between the two.
    let watch = Watch::over([lock.as_path(), spool.as_path()]);
    let mut tail = Tail { directory, reader, watch, output: io::stdout() };
    match tail.run(arguments.has("follow")) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(Failure::Refused("nobody listens any more".to_owned()))
        }
        Err(error) => Err(Failure::of("tell the events")(error)),
    }
}

struct Tail {
    directory: Directory,
    reader: Reader,
    watch: Watch,
    output: io::Stdout,
}

impl Tail {
    fn run(&mut self, follows: bool) -> io::Result<()> {
        let mut heartbeat_at = Instant::now();
        loop {
            // First the bridge, then the spool: one that is gone adds nothing any more.
            let is_served = self.directory.is_served();
            self.tell_events()?;
            let newest = self.reader.newest();
            if !is_served {
                return self.tell(Sign::Ended { newest });
            }
            if Instant::now() >= heartbeat_at {
                self.tell(Sign::Alive { newest })?;
                // A directory that does not take it is the bridge's trouble, not the listener's.
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
        let terms = self.directory.terms();
        terms.map_or(HEARTBEAT, |terms| Duration::from_millis(terms.heartbeat_ms.max(1)))
    }

    fn tell_events(&mut self) -> io::Result<()> {
        let mut output = &self.output;
        self.reader.read(|lines| {
            output.write_all(lines)?;
            output.flush()
        })
    }

    fn tell(&self, sign: Sign) -> io::Result<()> {
        let mut output = &self.output;
        output.write_all(&frame::encode(0, &Told::Sign(sign))?)?;
        output.flush()
    }

    /// Waits until something may have changed; fails when nobody listens any more.
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
