//! What this machine allows, tried out rather than guessed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::id::ResourceId;
use crate::provider::Limits;

use super::cgroup::{self, CgroupVersion, Hierarchies};
use super::channel::{Containment, HolderOrder, Report, Role};
use super::group::GroupRecord;
use super::world::World;

/// What a process tree can be given on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The containment that a tree made now would get.
    pub containment: Containment,
    /// Why each better containment cannot be had, in the system's words.
    pub refused: Vec<(Containment, String)>,
    /// Which control groups there are.
    pub cgroup: Option<CgroupVersion>,
    /// The limits that work: of `memory`, `cpus` and `processes`.
    pub limits: Vec<String>,
}

impl World {
    /// Tries out each containment with a tree that has no workload.
    pub(super) fn capabilities(&self) -> io::Result<Capabilities> {
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let resource = ResourceId::new();
        let all = Limits { memory: Some(1 << 30), cpus: Some(1.0), processes: Some(100) };
        let (planned, mut missing) = hierarchies.plan(&resource.object_name(), &all);
        let mut groups = Vec::new();
        for group in &planned {
            match group.make() {
                Ok((made, refused)) => {
                    missing.extend(refused);
                    groups.push(made);
                }
                Err(_) => missing.extend(group.limits()),
            }
        }
        let tried = self.try_containments(resource, &groups);
        self.reap_holders();
        groups.iter().try_for_each(|group| group.remove(&resource))?;
        let (containment, refused, not_joined) = tried?;
        let outside = planned.iter().filter(|group| not_joined.contains(&group.path));
        missing.extend(outside.flat_map(cgroup::PlannedGroup::limits));
        let limits = ["memory", "cpus", "processes"].map(str::to_owned);
        Ok(Capabilities {
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
            let order = HolderOrder {
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
            match self.ask_holder(&order)? {
                Report::Started { not_joined, .. } => {
                    return Ok((containment, refused, not_joined));
                }
                Report::Unavailable { reason } => refused.push((containment, reason)),
                other => return Err(io::Error::other(format!("unexpected answer {other:?}"))),
            }
        }
        Err(io::Error::other("no containment is available"))
    }
}
