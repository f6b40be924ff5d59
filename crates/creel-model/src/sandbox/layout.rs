//! The layout of a sandbox.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::BridgeProgram;

/// The name of creel's own directory in a sandbox.
pub const CREEL_DIRECTORY: &str = ".creel";
/// The name of the base directory of relative workspace paths.
pub const WORKSPACE: &str = "workspace";
/// How many digits of the digest are in the program's name.
const DIGEST_DIGITS: usize = 12;

/// The layout of a sandbox, and the variables of every command in it.
#[derive(Debug, Clone)]
pub struct SandboxLayout {
    /// Creel's own directory.
    pub creel_directory: String,
    /// The base directory of relative workspace paths.
    pub workspace_root: String,
    /// The path of the bridge program.
    pub bridge_path: String,
    /// The variables of every command.
    pub env: BTreeMap<String, SecretString>,
}

impl SandboxLayout {
    /// Lays out a sandbox below one directory.
    pub fn below(directory: &str, program: &str, env: BTreeMap<String, SecretString>) -> Self {
        Self::apart(directory, directory, program, env)
    }

    /// Lays out a sandbox below two directories: one for creel's own files, one for the workspace.
    pub fn apart(
        directory: &str,
        work: &str,
        program: &str,
        env: BTreeMap<String, SecretString>,
    ) -> Self {
        let (directory, work) = (directory.trim_end_matches('/'), work.trim_end_matches('/'));
        let creel_directory = format!("{directory}/{CREEL_DIRECTORY}");
        Self {
            bridge_path: format!("{creel_directory}/{program}"),
            creel_directory,
            workspace_root: format!("{work}/{WORKSPACE}"),
            env,
        }
    }

    /// Returns the absolute form of a path. A relative path is relative to the workspace root.
    pub fn absolute(&self, path: &str) -> String {
        match path {
            "" | "." => self.workspace_root.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{path}", self.workspace_root),
        }
    }
}

/// Returns whether a relative path leads out of the directory that it starts in.
pub(super) fn climbs_out(path: &str) -> bool {
    let depths = path.split('/').scan(0_i64, |depth, part| {
        *depth += match part {
            "" | "." => 0,
            ".." => -1,
            _ => 1,
        };
        Some(*depth)
    });
    !path.starts_with('/') && depths.into_iter().any(|depth| depth < 0)
}

/// Returns the file name of a program in sandboxes.
///
/// The name depends on the content, so different versions have different names.
pub fn program_name(program: &BridgeProgram) -> String {
    let digits = program.digest.get(..DIGEST_DIGITS).unwrap_or(program.digest);
    format!("creel-bridge-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_relative_path_climbs_out() {
        for path in ["..", "../x", "a/../..", "a/./../../b", "./.."] {
            assert!(climbs_out(path), "{path}");
        }
        for path in ["", ".", "a/..", "a/../b", "..a/b..", "/..", "/a/../../b"] {
            assert!(!climbs_out(path), "{path}");
        }
    }

    #[test]
    fn a_sandbox_is_laid_out_below_one_directory() {
        let program = BridgeProgram { bytes: b"", digest: "0123456789abcdef" };
        let layout = SandboxLayout::below("/", &program_name(&program), BTreeMap::new());
        assert_eq!(layout.creel_directory, "/.creel");
        assert_eq!(layout.bridge_path, "/.creel/creel-bridge-0123456789ab");
        assert_eq!(layout.workspace_root, "/workspace");
        let layout = SandboxLayout::below("/home/me", "b", BTreeMap::new());
        assert_eq!(layout.bridge_path, "/home/me/.creel/b");
    }
}
