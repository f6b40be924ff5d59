//! The list: filters, sorting and cursor.
//!
//! Sorted by creation, a page is read from the index and costs only its own rows. Any other sorting
//! sorts everything for each page; rows move between pages then, as in the real service.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::error::{ApiError, Result};
use crate::moment::Moment;
use crate::percent;
use crate::registry::{Age, SandboxRegistry};
use crate::sandbox::{Full, Pairs, SandboxRecord, ServerInfo};
use crate::state::State;

/// The default page size.
const DEFAULT_LIMIT: usize = 100;
/// The maximum page size.
const LARGEST_LIMIT: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SortField {
    Name,
    Cpu,
    MemoryGib,
    DiskGib,
    LastActivityAt,
    CreatedAt,
}

/// A list request.
#[derive(Debug)]
pub(crate) struct SandboxListQuery {
    limit: usize,
    cursor: Option<Cursor<'static>>,
    sort: SortField,
    descending: bool,
    id: Option<String>,
    name: Option<String>,
    labels: Pairs,
    states: Vec<State>,
    snapshots: Vec<String>,
    regions: Vec<String>,
    include_errored_deleted: bool,
    created: TimeSpan,
    last_event: TimeSpan,
    auto_destroy: TimeSpan,
}

/// A time span. Both bounds are optional and exclusive.
#[derive(Debug, Default)]
struct TimeSpan {
    after: Option<Moment>,
    before: Option<Moment>,
}

impl TimeSpan {
    fn has(&self, at: Option<Moment>) -> bool {
        if self.after.is_none() && self.before.is_none() {
            return true;
        }
        at.is_some_and(|at| {
            self.after.is_none_or(|after| at > after)
                && self.before.is_none_or(|before| at < before)
        })
    }
}

/// The sort key of a row. One list uses only one of the two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey<'a> {
    Number(i64),
    Text(Cow<'a, str>),
}

/// The position of a row, and the end of the previous page.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor<'a> {
    /// The value of the sort field.
    key: SortKey<'a>,
    /// The tie-breaker.
    age: Age,
}

impl Cursor<'_> {
    fn write(&self) -> String {
        let (millisecond, sequence) = self.age;
        let text = match &self.key {
            SortKey::Number(number) => format!("{millisecond}:{sequence}:n{number}"),
            SortKey::Text(text) => format!("{millisecond}:{sequence}:t{text}"),
        };
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(text: &str) -> Option<Cursor<'static>> {
        if text.is_empty() || !text.len().is_multiple_of(2) || !text.is_ascii() {
            return None;
        }
        let bytes: Option<Vec<u8>> = (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
            .collect();
        let text = String::from_utf8(bytes?).ok()?;
        let mut parts = text.splitn(3, ':');
        let age = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let key = parts.next()?;
        let key = match key.strip_prefix('t') {
            Some(text) => SortKey::Text(Cow::Owned(text.to_owned())),
            None => SortKey::Number(key.strip_prefix('n')?.parse().ok()?),
        };
        Some(Cursor { key, age })
    }
}

impl SandboxListQuery {
    /// Parses a query, and refuses what the real service refuses.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut query = Self {
            limit: DEFAULT_LIMIT,
            cursor: None,
            sort: SortField::LastActivityAt,
            descending: true,
            id: None,
            name: None,
            labels: Pairs::new(),
            states: Vec::new(),
            snapshots: Vec::new(),
            regions: Vec::new(),
            include_errored_deleted: false,
            created: TimeSpan::default(),
            last_event: TimeSpan::default(),
            auto_destroy: TimeSpan::default(),
        };
        for (key, value) in percent::pairs(text) {
            query.set(key.trim_end_matches("[]"), value)?;
        }
        Ok(query)
    }

    fn set(&mut self, key: &str, value: String) -> Result<()> {
        match key {
            "limit" => self.limit = limit(&value)?,
            "cursor" => {
                let invalid = || ApiError::invalid(format!("Invalid cursor provided: {value}"));
                self.cursor = Some(Cursor::read(&value).ok_or_else(invalid)?);
            }
            "sort" => {
                self.sort = serde_json::from_value(value.into())
                    .map_err(|_| ApiError::invalid("sort must be one of the known fields"))?;
            }
            "order" => match value.as_str() {
                "asc" => self.descending = false,
                "desc" => self.descending = true,
                _ => return Err(ApiError::invalid("order must be one of: asc, desc")),
            },
            "id" => self.id = Some(value),
            "name" => self.name = Some(value.to_lowercase()),
            "labels" => {
                let invalid = |_| ApiError::invalid("Invalid labels JSON format");
                self.labels = serde_json::from_str(&value).map_err(invalid)?;
            }
            "states" => self.states.push(state(&value)?),
            "snapshots" => self.snapshots.push(value),
            "regionIds" => self.regions.push(value),
            "includeErroredDeleted" => self.include_errored_deleted = value == "true",
            "createdAtAfter" => self.created.after = Some(moment(key, &value)?),
            "createdAtBefore" => self.created.before = Some(moment(key, &value)?),
            "lastEventAfter" => self.last_event.after = Some(moment(key, &value)?),
            "lastEventBefore" => self.last_event.before = Some(moment(key, &value)?),
            "autoDestroyAtAfter" => self.auto_destroy.after = Some(moment(key, &value)?),
            "autoDestroyAtBefore" => self.auto_destroy.before = Some(moment(key, &value)?),
            // Other filters of the service are accepted, but match everything.
            _ => {}
        }
        Ok(())
    }

    /// Renders one page.
    pub(crate) fn page(&self, registry: &SandboxRegistry, origin: &ServerInfo) -> Result<Vec<u8>> {
        let mut rows: Vec<&SandboxRecord> = if self.sort == SortField::CreatedAt && !self.descending
        {
            let from = self.cursor.as_ref().map(|cursor| cursor.age.0);
            registry
                .after_millisecond(from)
                .filter(|one| self.fits(one))
                .take(self.limit + 1)
                .collect()
        } else {
            self.sorted(registry)
        };
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        let last = rows.last().filter(|_| more).map(|last| self.written_cursor(last));
        let shown = rows.into_iter().map(|sandbox| shown(sandbox, origin)).collect::<Vec<_>>();
        let page = serde_json::json!({ "nextCursor": last });
        let mut body = b"{\"items\":".to_vec();
        let failed = |_| {
            ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "the list is not JSON")
        };
        serde_json::to_writer(&mut body, &shown).map_err(failed)?;
        body.extend_from_slice(b",\"nextCursor\":");
        serde_json::to_writer(&mut body, &page["nextCursor"]).map_err(failed)?;
        body.push(b'}');
        Ok(body)
    }

    fn sorted<'a>(&self, registry: &'a SandboxRegistry) -> Vec<&'a SandboxRecord> {
        let after = |at: &Cursor<'_>| match &self.cursor {
            Some(from) => self.compare(at, from) == Ordering::Greater,
            None => true,
        };
        let fitting = registry.all().filter(|one| self.fits(one));
        let mut rows: Vec<(Cursor<'_>, &SandboxRecord)> =
            fitting.map(|one| (self.cursor_at(one), one)).filter(|(at, _)| after(at)).collect();
        let by_cursor = |left: &(Cursor<'_>, &SandboxRecord),
                         right: &(Cursor<'_>, &SandboxRecord)| {
            self.compare(&left.0, &right.0)
        };
        if rows.len() > self.limit + 1 {
            // Only this page has to be sorted.
            rows.select_nth_unstable_by(self.limit, by_cursor);
            rows.truncate(self.limit + 1);
        }
        rows.sort_unstable_by(by_cursor);
        rows.into_iter().map(|(_, sandbox)| sandbox).collect()
    }

    fn compare(&self, left: &Cursor<'_>, right: &Cursor<'_>) -> Ordering {
        if self.descending { right.cmp(left) } else { left.cmp(right) }
    }

    fn cursor_at<'a>(&self, sandbox: &'a SandboxRecord) -> Cursor<'a> {
        let key = match self.sort {
            SortField::Name => SortKey::Text(Cow::Borrowed(&sandbox.name)),
            SortField::Cpu => SortKey::Number(sandbox.size.cpu.into()),
            SortField::MemoryGib => SortKey::Number(sandbox.size.memory.into()),
            SortField::DiskGib => SortKey::Number(sandbox.size.disk.into()),
            SortField::LastActivityAt => SortKey::Number(sandbox.active_at.0),
            // The tie-breaker alone determines the position.
            SortField::CreatedAt => SortKey::Number(0),
        };
        Cursor { key, age: (sandbox.created_at.0, sandbox.sequence) }
    }

    /// Returns the cursor after a row. Sorted by creation, it carries milliseconds while rows have
    /// microseconds, so the rest of that millisecond comes again on the next page.
    fn written_cursor(&self, last: &SandboxRecord) -> String {
        let mut cursor = self.cursor_at(last);
        if self.sort == SortField::CreatedAt && !self.descending {
            cursor.age.1 = 0;
        }
        cursor.write()
    }

    fn fits(&self, sandbox: &SandboxRecord) -> bool {
        let Some((name, state)) = self.seen(sandbox) else { return false };
        let any = |wanted: &[String], value: Option<&str>| {
            wanted.is_empty() || value.is_some_and(|value| wanted.iter().any(|one| one == value))
        };
        self.id.as_ref().is_none_or(|id| sandbox.id.to_string().starts_with(id))
            && self.name.as_ref().is_none_or(|prefix| name.to_lowercase().starts_with(prefix))
            && (self.states.is_empty() || self.states.contains(&state))
            && self.labels.iter().all(|(key, value)| sandbox.labels.get(key) == Some(value))
            && any(&self.snapshots, sandbox.snapshot.as_deref())
            && any(&self.regions, Some(&sandbox.target))
            && self.created.has(Some(sandbox.created_at))
            && self.last_event.has(Some(sandbox.updated_at))
            && self.auto_destroy.has(sandbox.destroy_at)
    }

    /// Returns the name and state that this list shows, or `None` if it does not show the sandbox.
    fn seen<'a>(&self, sandbox: &'a SandboxRecord) -> Option<(&'a str, State)> {
        if let Some(shadow) = &sandbox.shadow {
            let now = Moment::now();
            if now < shadow.hidden_until {
                return None;
            }
            if now < shadow.shown_until {
                return Some((&shadow.name, shadow.state));
            }
        }
        let hidden = sandbox.state == State::Destroyed
            || (sandbox.is_errored_deleted() && !self.include_errored_deleted);
        (!hidden).then_some((&sandbox.name, sandbox.state))
    }
}

/// A request to the older list: a page by its number.
#[derive(Debug)]
pub(crate) struct NumberedQuery {
    query: SandboxListQuery,
    number: usize,
}

/// A page of the older list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NumberedPage<'a> {
    items: Vec<Full<'a>>,
    total: usize,
    page: usize,
    total_pages: usize,
}

impl NumberedQuery {
    /// Parses a query, and refuses what the real service refuses.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let query = SandboxListQuery::parse(text)?;
        let given = percent::pairs(text).into_iter().find(|(key, _)| key == "page");
        let number = given.map_or(Ok(1), |(_, value)| value.parse());
        match number {
            Ok(0) => Err(ApiError::invalid("page must not be less than 1")),
            Ok(number) => Ok(Self { query, number }),
            Err(_) => Err(ApiError::invalid("page must be an integer number")),
        }
    }

    /// Returns the page.
    pub(crate) fn page<'a>(
        &self,
        registry: &'a SandboxRegistry,
        origin: &'a ServerInfo,
    ) -> NumberedPage<'a> {
        let limit = self.query.limit;
        let fitting: Vec<&SandboxRecord> =
            registry.after(None).filter(|one| self.query.fits(one)).collect();
        let total = fitting.len();
        // Newest first, as this list always did.
        let from = (self.number - 1).saturating_mul(limit);
        let rows = fitting.into_iter().rev().skip(from).take(limit);
        NumberedPage {
            items: rows.map(|sandbox| sandbox.full(origin)).collect(),
            total,
            page: self.number,
            total_pages: total.div_ceil(limit),
        }
    }
}

fn shown<'a>(sandbox: &'a SandboxRecord, origin: &'a ServerInfo) -> crate::sandbox::SandboxRow<'a> {
    let mut row = sandbox.row(origin);
    if let Some(shadow) = &sandbox.shadow
        && Moment::now() < shadow.shown_until
    {
        row.name = &shadow.name;
        row.state = shadow.state;
        row.desired_state = shadow.state.desired();
    }
    row
}

fn limit(value: &str) -> Result<usize> {
    match value.parse() {
        Ok(0) => Err(ApiError::invalid("limit must not be less than 1")),
        Ok(limit) if limit > LARGEST_LIMIT => {
            Err(ApiError::invalid(format!("limit must not be greater than {LARGEST_LIMIT}")))
        }
        Ok(limit) => Ok(limit),
        Err(_) => Err(ApiError::invalid("limit must be an integer number")),
    }
}

fn state(value: &str) -> Result<State> {
    let known = State::parse(value).filter(|state| *state != State::Destroyed);
    known.ok_or_else(|| ApiError::invalid("each value in states must be one of the valid values"))
}

fn moment(key: &str, value: &str) -> Result<Moment> {
    Moment::parse(value)
        .ok_or_else(|| ApiError::invalid(format!("{key} must be a valid ISO 8601 date string")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_refuses_is_refused() {
        for bad in
            ["limit=0", "limit=201", "states=destroyed", "states=started,error", "cursor=nonsense"]
        {
            assert!(SandboxListQuery::parse(bad).is_err(), "{bad}");
        }
        assert!(SandboxListQuery::parse("limit=200&states=started&states=error&cursor=").is_err());
        assert!(SandboxListQuery::parse("limit=200&states=started&states=error").is_ok());
    }

    #[test]
    fn a_cursor_survives_a_round_trip() {
        for key in [SortKey::Text("a:b".into()), SortKey::Number(-3)] {
            let cursor = Cursor { key, age: (17, 4) };
            assert_eq!(Cursor::read(&cursor.write()), Some(cursor));
        }
    }
}
