//! How long the project takes to build: this tree against an earlier one, side by side.
//!
//! Both trees are checked out beside each other and build into directories of their own. *Fresh* is
//! the first thing a newcomer types. *Change* is what a developer waits for after an edit of the
//! workflow parser.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::machine::MachineInfo;
use super::{Effort, page};
use crate::step::step;
use crate::{child, workspace};

/// The tree before the core was split into crates.
const BEFORE: &str = "815c69d";
/// The maximum duration of a fresh build, as a part of the earlier tree's.
const FRESH_BAR: f64 = 0.6;
/// The maximum duration of a check after a change, as a part of the earlier tree's.
const CHANGE_BAR: f64 = 0.35;

/// A tree that is measured.
struct Tree {
    name: &'static str,
    /// A commit.
    revision: String,
    /// The file of the workflow parser that is changed.
    parser: &'static str,
    fresh: Option<Duration>,
    changes: Vec<Duration>,
}

/// Measures, writes the results and checks the bars.
pub(super) fn run(effort: &Effort) -> Result<()> {
    let mut trees = [
        tree("before", BEFORE, "crates/creel-core/src/workflow/file.rs"),
        tree("now", "HEAD", "crates/creel-run/src/workflow/file.rs"),
    ];
    let directory = workspace::target().join("bench-build");
    step("check out", || trees.iter().try_for_each(|tree| check_out(tree, &directory)))?;
    if effort.wants("fresh") {
        for tree in &mut trees {
            child::check_interrupted()?;
            tree.fresh = Some(tree.measure_fresh(&directory)?);
        }
    }
    if effort.wants("change") {
        measure_changes(&mut trees, &directory, effort.rounds)?;
    }
    for tree in &trees {
        git(&["worktree", "remove", "--force"], &[&tree.place(&directory)])?;
    }
    fs::remove_dir_all(&directory).context("cannot remove the trees")?;
    let text = render(&trees, effort.rounds)?;
    println!("{text}");
    if effort.is_whole() {
        page::write("build", &text)?;
    }
    check(&trees)
}

fn tree(name: &'static str, revision: &str, parser: &'static str) -> Tree {
    Tree { name, revision: revision.to_owned(), parser, fresh: None, changes: Vec::new() }
}

fn git(arguments: &[&str], paths: &[&Path]) -> Result<()> {
    let mut command = std::process::Command::new("git");
    child::run(command.args(arguments).args(paths).current_dir(workspace::root()))
}

fn check_out(tree: &Tree, directory: &Path) -> Result<()> {
    let place = tree.place(directory);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(directory)?;
    git(&["worktree", "prune"], &[])?;
    git(&["worktree", "add", "--detach", "--force"], &[&place, Path::new(&tree.revision)])
}

/// Measures a check after a change, the trees in turn.
fn measure_changes(trees: &mut [Tree], directory: &Path, rounds: usize) -> Result<()> {
    for tree in &*trees {
        step("first check", || child::run(&mut tree.cargo(directory, &["check"])))?;
    }
    for round in 0..rounds {
        for tree in &mut *trees {
            child::check_interrupted()?;
            let took = tree.measure_change(directory, round)?;
            println!("round {}: {}: {took:.2?}", round + 1, tree.name);
            tree.changes.push(took);
        }
    }
    Ok(())
}

impl Tree {
    fn place(&self, directory: &Path) -> PathBuf {
        directory.join(self.name)
    }

    /// Returns a cargo command in this tree, with a target directory of its own.
    fn cargo(&self, directory: &Path, arguments: &[&str]) -> std::process::Command {
        let mut command = workspace::cargo(arguments);
        let place = self.place(directory);
        command.env("CARGO_TARGET_DIR", place.join("target")).current_dir(place);
        command
    }

    /// Measures the first command of a newcomer, without the download of dependencies.
    fn measure_fresh(&self, directory: &Path) -> Result<Duration> {
        child::run(&mut self.cargo(directory, &["fetch", "--locked"]))?;
        let started_at = Instant::now();
        child::run(&mut self.cargo(directory, &["run", "--release", "--", "demo"]))?;
        let took = started_at.elapsed();
        println!("fresh: {}: {took:.1?}", self.name);
        Ok(took)
    }

    /// Changes the workflow parser, and measures the check after it.
    fn measure_change(&self, directory: &Path, round: usize) -> Result<Duration> {
        let parser = self.place(directory).join(self.parser);
        let mut text = fs::read_to_string(&parser)?;
        writeln!(text, "\npub(crate) const CHANGED_{round}: usize = {round};")?;
        fs::write(&parser, text)?;
        let started_at = Instant::now();
        child::run(&mut self.cargo(directory, &["check", "--quiet"]))?;
        Ok(started_at.elapsed())
    }

    fn change(&self) -> Option<Duration> {
        let mut changes = self.changes.clone();
        changes.sort();
        changes.get(changes.len() / 2).copied()
    }
}

/// Returns the second duration as a part of the first.
fn ratio(before: Option<Duration>, now: Option<Duration>) -> Option<f64> {
    Some(now?.as_secs_f64() / before?.as_secs_f64())
}

fn render(trees: &[Tree; 2], rounds: usize) -> Result<String> {
    let [before, now] = trees;
    let mut text = format!("## Build\n\n{}\n\n{}.\n\n", page::origin("build"), MachineInfo::here());
    writeln!(
        text,
        "Against commit {BEFORE}, both built in one run on this machine, each into a directory of its\n\
         own. The check is the median of {rounds} alternating rounds after a change in the workflow\n\
         parser.\n\n| what | before | now | ratio | bar |\n|---|---:|---:|---:|---:|"
    )?;
    let rows = [
        ("a fresh `cargo run --release -- demo`", before.fresh, now.fresh, FRESH_BAR),
        ("`cargo check` after a change", before.change(), now.change(), CHANGE_BAR),
    ];
    for (what, before, now, bar) in rows {
        if let (Some(before), Some(now)) = (before, now) {
            let part = now.as_secs_f64() / before.as_secs_f64();
            writeln!(text, "| {what} | {before:.1?} | {now:.1?} | {part:.2} | {bar:.2} |")?;
        }
    }
    Ok(text)
}

fn check(trees: &[Tree; 2]) -> Result<()> {
    let [before, now] = trees;
    let figures = [
        ("a fresh build", ratio(before.fresh, now.fresh), FRESH_BAR),
        ("a check after a change", ratio(before.change(), now.change()), CHANGE_BAR),
    ];
    for (what, ratio, bar) in figures {
        if ratio.is_some_and(|ratio| ratio > bar) {
            bail!("{what} takes {:.2} of the earlier time, more than {bar}", ratio.unwrap_or(1.0));
        }
    }
    Ok(())
}
