//! Responses of the API, parsed leniently: only an id is required.
//!
//! Strict parsing leaks: a client that rejects a response for a missing field has lost the id of a
//! sandbox that exists. Every other field therefore has a default, fields of a wrong type count as
//! missing, and unknown states are kept as text.

use creel_model::labels::Labels;
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::bounds::{self, TooLarge};
use super::state::SandboxState;

/// A sandbox, as far as the response describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct DaytonaSandbox {
    /// Its id.
    pub id: String,
    /// Its name; the id where it has none.
    pub name: String,
    /// Its organisation.
    pub organization_id: Option<String>,
    /// Its current state.
    pub state: SandboxState,
    /// Its requested state.
    pub desired_state: Option<SandboxState>,
    /// Why it failed, where the server reports it.
    pub error_reason: Option<String>,
    /// Its labels.
    pub labels: Labels,
    /// Whether its failure can be recovered from.
    pub recoverable: bool,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When its record last changed.
    pub updated_at: Option<Timestamp>,
    /// When it was last active; no proof of life.
    pub last_activity_at: Option<Timestamp>,
    /// After how many idle minutes it stops.
    pub auto_stop_minutes: Option<i64>,
    /// When it is destroyed, whatever its state.
    pub auto_destroy_at: Option<Timestamp>,
    /// The address of its toolbox.
    pub toolbox_proxy_url: Option<String>,
}

impl DaytonaSandbox {
    /// Parses a sandbox; `None` without an id.
    pub fn read(value: &Value) -> Option<Self> {
        let fields = value.as_object()?;
        let id = text(fields, "id")?;
        let reason = text(fields, "errorReason");
        Some(Self {
            name: text(fields, "name").unwrap_or_else(|| id.clone()),
            id,
            organization_id: text(fields, "organizationId"),
            state: text(fields, "state").map_or(SandboxState::Unknown, |state| state.into()),
            desired_state: text(fields, "desiredState").map(Into::into),
            error_reason: reason.map(|reason| bounds::shortened(&reason, bounds::REASON)),
            recoverable: fields.get("recoverable").and_then(Value::as_bool).unwrap_or_default(),
            labels: labels(fields),
            created_at: instant(fields, "createdAt"),
            updated_at: instant(fields, "updatedAt"),
            last_activity_at: instant(fields, "lastActivityAt"),
            auto_stop_minutes: fields.get("autoStopInterval").and_then(Value::as_i64),
            auto_destroy_at: instant(fields, "autoDestroyAt"),
            toolbox_proxy_url: text(fields, "toolboxProxyUrl"),
        })
    }

    /// Parses a row of a listing; `None` without an id.
    pub(super) fn read_row(row: &RawValue) -> Result<Option<Self>, TooLarge> {
        let size = row.get().len();
        if size > bounds::ROW {
            return Err(TooLarge::Row { size });
        }
        // A row that is not a JSON object counts as absent, like any other wrong shape.
        let value: Value = serde_json::from_str(row.get()).unwrap_or_default();
        Self::read_bounded(&value)
    }

    /// Parses a sandbox and checks the length of its texts.
    pub(super) fn read_bounded(value: &Value) -> Result<Option<Self>, TooLarge> {
        let Some(sandbox) = Self::read(value) else { return Ok(None) };
        sandbox.check_texts()?;
        Ok(Some(sandbox))
    }

    fn check_texts(&self) -> Result<(), TooLarge> {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let toolbox = self.toolbox_proxy_url.as_ref().map_or(0, String::len);
        let sizes = [
            ("id", self.id.len()),
            ("name", self.name.len()),
            ("state", self.state.name().len()),
            ("labels", labels),
            ("toolbox address", toolbox),
        ];
        match sizes.into_iter().find(|(_, size)| *size > bounds::TEXT) {
            Some((field, size)) => Err(TooLarge::Text { field, size }),
            None => Ok(()),
        }
    }

    /// Returns whether its destroy failed. Every call but one listing then reports it as absent.
    pub fn is_errored_deleted(&self) -> bool {
        self.desired_state == Some(SandboxState::Destroyed) && self.state.has_failed()
    }
}

/// Finds the id in the response to a create, even in a truncated one.
pub fn id_in(body: &[u8]) -> Option<String> {
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        return value.as_object().and_then(|fields| text(fields, "id"));
    }
    let body = String::from_utf8_lossy(body);
    // Only at the top level: nested ids belong to other objects.
    let start = body.trim_start().strip_prefix('{')?;
    let rest = start.trim_start().strip_prefix("\"id\"")?.trim_start().strip_prefix(':')?;
    let (id, _) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
    (!id.is_empty()).then(|| id.to_owned())
}

/// The permissions of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRights {
    /// The key's name.
    pub name: Option<String>,
    /// The user it belongs to.
    pub user: Option<String>,
    /// Its permissions; `None` where the server does not report them.
    pub permissions: Option<Vec<String>>,
}

impl KeyRights {
    pub(super) fn read(value: &Value) -> Self {
        let Some(fields) = value.as_object() else { return Self::default() };
        let permissions = fields
            .get("permissions")
            .and_then(Value::as_array)
            .map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>());
        Self { name: text(fields, "name"), user: text(fields, "userId"), permissions }
    }

    /// Returns which of the permissions that creel needs are missing.
    pub fn missing(&self) -> Vec<&'static str> {
        let Some(permissions) = &self.permissions else { return Vec::new() };
        let lacks = |right: &&str| !permissions.iter().any(|held| held == right);
        ["write:sandboxes", "delete:sandboxes"].into_iter().filter(lacks).collect()
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    let text = fields.get(name)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn instant(fields: &Map<String, Value>, name: &str) -> Option<Timestamp> {
    fields.get(name)?.as_str()?.parse().ok()
}

fn labels(fields: &Map<String, Value>) -> Labels {
    let Some(labels) = fields.get("labels").and_then(Value::as_object) else {
        return Labels::new();
    };
    let pair = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (key.clone(), value)
    };
    labels.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_is_all_that_is_required() {
        let least = DaytonaSandbox::read(&json!({"id": "a"})).unwrap();
        assert_eq!((least.name.as_str(), &least.state), ("a", &SandboxState::Unknown));
        assert_eq!(DaytonaSandbox::read(&json!({"name": "a"})), None);
        let odd = json!({"id": "a", "state": 7, "labels": [], "createdAt": "yesterday",
            "organizationId": null, "desiredState": {}});
        assert_eq!(DaytonaSandbox::read(&odd).unwrap(), least);
    }

    #[test]
    fn an_unknown_state_keeps_its_name() {
        let seen = DaytonaSandbox::read(&json!({"id": "a", "state": "hibernating"})).unwrap();
        assert_eq!(seen.state.name(), "hibernating");
    }

    #[test]
    fn the_id_survives_a_truncated_response() {
        assert_eq!(id_in(br#"{"id":"abc","na"#).as_deref(), Some("abc"));
        assert_eq!(id_in(br#"{ "id" : "abc", "labels": {"id""#).as_deref(), Some("abc"));
        assert_eq!(id_in(br#"{"id":"ab"#), None);
        assert_eq!(id_in(b"<html>"), None);
        assert_eq!(id_in(br#"{"id":"abc","state":5}"#).as_deref(), Some("abc"));
    }

    #[test]
    fn a_row_or_a_text_beyond_all_measure_is_refused() {
        let row = |value: &Value| {
            let raw = RawValue::from_string(value.to_string()).unwrap();
            DaytonaSandbox::read_row(&raw)
        };
        assert_eq!(row(&json!({"id": "a"})).unwrap().unwrap().id, "a");
        assert_eq!(row(&json!([1])).unwrap(), None);
        let text = "x".repeat(bounds::TEXT + 1);
        for (field, value) in [
            ("id", json!({ "id": text })),
            ("name", json!({"id": "a", "name": text})),
            ("state", json!({"id": "a", "state": text})),
            ("labels", json!({"id": "a", "labels": {"k": text}})),
        ] {
            let refused = row(&value).unwrap_err();
            assert!(matches!(refused, TooLarge::Text { field: found, .. } if found == field));
        }
        let reason = json!({"id": "a", "errorReason": text});
        assert!(row(&reason).unwrap().unwrap().error_reason.unwrap().len() < 2_000);
        let large = json!({"id": "a", "env": "x".repeat(bounds::ROW)});
        assert!(matches!(row(&large).unwrap_err(), TooLarge::Row { .. }));
    }

    #[test]
    fn missing_rights_are_reported_and_unknown_ones_are_not() {
        let rights = KeyRights::read(&json!({"permissions": ["write:sandboxes"]}));
        assert_eq!(rights.missing(), ["delete:sandboxes"]);
        assert!(KeyRights::read(&json!({})).missing().is_empty());
    }

    proptest! {
        #[test]
        fn whatever_follows_the_id_the_id_is_found(tail in ".*", id in "[a-z0-9-]{1,36}") {
            let body = format!("{{\"id\":\"{id}\",{tail}");
            let found = id_in(body.as_bytes());
            // A tail that happens to complete the JSON may name the id again.
            prop_assert!(found.is_some());
        }
    }
}
