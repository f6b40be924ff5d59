//! Processes as a backend: always configured, with nothing to install.

use std::sync::Arc;

use async_trait::async_trait;
use creel_model::backend::{
    Backend, BackendContext, BackendError, Connected, Diagnosis, SandboxDraft, Verdict,
};
use creel_model::provider::{Kind, ProviderName};

use super::capability::ProcessCapabilities;
use super::cgroup::CgroupVersion;
use super::disk::{SMALLEST_DISK, disk_refusal};
use super::provider::ProcessProvider;
use super::sandbox::ProcessSandboxes;
use super::settings::ProcessSettings;
use super::tree_record::Containment;
use super::{NAME, STATES};

/// Processes and directories of this machine.
#[derive(Debug, Clone, Copy)]
pub struct ProcessBackend;

impl ProcessBackend {
    /// Returns the provider.
    pub fn open(self, context: &BackendContext) -> ProcessProvider {
        ProcessProvider::new(ProcessSettings {
            root: context.sandboxes.clone(),
            holder: context.holder.clone(),
            containment: None,
        })
    }
}

#[async_trait]
impl Backend for ProcessBackend {
    fn name(&self) -> ProviderName {
        NAME
    }

    fn states(&self) -> Vec<&'static str> {
        STATES.to_vec()
    }

    fn connect(&self, context: &BackendContext) -> Result<Option<Connected>, BackendError> {
        let provider = self.open(context);
        let sandboxes = Arc::new(ProcessSandboxes::new(provider.clone()));
        Ok(Some(Connected { provider: Arc::new(provider), sandboxes }))
    }

    fn not_configured(&self) -> BackendError {
        BackendError::NotConfigured {
            message: "process sandboxes are not available here",
            hint: "creel doctor shows what was tried",
        }
    }

    async fn diagnose(&self, context: &BackendContext) -> Diagnosis {
        match self.open(context).capabilities().await {
            Ok(can) => Diagnosis::works(describe(&can)),
            Err(error) => Diagnosis::of(
                Verdict::Broken,
                error.message,
                "process sandboxes cannot be used on this machine",
            ),
        }
    }

    fn isolation(&self) -> &'static str {
        "none"
    }

    fn sandbox_kinds(&self) -> &'static [Kind] {
        &[Kind::Process, Kind::Directory]
    }

    fn has_own_file_system(&self) -> bool {
        false
    }

    /// A limit that would not hold is rejected. An image or a snapshot for another provider is
    /// ignored with a note, so that one workflow can serve several providers.
    fn check_sandbox(&self, draft: &mut SandboxDraft) {
        let sandbox = "a process sandbox";
        draft.ignore_image(sandbox);
        draft.ignore_snapshot(sandbox);
        if let Some(bytes) = draft.disk {
            let too_small = format!("it must be at least {}m", SMALLEST_DISK >> 20);
            draft.refuse_if(bytes < SMALLEST_DISK, "disk", &too_small);
            if let Some(reason) = disk_refusal() {
                draft.refuse("disk", format!("it cannot be limited here: {reason}"));
            }
        }
        let has_network = "process sandboxes have this machine's network";
        draft.refuse_if(draft.network.is_some(), "network", has_network);
    }
}

fn describe(can: &ProcessCapabilities) -> String {
    let limits = if can.limits.is_empty() { "none".to_owned() } else { can.limits.join(", ") };
    let groups = match can.cgroup {
        Some(CgroupVersion::V1) => "cgroup v1",
        Some(CgroupVersion::V2) => "cgroup v2",
        Some(CgroupVersion::Hybrid) => "cgroup v1 and v2",
        None => "no cgroups",
    };
    let held_by = match can.containment {
        Containment::PidNamespace => "a pid namespace",
        Containment::Cgroup => "a control group",
        Containment::Subreaper => "a subreaper",
    };
    format!("trees are held by {held_by}; {groups}; limits: {limits}")
}
