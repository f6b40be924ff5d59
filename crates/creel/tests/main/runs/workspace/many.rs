//! Many repositories: several at a time, up to a limit, each with its own outcome.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use creel_testkit::git::{GitFault, GitServer};
use creel_testkit::wait::eventually;

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};
use crate::support::PATIENCE;

use super::repositories::repository;

/// The number of concurrent clones.
const AT_ONCE: u32 = 8;
/// More than the number of attempts of any clone.
const ALWAYS: u32 = 10_000;

/// Returns the names of the steps with this prefix, in the sequence of the checklist.
fn steps<'a>(ended: &'a FinishedRun, prefix: &str) -> Vec<&'a str> {
    let steps = ended.report["checklist"].as_array().unwrap().iter();
    steps
        .map(|step| step["step"].as_str().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn named(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix} r{number}")).collect()
}

#[test]
fn repositories_are_cloned_concurrently_up_to_a_limit() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    let origin = git.add("app").unwrap();
    git.arm("app", GitFault::Hang, ALWAYS);
    let tables: String =
        (0..24).map(|number| repository(&git.url("app"), &format!("r{number}"), "")).collect();
    let running = fixture.start(&tables);
    // None of them gets a response, so the number of waiting clones is the limit.
    let came = eventually(PATIENCE, || git.fired("app") == AT_ONCE);
    assert!(came, "{} at once\n{}", git.fired("app"), running.stderr());
    let more = eventually(Duration::from_millis(500), || git.fired("app") > AT_ONCE);
    assert!(!more, "{} at once", git.fired("app"));
    git.disarm("app");
    let ended = fixture.end(running);
    fixture.assert_succeeded(&ended);
    assert_eq!(ended.text().matches(&origin.main).count(), 24, "{}", ended.text());
    assert_eq!(steps(&ended, "clone "), named("clone", 24));
    assert_eq!(steps(&ended, "verify "), named("verify", 24));
}

#[test]
fn a_failed_repository_does_not_hide_the_outcome_of_the_others() {
    let (git, fixture) = (GitServer::start().unwrap(), WorkflowFixture::new());
    git.add("app").unwrap();
    let missing = [2, 5, 11];
    let tables: String = (0..12)
        .map(|number| {
            let name = if missing.contains(&number) { "nowhere" } else { "app" };
            repository(&git.url(name), &format!("r{number}"), "")
        })
        .collect();
    let ended = fixture.run(&tables);
    // The first in the file is the cause, whichever failed first.
    fixture.assert_stopped(&ended, "workspace_incomplete", "clone r2");
    assert_eq!(steps(&ended, "clone "), named("clone", 12));
    for number in 0..12 {
        let wanted = if missing.contains(&number) { "failed" } else { "passed" };
        let step = ended.step(&format!("clone r{number}"));
        assert_eq!(step["status"], wanted, "r{number}: {step}");
    }
    assert_eq!(steps(&ended, "verify "), Vec::<&str>::new());
}

#[test]
fn a_hundred_and_fifty_repositories_are_cloned() {
    clone_all(150);
}

mod torture {
    mod workspace {
        #[test]
        fn a_thousand_repositories_are_cloned() {
            let started = std::time::Instant::now();
            super::super::clone_all(1000);
            println!("report: 1000 repositories cloned in {} s", started.elapsed().as_secs());
        }
    }
}

/// Clones this many repositories in one run.
fn clone_all(count: usize) {
    let fixture = WorkflowFixture::new();
    let programs = fixture.home.path("programs");
    fs::create_dir(&programs).unwrap();
    // Everything that creel requires of git here, without the cost of a thousand real clones.
    let commit = "0123456789012345678901234567890123456789";
    let cheap = format!(
        "#!/bin/sh\nif [ \"$1\" = clone ]; then for last; do :; done; mkdir -p \"$last/.git\"\n\
         else echo {commit}; fi\n"
    );
    let git = programs.join("git");
    fs::write(&git, cheap).unwrap();
    fs::set_permissions(&git, fs::Permissions::from_mode(0o755)).unwrap();
    let mut tables = format!(
        "[sandbox]\nenv = {{ PATH = \"{}:/usr/bin:/bin\" }}\n[limits]\nwall = \"10m\"\n",
        programs.display()
    );
    for number in 0..count {
        tables += &repository("https://example.org/cheap.git", &format!("r{number}"), "");
    }
    let slow = fixture.home.creel.clone().deadline(Duration::from_secs(600));
    let path = fixture.write(&tables);
    let ended = fixture.end(slow.spawn(["run", "--json", &path.display().to_string()]));
    fixture.assert_succeeded(&ended);
    assert_eq!(steps(&ended, "clone "), named("clone", count));
    assert_eq!(steps(&ended, "verify "), named("verify", count));
    assert_eq!(ended.text().matches(commit).count(), count);
}
