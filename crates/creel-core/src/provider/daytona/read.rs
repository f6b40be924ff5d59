//! Reads: list, inspect, find.

use std::collections::HashSet;
use std::time::Duration;

use crate::labels;
use crate::provider::{ErrorClass, Marks};

use super::absence::Absences;
use super::bounds::Tally;
use super::classify::Refusal;
use super::model::Sandbox;
use super::state::SandboxState;
use super::wire::{Answered, ListQuery, Wire};

/// The waits before a read that failed in passing is sent again.
const WAITS: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(750), Duration::from_secs(2)];
/// What a deleted sandbox is called from then on: this, its name, and a number.
const DESTROYED_PREFIX: &str = "DESTROYED_";
/// A listing of more pages than this runs in circles.
const MOST_PAGES: usize = 5_000;

/// Asks again where the failure is one that passes; only for what changes nothing.
pub(super) async fn steadily<T, F>(mut ask: impl FnMut() -> F) -> Answered<T>
where
    F: Future<Output = Answered<T>>,
{
    for wait in WAITS {
        match ask().await {
            Err(refusal) if refusal.class == ErrorClass::Transient => {
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
    ask().await
}

/// Lists every sandbox that fits, over all pages, each once.
///
/// Rows are read in the order of their creation: one that appears meanwhile comes last, one that
/// vanishes moves no other across the place where reading goes on.
pub(super) async fn all(wire: &dyn Wire, query: &ListQuery) -> Answered<Vec<Sandbox>> {
    let mut found: Vec<Sandbox> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    let (mut tally, mut cursors) = (Tally::default(), HashSet::new());
    let mut cursor: Option<String> = None;
    for _ in 0..MOST_PAGES {
        let page = steadily(|| wire.list(query, cursor.as_deref())).await?;
        tally.add(page.items.len(), page.size)?;
        found.extend(page.items.into_iter().filter(|row| known.insert(row.id.clone())));
        let Some(next) = page.next else { return Ok(found) };
        if !cursors.insert(next.clone()) {
            return Err(repeated(found.len()));
        }
        cursor = Some(next);
    }
    Err(Refusal::new(ErrorClass::Invalid, "its listing has no end"))
}

/// Says that a listing came back to a page it had shown: what follows it is not known. Some of the
/// sandboxes may be gone the next time, so this may pass.
fn repeated(rows: usize) -> Refusal {
    let message = format!(
        "its listing repeats a cursor after {rows} sandboxes and is not complete: more of them \
         were created within one millisecond than fit on a page"
    );
    Refusal::new(ErrorClass::Transient, message)
}

/// Looks at one sandbox; `None` means that it is gone, hidden records included.
pub(super) async fn inspect(
    wire: &dyn Wire,
    absences: &Absences,
    id: &str,
) -> Answered<Option<Sandbox>> {
    match steadily(|| wire.get(id)).await {
        Ok(sandbox) if sandbox.state != SandboxState::Destroyed => Ok(Some(sandbox)),
        Ok(sandbox) => absences.hidden(&sandbox.id).await,
        Err(refusal) if refusal.is_absence() => absences.hidden(id).await,
        Err(refusal) => Err(refusal),
    }
}

/// Finds what a create left behind: by its name, where that can be asked for, and by its label,
/// which it keeps when a delete renames it.
pub(super) async fn find(wire: &dyn Wire, marks: &Marks, by_name: bool) -> Answered<Vec<Sandbox>> {
    let mut found = Vec::new();
    if by_name {
        match steadily(|| wire.get(&marks.name)).await {
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
    for row in all(wire, &query).await? {
        if is_of(&row, marks) && known.insert(row.id.clone()) {
            found.extend(confirmed(wire, row).await?);
        }
    }
    found.retain(|sandbox| is_of(sandbox, marks));
    Ok(found)
}

/// Returns what a listing showed, if it is there: for a while after a delete, listings show
/// what is gone, as it was. Only a record whose destroy failed is in no other answer.
async fn confirmed(wire: &dyn Wire, row: Sandbox) -> Answered<Option<Sandbox>> {
    match steadily(|| wire.get(&row.id)).await {
        Ok(there) => Ok(Some(there)),
        Err(refusal) if refusal.is_absence() => Ok(row.is_errored_deleted().then_some(row)),
        Err(refusal) => Err(refusal),
    }
}

/// Returns whether this create made the sandbox: a fork has the labels, but another name.
pub(super) fn is_of(sandbox: &Sandbox, marks: &Marks) -> bool {
    let renamed = sandbox
        .name
        .strip_prefix(DESTROYED_PREFIX)
        .and_then(|rest| rest.strip_prefix(marks.name.as_str()))
        .is_some_and(|rest| rest.starts_with('_'));
    (sandbox.name == marks.name || renamed)
        && labels::claimed_resource(&sandbox.labels) == Some(marks.resource)
        && sandbox.state != SandboxState::Destroyed
}
