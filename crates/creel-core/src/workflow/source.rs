//! The text of a workflow, and what it is called in messages.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use super::WorkflowError;

/// A workflow larger than this is no workflow.
pub(super) const LARGEST: usize = 1 << 20;

/// The text of a workflow, as somebody wrote it.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name, for messages.
    pub name: String,
    /// What is in it.
    pub text: String,
}

impl Source {
    /// Reads a file, and not more of it than a workflow may have.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read or is not text.
    pub fn read(path: &Path) -> Result<Self, WorkflowError> {
        let text = read_bounded(path)
            .map_err(|source| WorkflowError::Unreadable { path: path.to_owned(), source })?;
        Ok(Self { name: path.display().to_string(), text })
    }
}

impl fmt::Debug for Source {
    /// Prompts are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Reads one byte more than is allowed, so that a file that is too large is known as such.
fn read_bounded(path: &Path) -> io::Result<String> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        // A cut in the middle of a letter is no reason to call a large file something else.
        Err(error) if error.as_bytes().len() > LARGEST => {
            Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
        }
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text")),
    }
}
