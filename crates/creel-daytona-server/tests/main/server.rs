//! Servers of process trees, for the tests and their helper program.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use creel_core::scope::Supervisor;
use creel_daytona_server::SandboxHost;
use creel_ledger::Ledger;
use creel_model::provider::Providers;
use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
use tokio::runtime::Runtime;

/// Creates a runtime for one server.
pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime can be made")
}

/// Creates a backend of process trees, with its ledger in a directory. Its holders are run by this
/// program.
pub(crate) async fn process_backend(home: &Path, holder: &str) -> SandboxHost {
    let provider = ProcessProvider::new(ProcessSettings {
        root: home.join("sandboxes"),
        holder: HolderProgram { program: PathBuf::from(holder), args: vec!["holder".to_owned()] },
        containment: None,
    });
    let ledger = Ledger::open(home).await.expect("the directory is ours");
    let providers = Providers::new(vec![Arc::new(provider.clone())]);
    let supervisor = Supervisor::new(ledger, providers, "a test").expect("procfs can be read");
    SandboxHost::Process { supervisor, provider }
}
