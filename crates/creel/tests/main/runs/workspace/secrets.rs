//! A credential is in no argument, no setting and no file, and in nothing that is kept or shown.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::git::{Fault, GitServer};
use creel_testkit::github::{App, Github};
use creel_testkit::wait::eventually;

use crate::runs::scene::Scene;
use crate::support::PATIENCE;

use super::repositories::{KEEP, repository};

const TOKEN: &str = "vN4xT8cJ2hQ6yB9mK3wR7sZ5";
/// The token as it is, and in base64 after zero, one and two other bytes, without what those
/// change.
const FORMS: [&str; 4] = [
    TOKEN,
    "dk40eFQ4Y0oyaFE2eUI5bUszd1I3c1o1",
    "ZONHhUOGNKMmhRNnlCOW1LM3dSN3NaN",
    "2TjR4VDhjSjJoUTZ5QjltSzN3UjdzWj",
];

/// How often arguments are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Returns which form of the token is in some bytes.
fn form_in(bytes: &[u8]) -> Option<&'static str> {
    FORMS.into_iter().find(|form| contains(bytes, form))
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Returns the files below a directory that have one of these texts in them.
pub(super) fn files_with(directory: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // What is gone in the meantime has nothing in it.
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

/// Returns the files below a directory that have the token in them.
fn files_with_it(directory: &Path) -> Vec<String> {
    files_with(directory, &FORMS)
}

/// Returns the processes that have the token in their arguments.
fn arguments_with_it() -> Vec<String> {
    let arguments = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let shown = pids.filter(|pid| pid.parse::<u32>().is_ok()).map(|pid| arguments(&pid));
    let shown = shown.filter(|arguments| form_in(arguments).is_some());
    shown.map(|arguments| String::from_utf8_lossy(&arguments).into_owned()).collect()
}

/// Looks at the arguments of all processes until it is told to stop.
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
                thread::sleep(LOOK);
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

/// Checks that a command printed nothing of the token.
#[track_caller]
fn assert_silent(output: &Output) {
    assert_eq!(form_in(output.stdout.as_bytes()), None, "stdout of {}", output.command);
    assert_eq!(form_in(output.stderr.as_bytes()), None, "stderr of {}", output.command);
}

/// Checks that nothing below a home, and nothing that creel tells, has the token in it.
#[track_caller]
fn assert_secret(scene: &Scene) {
    assert_eq!(files_with_it(scene.home.creel.home()), Vec::<String>::new());
    for words in [
        &["show", "last"][..],
        &["show", "last", "--json"],
        &["events", "last"],
        &["events", "last", "--json"],
        &["runs", "--json"],
        &["ledger", "--all", "--json"],
    ] {
        assert_silent(&scene.home.creel.run(words).expect_code(0));
    }
}

/// Writes the private repository and its credential; `more` are keys of it, or tables behind it.
fn private_tables(git: &GitServer, more: &str) -> String {
    let credential = "[credentials.git]\ntoken = \"${env:GIT_TOKEN}\"\n";
    repository(&git.url("app"), "app", "credential = \"git\"") + credential + more
}

fn stage() -> (GitServer, Scene) {
    let git = GitServer::start().unwrap();
    git.add("app").unwrap();
    git.admit(TOKEN);
    (git, Scene::new().env("GIT_TOKEN", TOKEN))
}

#[test]
fn the_eyes_of_these_proofs_see_every_form_of_the_token() {
    let told = [
        TOKEN.to_owned(),
        encoded(TOKEN),
        encoded(&format!("x{TOKEN}")),
        encoded(&format!("xy{TOKEN}")),
        encoded(&format!("x-access-token:{TOKEN}")),
    ];
    for form in told {
        assert!(form_in(form.as_bytes()).is_some(), "{form}");
    }
    assert_eq!(form_in(b"something else altogether"), None);
}

/// Encodes by the program of the system, so that no code of ours is trusted with it; by its
/// input, because the proof beside this one looks at arguments.
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
    let (git, scene) = stage();
    git.trouble("app", Fault::Stall, 1);
    let agent = "[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n";
    let watch = Watch::begin();
    let running = scene.start(&private_tables(&git, &format!("{agent}{KEEP}")));
    assert!(eventually(PATIENCE, || git.fired("app") == 1), "{}", running.stderr());
    // Git is in the middle of a pack that it got with the token.
    assert_eq!(files_with_it(&scene.sandbox()), Vec::<String>::new());
    git.mend("app");
    let ended = scene.end(running);
    assert_eq!(watch.end(), Vec::<String>::new());
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(git.asked().iter().any(|asked| asked.authorization.is_some()));
    let settings = fs::read_to_string(scene.sandbox().join("workspace/work/app/.git/config"));
    let settings = settings.unwrap();
    assert!(settings.contains(&git.url("app")) && !settings.contains("credential"), "{settings}");
    assert_silent(&ended.output);
    assert_secret(&scene);
    scene.give_back();
}

#[test]
fn the_agent_does_not_get_the_token() {
    let (git, scene) = stage();
    let ended = scene.run(&private_tables(&git, ""));
    scene.assert_succeeded(&ended);
    assert!(ended.text().contains("PATH="), "the agent did not show its environment");
    assert!(!ended.text().contains("GIT_TOKEN") && !ended.text().contains("CREEL_GIT"));
    assert_silent(&ended.output);
    assert_secret(&scene);
}

/// Runs a workflow whose server repeats the login, and checks that nobody keeps it.
fn assert_repeated_in_vain(git: &GitServer, scene: &Scene, tables: &str) {
    git.trouble("app", Fault::Repeat, 100);
    let ended = scene.run(tables);
    assert!(git.fired("app") > 0, "the login was not repeated\n{}", ended.output);
    scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    let tail = ended.step("clone app")["tail"].as_str().unwrap();
    assert!(tail.contains("you said"), "the server was not heard: {tail}");
    assert_silent(&ended.output);
    assert_secret(scene);
}

#[test]
fn a_server_that_repeats_the_login_makes_nobody_keep_it() {
    // Each name moves the token by another number of bytes in what is encoded.
    for name in ["", "username = \"a\"", "username = \"ab\""] {
        let (git, scene) = stage();
        assert_repeated_in_vain(&git, &scene, &private_tables(&git, name));
    }
}

#[test]
fn a_minted_token_is_as_secret_as_a_given_one() {
    let (git, app) = (stage().0, App::make().unwrap());
    let github = Github::start(&app, TOKEN).unwrap();
    let scene = Scene::new().env("APP_KEY", &app.private_key);
    let tables = repository(&git.url("app"), "app", "credential = \"hub\"")
        + &format!(
            "[credentials.hub]\napp_id = {}\ninstallation_id = {}\n\
             private_key = \"${{env:APP_KEY}}\"\napi_url = \"{}\"\n",
            app.id,
            app.installation,
            github.url()
        );
    assert_repeated_in_vain(&git, &scene, &tables);
    assert_eq!(github.answered(), [201]);
    let line = app.private_key.lines().nth(3).unwrap();
    assert_eq!(files_with(scene.home.creel.home(), &[line]), Vec::<String>::new());
}

#[test]
fn git_that_traces_everything_makes_nobody_keep_the_login() {
    let (git, scene) = stage();
    git.trouble("app", Fault::Repeat, 100);
    let trace = "[sandbox]\nenv = { GIT_TRACE_CURL = \"1\", GIT_TRACE_REDACT = \"0\" }\n";
    let ended = scene.run(&private_tables(&git, trace));
    scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_silent(&ended.output);
    assert_secret(&scene);
}

#[test]
fn what_creel_writes_with_all_its_words_has_no_token_in_it() {
    let (git, scene) = stage();
    let path = scene.write(&private_tables(&git, ""));
    let output = scene.home.creel.run(["-vvv", "run", &path.display().to_string()]).expect_code(0);
    assert!(output.stderr.contains("clone app"), "{output}");
    assert_silent(&output);
    assert_secret(&scene);
}
