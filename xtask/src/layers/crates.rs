//! Reads the packages of the workspace from `cargo metadata`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// The page that shows the graph of crates.
const PAGE: &str = "docs/architecture.md";
const GRAPH_START: &str = "<!-- crates: written by cargo xtask layers --write -->\n";
const GRAPH_END: &str = "<!-- end of crates -->\n";

/// Dependencies that only these packages may have.
const CONFINED: [(&str, &[&str]); 5] = [
    ("aho-corasick", &["creel-sanitise"]),
    ("bollard", &["creel-docker"]),
    ("schemars", &["creel-run"]),
    ("sqlx", &["creel-ledger"]),
    ("tokio-tungstenite", &["creel-daytona"]),
];

/// One package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) directory: PathBuf,
    /// Its direct dependencies, without those of tests.
    pub(super) dependencies: Vec<String>,
}

/// Reads all packages of the workspace.
pub(super) fn read() -> Result<Vec<Package>> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = workspace::cargo(&arguments).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("not a string");
    let manifest = PathBuf::from(text(&value["manifest_path"])?);
    let all = value["dependencies"].as_array().context("a package has no dependencies")?;
    // Tests may use what is above their crate.
    let lasting = all.iter().filter(|dependency| dependency["kind"] != "dev");
    let mut dependencies = lasting.map(|one| text(&one["name"])).collect::<Result<Vec<_>>>()?;
    dependencies.sort();
    let directory = manifest.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok(Package { name: text(&value["name"])?, directory, dependencies })
}

/// Returns the dependencies that are outside of the packages that they belong to.
pub(super) fn misplaced(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        for (dependency, homes) in CONFINED {
            let uses = package.dependencies.iter().any(|name| name == dependency);
            if uses && !homes.contains(&package.name.as_str()) {
                found.push(format!("{} depends on {dependency}: only {homes:?} may", package.name));
            }
        }
    }
    found
}

/// Returns the graph of the workspace's crates, each with the crates it depends on.
///
/// A crate is listed after all crates that depend on it.
pub(super) fn listing(packages: &[Package]) -> String {
    let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut heights = BTreeMap::new();
    for package in packages {
        height(package, packages, &mut heights);
    }
    let mut sorted: Vec<&Package> = packages.iter().collect();
    sorted.sort_by_key(|package| (std::cmp::Reverse(heights[&package.name]), &package.name));
    let line = |package: &&Package| {
        let ours = package.dependencies.iter().filter(|name| names.contains(&name.as_str()));
        let ours: Vec<&str> = ours.map(String::as_str).collect();
        format!(
            "{:<21} → {}\n",
            package.name,
            if ours.is_empty() { "-".into() } else { ours.join(", ") }
        )
    };
    sorted.iter().map(line).collect()
}

/// Returns how many layers of crates are below a package.
fn height(package: &Package, all: &[Package], known: &mut BTreeMap<String, usize>) -> usize {
    if let Some(height) = known.get(&package.name) {
        return *height;
    }
    let below = all.iter().filter(|other| package.dependencies.contains(&other.name));
    let height = below.map(|other| 1 + self::height(other, all, known)).max().unwrap_or(0);
    known.insert(package.name.clone(), height);
    height
}

/// Checks that the page shows the graph as it is, or writes it.
pub(super) fn check_page(packages: &[Package], write: bool) -> Result<Vec<String>> {
    let path = workspace::root().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let parts = page.split_once(GRAPH_START).and_then(|(before, rest)| {
        rest.split_once(GRAPH_END).map(|(graph, after)| (before, graph, after))
    });
    let (before, shown, after) = parts.with_context(|| format!("{PAGE} has no graph of crates"))?;
    let graph = format!("```text\n{}```\n", listing(packages));
    if shown == graph {
        return Ok(Vec::new());
    }
    if write {
        std::fs::write(&path, format!("{before}{GRAPH_START}{graph}{GRAPH_END}{after}"))?;
        return Ok(Vec::new());
    }
    Ok(vec![format!("{PAGE} shows another graph of crates: run `cargo xtask layers --write`")])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|name| (*name).to_owned()).collect();
        Package { name: name.to_owned(), directory: PathBuf::new(), dependencies }
    }

    #[test]
    fn a_crate_stands_above_what_it_depends_on() {
        let packages = [
            package("a-model", &[]),
            package("b-core", &["a-model", "serde"]),
            package("c", &["b-core"]),
        ];
        let lines: Vec<String> = listing(&packages).lines().map(str::to_owned).collect();
        let starts: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(starts, ["c", "b-core", "a-model"]);
        assert!(lines[1].ends_with("→ a-model") && lines[2].ends_with("→ -"), "{lines:?}");
    }

    #[test]
    fn a_confined_dependency_elsewhere_is_found() {
        let packages = [package("creel-ledger", &["sqlx"]), package("creel-run", &["sqlx"])];
        assert_eq!(misplaced(&packages).len(), 1);
        assert!(misplaced(&packages)[0].starts_with("creel-run depends on sqlx"));
    }
}
