//! Reads: list, inspect, find.

use std::collections::HashSet;
use std::time::Duration;

use creel_model::labels;
use creel_model::provider::{ErrorClass, Marks};

use super::absence::Absences;
use super::api::{DaytonaApi, DaytonaResult, ListQuery};
use super::bounds::ListTally;
use super::classify::DaytonaError;
use super::model::DaytonaSandbox;
use super::state::SandboxState;

/// The waits before a read with a transient failure is retried.
const WAITS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_secs(2)];
/// The prefix of a deleted sandbox's name; its old name and a number follow.
const DESTROYED_PREFIX: &str = "DESTROYED_";
/// A listing of more pages than this is endless.
const MOST_PAGES: usize = 5_000;

/// Retries a request after transient failures; only for requests that change nothing.
pub(super) async fn steadily<T, F>(mut send: impl FnMut() -> F) -> DaytonaResult<T>
where
    F: Future<Output = DaytonaResult<T>>,
{
    for wait in WAITS {
        match send().await {
            Err(refusal) if refusal.class == ErrorClass::Transient => {
                tokio::time::sleep(wait).await;
            }
            result => return result,
        }
    }
    send().await
}

/// Lists every matching sandbox over all pages, each once.
///
/// Rows come in order of creation. A row that appears meanwhile comes last, and one that vanishes
/// moves no other row across the cursor.
pub(super) async fn all(
    api: &dyn DaytonaApi,
    query: &ListQuery,
) -> DaytonaResult<Vec<DaytonaSandbox>> {
    let mut found: Vec<DaytonaSandbox> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    let (mut tally, mut cursors) = (ListTally::default(), HashSet::new());
    let mut cursor: Option<String> = None;
    for _ in 0..MOST_PAGES {
        let page = steadily(|| api.list(query, cursor.as_deref())).await?;
        tally.add(page.items.len(), page.size)?;
        found.extend(page.items.into_iter().filter(|row| known.insert(row.id.clone())));
        let Some(next) = page.next else { return Ok(found) };
        if !cursors.insert(next.clone()) {
            return Err(repeated(found.len()));
        }
        cursor = Some(next);
    }
    Err(DaytonaError::new(ErrorClass::Invalid, "its listing has no end"))
}

/// Returns the error for a listing that repeats a cursor, so that the following rows are unknown.
///
/// Some of the sandboxes may be gone the next time, so the error is transient.
fn repeated(rows: usize) -> DaytonaError {
    let message = format!(
        "its listing repeats a cursor after {rows} sandboxes and is not complete: more of them \
         were created within one millisecond than fit on a page"
    );
    DaytonaError::new(ErrorClass::Transient, message)
}

/// Returns one sandbox; `None` means that it is gone and has no hidden record either.
pub(super) async fn inspect(
    api: &dyn DaytonaApi,
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
    api: &dyn DaytonaApi,
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
    for row in all(api, &query).await? {
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
async fn confirmed(
    api: &dyn DaytonaApi,
    row: DaytonaSandbox,
) -> DaytonaResult<Option<DaytonaSandbox>> {
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
