//! Lists sandboxes over all pages.

use std::collections::HashSet;

use creel_model::provider::ErrorClass;

use super::api::{DaytonaResult, ListQuery};
use super::bounds::ListTally;
use super::classify::DaytonaError;
use super::model::DaytonaSandbox;
use super::read_retry::steadily;
use super::rest::DaytonaApi;

/// A listing of more pages than this is endless.
const MOST_PAGES: usize = 5_000;

/// Lists every matching sandbox over all pages, each once.
///
/// Rows come in order of creation. A row that appears meanwhile comes last, and one that vanishes
/// moves no other row across the cursor.
pub(super) async fn all(api: &DaytonaApi, query: &ListQuery) -> DaytonaResult<Vec<DaytonaSandbox>> {
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
