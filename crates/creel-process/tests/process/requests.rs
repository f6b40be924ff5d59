//! Providers and requests that the tests and their helper program share.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{CreateRequest, Limits, ProcessSpec, Spec};
use creel_process::{Containment, HolderProgram, ProcessProvider, ProcessSettings};

/// Returns a provider with this root, whose holders are run by this program.
pub(crate) fn provider_at(
    root: &Path,
    containment: Option<Containment>,
    holder: &str,
) -> ProcessProvider {
    let holder = HolderProgram { program: holder.into(), args: vec!["holder".to_owned()] };
    ProcessProvider::new(ProcessSettings { root: root.to_owned(), holder, containment })
}

/// Runs a future to its end.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(future)
}

/// Returns a request for a tree that runs a command.
pub(crate) fn command(args: &[&str]) -> CreateRequest {
    let resource = ResourceId::new();
    let command = args.iter().map(|arg| (*arg).to_owned()).collect();
    let spec =
        ProcessSpec { command, env: BTreeMap::new(), directory: None, limits: Limits::default() };
    CreateRequest {
        resource,
        name: resource.object_name(),
        labels: Labels::from([(labels::RESOURCE, resource.to_string())]),
        lease: Duration::from_secs(600),
        spec: Spec::Process(spec),
    }
}

/// Returns a request for a directory.
pub(crate) fn directory() -> CreateRequest {
    CreateRequest { spec: Spec::Directory, ..command(&[]) }
}
