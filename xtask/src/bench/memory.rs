//! Memory use for a listing of ten thousand containers.
//!
//! No real engine holds that many here, so a fake one lists them. Each has the labels, the network
//! and the volume of a Compose container.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::fake_engine::{FakeEngine, container_row};

use crate::child;

/// The number of listed containers.
pub(super) const COUNT: usize = 10_000;
/// The measured commands. The sweeps only plan, and release nothing.
const COMMANDS: [&[&str]; 4] = [
    &["ls", "--provider", "docker", "--json"],
    &["ls", "--provider", "docker"],
    &["sweep", "--provider", "docker", "--label", "dev.example.suite=fake", "--json"],
    &["sweep", "--provider", "docker", "--label", "dev.example.suite=fake"],
];
/// The polling interval. The peak only grows, so the last sample is at most this far from the end.
const INTERVAL: Duration = Duration::from_millis(1);

/// The memory of one command.
pub(super) struct Peak {
    pub(super) command: String,
    /// The peak resident memory.
    pub(super) bytes: u64,
}

/// Measures every command.
pub(super) fn peaks(binary: &Path, home: &Path) -> Result<Vec<Peak>> {
    let fake = FakeEngine::start()?;
    fake.list_containers((0..COUNT).map(|number| container_row(number, "exited")).collect());
    let creel = Creel::new(binary, home, fake.host());
    COMMANDS.iter().map(|arguments| peak_of(&creel, arguments)).collect()
}

fn peak_of(creel: &Creel, arguments: &[&str]) -> Result<Peak> {
    let (output, bytes) = watch(creel.spawn(arguments))?;
    let shown = output.stdout.matches("fake-").count();
    if output.code() != Some(0) || shown < COUNT {
        bail!("creel {arguments:?} showed {shown} and ended with {:?}", output.code());
    }
    Ok(Peak { command: format!("creel {}", arguments.join(" ")), bytes })
}

/// Waits for a command, and returns its output and its peak resident memory.
pub(super) fn watch(mut running: Running) -> Result<(Output, u64)> {
    let mut bytes = 0;
    while !running.has_ended() && !running.is_overdue() {
        child::check_interrupted()?;
        bytes = resident_peak(running.pid()).unwrap_or(bytes).max(bytes);
        thread::sleep(INTERVAL);
    }
    Ok((running.wait(), bytes))
}

/// Returns the peak resident memory of a process.
pub(super) fn resident_peak(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmHWM")?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}
