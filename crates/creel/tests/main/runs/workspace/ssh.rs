//! Keys for ssh: in the sandbox only while a clone runs.

use std::net::TcpListener;

use creel_testkit::git::Origin;
use creel_testkit::sshd::Sshd;
use creel_testkit::wait::eventually;

use crate::runs::workflow_fixture::{FinishedRun, WorkflowFixture};
use crate::support::PATIENCE;

use super::repositories::{KEEP, repository};
use super::secrets::files_with;

/// A server with a repository.
struct SshFixture {
    sshd: Sshd,
    origin: Origin,
    workflow: WorkflowFixture,
}

impl SshFixture {
    /// Sets it up with the key of the run.
    fn set(key: impl FnOnce(&Sshd) -> String) -> Self {
        let sshd = Sshd::without_engine().unwrap();
        let workflow = WorkflowFixture::new().env("DEPLOY_KEY", &key(&sshd));
        let origin = Origin::make(&workflow.home.path("app.git")).unwrap();
        Self { sshd, origin, workflow }
    }

    fn run(&self, known_hosts: &str, more: &str) -> FinishedRun {
        let url = format!("{}{}", self.sshd.host(), self.origin.path.display());
        let credential = format!(
            "[credentials.deploy]\nssh_key = \"${{env:DEPLOY_KEY}}\"\nknown_hosts = \"{known_hosts}\"\n"
        );
        let repository = repository(&url, "app", "credential = \"deploy\"");
        self.workflow.run(&(repository + &credential + more))
    }
}

fn right(sshd: &Sshd) -> String {
    sshd.user_key().unwrap()
}

/// Returns the files of a home that contain the key, those of the sandbox included.
fn files_with_key(fixture: &SshFixture, key: &str) -> Vec<String> {
    files_with(fixture.workflow.home.creel.home(), &[key.lines().nth(2).unwrap()])
}

#[test]
fn a_key_clones_and_is_gone_before_the_next_step() {
    let fixture = SshFixture::set(right);
    let more = format!("[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n{KEEP}");
    let ended = fixture.run(&fixture.sshd.known_host().unwrap(), &more);
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(ended.found("verify app").contains(&fixture.origin.main), "{}", ended.output);
    let key = fixture.sshd.user_key().unwrap();
    assert_eq!(files_with_key(&fixture, &key), Vec::<String>::new());
    fixture.workflow.release_kept();
}

#[test]
fn a_rejected_ssh_key_is_reported() {
    let fixture = SshFixture::set(|sshd| sshd.rejected_key().unwrap());
    let ended = fixture.run(&fixture.sshd.known_host().unwrap(), "");
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_eq!(ended.tries("clone app"), 1);
}

#[test]
fn a_host_with_an_unknown_key_is_not_trusted() {
    let fixture = SshFixture::set(right);
    let other = Sshd::without_engine().unwrap();
    let port = |sshd: &Sshd| sshd.host().rsplit(':').next().unwrap().to_owned();
    let known = other.known_host().unwrap().replace(&port(&other), &port(&fixture.sshd));
    let ended = fixture.run(&known, "");
    fixture.workflow.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert!(ended.found("clone app").contains("known_hosts"), "{}", ended.output);
    let message = ended.report["cause"]["message"].as_str().unwrap();
    assert!(message.contains("Host key verification failed"), "{message}");
}

#[test]
fn a_key_is_gone_from_a_kept_sandbox_whose_clone_was_cut_off_by_the_limit_of_the_run() {
    let fixture = SshFixture::set(right);
    // It accepts connections and sends nothing: ssh waits, with its key in place.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ssh://root@{}/app.git", silent.local_addr().unwrap());
    let tables = repository(&url, "app", "credential = \"deploy\"")
        + "[credentials.deploy]\nssh_key = \"${env:DEPLOY_KEY}\"\n[limits]\nwall = \"4s\"\n"
        + KEEP;
    let running = fixture.workflow.start(&tables);
    let key = fixture.sshd.user_key().unwrap();
    let lent = eventually(PATIENCE, || !files_with_key(&fixture, &key).is_empty());
    assert!(lent, "the key was never lent\n{}", running.stderr());
    let ended = fixture.workflow.end(running);
    assert_eq!(ended.report["cause"]["class"], "budget_exceeded", "{}", ended.output);
    assert_eq!(files_with_key(&fixture, &key), Vec::<String>::new());
    fixture.workflow.release_kept();
}
