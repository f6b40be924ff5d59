//! What happened, as lines of JSON in a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use creel_core::guard::{Happening, Listener};
use creel_core::reap::{ItemReport, Outcome};
use jiff::Timestamp;
use serde::Serialize;

use crate::output::Failure;

/// Writes events, where a file was asked for.
#[derive(Debug)]
pub(super) struct Events {
    file: Option<Mutex<File>>,
}

#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    at: Timestamp,
    #[serde(flatten)]
    happening: &'a Happening,
}

impl Events {
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self { file: None }) };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
            Failure::file(&format!("cannot write events to {}", path.display()), &error)
        })?;
        Ok(Self { file: Some(Mutex::new(file)) })
    }

    /// Writes what came of the release of something.
    pub(super) fn released(&self, item: &ItemReport) {
        let event = if item.result == Outcome::Gone { "released" } else { "not_released" };
        self.hear(Happening {
            event,
            provider: item.provider,
            kind: item.kind,
            id: Some(item.id.clone()),
            name: item.name.clone(),
            reason: item.reason.clone(),
        });
    }
}

impl Listener for Events {
    fn hear(&self, happening: Happening) {
        let Some(file) = &self.file else { return };
        let line = Line { version: 1, at: Timestamp::now(), happening: &happening };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::warn!(%error, "an event could not be written");
        }
    }
}
