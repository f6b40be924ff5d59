//! The process world as a [`Provider`].
//!
//! Everything here blocks for moments (reads of `/proc`, waits for the dead),
//! so every call runs on a thread of its own, and to its end even when the
//! caller is cancelled.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::os;
use crate::provider::{
    CreateOrder, ErrorClass, Kind, Marks, Observed, ProcessSpec, Provider, ProviderName,
    ReleaseMode, Released, Result, Usage,
};
use crate::task;

use super::capability::Capabilities;
use super::channel::{Containment, Ending};
use super::sidecar::{Record, resource_of_object};
use super::world::{ProcessSettings, World, failure, io_failure};
use super::{disk, lease, observe, tree, usage};

/// Directories and process trees on this machine.
#[derive(Debug, Clone)]
pub struct ProcessProvider {
    world: Arc<World>,
}

impl ProcessProvider {
    /// Makes a provider; nothing is touched before it is used.
    pub fn new(settings: ProcessSettings) -> Self {
        Self { world: Arc::new(World::new(settings)) }
    }

    /// Renews the lease of a process tree.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorClass::Gone`] when there is no record of it.
    pub async fn renew(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.blocking(move |world| {
            let operation = format!("renew process {id}");
            let gone = || failure(&operation, ErrorClass::Gone, "there is no such process tree");
            let resource = resource_of_object(&id).ok_or_else(gone)?;
            let shelf = world.shelf(&operation)?;
            let wrong = |error: std::io::Error| io_failure(&operation, &error);
            match shelf.read(&resource).map_err(wrong)? {
                Record::Absent => Err(gone()),
                _ => lease::renew(&shelf.lease_file(&resource)).map_err(wrong),
            }
        })
        .await
    }

    /// Starts a process tree again that was stopped or has ended, with the limits it had; one
    /// that runs is fine.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorClass::Gone`] when there is no record of it, and when it cannot be
    /// started.
    pub async fn restart(&self, id: &str, spec: &ProcessSpec) -> Result<()> {
        let (id, spec) = (id.to_owned(), spec.clone());
        self.blocking(move |world| world.restart(&id, &spec)).await
    }

    /// Tells what a process tree uses.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub async fn usage(&self, id: &str) -> Result<Usage> {
        let operation = format!("measure process {id}");
        let resource = resource_of_object(id);
        self.blocking(move |world| {
            let Some(resource) = resource else { return Ok(Usage::default()) };
            let record = world.shelf(&operation)?.read(&resource);
            record
                .and_then(|record| usage::of_tree(&resource, record.groups()))
                .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    /// Lets a process tree go on that was frozen or stopped, by itself or by anybody else.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` or the records cannot be read.
    pub async fn wake(&self, id: &str) -> Result<()> {
        let operation = format!("wake process {id}");
        let resource = resource_of_object(id);
        self.blocking(move |world| {
            let Some(resource) = resource else { return Ok(()) };
            let record = world.shelf(&operation)?.read(&resource);
            record
                .and_then(|record| tree::wake(&resource, record.groups()))
                .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    /// Tries out what this machine allows.
    ///
    /// # Errors
    ///
    /// Fails when no holder can be started.
    pub async fn capabilities(&self) -> Result<Capabilities> {
        self.blocking(|world| {
            world.capabilities().map_err(|error| io_failure("try out this machine", &error))
        })
        .await
    }

    /// Returns how a process tree ended; `None` while it runs or when that is not known.
    ///
    /// # Errors
    ///
    /// Fails when the records cannot be opened.
    pub fn ending(&self, id: &str) -> Result<Option<Ending>> {
        let shelf = self.world.shelf(&format!("read the ending of process {id}"))?;
        Ok(resource_of_object(id).and_then(|resource| shelf.read_ending(&resource)))
    }

    /// Returns the containment and the missing limits of a process tree, as recorded.
    ///
    /// # Errors
    ///
    /// Fails when the record cannot be opened.
    pub fn containment(&self, id: &str) -> Result<Option<(Containment, Vec<String>)>> {
        let operation = format!("read the record of process {id}");
        let Some(resource) = resource_of_object(id) else { return Ok(None) };
        let record = self
            .world
            .shelf(&operation)?
            .read(&resource)
            .map_err(|error| io_failure(&operation, &error))?;
        Ok(record
            .sidecar()
            .and_then(|sidecar| Some((sidecar.tree?.containment, sidecar.limits_missing.clone()))))
    }

    /// Returns the file that takes what a workload writes to its outputs.
    pub fn log_file(&self, id: &str) -> Option<PathBuf> {
        let resource = resource_of_object(id)?;
        Some(self.world.shelf("find the log").ok()?.log_file(&resource))
    }

    /// Returns where a directory resource is.
    pub fn directory(&self, id: &str) -> Option<PathBuf> {
        let resource = resource_of_object(id)?;
        Some(self.world.shelf("find the directory").ok()?.directory(&resource))
    }

    /// Returns where the contents of a directory resource go: on its disk, where it has one.
    pub fn work_directory(&self, id: &str) -> Option<PathBuf> {
        let resource = resource_of_object(id)?;
        let shelf = self.world.shelf("find the directory").ok()?;
        let directory = shelf.directory(&resource);
        let record = shelf.read(&resource).ok()?;
        let has_disk = record.sidecar().is_some_and(|sidecar| sidecar.disk.is_some());
        Some(if has_disk { disk::point_of(&directory) } else { directory })
    }

    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&World) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let world = Arc::clone(&self.world);
        task::blocking(move || work(&world)).await
    }
}

#[async_trait]
impl Provider for ProcessProvider {
    fn name(&self) -> ProviderName {
        ProviderName::Process
    }

    fn address(&self) -> String {
        self.world.settings.root.display().to_string()
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Process, Kind::Directory]
    }

    /// The record of an object is written by the caller before anything else is made.
    fn creates_end_with_caller(&self) -> bool {
        true
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn identity(&self) -> Result<String> {
        self.blocking(|world| {
            let operation = "identify this machine";
            let host = os::host_id().map_err(|error| io_failure(operation, &error))?;
            Ok(format!("{host}:{}", world.shelf(operation)?.root().display()))
        })
        .await
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        let kinds = kinds.to_vec();
        self.blocking(move |world| {
            world.reap_holders();
            let operation = "list processes and directories";
            observe::list(&world.shelf(operation)?, &kinds)
                .map_err(|error| io_failure(operation, &error))
        })
        .await
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let id = id.to_owned();
        self.blocking(move |world| {
            world.reap_holders();
            let operation = format!("inspect {kind} {id}");
            let Some(resource) = resource_of_object(&id) else { return Ok(None) };
            let shelf = world.shelf(&operation)?;
            match kind {
                Kind::Process => observe::process(&shelf, &resource),
                Kind::Directory => observe::directory(&shelf, &resource),
                _ => Ok(None),
            }
            .map_err(|error| io_failure(&operation, &error))
        })
        .await
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        // Every trace (record, marker, directory) is looked up by the resource alone.
        let found = self.inspect(marks.kind, &marks.resource.object_name()).await?;
        // A directory is recorded before it has its name: one without a record is not ours.
        let is_marked = |seen: &Observed| {
            marks.kind != Kind::Directory
                || !matches!(seen.state.as_str(), "unrecorded" | "unreadable")
        };
        Ok(found.into_iter().filter(is_marked).collect())
    }

    async fn create(&self, order: &CreateOrder) -> Result<String> {
        let order = order.clone();
        self.blocking(move |world| world.create(&order)).await
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let id = id.to_owned();
        self.blocking(move |world| world.stop(kind, &id, timeout)).await
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        match kind {
            Kind::Process => ProcessProvider::renew(self, id).await,
            _ => Ok(()),
        }
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let id = id.to_owned();
        self.blocking(move |world| world.release(kind, &id, mode)).await
    }
}
