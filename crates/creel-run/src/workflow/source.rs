//! The text of a workflow, and its name in messages.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use creel_sanitise as sanitise;

use super::WorkflowError;
use super::error::Problem;
use super::place::Lines;

/// The maximum size of a workflow in bytes.
pub(super) const LARGEST: usize = 1 << 20;

/// The unparsed text of a workflow.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name, for messages.
    pub name: String,
    /// The content of the file.
    pub text: String,
}

impl Source {
    /// Reads a file, but not much more of it than the maximum size of a workflow.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read, is not text, or contains a secret.
    pub fn read(path: &Path) -> Result<Self, WorkflowError> {
        let text = read_bounded(path)
            .map_err(|source| WorkflowError::Unreadable { path: path.to_owned(), source })?;
        let source = Self { name: path.display().to_string(), text };
        source.refuse_secrets()?;
        Ok(source)
    }

    /// Rejects a text that contains a secret, because the text is stored unchanged with the run.
    fn refuse_secrets(&self) -> Result<(), WorkflowError> {
        let found = sanitise::tokens(&self.text);
        if found.is_empty() {
            return Ok(());
        }
        let lines = Lines::of(&self.text);
        let problem = |(offset, name)| Problem {
            place: Some(lines.place(offset)),
            message: format!(
                "a secret ({name}) is written in the file; put it in an environment variable and \
                 write ${{env:NAME}} here"
            ),
        };
        Err(WorkflowError::of(&self.name, found.into_iter().map(problem).collect()))
    }
}

impl fmt::Debug for Source {
    /// Does not show the text, because prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Reads one byte more than is allowed, so that a file that is too large is detected.
fn read_bounded(path: &Path) -> io::Result<String> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        // A cut in the middle of a character must not hide that the file is too large.
        Err(error) if error.as_bytes().len() > LARGEST => {
            Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
        }
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::Workflow;

    fn read(bytes: &[u8]) -> Result<Source, WorkflowError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Source::read(file.path())
    }

    #[test]
    fn a_file_is_read_as_it_stands() {
        assert_eq!(read("name = \"ü\"\r\n".as_bytes()).unwrap().text, "name = \"ü\"\r\n");
    }

    #[test]
    fn a_secret_in_the_file_is_refused_with_its_place_and_not_repeated() {
        let token = format!("ghp_{}", "a1B2c3D4e5F6".repeat(3));
        let text = format!("name = \"x\"\n[sandbox.env]\nTOKEN = \"{token}\"\n");
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(":3:10: a secret (github-token) is written in the file"), "{error}");
        assert!(!error.contains(&token), "{error}");
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9u";
        assert!(read(format!("key = '''\n{key}\n'''").as_bytes()).is_err());
        for harmless in ["${env:TOKEN}", "password=hunter2", "sk-ant-", "ghp_short"] {
            read(format!("name = \"{harmless}\"").as_bytes()).unwrap();
        }
    }

    #[test]
    fn a_missing_or_binary_file_cannot_be_read() {
        let unreadable = |result: Result<Source, WorkflowError>| {
            matches!(result, Err(WorkflowError::Unreadable { .. }))
        };
        assert!(unreadable(read(b"name = \"\xff\"")));
        assert!(unreadable(Source::read(Path::new("/nonexistent/w.toml"))));
        assert!(unreadable(Source::read(Path::new("/"))));
    }

    #[test]
    fn a_large_file_is_not_read_beyond_the_limit() {
        // Characters of three bytes, so that the cut goes through one.
        let source = read("€".repeat(LARGEST).as_bytes()).unwrap();
        assert!(source.text.len() <= LARGEST + 8);
        let error =
            Workflow::parse(&source, crate::workflow::tests::BACKENDS).unwrap_err().to_string();
        assert!(error.contains("it is larger than"), "{error}");
    }
}
