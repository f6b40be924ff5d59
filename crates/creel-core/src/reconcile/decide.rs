//! The decision about a record: one pure function.

use creel_ledger::{LeaseStatus, OnOwnerDeath, Record, StateName};
use creel_model::owner::Liveness;

/// What a round does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Leave it to its owner.
    Keep,
    /// It cannot be removed, and its owner must retry.
    Quarantined,
    /// It could not be removed and has no responsible owner: retry once.
    Retry,
    /// A clock jumped: grant it one more lease.
    GrantLease,
    /// Take it over and release it.
    Release,
}

/// Decides only from the record, the owner's liveness and the lease.
///
/// A live owner keeps what it has, whatever the lease says. A dead owner's resources are released
/// immediately, unless it asked to hold them until the lease ends. An owner of unknown liveness
/// counts as alive until the lease ends.
pub fn decide(record: &Record, liveness: Liveness, lease: LeaseStatus) -> Decision {
    let by_lease = match lease {
        LeaseStatus::Running => Decision::Keep,
        LeaseStatus::Expired => Decision::Release,
        LeaseStatus::ClockJumped => Decision::GrantLease,
    };
    match (record.state.name(), liveness, record.on_owner_death) {
        (StateName::Gone | StateName::Lost, _, _) => Decision::Keep,
        (StateName::Quarantined, Liveness::Dead, _) => Decision::Retry,
        (StateName::Quarantined, Liveness::Unknown, _) if lease == LeaseStatus::Expired => {
            Decision::Retry
        }
        (StateName::Quarantined, _, _) => Decision::Quarantined,
        (_, Liveness::Alive, _) => Decision::Keep,
        (_, Liveness::Unknown, _) => by_lease,
        (StateName::Releasing, Liveness::Dead, _) => Decision::Release,
        (_, Liveness::Dead, OnOwnerDeath::Release) => Decision::Release,
        (_, Liveness::Dead, OnOwnerDeath::Hold) => by_lease,
    }
}

#[cfg(test)]
mod tests {
    use creel_ledger::{Lease, OwnerRecord, ResourceState, SearchWindow};
    use creel_model::clock::ClockReading;
    use creel_model::id::ResourceId;
    use creel_model::os::ProcessKey;
    use creel_model::owner::Owner;
    use creel_model::provider::Kind;

    use super::*;

    fn record(state: ResourceState, on_owner_death: OnOwnerDeath) -> Record {
        let owner = Owner {
            host: "h".to_owned(),
            boot: "b".to_owned(),
            pid_namespace: 1,
            process: ProcessKey { pid: 1, started_ticks: 1 },
        };
        Record {
            id: ResourceId::new(),
            run: None,
            provider: creel_docker::NAME,
            kind: Kind::Container,
            name: "creel-x".to_owned(),
            labels: Default::default(),
            state,
            identity: None,
            owner: OwnerRecord { owner, command: "test".into(), started_at_ms: 0 },
            on_owner_death,
            lease: Lease {
                duration_ms: 1,
                renewed: ClockReading { wall_ms: 0, awake_ms: 0 },
                boot: "b".to_owned(),
            },
            search: SearchWindow {
                from: ClockReading { wall_ms: 0, awake_ms: 0 },
                boot: "b".to_owned(),
            },
            intended_at_ms: 0,
            changed_at_ms: 0,
        }
    }

    fn created() -> ResourceState {
        ResourceState::Created { object: "c".to_owned() }
    }

    #[test]
    fn a_live_owner_keeps_what_it_has_even_after_its_lease() {
        for state in [ResourceState::Intended, created(), ResourceState::Releasing { object: None }]
        {
            let record = record(state, OnOwnerDeath::Release);
            let decision = decide(&record, Liveness::Alive, LeaseStatus::Expired);
            assert_eq!(decision, Decision::Keep);
        }
    }

    #[test]
    fn a_dead_owners_resources_go_unless_they_are_held() {
        let release = record(created(), OnOwnerDeath::Release);
        let hold = record(created(), OnOwnerDeath::Hold);
        let dead = |record: &Record, lease| decide(record, Liveness::Dead, lease);
        assert_eq!(dead(&release, LeaseStatus::Running), Decision::Release);
        assert_eq!(dead(&hold, LeaseStatus::Running), Decision::Keep);
        assert_eq!(dead(&hold, LeaseStatus::Expired), Decision::Release);
        assert_eq!(dead(&hold, LeaseStatus::ClockJumped), Decision::GrantLease);
        let releasing = record(ResourceState::Releasing { object: None }, OnOwnerDeath::Hold);
        assert_eq!(dead(&releasing, LeaseStatus::Running), Decision::Release);
    }

    #[test]
    fn an_owner_of_unknown_liveness_keeps_resources_until_the_lease_ends() {
        let record = record(created(), OnOwnerDeath::Release);
        let unknown = |lease| decide(&record, Liveness::Unknown, lease);
        assert_eq!(unknown(LeaseStatus::Running), Decision::Keep);
        assert_eq!(unknown(LeaseStatus::Expired), Decision::Release);
        assert_eq!(unknown(LeaseStatus::ClockJumped), Decision::GrantLease);
    }

    #[test]
    fn a_quarantined_record_without_an_owner_is_retried() {
        let state = ResourceState::Quarantined { object: None, reason: "stuck".into() };
        let record = record(state, OnOwnerDeath::Hold);
        let decide = |liveness, lease| decide(&record, liveness, lease);
        assert_eq!(decide(Liveness::Dead, LeaseStatus::Running), Decision::Retry);
        assert_eq!(decide(Liveness::Unknown, LeaseStatus::Expired), Decision::Retry);
        assert_eq!(decide(Liveness::Unknown, LeaseStatus::Running), Decision::Quarantined);
        assert_eq!(decide(Liveness::Alive, LeaseStatus::Expired), Decision::Quarantined);
    }
}
