//! The verdict of a guard's certificate, and the exit code that agrees with it.

use std::fs;
use std::path::Path;

use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::Value;

use super::scene::Scene;

fn read(proof: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(proof).unwrap()).unwrap()
}

/// A command that creates a container, says so, and waits.
const WAITING: &str = "docker create --name ours creel-test true >/dev/null; echo ready >ready
    until [ -e go ]; do sleep 0.05; done; exit 7";

#[test]
fn an_unexplained_image_is_a_leak_and_a_failure() {
    let scene = Scene::set_up();
    let proof = scene.path("proof.json");
    let guard = scene.start(&["--certificate", proof.to_str().unwrap()], WAITING);
    scene.await_word("ready");
    // Nothing on record says who made it.
    scene.outside("docker create --name source creel-test true; docker commit source appeared:1; docker rm source");
    fs::write(scene.path("go"), "go").unwrap();
    let output = guard.wait().expect_code(125);
    assert!(output.stderr.contains("error[CR0040]"), "{output}");
    assert!(output.stderr.contains("appeared:1"), "{output}");
    let proof = read(&proof);
    assert_eq!(proof["verdict"], "leaking", "{proof:#}");
    assert!(proof["difference"]["unexplained"].to_string().contains("appeared:1"), "{proof:#}");
    scene.outside("docker rmi appeared:1");
    scene.assert_nothing_left();
}

#[test]
fn an_inventory_that_cannot_be_read_is_a_failure_that_says_why() {
    let mut scene = Scene::set_up();
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    scene.home = scene.home.moved_to(&wire.engine());
    let proof = scene.path("proof.json");
    let guard = scene.start(&["--certificate", proof.to_str().unwrap()], WAITING);
    scene.await_word("ready");
    let broken = Fault::Status { code: 403, message: "the store is sealed".to_owned() };
    let rule = wire.add(Rule::new(r"/networks(\?|$)", broken).method("GET"));
    fs::write(scene.path("go"), "go").unwrap();
    let output = guard.wait().expect_code(125);
    assert!(rule.fired() > 0, "{output}");
    assert!(output.stderr.contains("the store is sealed"), "{output}");
    let proof = read(&proof);
    assert_eq!(proof["verdict"], "inventory unread", "{proof:#}");
    wire.heal();
    scene.assert_nothing_left();
}

#[test]
fn a_protected_object_is_kept_and_no_leak() {
    let scene = Scene::set_up();
    scene.home.configure("[[protect]]\nname = \"by-rule\"\n");
    let proof = scene.path("proof.json");
    let script = "docker volume create --label dev.creel.protect=true by-label >/dev/null
        docker volume create by-rule >/dev/null; docker volume create ours >/dev/null; exit 7";
    let output = scene.guarded_with(&["--certificate", proof.to_str().unwrap()], script);
    let output = output.expect_code(7);
    assert!(output.stderr.contains("protected by its label"), "{output}");
    let proof = read(&proof);
    assert_eq!(proof["verdict"], "kept", "{proof:#}");
    let kept: Vec<&str> =
        proof["kept"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(kept, ["by-label", "by-rule"], "{proof:#}");
    assert_eq!(proof["difference"]["remaining"], serde_json::json!([]), "{proof:#}");
    assert_eq!(scene.outside("docker volume ls -q"), "by-label\nby-rule");
    // The ledger still knows them, and releases them once they are not protected any more.
    scene.home.creel.run(["reconcile"]).expect_code(0);
    assert_eq!(scene.home.open_records().len(), 2);
    scene.outside("docker volume rm by-label by-rule");
    scene.home.creel.run(["reconcile"]).expect_code(0);
    scene.assert_nothing_left();
}
