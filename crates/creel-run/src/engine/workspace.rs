//! The workspace: its directory, its files and its repositories, each verified.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use creel_model::run::{CauseClass, ConditionStatus, ConditionType};

use crate::sandbox::{Command, Sandbox};

use super::checklist::{StepResult, StepSpec, run};
use super::credential::GitLogin;
use super::{Drive, Stopped};

/// How long writing the files may take.
const FILES_LIMIT: Duration = Duration::from_secs(120);
/// The mode of a workspace file.
const FILE_MODE: u32 = 0o644;

impl Drive {
    /// Returns the workspace's directory in the sandbox.
    pub(super) fn workspace_path(&self, sandbox: &dyn Sandbox) -> String {
        within(sandbox.workspace_root(), &self.workflow.workspace.path)
    }

    pub(super) async fn make_workspace(
        &mut self,
        sandbox: &Arc<dyn Sandbox>,
    ) -> Result<(), Stopped> {
        let created = self.fill_workspace(sandbox).await;
        if let Err(Stopped::Cause(cause)) = &created {
            let (about, message) = (ConditionType::WorkspaceReady, cause.message.clone());
            self.condition(about, ConditionStatus::False, "Incomplete", message).await?;
        }
        created?;
        self.workspace_is_ready().await
    }

    async fn fill_workspace(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        self.write_files(sandbox).await?;
        let logins = self.obtain_credentials().await?;
        let wanted = self.workflow.workspace.repositories.clone().into_iter().map(|repository| {
            let login = repository.credential.as_ref().and_then(|name| logins.get(name));
            let login = login.cloned().unwrap_or(GitLogin::None);
            (repository, login)
        });
        let cloned = self.clone_repositories(sandbox, wanted.collect()).await?;
        self.verify_repositories(sandbox, &cloned).await
    }

    async fn write_files(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        let path = self.workspace_path(sandbox.as_ref());
        let files: Arc<BTreeMap<String, String>> = Arc::new(
            self.workflow
                .workspace
                .files
                .iter()
                .map(|(name, text)| (within(&path, name), text.clone()))
                .collect(),
        );
        let count = files.len();
        let expected = self.masker.diagnostic(&format!("the directory with {count} files"));
        let plan = StepSpec { tries: 2, ..StepSpec::new("workspace", expected, FILES_LIMIT) };
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, files, masker) =
                (Arc::clone(sandbox), Arc::clone(&files), masker.clone());
            let make = Command {
                directory: Some(sandbox.workspace_root().to_owned()),
                ..Command::new(["mkdir", "-p", "--", &path], FILES_LIMIT)
            };
            async move {
                let created = run(sandbox.as_ref(), &make).await?;
                if !created.is_success() {
                    return Ok(created.result(&masker));
                }
                for (path, text) in files.iter() {
                    sandbox.upload(path, Bytes::from(text.clone()), FILE_MODE).await?;
                }
                let plural = if files.len() == 1 { "" } else { "s" };
                let found = format!("{} file{plural} written", files.len());
                Ok(StepResult::passed(masker.diagnostic(&found)))
            }
        })
        .await
        .map(drop)
    }
}

/// Joins a relative path to a directory. Validation has ensured that it stays within.
pub(super) fn within(directory: &str, path: &str) -> String {
    match path.trim_start_matches("./") {
        "" | "." => directory.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", directory.trim_end_matches('/')),
    }
}

/// The cause class of a missing repository.
pub(super) const INCOMPLETE: CauseClass = CauseClass::WorkspaceIncomplete;
