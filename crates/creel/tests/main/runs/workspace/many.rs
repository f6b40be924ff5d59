//! Many repositories: several at a time, up to a limit, each with its own outcome.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use creel_testkit::git::{GitFault, GitServer};
use creel_testkit::wait::eventually;

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};
use crate::support::PATIENCE;

use super::repositories::repository;

/// The number of concurrent clones.
const AT_ONCE: u32 = 8;
/// How long the clones of one run may take on a loaded machine.
const LONGEST: Duration = Duration::from_secs(1800);
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
            super::super::clone_with_real_git(1000);
            println!(
                "report: 1000 repositories cloned by git in {} s",
                started.elapsed().as_secs()
            );
        }
    }
}

/// Clones this many repositories in one run, with a program that responds as git does.
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
    assert_all_cloned(&fixture, &tables, count, commit);
}

/// Clones this many repositories in one run with git itself, each from an address of its own.
fn clone_with_real_git(count: usize) {
    let fixture = WorkflowFixture::new();
    let origins = fixture.home.path("origins");
    let (origin, commit) = make_small_origin(&origins);
    let mut tables = "[limits]\nwall = \"30m\"\n".to_owned();
    for number in 0..count {
        let path = origins.join(format!("{number}.git"));
        symlink(&origin, &path).unwrap();
        let url = format!("file://{}", path.display());
        tables += &repository(&url, &format!("r{number}"), "");
    }
    assert_all_cloned(&fixture, &tables, count, &commit);
}

/// Makes a bare repository with one small commit; returns its path and the commit.
fn make_small_origin(directory: &Path) -> (PathBuf, String) {
    let script = "set -e; mkdir -p $0/work; cd $0/work; git init -q -b main; echo one > one\n\
                  git add one; git -c user.name=t -c user.email=t@example.org commit -q -m one\n\
                  git clone -q --bare . $0/origin; git rev-parse HEAD";
    let output = Command::new("sh").args(["-c", script]).arg(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let commit = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    (directory.join("origin"), commit)
}

/// Runs a workflow with so many repositories, and checks that each of them is at the commit.
fn assert_all_cloned(fixture: &WorkflowFixture, tables: &str, count: usize, commit: &str) {
    let slow = fixture.home.creel.clone().deadline(LONGEST);
    let path = fixture.write(tables);
    let ended = fixture.end(slow.spawn(["run", "--json", &path.display().to_string()]));
    fixture.assert_succeeded(&ended);
    assert_eq!(steps(&ended, "clone "), named("clone", count));
    assert_eq!(steps(&ended, "verify "), named("verify", count));
    assert_eq!(ended.text().matches(commit).count(), count);
}
