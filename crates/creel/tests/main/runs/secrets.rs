//! Secrets are planted in every field that takes a reference, in agent output, in messages
//! and in provider responses. Then every byte that creel stores or shows is searched.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use creel_testkit::creel::{Creel, Output};
use creel_testkit::fake_engine::{FakeEngine, Reply};
use creel_testkit::wait::eventually;

use crate::support::{Home, PATIENCE, unique};

use super::kept_sandboxes::after;
use super::run_fixture::{RunFixture, agent};

/// Returns a secret for a place, generated when the test runs.
pub(super) fn secret(place: &str) -> String {
    format!("pl4nted-{}-{}", place.replace('_', "-"), unique("s"))
}

/// Returns the encodings in which programs may write a secret.
fn written(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    vec![secret.to_owned(), hex.clone(), hex.to_uppercase(), base64(secret)]
}

/// Returns the complete groups of a text in base64.
fn base64(text: &str) -> String {
    STANDARD_NO_PAD.encode(&text.as_bytes()[..text.len() - text.len() % 3])
}

/// Returns the secrets that these bytes contain in any encoding.
pub(super) fn held_in<'a>(
    bytes: &[u8],
    secrets: &'a [String],
) -> impl Iterator<Item = &'a String> + use<'a> {
    // Searching text is many times faster, and no encoding has bytes that the conversion loses.
    let text = String::from_utf8_lossy(bytes).into_owned();
    secrets.iter().filter(move |secret| written(secret).iter().any(|form| text.contains(form)))
}

/// Returns the files below a directory that contain a secret in any encoding.
pub(super) fn holding(directory: &Path, secrets: &[String]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                waiting.push(path);
                continue;
            }
            // Reading a pipe would never end.
            let Some(bytes) = kind.is_file().then(|| fs::read(&path).ok()).flatten() else {
                continue;
            };
            found.extend(held_in(&bytes, secrets).map(|secret| (path.clone(), secret.clone())));
        }
    }
    found
}

/// Asserts that the output of a command contains no secret.
#[track_caller]
fn assert_output_without(output: &Output, secrets: &[String]) {
    for text in [&output.stdout, &output.stderr] {
        let seen = secrets.iter().find(|secret| text.contains(secret.as_str()));
        assert_eq!(seen, None, "{output}");
    }
}

/// Asserts that no file in the state directory contains a secret.
#[track_caller]
fn assert_not_stored(creel: &Creel, secrets: &[String]) {
    let held = holding(&creel.state(), secrets);
    assert!(held.is_empty(), "{held:#?}");
}

/// Every command that reports on runs.
const REPORTING_COMMANDS: [&[&str]; 12] = [
    &["show", "last"],
    &["show", "last", "--json"],
    &["events", "last"],
    &["events", "last", "--json"],
    &["runs"],
    &["runs", "--json"],
    &["ls", "-vvv"],
    &["ls", "--json"],
    &["ledger", "--all"],
    &["ledger", "--all", "--json"],
    &["ledger", "check"],
    &["reconcile", "-vvv"],
];

#[track_caller]
fn assert_reports_without(creel: &Creel, secrets: &[String]) {
    for arguments in REPORTING_COMMANDS {
        assert_output_without(&creel.run(arguments), secrets);
    }
}

#[test]
fn secrets_in_names_paths_and_scripts_are_stored_and_shown_nowhere() {
    let fixture = RunFixture::set(creel_process::NAME);
    let places =
        ["run_name", "step_name", "path", "teardown", "variable", "script", "file", "prompt"];
    let secrets: Vec<String> = places.iter().map(|place| secret(place)).collect();
    let mut creel = fixture.home.creel.clone();
    for (place, secret) in places.iter().zip(&secrets) {
        creel = creel.env(format!("S_{}", place.to_uppercase()), secret);
    }
    let text = "name = \"n-${env:S_RUN_NAME}\"\n[sandbox]\nprovider = \"process\"\nlease = \"10m\"\n\
         env = { KEY = \"${env:S_VARIABLE}\" }\n\
         [workspace]\nfiles = { \"a.txt\" = \"${env:S_FILE}\" }\n\
         [[workspace.repositories]]\nurl = \"file:///nowhere.git\"\n\
         path = \"r-${env:S_PATH}\"\nrequired = false\n\
         [[setup]]\nname = \"s-${env:S_STEP_NAME}\"\nrun = \"echo ${env:S_SCRIPT}; echo $KEY | od -An -tx1\"\n\
         [runtime]\nkind = \"command\"\n\
         command = [\"sh\", \"-c\", '''cat; echo $KEY; echo $KEY | base64; echo $KEY >&2; cat a.txt; exit 3''']\n\
         [task]\nprompt = \"${env:S_PROMPT}\"\n\
         [[teardown]]\nname = \"t-${env:S_TEARDOWN}\"\nrun = \"exit 4\"\n";
    let path = fixture.home.path("planted.toml");
    fs::write(&path, text).unwrap();
    let ran = creel.run(["run".as_ref(), "-vvv".as_ref(), path.as_os_str()]);
    let ran = ran.expect_code(5);
    assert_output_without(&ran, &secrets);
    assert!(ran.stderr.contains("[masked:"), "{ran}");
    let shown = creel.run(["show", "last", "--json"]).json();
    assert_eq!(shown["name"], "n-[masked:env:S_RUN_NAME]", "{shown:#}");
    assert_reports_without(&creel, &secrets);
    assert_not_stored(&creel, &secrets);
    fixture.assert_nothing_left();
}

#[test]
fn a_message_reaches_the_agent_unmasked_and_is_stored_nowhere() {
    let mut fixture = RunFixture::set(creel_process::NAME);
    let secrets = vec![secret("message"), secret("known")];
    fixture.home.creel = fixture.home.creel.clone().env("S_KNOWN", &secrets[1]);
    fixture.sandbox.push_str("env = { KEY = \"${env:S_KNOWN}\" }\n");
    let received = fixture.home.path("heard");
    let script = format!("cat >>{}; test $(wc -l <{0}) -gt 1 || sleep 2", received.display());
    let test_run = fixture.start("10m", &agent(&script));
    let texts = [format!("use {}\n", secrets[0]), format!("and {}\n", secrets[1])];
    for text in &texts {
        assert_output_without(
            &fixture.home.creel.run(["message", &test_run.run, text]).expect_code(0),
            &secrets,
        );
    }
    let got = || fs::read_to_string(&received).unwrap_or_default();
    assert!(
        eventually(PATIENCE, || texts.iter().all(|text| got().contains(text.trim()))),
        "{}",
        got()
    );
    let shown = test_run.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}");
    let texts = fixture.home.creel.state().join("messages").join(&test_run.run);
    test_run.conclude(0);
    assert_reports_without(&fixture.home.creel, &secrets);
    assert_not_stored(&fixture.home.creel, &secrets);
    assert!(!texts.exists());
}

#[test]
fn a_message_whose_driver_is_killed_reaches_the_agent_of_the_next_one() {
    let fixture = RunFixture::set(creel_process::NAME);
    let secrets = vec![secret("message")];
    let received = fixture.home.path("heard");
    let script = format!("cat >>{}; sleep 3", received.display());
    let mut test_run = fixture.detach("10m", &agent(&script));
    let running = || test_run.show()["phase"] == "running";
    assert!(eventually(PATIENCE, running));
    fixture.home.creel.run(["message", &test_run.run, &secrets[0]]).expect_code(0);
    test_run.kill_driver();
    let resumed = fixture.home.creel.run(["resume", &test_run.run]);
    assert_output_without(&resumed, &secrets);
    let shown = test_run.await_end();
    assert_eq!(shown["phase"], "succeeded", "{shown:#}\n{resumed}");
    assert!(fs::read_to_string(&received).unwrap().contains(&secrets[0]));
    assert_not_stored(&fixture.home.creel, &secrets);
}

#[test]
fn the_message_of_a_closed_run_is_deleted_with_it() {
    let fixture = RunFixture::set(creel_process::NAME);
    let secrets = vec![secret("message")];
    let test_run = fixture.start("10m", &agent("sleep 1000"));
    assert!(eventually(PATIENCE, || test_run.show()["phase"] == "running"));
    fixture.home.creel.run(["message", &test_run.run, &secrets[0]]).expect_code(0);
    assert!(!holding(&fixture.home.creel.state(), &secrets).is_empty(), "it waits in its file");
    test_run.driver.as_ref().unwrap().signal("KILL");
    fixture.home.await_quiet();
    fixture.home.creel.run(["reconcile"]).expect_code(0);
    assert_not_stored(&fixture.home.creel, &secrets);
}

/// Returns the texts that the files of a kept sandbox contain in any encoding.
fn found_in_kept(fixture: &RunFixture, failed: &Output, texts: &[String]) -> Vec<String> {
    let hint = after(&failed.stderr, "enter it:");
    let found_below = |directory: &Path| {
        let found = holding(directory, texts).into_iter();
        found.map(|(path, text)| format!("{text} in {}", path.display())).collect()
    };
    match fixture.provider {
        creel_process::NAME => found_below(Path::new(hint.strip_prefix("cd ").unwrap())),
        creel_daytona::NAME => found_below(fixture.cloud.as_ref().unwrap().directory()),
        _ => {
            let id = hint.strip_prefix("docker exec -it ").unwrap().strip_suffix(" sh").unwrap();
            let docker = fixture.engine.as_ref().unwrap().docker();
            let pack = "tar -cf - -C / $(ls -A / | grep -vx -e proc -e sys -e dev)";
            let packed = docker.cli(&["exec", id, "sh", "-c", pack]).unwrap();
            assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
            held_in(&packed.stdout, texts).cloned().collect()
        }
    }
}

/// Returns a workflow that prints secrets and fails, and whose agent leaves a mark in its workspace.
fn printing_secrets(mark: &str) -> String {
    format!(
        "[runtime]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", '''echo {mark} >mark; \
         cat >/dev/null; echo ${{env:S_SAID}}; echo ${{env:S_SAID}} >&2; exit 1''']\n\
         [task]\nprompt = \"${{env:S_PROMPT}}\"\n[on_failure]\nkeep = \"10m\"\n"
    )
}

#[test]
fn a_kept_sandbox_has_neither_spool_nor_prompt() {
    for provider in [creel_process::NAME, creel_docker::NAME, creel_daytona::NAME] {
        let mut fixture = RunFixture::set(provider);
        let secrets = vec![secret("said"), secret("prompt")];
        fixture.home.creel =
            fixture.home.creel.clone().env("S_SAID", &secrets[0]).env("S_PROMPT", &secrets[1]);
        let mark = unique("left-by-the-agent");
        let path = fixture.workflow("10m", &printing_secrets(&mark));
        let failed = fixture.home.creel.run(["run".as_ref(), path.as_os_str()]).expect_code(5);
        assert!(failed.stderr.contains("kept: the sandbox exists until"), "{failed}");
        // The first search happens before the second attempt changes anything.
        let assert_clean = |output: &Output| {
            assert_output_without(output, &secrets);
            assert_not_stored(&fixture.home.creel, &secrets);
            assert_eq!(found_in_kept(&fixture, output, &secrets), [""; 0], "{provider} {output}");
            // The search finds the mark of the agent, so it does cover the sandbox.
            let marks = found_in_kept(&fixture, output, std::slice::from_ref(&mark));
            assert_eq!(marks.len(), 1, "{provider} {marks:?}");
        };
        assert_clean(&failed);
        let again = fixture.home.creel.run(["retry", "last", "--from", "bootstrap"]).expect_code(5);
        assert_clean(&again);
        let rm = after(&again.stderr, "release it: creel ");
        fixture.home.creel.run(rm.split(' ')).expect_code(0);
        fixture.assert_nothing_left();
    }
}

#[test]
fn provider_responses_are_masked_on_record_and_on_screen() {
    let engine = FakeEngine::start().unwrap();
    let known = secret("provider");
    // A token that only its format reveals, built from pieces.
    let token = format!("{}_{}", "ghp", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8");
    let secrets = vec![known.clone(), token.clone()];
    let message = format!("invalid environment: KEY={known} GITHUB={token}");
    engine.route("POST", "/containers/create", [Reply::error(400, &message)]);
    let home = Home::on(&engine.engine());
    let creel = home.creel.clone().env("S_KEY", &known);
    let path = home.path("planted.toml");
    let text = format!(
        "name = \"n\"\n[sandbox]\nprovider = \"docker\"\nimage = \"x\"\nenv = {{ KEY = \"${{env:S_KEY}}\" }}\n{}",
        agent("true")
    );
    fs::write(&path, text).unwrap();
    let ran = creel.run(["run".as_ref(), "-vvv".as_ref(), path.as_os_str()]);
    assert_ne!(ran.code(), Some(0), "{ran}");
    assert_output_without(&ran, &secrets);
    for arguments in [&["show", "last"][..], &["ledger", "--all"], &["ledger", "--all", "--json"]] {
        assert_output_without(&creel.run(arguments), &secrets);
    }
    assert_not_stored(&creel, &secrets);
}
