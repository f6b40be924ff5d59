//! Proof of faithfulness: the official Python SDKs drive the server.

use std::path::PathBuf;
use std::process::Command;

use creel_daytona_server::ApiVersion;
use creel_testkit::engine::Engine;
use serde_json::{Value, json};

use crate::fixture::ServerFixture;

/// The variable that names the virtual environment of the older SDK.
const OLDER: &str = "CREEL_TEST_SDK_0_190";
/// The variable that names the virtual environment of the newer SDK.
const NEWER: &str = "CREEL_TEST_SDK_0_226";

/// Runs a script with an SDK against a server, and returns its output.
fn drive(fixture: &ServerFixture, variable: &str, line: &str) -> Value {
    let environment = std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run cargo xtask test"));
    let (script, part) = line.split_once(' ').unwrap_or((line, ""));
    let script =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(format!("{script}.py"));
    let running = fixture.running();
    let output = Command::new(PathBuf::from(environment).join("bin/python"))
        .arg(script)
        .arg(running.admin_url())
        .args(part.split_whitespace())
        .env("DAYTONA_API_URL", running.url())
        .env("DAYTONA_API_KEY", running.api_key())
        .env("NO_PROXY", "*")
        .output()
        .expect("the virtual environment has a python");
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{stderr}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}\n{stderr}"))
}

#[test]
fn sdk_0_190_drives_it_end_to_end() {
    let seen = drive(&ServerFixture::process(), OLDER, "drive");
    assert_eq!(seen["listed"], 250);
    assert_eq!(seen["missing_repository"], "DaytonaNotFoundError");
    let missing = "DaytonaNotFoundError";
    assert_eq!(seen["pty"][0], "DaytonaConflictError");
    assert_eq!(seen["pty"][1], missing);
    assert_eq!(seen["move"], json!(["DaytonaConflictError", missing, missing]));
    assert_eq!(seen["list_missing"], missing);
}

#[test]
fn sdk_0_226_drives_it_end_to_end() {
    let seen = drive(&ServerFixture::process(), NEWER, "drive");
    assert_eq!(seen["listed"], 250);
    assert_eq!(seen["exec_timeout"], "DaytonaProcessExecutionTimeoutError");
    assert_eq!(seen["missing_repository"], "DaytonaGitRepoNotFoundError");
    assert_eq!(seen["pty"][0], "DaytonaConflictError");
    assert_eq!(seen["pty"][1], "DaytonaNotFoundError");
    let missing = "DaytonaFileNotFoundError";
    assert_eq!(seen["move"], json!(["DaytonaConflictError", missing, missing]));
    assert_eq!(seen["list_missing"], missing);
    assert_eq!(seen["unknown_user"], "DaytonaBadRequestError");
}

#[test]
fn sdk_0_190_drives_the_exact_imitation_of_its_service() {
    let fixture = ServerFixture::process_with(|settings| settings.api = ApiVersion::V0_190);
    let seen = drive(&fixture, OLDER, "drive");
    assert_eq!(seen["listed"], 250);
}

/// The newer SDK requires fields that the last open service does not send, so its create fails
/// after the sandbox is created.
#[test]
fn sdk_0_226_refuses_the_exact_imitation_and_leaves_a_sandbox() {
    let fixture = ServerFixture::hollow(|settings| settings.api = ApiVersion::V0_190);
    let seen = drive(&fixture, NEWER, "refused");
    assert!(seen["message"].as_str().is_some_and(|text| text.contains("kvm")), "{seen}");
    assert_eq!(fixture.list("").len(), 1, "the sandbox is there all the same");
}

#[test]
fn sdk_0_226_uses_terminals_in_a_container() {
    let seen = drive(&ServerFixture::docker(&Engine::from_env()), NEWER, "drive terminals");
    assert_eq!(seen["pty"][0], "DaytonaConflictError");
}

/// The exception for each status, by SDK.
fn exceptions(newer: bool) -> [(&'static str, &'static str); 9] {
    let pick = |older, newest| if newer { newest } else { older };
    [
        ("400", pick("DaytonaValidationError", "DaytonaBadRequestError")),
        ("401", "DaytonaAuthenticationError"),
        ("403", pick("DaytonaAuthorizationError", "DaytonaForbiddenError")),
        ("404", "DaytonaNotFoundError"),
        ("409", "DaytonaConflictError"),
        ("429", "DaytonaRateLimitError"),
        ("500", pick("DaytonaError", "DaytonaInternalServerError")),
        ("502", pick("DaytonaError", "DaytonaBadGatewayError")),
        ("503", pick("DaytonaError", "DaytonaServiceUnavailableError")),
    ]
}

/// The reaction of an SDK to each fault of an operation: the exception, and the number of requests.
fn expected(operation: &str, newer: bool) -> Value {
    let exceptions = exceptions(newer);
    let mut table: serde_json::Map<String, Value> =
        exceptions.iter().map(|(status, name)| ((*status).to_owned(), json!([name, 1]))).collect();
    // Only a plain Retry-After and a cut connection are retried, and never for a create.
    let tries = if operation == "create" { 1 } else { 4 };
    let cut = if newer && tries == 1 { "DaytonaConnectionError" } else { "DaytonaError" };
    table.insert("429 own header".to_owned(), json!([exceptions[5].1, 1]));
    table.insert("429 retry-after".to_owned(), json!([exceptions[5].1, tries]));
    table.insert("503 retry-after".to_owned(), json!([exceptions[8].1, tries]));
    table.insert("cut".to_owned(), json!([cut, tries]));
    Value::Object(table)
}

fn check_every_error(variable: &str, newer: bool) {
    let seen = drive(&ServerFixture::hollow(|_| {}), variable, "errors");
    for operation in ["list", "create", "delete"] {
        assert_eq!(seen[operation], expected(operation, newer), "{operation}");
    }
}

#[test]
fn sdk_0_190_maps_every_error() {
    check_every_error(OLDER, false);
}

#[test]
fn sdk_0_226_maps_every_error() {
    check_every_error(NEWER, true);
}
