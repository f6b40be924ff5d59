//! How much memory a listing of ten thousand containers takes.
//!
//! No real engine holds that many here, so a fake one lists them.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::fake_engine::{FakeEngine, container_row};

/// How many containers are listed.
pub(super) const COUNT: usize = 10_000;
/// The peak only grows, so the last look before the end is at most this far from it.
const INTERVAL: Duration = Duration::from_millis(1);

/// Returns the peak of resident memory in bytes while creel lists.
pub(super) fn peak_of_listing(binary: &Path, home: &Path) -> Result<u64> {
    let fake = FakeEngine::start()?;
    fake.list_containers((0..COUNT).map(|number| container_row(number, "exited")).collect());
    let creel = Creel::new(binary, home, fake.host());
    let mut running = creel.spawn(["ls", "--provider", "docker", "--json"]);
    let mut peak = 0;
    while !running.has_ended() {
        peak = resident_peak(running.pid()).unwrap_or(peak).max(peak);
        thread::sleep(INTERVAL);
    }
    let output = running.wait();
    let listed = output.json()["resources"].as_array().map_or(0, Vec::len);
    if output.code() != Some(0) || listed < COUNT {
        bail!("creel listed {listed} of {COUNT} and ended with {:?}", output.code());
    }
    Ok(peak)
}

fn resident_peak(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmHWM")?;
    Ok(kilobytes.trim().parse::<u64>()? * 1024)
}
