//! The modules of a kernel, and their dependencies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The entry in a module that lists its dependencies.
const NEEDS: &[u8] = b"\0depends=";

/// The modules of a kernel by name.
pub(super) struct Modules(BTreeMap<String, PathBuf>);

impl Modules {
    /// Finds all modules below a directory.
    pub(super) fn in_directory(directory: &Path) -> Result<Self> {
        let (mut modules, mut left) = (BTreeMap::new(), vec![directory.to_owned()]);
        while let Some(directory) = left.pop() {
            let entries = fs::read_dir(&directory);
            for entry in entries.with_context(|| format!("cannot read {}", directory.display()))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                } else if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(".ko") {
                    modules.insert(as_needed(name), entry.path());
                }
            }
        }
        Ok(Self(modules))
    }

    /// Returns these modules and all their dependencies, each after its own dependencies. An
    /// unknown name is assumed to be built into the kernel.
    pub(super) fn with_dependencies(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut sorted = Vec::new();
        for name in wanted {
            self.add(name, &mut sorted)?;
        }
        Ok(sorted)
    }

    fn add(&self, name: &str, sorted: &mut Vec<PathBuf>) -> Result<()> {
        let Some(path) = self.0.get(&as_needed(name)) else { return Ok(()) };
        if sorted.contains(path) {
            return Ok(());
        }
        let module = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        for needed in needs(&module) {
            self.add(&needed, sorted)?;
        }
        sorted.push(path.clone());
        Ok(())
    }
}

/// Normalizes a module name: files have dashes where dependencies have underscores.
fn as_needed(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the dependencies of a module.
fn needs(module: &[u8]) -> Vec<String> {
    let Some(start) = module.windows(NEEDS.len()).position(|bytes| bytes == NEEDS) else {
        return Vec::new();
    };
    let names = module[start + NEEDS.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(names);
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_once_after_its_dependencies() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, needs: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("ELF\0license=GPL\0depends={needs}\0intree=Y\0")).unwrap();
        };
        write("fs/9p.ko", "9pnet,fs_cache");
        write("net/9pnet.ko", "");
        write("fs/fs-cache.ko", "9pnet");
        let modules = Modules::in_directory(directory.path()).unwrap();
        let sorted = modules.with_dependencies(&["9p", "built-in", "9pnet"]).unwrap();
        let names: Vec<_> = sorted.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["9pnet.ko", "fs-cache.ko", "9p.ko"]);
    }
}
