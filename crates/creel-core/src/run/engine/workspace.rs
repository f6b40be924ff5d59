//! The workspace: its directory, its files, its repositories, each proven to be there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::run::{CauseClass, ConditionType, Status};
use crate::sandbox::{Command, Sandbox};

use super::checklist::{Look, Plan, run};
use super::credential::Login;
use super::{Drive, Stopped};

/// How long writing the files may take.
const FILES_LIMIT: Duration = Duration::from_secs(120);
/// The rights of a file of the workspace.
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
        let made = self.fill_workspace(sandbox).await;
        if let Err(Stopped::Cause(cause)) = &made {
            let (about, message) = (ConditionType::WorkspaceReady, cause.message.clone());
            self.condition(about, Status::False, "Incomplete", message).await?;
        }
        made?;
        self.workspace_is_ready().await
    }

    async fn fill_workspace(&mut self, sandbox: &Arc<dyn Sandbox>) -> Result<(), Stopped> {
        self.write_files(sandbox).await?;
        let logins = self.obtain_credentials().await?;
        let wanted = self.workflow.workspace.repositories.clone().into_iter().map(|repository| {
            let login = repository.credential.as_ref().and_then(|name| logins.get(name));
            let login = login.cloned().unwrap_or(Login::None);
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
        let plan = Plan { tries: 2, ..Plan::new("workspace", expected, FILES_LIMIT) };
        let masker = self.masker.clone();
        self.step(plan, || {
            let (sandbox, files, masker) =
                (Arc::clone(sandbox), Arc::clone(&files), masker.clone());
            let make = Command {
                directory: Some(sandbox.workspace_root().to_owned()),
                ..Command::new(["mkdir", "-p", "--", &path], FILES_LIMIT)
            };
            async move {
                let made = run(sandbox.as_ref(), &make).await?;
                if !made.is_success() {
                    return Ok(made.look(&masker));
                }
                for (path, text) in files.iter() {
                    sandbox.upload(path, Bytes::from(text.clone()), FILE_MODE).await?;
                }
                Ok(Look::good(masker.diagnostic(&format!("{} files written", files.len()))))
            }
        })
        .await
        .map(drop)
    }
}

/// Joins a path to a directory, if it is relative; the workflow was checked not to lead out of it.
pub(super) fn within(directory: &str, path: &str) -> String {
    match path.trim_start_matches("./") {
        "" | "." => directory.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{path}", directory.trim_end_matches('/')),
    }
}

/// What a missing repository is called.
pub(super) const INCOMPLETE: CauseClass = CauseClass::WorkspaceIncomplete;
