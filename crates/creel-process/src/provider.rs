//! The process implementation of [`Provider`].
//!
//! All operations block briefly (reads of `/proc`, waits for dying processes). Every call therefore
//! runs on a thread of its own, and to its end even when the caller is cancelled.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use creel_model::id::ResourceId;
use creel_model::os;
use creel_model::provider::{
    CreateRequest, Deadline, ErrorClass, Kind, Marks, Observed, Permit, ProcessSpec, Provider,
    ProviderName, ReleaseMode, Released, Result, Usage,
};
use creel_model::task;

use super::capability::ProcessCapabilities;
use super::settings::ProcessSettings;
use super::sidecar::SidecarRecord;
use super::state::{ProviderState, checked, failure, io_failure};
use super::tree_record::{Containment, ProcessEnding};
use super::{disk, lease, observe, tree, usage};

/// Directories and process trees on this machine.
#[derive(Debug, Clone)]
pub struct ProcessProvider {
    state: Arc<ProviderState>,
}

impl ProcessProvider {
    /// Creates a provider; nothing is touched before its first use.
    pub fn new(settings: ProcessSettings) -> Self {
        Self { state: Arc::new(ProviderState::new(settings)) }
    }

    /// Renews the lease of a process tree.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorClass::Gone`] when there is no record of it.
    pub async fn renew(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.blocking(move |state| {
            let operation = format!("renew process {id}");
            let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
            let resource = checked(Kind::Process, &id, &operation)?;
            let records = state.records(&operation)?;
            let wrong = |error: std::io::Error| io_failure(&operation, &error);
            match records.read(&resource).map_err(wrong)? {
                SidecarRecord::Absent => Err(gone()),
                _ => lease::renew(&records.lease_file(&resource)).map_err(wrong),
            }
        })
        .await
    }

    /// Restarts a process tree that was stopped or has ended, with the limits it had.
    ///
    /// A tree that already runs is left as it is.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorClass::Gone`] when there is no record of it, and when it cannot be
    /// started.
    pub async fn restart(&self, id: &str, spec: &ProcessSpec) -> Result<()> {
        let (id, spec) = (id.to_owned(), spec.clone());
        self.blocking(move |state| state.restart(&id, &spec)).await
    }

    /// Returns the resource usage of a process tree.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        let operation = format!("measure process {id}");
        let resource = ResourceId::of_object(id);
        self.blocking(move |state| {
            let Some(resource) = resource else { return Ok(Usage::default()) };
            let record = state.records(&operation)?.read(&resource);
            record
                .and_then(|record| usage::of_tree(&resource, record.groups()))
                .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    /// Resumes a process tree that was frozen or stopped, by itself or by another process. Returns
    /// whether anything in it was.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` or the records cannot be read.
    pub async fn wake(&self, id: &str) -> Result<bool> {
        let operation = format!("wake process {id}");
        let resource = ResourceId::of_object(id);
        self.blocking(move |state| {
            let Some(resource) = resource else { return Ok(false) };
            let record = state.records(&operation)?.read(&resource);
            record
                .and_then(|record| tree::wake(&resource, record.groups()))
                .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    /// Tests what this machine supports.
    ///
    /// # Errors
    ///
    /// Fails when no holder can be started.
    pub async fn capabilities(&self) -> Result<ProcessCapabilities> {
        self.blocking(|state| {
            state.capabilities().map_err(|error| io_failure("try out this machine", &error))
        })
        .await
    }

    /// Returns how a process tree ended; `None` while it runs or when that is unknown.
    ///
    /// # Errors
    ///
    /// Fails when the records cannot be opened.
    pub fn ending(&self, id: &str) -> Result<Option<ProcessEnding>> {
        let records = self.state.records(&format!("read the ending of process {id}"))?;
        Ok(ResourceId::of_object(id).and_then(|resource| records.read_ending(&resource)))
    }

    /// Returns the containment and the missing limits of a process tree, as recorded.
    ///
    /// # Errors
    ///
    /// Fails when the record cannot be opened.
    pub fn containment(&self, id: &str) -> Result<Option<(Containment, Vec<String>)>> {
        let operation = format!("read the record of process {id}");
        let Some(resource) = ResourceId::of_object(id) else { return Ok(None) };
        let record = self
            .state
            .records(&operation)?
            .read(&resource)
            .map_err(|error| io_failure(&operation, &error))?;
        Ok(record
            .sidecar()
            .and_then(|sidecar| Some((sidecar.tree?.containment, sidecar.limits_missing.clone()))))
    }

    /// Returns the file that receives the output of a workload.
    pub fn log_file(&self, id: &str) -> Option<PathBuf> {
        let resource = ResourceId::of_object(id)?;
        Some(self.state.records("find the log").ok()?.log_file(&resource))
    }

    /// Returns the path of a directory resource.
    pub fn directory(&self, id: &str) -> Option<PathBuf> {
        let resource = ResourceId::of_object(id)?;
        Some(self.state.records("find the directory").ok()?.directory(&resource))
    }

    /// Returns the path for the contents of a directory resource: on its disk, where it has one.
    pub fn work_directory(&self, id: &str) -> Option<PathBuf> {
        let resource = ResourceId::of_object(id)?;
        let records = self.state.records("find the directory").ok()?;
        let directory = records.directory(&resource);
        let record = records.read(&resource).ok()?;
        let has_disk = record.sidecar().is_some_and(|sidecar| sidecar.disk.is_some());
        Some(if has_disk { disk::point_of(&directory) } else { directory })
    }

    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ProviderState) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let state = Arc::clone(&self.state);
        task::blocking(move || work(&state)).await
    }
}

#[async_trait]
impl Provider for ProcessProvider {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    fn address(&self) -> String {
        self.state.settings.root.display().to_string()
    }

    fn other_account_hint(&self) -> &'static str {
        "set CREEL_HOME to the directory that the plan was made with"
    }

    fn access_hint(&self, kind: Kind, id: &str) -> Option<String> {
        let directory = self.directory(id).filter(|_| kind == Kind::Directory)?;
        Some(format!("enter it: cd {}", directory.display()))
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Process, Kind::Directory]
    }

    /// Returns true, because the caller writes the record of an object before it creates anything
    /// else.
    fn creates_end_with_caller(&self) -> bool {
        true
    }

    fn is_local(&self) -> bool {
        true
    }

    /// A thousand cloned repositories are some hundred thousand files.
    fn release_allowance(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Directory => Duration::from_secs(600),
            _ => Duration::ZERO,
        }
    }

    fn within(self: Arc<Self>, _permit: Permit, _deadline: Deadline) -> Arc<dyn Provider> {
        self
    }

    async fn identity(&self) -> Result<String> {
        self.blocking(|state| {
            let operation = "identify this machine";
            let host = os::host_id().map_err(|error| io_failure(operation, &error))?;
            Ok(format!("{host}:{}", state.records(operation)?.root().display()))
        })
        .await
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        let kinds = kinds.to_vec();
        self.blocking(move |state| {
            state.reap_holders();
            let operation = "list processes and directories";
            observe::list(&state.records(operation)?, &kinds)
                .map_err(|error| io_failure(operation, &error))
        })
        .await
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let id = id.to_owned();
        self.blocking(move |state| {
            state.reap_holders();
            let operation = format!("inspect {kind} {id}");
            let resource = checked(kind, &id, &operation)?;
            let records = state.records(&operation)?;
            match kind {
                Kind::Directory => observe::directory(&records, &resource),
                _ => observe::process(&records, &resource),
            }
            .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        // Every trace (record, marker, directory) is found by the resource alone.
        let found = self.inspect(marks.kind, &marks.resource.object_name()).await?;
        // A directory is recorded before it gets its name: one without a record is not ours.
        let is_marked = |seen: &Observed| {
            marks.kind != Kind::Directory
                || !matches!(seen.state.as_str(), "unrecorded" | "unreadable")
        };
        Ok(found.into_iter().filter(is_marked).collect())
    }

    async fn create(&self, request: &CreateRequest) -> Result<String> {
        let request = request.clone();
        self.blocking(move |state| state.create(&request)).await
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let id = id.to_owned();
        self.blocking(move |state| state.stop(kind, &id, timeout)).await
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        match kind {
            Kind::Process => ProcessProvider::renew(self, id).await,
            _ => checked(kind, id, &format!("renew {kind} {id}")).map(drop),
        }
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let id = id.to_owned();
        self.blocking(move |state| state.release(kind, &id, mode)).await
    }
}
