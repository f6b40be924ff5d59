//! Questions from programs in the runtime.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;

use crate::program::directory::is_held;

/// A question that was not reported yet.
#[derive(Debug)]
pub(super) struct Question {
    /// The id that an answer refers to.
    pub request: String,
    /// The question.
    pub text: String,
}

/// The questions that wait for an answer.
#[derive(Debug)]
pub(super) struct Questions {
    directory: PathBuf,
    /// Reported questions, each with the file that the asking process holds.
    open: HashMap<String, File>,
    /// Requests that were reported before a crash.
    reported: HashSet<String>,
}

impl Questions {
    /// Opens the directory. These requests were reported before.
    pub(super) fn open(directory: PathBuf, reported: impl IntoIterator<Item = String>) -> Self {
        Self { directory, open: HashMap::new(), reported: reported.into_iter().collect() }
    }

    /// Scans the directory. Returns new questions, and drops those whose process no longer waits.
    pub(super) fn scan(&mut self) -> Vec<Question> {
        let directory = self.directory.clone();
        self.open.retain(|request, file| {
            let is_waited_for = is_held(file);
            if !is_waited_for {
                // The file is useless now. The next scan tries again.
                let _ = fs::remove_file(directory.join(request));
            }
            is_waited_for
        });
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let requests: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        requests.into_iter().filter_map(|request| self.open_question(request)).collect()
    }

    fn open_question(&mut self, request: String) -> Option<Question> {
        if request.starts_with('.') || self.open.contains_key(&request) {
            return None;
        }
        let path = self.directory.join(&request);
        let file = File::open(&path).ok()?;
        if !is_held(&file) {
            let _ = fs::remove_file(&path);
            return None;
        }
        let text = String::from_utf8_lossy(&fs::read(&path).ok()?).into_owned();
        self.open.insert(request.clone(), file);
        self.reported.insert(request.clone()).then_some(Question { request, text })
    }

    /// Drops a question that was answered.
    pub(super) fn close(&mut self, request: &str) {
        if self.open.remove(request).is_some() {
            let _ = fs::remove_file(self.directory.join(request));
        }
    }

    /// Returns whether a program waits for an answer.
    pub(super) fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }
}
