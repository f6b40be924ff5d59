//! Writes events as lines of JSON to a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use creel_core::reap::{ItemReport, Outcome};
use creel_guard::{GuardEvent, GuardListener};
use jiff::Timestamp;
use serde::Serialize;

use crate::output::Failure;

/// Writes events, if a file was requested.
#[derive(Debug)]
pub(super) struct EventFile {
    file: Option<Mutex<File>>,
}

#[derive(Serialize)]
struct EventLine<'a> {
    version: u32,
    at: Timestamp,
    #[serde(flatten)]
    event: &'a GuardEvent,
}

impl EventFile {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self { file: None }) };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
            Failure::file(&format!("cannot write events to {}", path.display()), &error)
        })?;
        Ok(Self { file: Some(Mutex::new(file)) })
    }

    /// Writes the outcome of a release.
    pub(super) fn released(&self, item: &ItemReport) {
        let event = if item.result == Outcome::Gone { "released" } else { "not_released" };
        self.on_event(GuardEvent {
            event,
            provider: item.provider,
            kind: item.kind,
            id: Some(item.id.clone()),
            name: item.name.clone(),
            reason: item.reason.clone(),
        });
    }
}

impl GuardListener for EventFile {
    fn on_event(&self, event: GuardEvent) {
        let Some(file) = &self.file else { return };
        let line = EventLine { version: 1, at: Timestamp::now(), event: &event };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::warn!(%error, "an event could not be written");
        }
    }
}
