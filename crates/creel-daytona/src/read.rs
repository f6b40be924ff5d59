//! Reads of one sandbox: inspect, find.

use std::collections::HashSet;

use creel_model::labels;
use creel_model::provider::Marks;

use super::absence::Absences;
use super::api::{DaytonaResult, ListQuery};
use super::listing;
use super::model::DaytonaSandbox;
use super::read_retry::steadily;
use super::rest::DaytonaApi;
use super::state::SandboxState;

/// The prefix of a deleted sandbox's name; its old name and a number follow.
const DESTROYED_PREFIX: &str = "DESTROYED_";

/// Returns one sandbox; `None` means that it is gone and has no hidden record either.
pub(super) async fn inspect(
    api: &DaytonaApi,
    absences: &Absences,
    id: &str,
) -> DaytonaResult<Option<DaytonaSandbox>> {
    match steadily(|| api.get(id)).await {
        Ok(sandbox) if sandbox.state != SandboxState::Destroyed => Ok(Some(sandbox)),
        Ok(sandbox) => absences.hidden(&sandbox.id).await,
        Err(refusal) if refusal.is_absence() => absences.hidden(id).await,
        Err(refusal) => Err(refusal),
    }
}

/// Finds the sandboxes that a create left behind.
///
/// It searches by name, if the name can be requested, and by label, which a sandbox keeps when a
/// delete renames it.
pub(super) async fn find(
    api: &DaytonaApi,
    marks: &Marks,
    by_name: bool,
) -> DaytonaResult<Vec<DaytonaSandbox>> {
    let mut found = Vec::new();
    if by_name {
        match steadily(|| api.get(&marks.name)).await {
            Ok(sandbox) => found.push(sandbox),
            Err(refusal) if refusal.is_absence() => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let query = ListQuery {
        labels: [(labels::RESOURCE.to_owned(), marks.resource.to_string())].into(),
        errored_deleted: true,
        ..ListQuery::default()
    };
    let mut known: HashSet<String> = found.iter().map(|sandbox| sandbox.id.clone()).collect();
    for row in listing::all(api, &query).await? {
        if is_of(&row, marks) && known.insert(row.id.clone()) {
            found.extend(confirmed(api, row).await?);
        }
    }
    found.retain(|sandbox| is_of(sandbox, marks));
    Ok(found)
}

/// Returns a listed sandbox if it still exists.
///
/// For a while after a delete, listings show a sandbox as it was. A record whose destroy failed
/// appears in listings only.
async fn confirmed(api: &DaytonaApi, row: DaytonaSandbox) -> DaytonaResult<Option<DaytonaSandbox>> {
    match steadily(|| api.get(&row.id)).await {
        Ok(there) => Ok(Some(there)),
        Err(refusal) if refusal.is_absence() => Ok(row.is_errored_deleted().then_some(row)),
        Err(refusal) => Err(refusal),
    }
}

/// Returns whether this create made the sandbox. A fork has the same labels, but another name.
pub(super) fn is_of(sandbox: &DaytonaSandbox, marks: &Marks) -> bool {
    let renamed = sandbox
        .name
        .strip_prefix(DESTROYED_PREFIX)
        .and_then(|rest| rest.strip_prefix(marks.name.as_str()))
        .is_some_and(|rest| rest.starts_with('_'));
    (sandbox.name == marks.name || renamed)
        && labels::claimed_resource(&sandbox.labels) == Some(marks.resource)
        && sandbox.state != SandboxState::Destroyed
}
