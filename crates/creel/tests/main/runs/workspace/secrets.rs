//! A credential is in no argument, no setting and no file, and in no stored or shown output.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::git::{GitFault, GitServer};
use creel_testkit::github::{App, Github};
use creel_testkit::wait::eventually;
use memchr::memmem;

use crate::runs::workflow_fixture::WorkflowFixture;
use crate::support::PATIENCE;

use super::repositories::{KEEP, repository};

const TOKEN: &str = "vN4xT8cJ2hQ6yB9mK3wR7sZ5";
/// The token in plain text, and in base64 after zero, one and two other bytes, without the
/// characters that those affect.
const FORMS: [&str; 4] = [
    TOKEN,
    "dk40eFQ4Y0oyaFE2eUI5bUszd1I3c1o1",
    "ZONHhUOGNKMmhRNnlCOW1LM3dSN3NaN",
    "2TjR4VDhjSjJoUTZ5QjltSzN3UjdzWj",
];

/// The polling interval for arguments.
const POLL_PERIOD: Duration = Duration::from_millis(2);

/// Returns the form of the token that some bytes contain.
fn form_in(bytes: &[u8]) -> Option<&'static str> {
    FORMS.into_iter().find(|form| contains(bytes, form))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    memmem::find(bytes, text.as_bytes()).is_some()
}

/// Returns the files below a directory that contain one of these texts.
pub(super) fn files_with(directory: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // A file that has vanished in the meantime contains nothing.
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() {
            found.extend(files_with(&path, texts));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            if texts.iter().any(|text| contains(&bytes, text)) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// Returns the files below a directory that contain the token.
fn files_with_it(directory: &Path) -> Vec<String> {
    files_with(directory, &FORMS)
}

/// Returns the processes with the token in their arguments.
fn arguments_with_it() -> Vec<String> {
    let arguments = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let shown = pids.filter(|pid| pid.parse::<u32>().is_ok()).map(|pid| arguments(&pid));
    let shown = shown.filter(|arguments| form_in(arguments).is_some());
    shown.map(|arguments| String::from_utf8_lossy(&arguments).into_owned()).collect()
}

/// Polls the arguments of all processes until it is stopped.
struct Watch {
    stopped: Arc<AtomicBool>,
    watcher: thread::JoinHandle<Vec<String>>,
}

impl Watch {
    fn begin() -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let watcher = thread::spawn(move || {
            let mut seen = Vec::new();
            while !flag.load(Ordering::SeqCst) {
                seen.extend(arguments_with_it());
                thread::sleep(POLL_PERIOD);
            }
            seen
        });
        Self { stopped, watcher }
    }

    fn end(self) -> Vec<String> {
        self.stopped.store(true, Ordering::SeqCst);
        self.watcher.join().unwrap()
    }
}

/// Asserts that the output of a command does not contain the token.
#[track_caller]
fn assert_output_without(output: &Output) {
    assert_eq!(form_in(output.stdout.as_bytes()), None, "stdout of {}", output.command);
    assert_eq!(form_in(output.stderr.as_bytes()), None, "stderr of {}", output.command);
}

/// Asserts that no file below a home, and no report of creel, contains the token.
#[track_caller]
fn assert_secret(fixture: &WorkflowFixture) {
    assert_eq!(files_with_it(fixture.home.creel.home()), Vec::<String>::new());
    for args in [
        &["show", "last"][..],
        &["show", "last", "--json"],
        &["events", "last"],
        &["events", "last", "--json"],
        &["runs", "--json"],
        &["ledger", "--all", "--json"],
    ] {
        assert_output_without(&fixture.home.creel.run(args).expect_code(0));
    }
}

/// Writes the private repository and its credential. `more` has further keys, or tables after it.
fn private_tables(git: &GitServer, more: &str) -> String {
    let credential = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";
    repository(&git.url("app"), "app", "credential = \"git\"") + credential + more
}

fn fixture() -> (GitServer, WorkflowFixture) {
    let git = GitServer::start().unwrap();
    git.add("app").unwrap();
    git.admit(TOKEN);
    (git, WorkflowFixture::new().env("GIT_TOKEN", TOKEN))
}

#[test]
fn the_search_finds_every_form_of_the_token() {
    let samples = [
        TOKEN.to_owned(),
        encoded(TOKEN),
        encoded(&format!("x{TOKEN}")),
        encoded(&format!("xy{TOKEN}")),
        encoded(&format!("x-access-token:{TOKEN}")),
    ];
    for form in samples {
        assert!(form_in(form.as_bytes()).is_some(), "{form}");
    }
    assert_eq!(form_in(b"something else altogether"), None);
}

/// Encodes with the program of the system, so that the test does not depend on our code; through
/// its input, because another test polls arguments.
fn encoded(text: &str) -> String {
    let mut child = Command::new("base64")
        .arg("-w0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn a_token_is_in_no_argument_while_it_clones_and_nowhere_after() {
    let (git, fixture) = fixture();
    git.arm("app", GitFault::Stall, 1);
    let agent = "[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n";
    let watch = Watch::begin();
    let running = fixture.start(&private_tables(&git, &format!("{agent}{KEEP}")));
    assert!(eventually(PATIENCE, || git.fired("app") == 1), "{}", running.stderr());
    // Git is in the middle of a pack that it received with the token.
    assert_eq!(files_with_it(&fixture.sandbox()), Vec::<String>::new());
    git.disarm("app");
    let ended = fixture.end(running);
    assert_eq!(watch.end(), Vec::<String>::new());
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(git.requests().iter().any(|request| request.authorization.is_some()));
    let settings = fs::read_to_string(fixture.sandbox().join("workspace/work/app/.git/config"));
    let settings = settings.unwrap();
    assert!(settings.contains(&git.url("app")) && !settings.contains("credential"), "{settings}");
    assert_output_without(&ended.output);
    assert_secret(&fixture);
    fixture.release_kept();
}

#[test]
fn the_agent_does_not_get_the_token() {
    let (git, fixture) = fixture();
    let ended = fixture.run(&private_tables(&git, ""));
    fixture.assert_succeeded(&ended);
    assert!(ended.text().contains("PATH="), "the agent did not show its environment");
    assert!(!ended.text().contains("GIT_TOKEN") && !ended.text().contains("CREEL_GIT"));
    assert_output_without(&ended.output);
    assert_secret(&fixture);
}

/// Runs a workflow whose server repeats the login, and asserts that it is not stored.
fn assert_repeated_login_is_not_stored(git: &GitServer, fixture: &WorkflowFixture, tables: &str) {
    git.arm("app", GitFault::Repeat, 100);
    let ended = fixture.run(tables);
    assert!(git.fired("app") > 0, "the login was not repeated\n{}", ended.output);
    fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
    let tail = ended.step("clone app")["tail"].as_str().unwrap();
    assert!(tail.contains("you said"), "the response was not recorded: {tail}");
    assert_output_without(&ended.output);
    assert_secret(fixture);
}

#[test]
fn a_login_repeated_by_the_server_is_not_stored() {
    // Each name shifts the token by a different number of bytes in the encoded text.
    for name in ["", "username = \"a\"", "username = \"ab\""] {
        let (git, fixture) = fixture();
        assert_repeated_login_is_not_stored(&git, &fixture, &private_tables(&git, name));
    }
}

#[test]
fn a_minted_token_is_as_secret_as_a_configured_one() {
    let (git, app) = (fixture().0, App::make().unwrap());
    let github = Github::start(&app, TOKEN).unwrap();
    let fixture = WorkflowFixture::new().env("APP_KEY", &app.private_key);
    let tables = repository(&git.url("app"), "app", "credential = \"hub\"")
        + &format!(
            "[credentials.hub]\napp_id = {}\ninstallation_id = {}\n\
             private_key = \"${{env:APP_KEY}}\"\napi_url = \"{}\"\n",
            app.id,
            app.installation,
            github.url()
        );
    assert_repeated_login_is_not_stored(&git, &fixture, &tables);
    assert_eq!(github.statuses(), [201]);
    let line = app.private_key.lines().nth(3).unwrap();
    assert_eq!(files_with(fixture.home.creel.home(), &[line]), Vec::<String>::new());
}

#[test]
fn a_login_in_a_git_trace_is_not_stored() {
    let (git, fixture) = fixture();
    git.arm("app", GitFault::Repeat, 100);
    let trace = "[sandbox]\nenv = { GIT_TRACE_CURL = \"1\", GIT_TRACE_REDACT = \"0\" }\n";
    let ended = fixture.run(&private_tables(&git, trace));
    fixture.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_output_without(&ended.output);
    assert_secret(&fixture);
}

#[test]
fn verbose_output_of_creel_does_not_contain_the_token() {
    let (git, fixture) = fixture();
    let path = fixture.write(&private_tables(&git, ""));
    let output =
        fixture.home.creel.run(["-vvv", "run", &path.display().to_string()]).expect_code(0);
    assert!(output.stderr.contains("clone app"), "{output}");
    assert_output_without(&output);
    assert_secret(&fixture);
}
