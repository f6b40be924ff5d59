//! Conversion of rows to records.

use std::path::Path;
use std::str::FromStr;

use creel_model::clock::ClockReading;
use creel_sanitise::Masked;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::{
    Lease, LedgerError, OwnerRecord, Record, ResourceState, Result, SearchWindow, StateName,
    StoredEvent, Try,
};

/// Reads the columns of one row, and names a column with an unexpected value.
pub(super) struct Columns<'a> {
    pub(super) path: &'a Path,
    pub(super) row: &'a SqliteRow,
}

impl Columns<'_> {
    pub(super) fn damaged(&self, column: &str, detail: impl std::fmt::Display) -> LedgerError {
        LedgerError::Corrupt {
            path: self.path.to_owned(),
            detail: format!("column `{column}`: {detail}"),
        }
    }

    pub(super) fn text(&self, column: &str) -> Result<String> {
        self.row.try_get(column).map_err(|e| self.damaged(column, e))
    }

    pub(super) fn optional(&self, column: &str) -> Result<Option<String>> {
        self.row.try_get(column).map_err(|e| self.damaged(column, e))
    }

    pub(super) fn masked(&self, column: &str) -> Result<Masked> {
        self.text(column).map(Masked::stored)
    }

    pub(super) fn number(&self, column: &str) -> Result<i64> {
        self.row.try_get(column).map_err(|e| self.damaged(column, e))
    }

    pub(super) fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<T> {
        self.text(column)?.parse().map_err(|e| self.damaged(column, e))
    }

    pub(super) fn optional_number(&self, column: &str) -> Result<Option<i64>> {
        self.row.try_get(column).map_err(|e| self.damaged(column, e))
    }

    pub(super) fn optional_parsed<T: FromStr<Err: std::fmt::Display>>(
        &self,
        column: &str,
    ) -> Result<Option<T>> {
        let text = self.optional(column)?;
        text.map(|text| text.parse().map_err(|e| self.damaged(column, e))).transpose()
    }

    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T> {
        serde_json::from_str(&self.text(column)?).map_err(|e| self.damaged(column, e))
    }

    fn optional_json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<Option<T>> {
        let text = self.optional(column)?;
        text.map(|text| serde_json::from_str(&text).map_err(|e| self.damaged(column, e)))
            .transpose()
    }

    fn state(&self) -> Result<ResourceState> {
        let object = self.optional("object")?;
        let known = |object: Option<String>| {
            object.ok_or_else(|| self.damaged("object", "missing where the state needs it"))
        };
        Ok(match self.parsed::<StateName>("state")? {
            StateName::Intended => ResourceState::Intended,
            StateName::Created => ResourceState::Created { object: known(object)? },
            StateName::Releasing => ResourceState::Releasing { object },
            StateName::Gone => ResourceState::Gone,
            StateName::Quarantined => {
                let reason = Masked::stored(self.optional("reason")?.unwrap_or_default());
                ResourceState::Quarantined { object, reason }
            }
            StateName::Lost => ResourceState::Lost { object: known(object)? },
        })
    }

    pub(super) fn record(&self) -> Result<Record> {
        Ok(Record {
            id: self.parsed("id")?,
            run: self.optional_parsed("run")?,
            provider: self.parsed("provider")?,
            kind: self.parsed("kind")?,
            name: self.text("name")?,
            labels: self.json("labels")?,
            state: self.state()?,
            identity: self.optional_json("identity")?,
            owner: OwnerRecord {
                owner: self.parsed("owner")?,
                command: self.masked("owner_command")?,
                started_at_ms: self.number("owner_started_ms")?,
            },
            on_owner_death: self.parsed("on_owner_death")?,
            lease: Lease {
                duration_ms: self.number("lease_ms")?,
                renewed: ClockReading {
                    wall_ms: self.number("renewed_wall_ms")?,
                    awake_ms: self.number("renewed_awake_ms")?,
                },
                boot: self.text("renewed_boot")?,
            },
            search: self.search()?,
            intended_at_ms: self.number("intended_at_ms")?,
            changed_at_ms: self.number("changed_at_ms")?,
        })
    }

    /// Reads the start of the search for the object.
    ///
    /// A record of an older schema names no boot, and therefore matches none.
    fn search(&self) -> Result<SearchWindow> {
        let wall_ms = self.optional_number("search_wall_ms")?;
        let from = ClockReading {
            wall_ms: wall_ms.unwrap_or(self.number("intended_at_ms")?),
            awake_ms: self.optional_number("search_awake_ms")?.unwrap_or_default(),
        };
        Ok(SearchWindow { from, boot: self.optional("search_boot")?.unwrap_or_default() })
    }

    pub(super) fn event(&self) -> Result<StoredEvent> {
        Ok(StoredEvent {
            sequence: self.number("sequence")?,
            at_ms: self.number("at_ms")?,
            actor: self.text("actor")?,
            event: self.json("event")?,
        })
    }

    pub(super) fn attempt(&self) -> Result<Try> {
        let attempt = self.number("attempt")?;
        Ok(Try {
            at_ms: self.number("at_ms")?,
            resource: self.optional_parsed("resource")?,
            provider: self.parsed("provider")?,
            kind: self.parsed("kind")?,
            object: self.text("object")?,
            name: self.optional("name")?.map(Masked::stored),
            operation: self.masked("operation")?,
            attempt: u32::try_from(attempt).map_err(|e| self.damaged("attempt", e))?,
            outcome: self.masked("outcome")?,
            detail: self.masked("detail")?,
            evidence: self.optional("evidence")?.map(Masked::stored),
        })
    }
}
