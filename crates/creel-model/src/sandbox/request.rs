//! Builds the requests that `creel-bridge exec` takes.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use creel_bridge::exec::ExecRequest;
use secrecy::{ExposeSecret, SecretString};

use super::Command;
use super::layout::SandboxLayout;

/// Returns the request for a command. The command's variables override those of the sandbox.
pub(super) fn of_command(command: &Command, layout: &SandboxLayout) -> ExecRequest {
    let directory = command.directory.as_deref().unwrap_or_default();
    ExecRequest {
        command: command.command.clone(),
        env: exposed(&layout.env).chain(exposed(&command.env)).collect(),
        directory: Some(layout.absolute(directory)),
        input: command.input.as_ref().map_or_else(String::new, |input| {
            BASE64_STANDARD.encode(input.expose_secret().as_bytes())
        }),
        limit_ms: milliseconds(command.limit),
        silence_ms: command.silence.map(milliseconds),
    }
}

/// Returns the request for a subcommand of the bridge program itself.
///
/// It runs in the bridge's own working directory and receives no secrets.
pub(super) fn of_bridge(
    layout: &SandboxLayout,
    args: &[&str],
    input: &[u8],
    limit: Duration,
) -> ExecRequest {
    let program = std::iter::once(layout.bridge_path.as_str());
    ExecRequest {
        command: program.chain(args.iter().copied()).map(str::to_owned).collect(),
        input: BASE64_STANDARD.encode(input),
        limit_ms: milliseconds(limit),
        ..ExecRequest::default()
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

    fn layout() -> SandboxLayout {
        SandboxLayout {
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
    fn variables_of_a_command_override_those_of_the_sandbox() {
        let mut command = Command::new(["x"], Duration::from_millis(1500));
        command.env.insert("B".to_owned(), "command".into());
        let request = of_command(&command, &layout());
        assert_eq!((request.env["A"].as_str(), request.env["B"].as_str()), ("sandbox", "command"));
        assert_eq!((request.limit_ms, request.silence_ms), (1500, None));
    }

    #[test]
    fn a_command_starts_in_the_workspace_by_default() {
        let mut command = Command::new(["x"], Duration::from_secs(1));
        for (requested, expected) in
            [(None, "/workspace"), (Some("app"), "/workspace/app"), (Some("/srv"), "/srv")]
        {
            command.directory = requested.map(str::to_owned);
            assert_eq!(of_command(&command, &layout()).directory.as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_bridge_itself_receives_no_secret() {
        let request = of_bridge(&layout(), &["put", "x"], b"text", Duration::from_secs(1));
        assert!(request.env.is_empty());
        assert_eq!(request.command, ["/.creel/creel-bridge-1", "put", "x"]);
    }
}
