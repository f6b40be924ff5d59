//! What this machine supports, tested rather than guessed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use creel_model::id::ResourceId;
use creel_model::provider::Limits;
use serde::Serialize;

use super::cgroup::{CgroupVersion, GroupRecord, Hierarchies, PlannedGroup};
use super::channel::{HolderReport, HolderRequest, Role};
use super::state::ProviderState;
use super::tree_record::Containment;

/// What this machine supports for process trees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessCapabilities {
    /// The containment that a new tree would get.
    pub containment: Containment,
    /// Why each better containment is unavailable, as the system reports it.
    pub refused: Vec<(Containment, String)>,
    /// The available control groups.
    pub cgroup: Option<CgroupVersion>,
    /// The working limits, of `memory`, `cpus` and `processes`.
    pub limits: Vec<String>,
}

impl ProviderState {
    /// Tests each containment with a tree that has no workload.
    pub(super) fn capabilities(&self) -> io::Result<ProcessCapabilities> {
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let resource = ResourceId::new();
        let all = Limits { memory: Some(1 << 30), cpus: Some(1.0), processes: Some(100) };
        let (planned, mut missing) = hierarchies.plan(&resource.object_name(), &all);
        let mut groups = Vec::new();
        for group in &planned {
            match group.make() {
                Ok((created, refused)) => {
                    missing.extend(refused);
                    groups.push(created);
                }
                Err(_) => missing.extend(group.limits()),
            }
        }
        let tried = self.try_containments(resource, &groups);
        self.reap_holders();
        groups.iter().try_for_each(|group| group.remove(&resource))?;
        let (containment, refused, not_joined) = tried?;
        let outside = planned.iter().filter(|group| not_joined.contains(&group.path));
        missing.extend(outside.flat_map(PlannedGroup::limits));
        let limits = ["memory", "cpus", "processes"].map(str::to_owned);
        Ok(ProcessCapabilities {
            containment,
            refused,
            cgroup: hierarchies.version(),
            limits: limits.into_iter().filter(|limit| !missing.contains(limit)).collect(),
        })
    }

    #[expect(clippy::type_complexity, reason = "three answers of one try, taken apart at once")]
    fn try_containments(
        &self,
        resource: ResourceId,
        groups: &[GroupRecord],
    ) -> io::Result<(Containment, Vec<(Containment, String)>, Vec<PathBuf>)> {
        let mut refused = Vec::new();
        let candidates = match self.settings.containment {
            Some(forced) => vec![forced],
            None => Containment::ALL.to_vec(),
        };
        for containment in candidates {
            let request = HolderRequest {
                role: Role::Hold,
                resource,
                program: self.settings.holder.clone(),
                containment,
                cgroups: groups.to_vec(),
                workload: None,
                lease: Duration::from_secs(60),
                lease_file: PathBuf::new(),
                ending_file: PathBuf::new(),
            };
            match self.run_holder(&request)? {
                HolderReport::Started { not_joined, .. } => {
                    return Ok((containment, refused, not_joined));
                }
                HolderReport::Unavailable { reason } => refused.push((containment, reason)),
                other => return Err(io::Error::other(format!("unexpected answer {other:?}"))),
            }
        }
        Err(io::Error::other("no containment is available"))
    }
}
