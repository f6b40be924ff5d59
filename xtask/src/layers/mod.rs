//! Checks that the modules of every crate depend on each other without a cycle.
//!
//! Reads each crate from its root file along its `mod` items, collects the paths that lead from
//! one top-level module to another, and fails on a cycle with the lines that make it. Test code
//! does not count.

mod cycles;
mod modules;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace;
use cycles::Graph;

/// Crates whose modules are checked.
const CRATES: [&str; 5] =
    ["creel", "creel-bridge", "creel-core", "creel-daytona-server", "creel-testkit"];

/// Cycles that are still there. Each one goes with the split of its crate.
const KNOWN: [(&str, &[&str]); 2] = [
    ("creel-core", &["provider", "retry"]),
    (
        "creel-core",
        &[
            "ledger",
            "plan",
            "reap",
            "recipe",
            "reconcile",
            "run",
            "sandbox",
            "scope",
            "select",
            "workflow",
        ],
    ),
];

/// Checks all crates, or prints what depends on what.
pub(crate) fn run(print: bool) -> Result<ExitCode> {
    let mut problems = Vec::new();
    for name in CRATES {
        let graph = modules::graph(&workspace::root().join("crates").join(name))?;
        if print {
            println!("{name}\n{}", graph.listing());
        }
        problems.extend(problems_of(name, &graph));
    }
    if !problems.is_empty() {
        bail!("modules depend on each other in a cycle:\n{}", problems.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn problems_of(name: &str, graph: &Graph) -> Vec<String> {
    let cycles = graph.cycles();
    let unknown = cycles.into_iter().filter(|cycle| {
        let is_known = |(of, known): &(&str, &[&str])| {
            *of == name && cycle.iter().all(|module| known.contains(&module.as_str()))
        };
        !KNOWN.iter().any(is_known)
    });
    unknown.map(|cycle| format!("{name}: {}", graph.explain(&cycle))).collect()
}

/// Returns a path as it is shown: relative to the workspace.
fn shown(path: &Path) -> String {
    path.strip_prefix(workspace::root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_has_no_new_cycle() {
        run(false).unwrap();
    }
}
