//! Errors in workflows.

use std::fmt;
use std::path::PathBuf;

use super::place::SourcePosition;

/// The error of a workflow that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The file cannot be read.
    #[error("cannot read the workflow {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The file is invalid, or the values of its references are missing.
    #[error("{}", sentence(.name, .problems, *.more))]
    Invalid {
        /// The file's name.
        name: String,
        /// The problems, in the order of the file.
        problems: Vec<Problem>,
        /// The number of further problems that are not listed.
        more: usize,
    },
}

/// One problem in a workflow. It never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The place of the problem, if it is in the file.
    pub place: Option<SourcePosition>,
    /// The description of the problem.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(place) => write!(f, "{place}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Problem {
    /// Formats the problem with its place, in the form `FILE:LINE:COLUMN: what`.
    pub fn in_file(&self, name: &str) -> String {
        match self.place {
            Some(_) => format!("{name}:{self}"),
            None => format!("{name}: {self}"),
        }
    }
}

impl WorkflowError {
    /// Creates an error from problems, in the order of the file and limited in number.
    pub(super) fn of(name: &str, mut problems: Vec<Problem>) -> Self {
        const MOST: usize = 50;
        problems.sort_by_key(|problem| problem.place);
        problems.dedup();
        let more = problems.len().saturating_sub(MOST);
        problems.truncate(MOST);
        Self::Invalid { name: name.to_owned(), problems, more }
    }

    /// Returns the problems of the file.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Invalid { problems, .. } => problems,
        }
    }
}

fn sentence(name: &str, problems: &[Problem], more: usize) -> String {
    match problems {
        [only] => only.in_file(name),
        all => {
            let list: Vec<String> = all.iter().map(Problem::to_string).collect();
            format!("{name} has {} mistakes: {}", all.len() + more, list.join("; "))
        }
    }
}
