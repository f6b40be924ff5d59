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
use creel_testkit::wait::eventually;

use crate::runs::scene::Scene;
use crate::support::PATIENCE;

use super::repositories::{KEEP, repository};

const TOKEN: &str = "vN4xT8cJ2hQ6yB9mK3wR7sZ5";
/// The token in base64 after zero, one and two other bytes, without what those change.
const ENCODED: [&str; 3] = [
    "dk40eFQ4Y0oyaFE2eUI5bUszd1I3c1o1",
    "ZONHhUOGNKMmhRNnlCOW1LM3dSN3NaN",
    "2TjR4VDhjSjJoUTZ5QjltSzN3UjdzWj",
];

/// How often arguments are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Returns which form of the token is in some bytes.
fn form_in(bytes: &[u8]) -> Option<&'static str> {
    let forms = std::iter::once(TOKEN).chain(ENCODED);
    forms.into_iter().find(|form| bytes.windows(form.len()).any(|part| part == form.as_bytes()))
}

/// Returns the files below a directory that have the token in them.
fn files_with_it(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with_it(&path));
        } else if kind.is_file() && form_in(&fs::read(&path).unwrap_or_default()).is_some() {
            found.push(path.display().to_string());
        }
    }
    found
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

#[test]
fn a_server_that_repeats_the_login_makes_nobody_keep_it() {
    let (git, scene) = stage();
    git.trouble("app", Fault::Repeat, 100);
    let ended = scene.run(&private_tables(&git, KEEP));
    ended.assert_cause("credential_unavailable", "clone app");
    let tail = ended.step("clone app")["tail"].as_str().unwrap();
    assert!(tail.contains("you said"), "the server was not heard: {tail}");
    assert_silent(&ended.output);
    assert_secret(&scene);
    scene.give_back();
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
