//! What is where in a sandbox.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::BridgeProgram;

/// The name of creel's own directory in a sandbox.
pub(crate) const CREEL_DIRECTORY: &str = ".creel";
/// The name of the directory in which a relative workspace path begins.
pub(super) const WORKSPACE: &str = "workspace";
/// How much of the digest is in the program's name.
const DIGEST_DIGITS: usize = 12;

/// What is where in a sandbox, and what every command in it is told.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The directory that is creel's own.
    pub creel_directory: String,
    /// The directory in which a relative workspace path begins.
    pub workspace_root: String,
    /// The bridge program.
    pub bridge_path: String,
    /// Variables of every command.
    pub env: BTreeMap<String, SecretString>,
}

impl Place {
    /// Lays a sandbox out below one directory.
    pub(super) fn below(
        directory: &str,
        program: &str,
        env: BTreeMap<String, SecretString>,
    ) -> Self {
        Self::apart(directory, directory, program, env)
    }

    /// Lays a sandbox out below two directories: creel's own things, and the workspace.
    pub(super) fn apart(
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

    /// Returns the absolute form of a path, which is relative to the workspace root.
    pub(super) fn absolute(&self, path: &str) -> String {
        match path {
            "" | "." => self.workspace_root.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{path}", self.workspace_root),
        }
    }
}

/// Returns the name under which a program is in sandboxes: its content decides, so that one of
/// another version is another program.
pub(super) fn program_name(program: &BridgeProgram) -> String {
    let digits = program.digest.get(..DIGEST_DIGITS).unwrap_or(program.digest);
    format!("creel-bridge-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_laid_out_below_one_directory() {
        let program = BridgeProgram { bytes: b"", digest: "0123456789abcdef" };
        let place = Place::below("/", &program_name(&program), BTreeMap::new());
        assert_eq!(place.creel_directory, "/.creel");
        assert_eq!(place.bridge_path, "/.creel/creel-bridge-0123456789ab");
        assert_eq!(place.workspace_root, "/workspace");
        let place = Place::below("/home/me", "b", BTreeMap::new());
        assert_eq!(place.bridge_path, "/home/me/.creel/b");
    }
}
