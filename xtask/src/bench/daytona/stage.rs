//! A server to release sandboxes on, and the creel that releases them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::daytona::LocalDaytona;
use serde_json::json;

use crate::bench::Effort;
use crate::workspace;

/// The label of the sandboxes to release; decoys have another value.
pub(super) const LABEL: &str = "dev.creel.bench";
/// The latency of each answer of the server, in seconds.
pub(super) const LATENCY: f64 = 0.02;

/// A server, and a creel that uses it with its own ledger.
pub(super) struct DaytonaStage {
    pub(super) server: LocalDaytona,
    pub(super) creel: Creel,
    pub(super) directory: PathBuf,
}

impl DaytonaStage {
    /// Starts a server of hollow sandboxes with a scenario.
    pub(super) fn start(effort: &Effort, part: &str, scenario: &str) -> Result<Self> {
        let directory = workspace::target().join("xtask/bench-daytona").join(part);
        if directory.exists() {
            fs::remove_dir_all(&directory).context("cannot remove what an earlier run left")?;
        }
        fs::create_dir_all(&directory)?;
        let file = directory.join("scenario.toml");
        fs::write(&file, scenario)?;
        let creel = Creel::without_docker(effort.binary(), &directory);
        let file = file.to_str().context("the target directory has a plain name")?;
        let server = LocalDaytona::start(&creel, &["--hollow", "--scenario", file])?;
        let point = |creel: Creel, (name, value): (&str, &str)| creel.env(name, value);
        let creel = server.environment().into_iter().fold(creel, point);
        Ok(Self { server, creel, directory })
    }

    /// Creates sandboxes with a value of the label.
    pub(super) fn seed(&self, count: usize, label: &str) -> Result<()> {
        let created = self.server.seed(&json!({"count": count, "labels": {LABEL: label}}))?;
        if created != count {
            bail!("the server made {created} of {count} sandboxes");
        }
        Ok(())
    }

    /// Returns how many sandboxes with a value of the label are left, including failed destroys.
    pub(super) fn left(&self, label: &str) -> Result<usize> {
        self.server.count(&json!({LABEL: label}))
    }

    /// Delays every answer from now on.
    pub(super) fn delay_responses(&self) -> Result<()> {
        let delay = json!({"fault": "latency", "seconds": LATENCY});
        self.server.admin("POST", "faults", &delay).map(drop)
    }

    /// Stops the server and removes its files.
    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()?;
        fs::remove_dir_all(&self.directory).context("cannot remove the bench's directory")
    }
}
