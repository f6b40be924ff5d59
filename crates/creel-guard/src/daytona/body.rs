//! The body of a create, and what the guard adds to it.

use creel_daytona::Renewal;
use creel_model::labels::Labels;
use serde_json::Value;

use crate::json::JsonObject;

const AUTO_STOP: &str = "autoStopInterval";
const AUTO_PAUSE: &str = "autoPauseInterval";
const AUTO_DELETE: &str = "autoDeleteInterval";
const TIME_TO_LIVE: &str = "ttlMinutes";

/// The switches by which sandboxes end themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switches {
    /// How many minutes a sandbox may live without a renewal.
    pub(super) minutes: u64,
    /// Whether the service supports a time to live.
    pub(super) has_time_to_live: bool,
}

/// What was added to a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddedSwitches {
    /// How the sandbox is renewed.
    pub(super) renewal: Renewal,
    /// Whether nothing would delete the sandbox once it is stopped.
    pub(super) rests_for_ever: bool,
}

impl AddedSwitches {
    /// Nothing was added.
    pub(super) const NOT: Self =
        Self { renewal: Renewal { activity: false, minutes: None }, rests_for_ever: false };
}

/// Adds labels to those under `labels`.
pub(super) fn add_labels(body: &mut JsonObject, ours: &Labels) {
    let mut labels = body.object("labels");
    ours.iter().for_each(|(key, value)| labels.put(key, value));
    body.set("labels", &labels);
}

/// Sets what the client left open or set to "never".
///
/// An auto-delete of 0 does not mean "never": it deletes on stop, and is kept. An auto-delete of
/// "never" is changed only where there is no time to live. A command may stop a sandbox and use it
/// again later, and a time to live is renewed meanwhile.
pub(super) fn add_switches(body: &mut JsonObject, switches: Switches) -> AddedSwitches {
    let Switches { minutes, has_time_to_live } = switches;
    let never_stops = is_zero(body, AUTO_STOP) && is_zero(body, AUTO_PAUSE);
    let lives_for_ever = is_zero(body, TIME_TO_LIVE);
    let rests_for_ever = is_absent(body, AUTO_DELETE) || number(body, AUTO_DELETE) < Some(0);
    if never_stops {
        body.set(AUTO_STOP, &minutes);
    }
    if lives_for_ever && has_time_to_live {
        body.set(TIME_TO_LIVE, &minutes);
    } else if lives_for_ever && rests_for_ever {
        body.set(AUTO_DELETE, &minutes);
    }
    let ours = lives_for_ever && has_time_to_live;
    let renewal = Renewal { activity: never_stops, minutes: ours.then_some(minutes) };
    AddedSwitches { renewal, rests_for_ever }
}

fn number(body: &JsonObject, key: &str) -> Option<i64> {
    body.get(key)?.as_i64()
}

/// Returns whether a field is absent or null.
pub(super) fn is_absent(body: &JsonObject, key: &str) -> bool {
    body.get(key).is_none_or(|value| value == Value::Null)
}

fn is_zero(body: &JsonObject, key: &str) -> bool {
    is_absent(body, key) || number(body, key) == Some(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn added(body: Value, has_time_to_live: bool) -> (Value, AddedSwitches) {
        let mut body = JsonObject::parse(body.to_string().as_bytes()).unwrap();
        let added = add_switches(&mut body, Switches { minutes: 65, has_time_to_live });
        (serde_json::from_slice(&body.to_bytes()).unwrap(), added)
    }

    #[test]
    fn a_sandbox_without_timers_gets_them() {
        let renewal = Renewal { activity: true, minutes: Some(65) };
        for open in [json!({}), json!({"autoStopInterval": 0, "ttlMinutes": null})] {
            let (body, added) = added(open, true);
            assert_eq!(body, json!({"autoStopInterval": 65, "ttlMinutes": 65}));
            assert_eq!(added, AddedSwitches { renewal, rests_for_ever: true });
        }
        let (body, added) = added(json!({"autoDeleteInterval": -1}), false);
        assert_eq!(body, json!({"autoStopInterval": 65, "autoDeleteInterval": 65}));
        assert_eq!(added.renewal.minutes, None);
    }

    #[test]
    fn an_ephemeral_sandbox_stays_one() {
        let harbor = || json!({"autoStopInterval": 0, "autoDeleteInterval": 0});
        let (body, found) = added(harbor(), true);
        let expected = json!({"autoStopInterval": 65, "autoDeleteInterval": 0, "ttlMinutes": 65});
        assert_eq!((body, found.rests_for_ever), (expected, false));
        let (body, _) = added(harbor(), false);
        assert_eq!(body, json!({"autoStopInterval": 65, "autoDeleteInterval": 0}));
    }

    #[test]
    fn settings_of_the_client_stay_and_are_not_renewed() {
        let own = json!({"autoStopInterval": 5, "autoDeleteInterval": 7, "ttlMinutes": 9});
        for knows in [true, false] {
            let (body, found) = added(own.clone(), knows);
            assert_eq!((body, found), (own.clone(), AddedSwitches::NOT));
        }
        // The two settings exclude each other.
        let (body, found) = added(json!({"autoPauseInterval": 30}), true);
        assert_eq!(body, json!({"autoPauseInterval": 30, "ttlMinutes": 65}));
        assert!(!found.renewal.activity);
    }
}
