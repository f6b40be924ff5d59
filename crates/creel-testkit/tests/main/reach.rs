//! Podman's service and an engine behind ssh can be reached.

use std::process::Command;

use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::Engine;
use creel_testkit::inventory::{Inventory, Kind};
use creel_testkit::podman::Podman;
use creel_testkit::sshd::Sshd;

#[test]
fn podman_runs_the_test_image() {
    let podman = Podman::start().unwrap();
    let docker = podman.engine().docker();
    let id = docker.run(&ContainerSpec::sleeping("in-podman")).unwrap();
    let inventory = Inventory::snapshot(&podman.engine()).unwrap();
    let container = inventory.named(Kind::Container, "in-podman").unwrap();
    assert_eq!((container.id.as_str(), container.state.as_str()), (id.as_str(), "running"));
    docker.remove_container(&id).unwrap();
    assert!(docker.inspect_container(&id).unwrap().is_none());
}

#[test]
fn the_docker_cli_reaches_the_engine_over_ssh() {
    let sshd = Sshd::start(&Engine::from_env()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("docker")
        .args(["version", "--format", "{{.Server.APIVersion}}"])
        .env("DOCKER_HOST", sshd.host())
        .env("PATH", format!("{}:{path}", sshd.path_first().display()))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1.41");
}
