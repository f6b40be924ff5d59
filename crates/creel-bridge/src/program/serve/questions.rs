//! Questions of programs in the runtime.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;

use crate::program::directory::is_held;

/// A question that nobody has heard of yet.
#[derive(Debug)]
pub(super) struct Question {
    /// What answers name.
    pub request: String,
    /// What is asked.
    pub text: String,
}

/// The questions that somebody waits for an answer to.
#[derive(Debug)]
pub(super) struct Questions {
    directory: PathBuf,
    /// Those that were told, each with the file that whoever asked holds.
    open: HashMap<String, File>,
    /// Requests that were told before a crash.
    told: HashSet<String>,
}

impl Questions {
    /// Opens the directory; these requests were told before.
    pub(super) fn open(directory: PathBuf, told: impl IntoIterator<Item = String>) -> Self {
        Self { directory, open: HashMap::new(), told: told.into_iter().collect() }
    }

    /// Looks again; returns what is new, and forgets what nobody waits for any more.
    pub(super) fn look(&mut self) -> Vec<Question> {
        let directory = self.directory.clone();
        self.open.retain(|request, file| {
            let is_waited_for = is_held(file);
            if !is_waited_for {
                // It is of no use to anybody; the next look tries again.
                let _ = fs::remove_file(directory.join(request));
            }
            is_waited_for
        });
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let requests: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        requests.into_iter().filter_map(|request| self.take(request)).collect()
    }

    fn take(&mut self, request: String) -> Option<Question> {
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
        self.told.insert(request.clone()).then_some(Question { request, text })
    }

    /// Forgets a question that was answered.
    pub(super) fn close(&mut self, request: &str) {
        if self.open.remove(request).is_some() {
            let _ = fs::remove_file(self.directory.join(request));
        }
    }

    /// Returns whether somebody waits for an answer.
    pub(super) fn is_somebody_waiting(&self) -> bool {
        !self.open.is_empty()
    }
}
