//! Owners and runs for tests.

use creel_model::id::RunId;
use creel_model::owner::Liveness;
use creel_model::provider::ProviderName;

use crate::{NewRun, OnOwnerDeath, OwnerRecord, WorkflowRecord};

/// Returns this process as an owner.
pub fn me() -> OwnerRecord {
    OwnerRecord::this_process("test").expect("/proc can be read")
}

/// Returns an owner that is provably dead.
pub fn a_dead_owner() -> OwnerRecord {
    let mut dead = me();
    dead.owner.process.started_ticks += 1;
    assert_eq!(dead.owner.liveness(), Liveness::Dead);
    dead
}

/// Returns a new run of this owner.
pub fn a_run_of(owner: OwnerRecord) -> NewRun {
    NewRun {
        id: RunId::new(),
        name: "hello".into(),
        provider: ProviderName::new("process"),
        owner,
        on_owner_death: OnOwnerDeath::Release,
        workflow: WorkflowRecord {
            source_name: "hello.toml".into(),
            source: String::new(),
            inputs: Default::default(),
        },
    }
}
