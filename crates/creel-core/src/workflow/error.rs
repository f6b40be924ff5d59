//! What is wrong with a workflow.

use std::fmt;
use std::path::PathBuf;

use super::place::Place;

/// A workflow that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The file cannot be read.
    #[error("cannot read the workflow {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not right, or what it refers to was not given.
    #[error("{}", sentence(.name, .problems, *.more))]
    Invalid {
        /// The file's name.
        name: String,
        /// What is wrong, in the order of the file.
        problems: Vec<Problem>,
        /// How many more there are than anybody would read.
        more: usize,
    },
}

/// One thing that is wrong with a workflow; never with a secret in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, if it is in the file.
    pub place: Option<Place>,
    /// What.
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
    /// Says where and what, as editors and people find it: `FILE:LINE:COLUMN: what`.
    pub fn in_file(&self, name: &str) -> String {
        match self.place {
            Some(_) => format!("{name}:{self}"),
            None => format!("{name}: {self}"),
        }
    }
}

impl WorkflowError {
    /// Makes an error of problems, in the order of the file and not more than people read.
    pub(super) fn of(name: &str, mut problems: Vec<Problem>) -> Self {
        const MOST: usize = 50;
        problems.sort_by_key(|problem| problem.place);
        problems.dedup();
        let more = problems.len().saturating_sub(MOST);
        problems.truncate(MOST);
        Self::Invalid { name: name.to_owned(), problems, more }
    }

    /// Returns what is wrong with the file.
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
