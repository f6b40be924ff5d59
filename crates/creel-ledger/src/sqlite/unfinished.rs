//! Storage of deletes that a provider accepted but did not finish.

use creel_model::provider::{Kind, ProviderName};
use creel_sanitise::Diagnostic;
use jiff::Timestamp;

use crate::{Noted, Result, UnfinishedDelete};

use super::StoreInner;
use super::columns::{Binds, Exact};
use super::rows::Columns;

impl StoreInner {
    pub(super) async fn note_unfinished(&self, delete: &UnfinishedDelete) -> Result<Noted> {
        let mut transaction = self.begin().await?;
        let inserted = sqlx::query(
            "INSERT INTO unfinished_deletes (provider, kind, object, name, resource, reason,
                 kept_until_ms, first_seen_ms)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (provider, kind, object) DO NOTHING",
        )
        .column(delete.provider.name())
        .column(delete.kind.name())
        .column(Exact(&delete.id))
        .column(&delete.name)
        .column(delete.resource.as_ref())
        .column(&delete.reason)
        .column(delete.kept_until.map(Timestamp::as_millisecond))
        .column(delete.first_seen_at.as_millisecond())
        .execute(&mut *transaction)
        .await
        .map_err(|e| self.error(e))?;
        // The first date stays: otherwise a provider that moves the date would never be overdue.
        let row = sqlx::query(
            "UPDATE unfinished_deletes
             SET reason = ?, kept_until_ms = coalesce(kept_until_ms, ?)
             WHERE provider = ? AND kind = ? AND object = ? RETURNING *",
        )
        .column(&delete.reason)
        .column(delete.kept_until.map(Timestamp::as_millisecond))
        .column(delete.provider.name())
        .column(delete.kind.name())
        .column(Exact(&delete.id))
        .fetch_one(&mut *transaction)
        .await
        .map_err(|e| self.error(e))?;
        let delete = self.columns(&row).unfinished_delete()?;
        self.commit(transaction).await?;
        Ok(Noted { delete, is_new: inserted.rows_affected() > 0 })
    }

    pub(super) async fn unfinished_deletes(&self) -> Result<Vec<UnfinishedDelete>> {
        let query = "SELECT * FROM unfinished_deletes ORDER BY first_seen_ms, provider, object";
        let rows = sqlx::query(query).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).unfinished_delete()).collect()
    }

    pub(super) async fn forget_unfinished(
        &self,
        provider: ProviderName,
        kind: Kind,
        object: &str,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        sqlx::query(
            "DELETE FROM unfinished_deletes WHERE provider = ? AND kind = ? AND object = ?",
        )
        .column(provider.name())
        .column(kind.name())
        .column(Exact(object))
        .execute(&mut *transaction)
        .await
        .map_err(|e| self.error(e))?;
        self.commit(transaction).await
    }
}

impl Columns<'_> {
    fn unfinished_delete(&self) -> Result<UnfinishedDelete> {
        let instant = |milliseconds: i64| {
            Timestamp::from_millisecond(milliseconds).map_err(|e| self.damaged("an instant", e))
        };
        Ok(UnfinishedDelete {
            provider: self.parsed("provider")?,
            kind: self.parsed("kind")?,
            id: self.text("object")?,
            name: self.masked("name")?,
            resource: self.optional_parsed("resource")?,
            reason: Diagnostic::stored(self.text("reason")?),
            kept_until: self.optional_number("kept_until_ms")?.map(instant).transpose()?,
            first_seen_at: instant(self.number("first_seen_ms")?)?,
        })
    }
}
