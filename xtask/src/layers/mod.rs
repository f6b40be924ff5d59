//! Checks the direction of dependencies: between crates, and between the modules of each crate.
//!
//! Cargo itself refuses a cycle between crates. This check keeps some dependencies in the one crate
//! that they belong to, and the graph in `docs/architecture.md` up to date.
//!
//! Reads each crate from its root file along its `mod` items, collects the paths that lead from
//! one top-level module to another, and fails on a cycle with the lines that make it. Test code
//! does not count.

mod crates;
mod cycles;
mod modules;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace;

/// Checks all crates. Also prints what depends on what, or writes the graph into the docs.
pub(crate) fn run(print: bool, write: bool) -> Result<ExitCode> {
    let packages = crates::read()?;
    let mut problems = crates::misplaced(&packages);
    problems.extend(crates::check_page(&packages, write)?);
    for package in &packages {
        let graph = modules::graph(&package.directory)?;
        if print {
            println!("{}\n{}", package.name, graph.listing());
        }
        let cycles = graph.cycles().into_iter();
        problems.extend(cycles.map(|cycle| {
            format!("{}: modules depend on each other: {}", package.name, graph.explain(&cycle))
        }));
    }
    if print {
        println!("crates\n{}", crates::listing(&packages));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a path as it is shown: relative to the workspace.
fn shown(path: &Path) -> String {
    path.strip_prefix(workspace::root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_has_no_cycle() {
        run(false, false).unwrap();
    }
}
