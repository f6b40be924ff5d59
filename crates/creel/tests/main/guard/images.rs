//! Images are claimed by reference; what existed before, or is somebody else's, stays.

use creel_testkit::wait::eventually;
use serde_json::Value;

use super::scene::Scene;
use crate::support::{PATIENCE, text_of};

const BUILD: &str = "printf 'FROM creel-test\\nRUN echo built >/built\\n' \
    | DOCKER_BUILDKIT=0 docker build -q";

fn references(scene: &Scene) -> String {
    scene.outside("docker images --format '{{.Repository}}:{{.Tag}}' | sort | tr '\\n' ' '")
}

#[test]
fn new_references_go_and_old_ones_stay() {
    let mut scene = Scene::set_up();
    scene.outside("docker tag creel-test old:1; docker save creel-test old:1 >old.tar");
    scene.outside("docker tag creel-test moved:1");
    scene.remember();
    let script = format!(
        "set -e
         {BUILD} -t built:1 -t built:2 - >/dev/null; docker tag built:1 old:2; docker tag creel-test new:1
         docker tag creel-test old:1; docker load -q <old.tar
         docker save built:2 >built.tar; docker rmi built:2; docker load -q <built.tar
         docker run --name base creel-test true; docker commit base committed:1 >/dev/null
         docker commit base >/dev/null; docker export base | docker import - imported >/dev/null
         {BUILD} -t moved:1 - >/dev/null
         docker images -q | sort -u | wc -l"
    );
    let output = scene.guarded(&script).expect_code(0);
    assert!(output.stdout.ends_with("5\n"), "{output}");
    // A reference that existed before leads to what it led to.
    let id = |name: &str| scene.outside(&format!("docker image inspect -f '{{{{.Id}}}}' {name}"));
    assert_eq!(references(&scene), "creel-test:latest moved:1 old:1");
    assert_eq!(id("moved:1"), id("creel-test"));
    scene.assert_nothing_left();
}

#[test]
fn a_build_that_fails_leaves_none_of_its_steps() {
    let scene = Scene::set_up();
    let script = "printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN echo 2 >/2\\nRUN false\\n' \
        | DOCKER_BUILDKIT=0 docker build -t failed -";
    scene.guarded(script).expect_code(1);
    scene.assert_nothing_left();
}

#[test]
fn steps_of_a_strangers_build_stay_in_its_cache() {
    let mut scene = Scene::set_up();
    let theirs = "printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN echo 2 >/2\\n' | DOCKER_BUILDKIT=0 docker build";
    scene.outside(&format!("{theirs} -q -t theirs - >/dev/null"));
    scene.remember();
    let ours = "printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN false\\n' | DOCKER_BUILDKIT=0 docker build -";
    let output = scene.guarded(ours).expect_code(1);
    assert!(output.stdout.contains("Using cache"), "{output}");
    scene.assert_nothing_left();
    let again = scene.direct(&format!("{theirs} -")).expect_code(0);
    assert_eq!(again.stdout.matches("Using cache").count(), 2, "{again}");
}

#[test]
fn nameless_images_that_a_guarded_build_is_based_on_stay() {
    let mut scene = Scene::set_up();
    let theirs = "printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN echo 2 >/2\\n' \
        | DOCKER_BUILDKIT=0 docker build -q -";
    let base = scene.outside(theirs);
    scene.remember();
    // One build from it by its id, and one that finds its steps in the cache.
    let ours = format!(
        "printf 'FROM {base}\\nRUN echo 3 >/3\\n' | DOCKER_BUILDKIT=0 docker build -t ours:1 -
         printf 'FROM creel-test\\nRUN echo 1 >/1\\nRUN echo 4 >/4\\n' \
             | DOCKER_BUILDKIT=0 docker build -t ours:2 -"
    );
    let output = scene.guarded(&ours).expect_code(0);
    assert!(output.stdout.contains("Using cache"), "{output}");
    scene.assert_nothing_left();
    assert_eq!(scene.outside("docker images -q --no-trunc --filter dangling=true"), base);
    assert_eq!(scene.outside(theirs), base);
}

#[test]
fn a_strangers_container_of_a_guarded_image_is_left_alone() {
    let scene = Scene::set_up();
    let script = format!(
        "{BUILD} -t ours - >/dev/null; docker run --name source creel-test true
         docker commit source committed >/dev/null; echo ready >{}
         until [ -e {} ]; do sleep 0.05; done",
        scene.path("ready").display(),
        scene.path("go").display(),
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    scene.outside(
        "docker run -d --init --name of-built ours sleep 1000
         docker run -d --init --name of-committed committed sleep 1000
         docker commit source theirs; docker run -d --init --name of-theirs theirs sleep 1000",
    );
    std::fs::write(scene.path("go"), "go").unwrap();
    // An image in use stays and is reported: it is not verified gone.
    let output = guard.wait().expect_code(125);
    assert!(output.stderr.contains("ours") && output.stderr.contains("committed"), "{output}");
    let running = "docker ps --format '{{.Names}}' | sort | tr '\\n' ' '";
    assert_eq!(scene.outside(running), "of-built of-committed of-theirs");
    assert_eq!(references(&scene), "committed:latest creel-test:latest ours:latest theirs:latest");
    // A reconcile does no more while they live, and the rest when they are gone.
    scene.home.creel.run(["reconcile"]);
    assert_eq!(scene.outside(running), "of-built of-committed of-theirs");
    scene.outside("docker rm -f of-built of-committed of-theirs");
    let given_back = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]);
        scene.home.open_records().is_empty()
    });
    assert!(given_back, "{:#?}", scene.home.open_records());
    assert_eq!(references(&scene), "creel-test:latest theirs:latest");
    scene.clear();
}

#[test]
fn images_are_kept_where_they_are_asked_for() {
    let scene = Scene::set_up();
    let script = format!("{BUILD} -t kept - >/dev/null; docker run --name gone kept true");
    scene.guarded_with(&["--keep-images"], &script).expect_code(0);
    assert_eq!(references(&scene), "creel-test:latest kept:latest");
    scene.outside("docker rmi kept");
    scene.assert_nothing_left();
}

#[test]
fn what_an_answer_says_is_on_record_before_the_client_has_it() {
    let scene = Scene::set_up();
    let creel = env!("CARGO_BIN_EXE_creel");
    let script = format!(
        "set -e
         for number in $(seq 10); do
             docker tag creel-test seen:$number
             {creel} ledger --all --json >tagged$number.json
             printf \"FROM creel-test\\nENV N=$number\\n\" | DOCKER_BUILDKIT=0 docker build -qt seen:b$number - >/dev/null
             {creel} ledger --all --json >built$number.json
         done"
    );
    scene.guarded(&script).expect_code(0);
    for number in 1..=10 {
        for (file, name) in [("tagged", ""), ("built", "b")] {
            let listed = text_of(&scene.path(&format!("{file}{number}.json")));
            let listed: Value = serde_json::from_str(&listed).unwrap();
            let name = format!("seen:{name}{number}");
            let records = listed["records"].as_array().unwrap();
            let states: Vec<&Value> = records
                .iter()
                .filter(|one| one["name"] == *name)
                .map(|one| &one["state"])
                .collect();
            assert_eq!(states, ["created"], "{name}");
        }
    }
    scene.assert_nothing_left();
}
