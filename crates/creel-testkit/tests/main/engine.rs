//! A second engine can be killed, restarted and cleared without any effect on the first one.

use std::fs;

use creel_testkit::creel::Creel;
use creel_testkit::docker::{ContainerSpec, Labels};
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine, clear};
use creel_testkit::leftovers;

#[test]
fn a_killed_engine_comes_back_with_its_objects() {
    let mut second = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let docker = second.engine().docker();
    docker.create_network("second", &Labels::new()).unwrap();
    let id = docker.run(&ContainerSpec::sleeping("second").network("second")).unwrap();
    second.kill_hard().unwrap();
    assert!(!second.engine().answers());
    second.restart().unwrap();
    let container = docker.inspect_container(&id).unwrap().unwrap();
    assert_eq!(container["State"]["Status"], "exited");
    docker.start(&id).unwrap();
    let directory = second.directory().to_owned();
    second.stop().unwrap();
    assert!(!directory.exists());
    assert!(!leftovers::any_daemon(&directory));
    assert!(Engine::from_env().answers());
}

#[test]
fn an_abandoned_engine_is_cleared_and_a_used_one_is_not() {
    let second = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let directory = second.directory().to_owned();
    second.engine().docker().run(&ContainerSpec::stubborn("abandoned")).unwrap();
    assert!(clear(&directory).unwrap_err().to_string().contains("another process"));
    // The state after a killed test run: everything runs, and no process holds the lock.
    let engine = second.detach();
    assert!(engine.answers());
    clear(&directory).unwrap();
    assert!(!engine.answers());
    assert!(!directory.exists());
    assert!(!leftovers::any_daemon(&directory));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&directory.display().to_string()));
}

#[test]
fn an_engine_on_tcp_is_reached_from_inside_its_namespace() {
    let arguments = vec!["--host=tcp://127.0.0.1:2375".to_owned(), "--tls=false".to_owned()];
    let options = EngineOptions { arguments, with_image: false, ..EngineOptions::default() };
    let second = PrivateEngine::start_temporary(options).unwrap();
    let home = tempfile::tempdir().unwrap();
    let client = Creel::new("docker", home.path(), "tcp://127.0.0.1:2375");
    let arguments = ["version", "--format", "{{.Server.APIVersion}}"];
    let output = client.within(second.namespace()).run(arguments).expect_code(0);
    assert_eq!(output.stdout.trim(), "1.41");
    second.stop().unwrap();
}
