//! The sandbox settings of a workflow, while their provider checks them.

use crate::provider::Limits;

/// The sandbox settings of a workflow, while their provider checks them.
///
/// A value that is present but not known yet is empty.
#[derive(Debug, Clone, Default)]
pub struct SandboxDraft {
    /// The image it starts from.
    pub image: Option<String>,
    /// The snapshot it starts from.
    pub snapshot: Option<String>,
    /// The network it joins.
    pub network: Option<String>,
    /// The limits of its resources.
    pub limits: Limits,
    /// The maximum size of its disk in bytes.
    pub disk: Option<u64>,
    /// What is wrong, by key.
    pub problems: Vec<(&'static str, String)>,
    /// What has no effect.
    pub notes: Vec<String>,
}

impl SandboxDraft {
    /// Reports that the value of a key is wrong, or that a key is missing.
    pub fn refuse(&mut self, key: &'static str, why: impl Into<String>) {
        self.problems.push((key, why.into()));
    }

    /// Reports that a key is wrong if a condition holds.
    pub fn refuse_if(&mut self, is_wrong: bool, key: &'static str, why: &str) {
        if is_wrong {
            self.refuse(key, why);
        }
    }

    /// Drops the image with a note, so that one workflow can serve several providers.
    pub fn ignore_image(&mut self, sandbox: &str) {
        let image = self.image.take();
        self.note_ignored("image", image, sandbox);
    }

    /// Drops the snapshot with a note, so that one workflow can serve several providers.
    pub fn ignore_snapshot(&mut self, sandbox: &str) {
        let snapshot = self.snapshot.take();
        self.note_ignored("snapshot", snapshot, sandbox);
    }

    fn note_ignored(&mut self, key: &str, value: Option<String>, sandbox: &str) {
        if value.is_some() {
            let note = format!("`sandbox.{key}` has no effect: {sandbox} does not start from it");
            self.notes.push(note);
        }
    }
}
