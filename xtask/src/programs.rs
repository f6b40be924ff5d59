//! The test programs of the workspace.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{child, workspace};

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// Its package, and its target unless that is the package's own library or binary.
    pub(crate) name: String,
    executable: PathBuf,
    /// The directory of its package, in which cargo runs it.
    directory: PathBuf,
}

impl TestProgram {
    /// Returns a command that runs it as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// Returns the program that a message of cargo announces.
    fn of_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let executable = PathBuf::from(message["executable"].as_str()?);
        if message["profile"]["test"] != true {
            return None;
        }
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        let directory = manifest.parent()?.to_owned();
        let package = directory.file_name()?.to_str()?.to_owned();
        let name = match message["target"]["kind"][0].as_str()? {
            "test" => format!("{package}, {}", message["target"]["name"].as_str()?),
            _ => package,
        };
        Some(Self { name, executable, directory })
    }
}

/// Builds all test programs.
pub(crate) fn build() -> Result<Vec<TestProgram>> {
    let format = "--message-format=json-render-diagnostics";
    let mut command = workspace::cargo(&["test", "--workspace", "--no-run", format]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    child::check_interrupted()?;
    if !output.status.success() {
        bail!("the tests do not build: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(TestProgram::of_message).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_test_programs_count() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/creel/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"main"}},"profile":{{"test":{test}}},
                "executable":"/w/target/main-1"}}"#
            )
        };
        let program = TestProgram::of_message(&message("test", true)).unwrap();
        assert_eq!(program.name, "creel, main");
        assert_eq!(program.directory, PathBuf::from("/w/crates/creel"));
        assert_eq!(TestProgram::of_message(&message("lib", true)).unwrap().name, "creel");
        assert_eq!(TestProgram::of_message(&message("bin", false)), None);
        assert_eq!(TestProgram::of_message(r#"{"reason":"build-finished"}"#), None);
    }
}
