//! Keys for ssh: in the sandbox for as long as a clone takes, and no longer.

use std::net::TcpListener;

use creel_testkit::git::Origin;
use creel_testkit::sshd::Sshd;
use creel_testkit::wait::eventually;

use crate::runs::scene::{Ended, Scene};
use crate::support::PATIENCE;

use super::repositories::{KEEP, repository};
use super::secrets::files_with;

/// A server, and a repository behind it.
struct Stage {
    sshd: Sshd,
    origin: Origin,
    scene: Scene,
}

impl Stage {
    /// Sets it up with the key that the run is given.
    fn set(key: impl FnOnce(&Sshd) -> String) -> Self {
        let sshd = Sshd::without_engine().unwrap();
        let scene = Scene::new().env("DEPLOY_KEY", &key(&sshd));
        let origin = Origin::make(&scene.home.path("app.git")).unwrap();
        Self { sshd, origin, scene }
    }

    fn run(&self, known_hosts: &str, more: &str) -> Ended {
        let url = format!("{}{}", self.sshd.host(), self.origin.path.display());
        let credential = format!(
            "[credentials.deploy]\nssh_key = \"${{env:DEPLOY_KEY}}\"\nknown_hosts = \"{known_hosts}\"\n"
        );
        let repository = repository(&url, "app", "credential = \"deploy\"");
        self.scene.run(&(repository + &credential + more))
    }
}

fn right(sshd: &Sshd) -> String {
    sshd.user_key().unwrap()
}

/// Returns the files of a home that have the key in them, those of the sandbox too.
fn files_with_key(stage: &Stage, key: &str) -> Vec<String> {
    files_with(stage.scene.home.creel.home(), &[key.lines().nth(2).unwrap()])
}

#[test]
fn a_key_clones_and_is_gone_before_the_next_step() {
    let stage = Stage::set(right);
    let more = format!("[runtime]\nkind = \"command\"\ncommand = [\"/nowhere/agent\"]\n{KEEP}");
    let ended = stage.run(&stage.sshd.known_host().unwrap(), &more);
    ended.assert_cause("agent_launch_failed", "agent");
    assert!(ended.found("verify app").contains(&stage.origin.main), "{}", ended.output);
    let key = stage.sshd.user_key().unwrap();
    assert_eq!(files_with_key(&stage, &key), Vec::<String>::new());
    stage.scene.give_back();
}

#[test]
fn a_key_that_is_not_let_in_is_named() {
    let stage = Stage::set(|sshd| sshd.strange_key().unwrap());
    let ended = stage.run(&stage.sshd.known_host().unwrap(), "");
    stage.scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert_eq!(ended.tries("clone app"), 1);
}

#[test]
fn a_host_that_is_not_the_known_one_is_not_trusted() {
    let stage = Stage::set(right);
    let other = Sshd::without_engine().unwrap();
    let port = |sshd: &Sshd| sshd.host().rsplit(':').next().unwrap().to_owned();
    let known = other.known_host().unwrap().replace(&port(&other), &port(&stage.sshd));
    let ended = stage.run(&known, "");
    stage.scene.assert_stopped(&ended, "credential_unavailable", "clone app");
    assert!(ended.found("clone app").contains("known_hosts"), "{}", ended.output);
    let message = ended.report["cause"]["message"].as_str().unwrap();
    assert!(message.contains("Host key verification failed"), "{message}");
}

#[test]
fn a_key_is_gone_from_a_kept_sandbox_whose_clone_was_cut_off_by_the_limit_of_the_run() {
    let stage = Stage::set(right);
    // It takes connections and says nothing: ssh waits, with its key at hand.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ssh://root@{}/app.git", silent.local_addr().unwrap());
    let tables = repository(&url, "app", "credential = \"deploy\"")
        + "[credentials.deploy]\nssh_key = \"${env:DEPLOY_KEY}\"\n[limits]\nwall = \"4s\"\n"
        + KEEP;
    let running = stage.scene.start(&tables);
    let key = stage.sshd.user_key().unwrap();
    let lent = eventually(PATIENCE, || !files_with_key(&stage, &key).is_empty());
    assert!(lent, "the key was never lent\n{}", running.stderr());
    let ended = stage.scene.end(running);
    assert_eq!(ended.report["cause"]["class"], "budget_exceeded", "{}", ended.output);
    assert_eq!(files_with_key(&stage, &key), Vec::<String>::new());
    stage.scene.give_back();
}
