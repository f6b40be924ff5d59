//! From a command to the order that `creel-bridge exec` takes.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::Order;
use secrecy::{ExposeSecret, SecretString};

use super::Command;
use super::place::Place;

/// Writes the order for a command: the sandbox's environment, and the command's own on top.
pub(super) fn of_command(command: &Command, place: &Place) -> Order {
    let directory = command.directory.as_deref().unwrap_or_default();
    Order {
        command: command.command.clone(),
        env: exposed(&place.env).chain(exposed(&command.env)).collect(),
        directory: Some(place.absolute(directory)),
        input: command.input.as_ref().map_or_else(String::new, |input| {
            BASE64_STANDARD.encode(input.expose_secret().as_bytes())
        }),
        limit_ms: milliseconds(command.limit),
        silence_ms: command.silence.map(milliseconds),
    }
}

/// Writes the order for a part of the bridge program itself: it starts where that stands, and is
/// told nothing secret.
pub(super) fn of_bridge(place: &Place, words: &[&str], input: &[u8], limit: Duration) -> Order {
    let program = std::iter::once(place.bridge_path.as_str());
    Order {
        command: program.chain(words.iter().copied()).map(str::to_owned).collect(),
        input: BASE64_STANDARD.encode(input),
        limit_ms: milliseconds(limit),
        ..Order::default()
    }
}

fn exposed(env: &BTreeMap<String, SecretString>) -> impl Iterator<Item = (String, String)> {
    env.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned()))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            creel_directory: "/.creel".to_owned(),
            workspace_root: "/workspace".to_owned(),
            bridge_path: "/.creel/creel-bridge-1".to_owned(),
            env: BTreeMap::from([
                ("A".to_owned(), "sandbox".into()),
                ("B".to_owned(), "sandbox".into()),
            ]),
        }
    }

    #[test]
    fn a_command_has_the_last_word_on_its_environment() {
        let mut command = Command::new(["x"], Duration::from_millis(1500));
        command.env.insert("B".to_owned(), "command".into());
        let order = of_command(&command, &place());
        assert_eq!((order.env["A"].as_str(), order.env["B"].as_str()), ("sandbox", "command"));
        assert_eq!((order.limit_ms, order.silence_ms), (1500, None));
    }

    #[test]
    fn a_command_starts_in_the_workspace_unless_it_says_otherwise() {
        let mut command = Command::new(["x"], Duration::from_secs(1));
        for (asked, expected) in
            [(None, "/workspace"), (Some("app"), "/workspace/app"), (Some("/srv"), "/srv")]
        {
            command.directory = asked.map(str::to_owned);
            assert_eq!(of_command(&command, &place()).directory.as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_bridge_itself_is_told_no_secret() {
        let order = of_bridge(&place(), &["put", "x"], b"text", Duration::from_secs(1));
        assert!(order.env.is_empty());
        assert_eq!(order.command, ["/.creel/creel-bridge-1", "put", "x"]);
    }
}
