//! A description of the measuring machine, without its owner.

use std::fmt;
use std::fs;
use std::thread;

use anyhow::Result;
use creel_testkit::docker::Docker;

/// This machine.
#[derive(Debug)]
pub(crate) struct MachineInfo {
    cores: usize,
    processor: String,
    /// In gigabytes.
    memory: u64,
    kernel: String,
}

impl MachineInfo {
    /// Describes this machine.
    pub(crate) fn here() -> Self {
        let memory = field("/proc/meminfo", "MemTotal");
        let kilobytes = memory.trim_end_matches(" kB").parse::<u64>().unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory: kilobytes.div_ceil(1 << 20),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory, kernel } = self;
        write!(f, "{cores} cores ({processor}), {memory} GB of memory, Linux {kernel}")
    }
}

/// Describes an engine on this machine.
pub(crate) fn engine(docker: &Docker) -> Result<String> {
    let info = docker.api().get("/info")?;
    let text = |name: &str| info[name].as_str().unwrap_or("?").to_owned();
    Ok(format!("a private Docker Engine {} on {}", text("ServerVersion"), text("Driver")))
}

/// Returns the first value of a name in a file of `name: value` lines.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(known, _)| known.trim() == name);
    found.map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
}
