//! The search for everything that a vanished ledger had on record. It changes nothing.

use std::collections::HashSet;
use std::path::Path;

use creel_ledger::event_log as records;
use creel_ledger::event_log::{EventLog, RecordsError};
use creel_ledger::{Ledger, OwnerRecord, presence};
use creel_model::id::{LedgerId, ResourceId};
use creel_model::labels;
use creel_model::os::ProcessKey;
use creel_model::owner::Owner;
use creel_model::provider::{Marks, Observed, Provider, Providers};
use creel_sanitise::Masked;
use futures::future::join_all;

use super::{FoundResource, FoundRun, RebuildError, RebuildSurvey, Unproven};

/// The evidence for an object at a provider.
const NAME_AND_LABELS: &str = "it has the name and the labels of its create";
/// The evidence for a sandbox whose own record is missing or unreadable.
const OWN_DIRECTORY: &str = "it lies in this ledger's directory, under the name of its create";

/// The classification of one object.
enum Classification {
    /// It belongs to this ledger.
    Ours(Box<FoundResource>),
    /// It may belong to this ledger, without proof.
    Unproven(&'static str),
    /// It does not belong to this ledger.
    Foreign,
}

/// Searches for what the ledger of a directory had on record.
///
/// The id of the ledger is the given one, the one in its id file, or the one that all sandboxes in
/// the directory carry.
///
/// # Errors
///
/// Fails when the id is unknown. Unreachable providers and unreadable runs are in the result.
pub async fn survey(
    home: &Path,
    providers: &Providers,
    id: Option<LedgerId>,
) -> Result<RebuildSurvey, RebuildError> {
    let mut unreachable = Vec::new();
    let mut inventory = Vec::new();
    let lists = providers.iter().map(|provider| provider.list(provider.kinds()));
    for listed in join_all(lists).await {
        match listed {
            Ok(seen) => inventory.extend(seen),
            Err(error) => unreachable.push(error),
        }
    }
    let ledger = id
        .or_else(|| Ledger::recorded_id(home))
        .or_else(|| id_of_local(&inventory, providers))
        .ok_or(RebuildError::NoId)?;
    let (mut resources, mut unproven) = (Vec::new(), Vec::new());
    for seen in inventory {
        let Ok(provider) = providers.get(seen.provider) else { continue };
        match classify(ledger, provider.as_ref(), &seen).await {
            Classification::Ours(found) => resources.push(*found),
            Classification::Unproven(reason) => unproven.push(Unproven { seen, reason }),
            Classification::Foreign => {}
        }
    }
    resources.sort_by_key(|found| found.resource);
    let mut unreadable = Vec::new();
    let runs = match runs_of(home, &mut unreadable).await {
        Ok(runs) => runs,
        Err(error) => {
            unreadable.push(error.to_string());
            Vec::new()
        }
    };
    Ok(RebuildSurvey { ledger, resources, runs, unproven, unreadable, unreachable })
}

/// Returns the ledger that the objects on this machine name, if they agree.
fn id_of_local(inventory: &[Observed], providers: &Providers) -> Option<LedgerId> {
    let local = inventory.iter().filter(|seen| providers.is_local(seen.provider));
    let ids: HashSet<LedgerId> =
        local.filter_map(|seen| labels::claimed_ledger(&seen.labels)).collect();
    let mut ids = ids.into_iter();
    ids.next().filter(|_| ids.next().is_none())
}

async fn classify(ledger: LedgerId, provider: &dyn Provider, seen: &Observed) -> Classification {
    match labels::claimed_ledger(&seen.labels) {
        Some(claimed) if claimed == ledger => {}
        Some(_) => return Classification::Foreign,
        None => return classify_unlabelled(provider, seen),
    }
    let Some(resource) = labels::claimed_resource(&seen.labels) else {
        return Classification::Foreign;
    };
    if seen.name != resource.object_name() {
        return Classification::Unproven(
            "its name is not the one that creel gave: guarded, or a copy",
        );
    }
    let marks = Marks { kind: seen.kind, resource, name: seen.name.clone() };
    match provider.find(&marks).await {
        Ok(found) => match found.as_slice() {
            [one] if one.id == seen.id => Classification::Ours(Box::new(found_as(resource, seen))),
            [] | [_] => Classification::Unproven("it only inherited its labels"),
            [_, _, ..] => Classification::Unproven("several objects have its name and labels"),
        },
        Err(_) => Classification::Unproven("its provider could not be asked again"),
    }
}

/// Classifies an object without a ledger label: only a sandbox in this ledger's own directory is
/// ours.
fn classify_unlabelled(provider: &dyn Provider, seen: &Observed) -> Classification {
    match ResourceId::of_object(&seen.id).filter(|_| provider.is_local()) {
        Some(resource) => {
            let found = found_as(resource, seen);
            Classification::Ours(Box::new(FoundResource { evidence: OWN_DIRECTORY, ..found }))
        }
        None => Classification::Foreign,
    }
}

fn found_as(resource: ResourceId, seen: &Observed) -> FoundResource {
    let owner = labels::claimed_owner(&seen.labels).unwrap_or_else(unknown_owner);
    FoundResource {
        resource,
        run: labels::claimed_run(&seen.labels),
        seen: seen.clone(),
        owner: OwnerRecord { owner, command: Masked::ours("rebuilt"), started_at_ms: 0 },
        evidence: NAME_AND_LABELS,
    }
}

/// Returns an owner of unknown liveness: what it held is kept until its lease ends.
fn unknown_owner() -> Owner {
    Owner {
        host: "unknown".to_owned(),
        boot: "unknown".to_owned(),
        pid_namespace: 0,
        process: ProcessKey { pid: 0, started_ticks: 0 },
    }
}

/// Replays the runs of the event log, if there is one.
///
/// A run that cannot be replayed does not hide the others.
async fn runs_of(home: &Path, unreadable: &mut Vec<String>) -> Result<Vec<FoundRun>, RecordsError> {
    if !presence::has_content(&EventLog::path(home)) {
        return Ok(Vec::new());
    }
    let log = EventLog::open(home).await?;
    let mut runs = Vec::new();
    for run in log.runs().await? {
        match records::replay(&log, run).await {
            Ok((state, began_at_ms, changed_at_ms)) => {
                runs.push(FoundRun { run, state, began_at_ms, changed_at_ms });
            }
            Err(error) => unreadable.push(format!("{run}: {error}")),
        }
    }
    Ok(runs)
}
