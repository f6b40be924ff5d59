//! Commands that other processes leave for the process that drives a run.

use creel_model::id::RunId;

use crate::{LedgerError, NewCommand, PlacedCommand, Result};

use super::StoreInner;
use super::columns::{Binds, Exact, Json};
use super::rows::Columns;

impl StoreInner {
    pub(super) async fn place_command(&self, command: &NewCommand) -> Result<bool> {
        if self.run(command.run).await?.is_none() {
            return Err(LedgerError::UnknownRun { run: command.run });
        }
        let mut transaction = self.begin().await?;
        let placed = sqlx::query(
            "INSERT INTO orders (key, run, at_ms, kind, body) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (key) DO NOTHING",
        )
        .column(Exact(&command.key))
        .column(&command.run)
        .column(self.clock.now().wall_ms)
        .column(command.command.name())
        .column(Json(&command.command))
        .execute(&mut *transaction)
        .await
        .map_err(|e| self.error(e))?;
        self.commit(transaction).await?;
        Ok(placed.rows_affected() > 0)
    }

    pub(super) async fn open_commands(&self, run: RunId) -> Result<Vec<PlacedCommand>> {
        let rows = sqlx::query(
            "SELECT * FROM orders WHERE run = ? AND taken_at_ms IS NULL ORDER BY sequence",
        )
        .column(&run)
        .fetch_all(&self.pool)
        .await
        .map_err(|e| self.error(e))?;
        rows.iter().map(|row| self.columns(row).command()).collect()
    }

    pub(super) async fn complete_command(&self, key: &str) -> Result<bool> {
        let mut transaction = self.begin().await?;
        let completed =
            sqlx::query("UPDATE orders SET taken_at_ms = ? WHERE key = ? AND taken_at_ms IS NULL")
                .column(self.clock.now().wall_ms)
                .column(Exact(key))
                .execute(&mut *transaction)
                .await
                .map_err(|e| self.error(e))?;
        self.commit(transaction).await?;
        Ok(completed.rows_affected() > 0)
    }
}

impl Columns<'_> {
    fn command(&self) -> Result<PlacedCommand> {
        Ok(PlacedCommand {
            key: self.text("key")?,
            run: self.parsed("run")?,
            at_ms: self.number("at_ms")?,
            command: self.json("body")?,
        })
    }
}
