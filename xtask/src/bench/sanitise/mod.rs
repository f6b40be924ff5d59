//! The speed of masking: a large log through the masker, compared with ripgrep searching the same
//! file for the same patterns.
//!
//! ripgrep only counts the lines with a match. The masker finds every match, also judges random
//! text, which no regular expression can, and writes the whole log again.

mod report;
mod sample;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::machine::MachineInfo;
use super::{Effort, page};
use crate::step::step;
use crate::{child, packages, workspace};

use report::SanitiseResults;

/// Measures, writes the results and checks the bar.
pub(super) fn run(effort: &Effort) -> Result<()> {
    step("packages", packages::install_missing)?;
    let build = ["build", "--release", "--package", "creel-sanitise", "--example", "mask"];
    step("release build", || child::run(&mut workspace::cargo(&build)))?;
    let stage = step("sample", SanitiseStage::set)?;
    let mut figures = [Vec::new(), Vec::new()];
    for round in 0..effort.rounds {
        for turn in 0..2 {
            child::check_interrupted()?;
            let variant = (round + turn) % 2;
            let took = stage.measure(variant)?;
            println!("round {}: {}: {took:.2?}", round + 1, report::VARIANTS[variant]);
            figures[variant].push(took);
        }
    }
    stage.check_masked()?;
    let results = SanitiseResults {
        figures,
        bytes: sample::BYTES,
        patterns: stage.patterns,
        rounds: effort.rounds,
        machine: MachineInfo::here(),
        ripgrep: version()?,
    };
    let text = report::render(&results)?;
    println!("{text}");
    if effort.is_whole() {
        page::write("sanitise", &text)?;
    }
    report::check(&results)
}

/// The files that both programs read.
struct SanitiseStage {
    directory: PathBuf,
    masker: PathBuf,
    /// The number of patterns searched for.
    patterns: usize,
}

impl SanitiseStage {
    /// Writes the log, the secrets in it, and the patterns.
    fn set() -> Result<Self> {
        let directory = workspace::target().join("bench-sanitise");
        fs::create_dir_all(&directory)?;
        let masker = workspace::target().join("release/examples/mask");
        sample::write(&directory.join("log"))?;
        fs::write(directory.join("secrets"), sample::secrets())?;
        let output =
            Command::new(&masker).arg(directory.join("secrets")).arg("--patterns").output();
        let patterns = output.context("cannot run the masker")?.stdout;
        fs::write(directory.join("patterns"), &patterns)?;
        let patterns = patterns.iter().filter(|byte| **byte == b'\n').count();
        Ok(Self { directory, masker, patterns })
    }

    /// Processes the log once, by masking it or by searching it.
    fn measure(&self, variant: usize) -> Result<Duration> {
        let mut command = if variant == 0 { self.mask()? } else { self.search() };
        let started_at = Instant::now();
        let status = command.stdout(Stdio::null()).status()?;
        let took = started_at.elapsed();
        if !status.success() {
            bail!("{} failed: {status}", report::VARIANTS[variant]);
        }
        Ok(took)
    }

    fn mask(&self) -> Result<Command> {
        let mut command = Command::new(&self.masker);
        command.arg(self.directory.join("secrets")).stdin(self.open("log")?);
        Ok(command)
    }

    fn search(&self) -> Command {
        let mut command = Command::new("rg");
        command.args(["--no-config", "--no-unicode", "--text", "--threads=1", "--count", "--file"]);
        command.arg(self.directory.join("patterns")).arg(self.directory.join("log"));
        command
    }

    fn open(&self, name: &str) -> Result<File> {
        let path: &Path = &self.directory.join(name);
        File::open(path).with_context(|| format!("cannot open {}", path.display()))
    }

    /// Fails when a planted secret is still in the masked log.
    fn check_masked(&self) -> Result<()> {
        let output = self.mask()?.stderr(Stdio::inherit()).output()?;
        let masked = String::from_utf8(output.stdout).context("the masked log is no text")?;
        let mut planted = sample::planted().into_iter();
        if let Some(secret) = planted.find(|secret| masked.contains(secret.as_str())) {
            bail!("a secret is still there: {secret}");
        }
        let masks = masked.matches("[masked:").count();
        println!("xtask: {masks} masks in the masked log, none of the planted secrets");
        Ok(())
    }
}

fn version() -> Result<String> {
    let output = Command::new("rg").arg("--version").output().context("cannot run ripgrep")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
