//! A running guard, and the engine behind it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use creel_testkit::creel::{Creel, Running};
use creel_testkit::engine::{Engine, PrivateEngine};
use creel_testkit::wait::eventually_some;

/// The names of the two paths.
pub(super) const VARIANTS: [&str; 2] = ["direct", "guarded"];

/// The time limit for a guard to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an idle guard is observed.
const IDLE: Duration = Duration::from_secs(5);
/// The time limit of the whole benchmark.
const DEADLINE: Duration = Duration::from_secs(3 * 3600);

/// The engine, directly and through a guard.
pub(super) struct GuardStage {
    engines: [Engine; 2],
    guard: Running,
    directory: PathBuf,
}

impl GuardStage {
    /// Starts a guard whose command only waits.
    pub(super) fn set(engine: &PrivateEngine, binary: &Path) -> Result<Self> {
        let directory = engine.directory().join("bench-guard");
        fs::create_dir_all(&directory)?;
        let home = directory.join("home");
        let creel = Creel::new(binary, &home, engine.engine().host()).deadline(DEADLINE);
        let command = "echo \"$DOCKER_HOST\"; exec sleep 1000000";
        let guard = creel.spawn(["guard", "--", "sh", "-c", command]);
        let host = eventually_some(PATIENCE, || {
            let stdout = guard.stdout();
            stdout.trim().strip_prefix("unix://").map(str::to_owned)
        });
        let Some(socket) = host else { bail!("the guard does not stand: {}", guard.stderr()) };
        Ok(Self { engines: [engine.engine(), Engine::at(socket)], guard, directory })
    }

    /// Returns the engine, reached directly or through the guard.
    pub(super) fn engine(&self, variant: usize) -> &Engine {
        &self.engines[variant]
    }

    /// Returns a directory for files.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the processor time of the guard without any requests.
    pub(super) fn idle_processor_time(&self) -> Result<Duration> {
        thread::sleep(Duration::from_secs(1));
        let before = self.ticks()?;
        thread::sleep(IDLE);
        // A tick is a hundredth of a second on every Linux that this runs on.
        Ok(Duration::from_millis((self.ticks()? - before) * 10))
    }

    fn ticks(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.guard.pid()))?;
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |place: usize| -> Result<u64> {
            Ok(fields.get(place).context("a short line in /proc")?.parse()?)
        };
        // The state is the first field after the name; user and system time follow later.
        Ok(field(11)? + field(12)?)
    }

    pub(super) fn peak_memory(&self) -> Result<u64> {
        crate::bench::memory::resident_peak(self.guard.pid())
    }

    /// Ends the guard, which must release everything.
    pub(super) fn end(self) -> Result<()> {
        self.guard.signal("TERM");
        let output = self.guard.wait();
        if output.code() != Some(143) {
            bail!("the guard ended badly: {output}");
        }
        Ok(())
    }
}
