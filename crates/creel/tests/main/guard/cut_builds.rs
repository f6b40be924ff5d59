//! Builds that are cut: whoever dies in the middle of one, none of its images stay.

use std::fs;
use std::time::Duration;

use creel_testkit::wait::{eventually, throughout};
use serde_json::Value;

use super::scene::{Scene, part};
use crate::support::{PATIENCE, assert_killed};

/// After how many lines of its answer a build is cut: in and between steps of both sorts.
const CUTS: [u32; 6] = [3, 7, 12, 17, 22, 30];

/// Returns the command that builds with docker-py, and after so many lines dies or, with one more
/// word, writes a file of that name.
fn cut_build(scene: &Scene, lines: u32, word: &str) -> String {
    let python = part("CREEL_TEST_DOCKER_PY").join("bin/python");
    fs::write(scene.path("cut_build.py"), include_str!("clients/cut_build.py")).unwrap();
    format!("{} cut_build.py {lines} {word}", python.display())
}

/// Returns a build by hand upon which nothing of a guard is built, and which shares its base.
fn build_decoy(scene: &Scene) {
    scene.outside(
        "printf 'FROM creel-test\nRUN echo decoy >/decoy\nENV DECOY=1\n' \
         | DOCKER_BUILDKIT=0 docker build -q - >decoy
         printf 'FROM creel-test\nRUN echo decoy >/decoy\nENV DECOY=2\n' \
         | DOCKER_BUILDKIT=0 docker build -q -t decoy:1 - >/dev/null",
    );
}

#[test]
fn a_client_that_dies_in_a_build_leaves_no_image() {
    let mut scene = Scene::set_up();
    build_decoy(&scene);
    scene.remember();
    for lines in CUTS {
        let build = cut_build(&scene, lines, &format!("cut{lines}"));
        let proof = scene.path("proof.json").display().to_string();
        let output = scene.guarded_with(&["--certificate", &proof], &build).expect_code(9);
        assert!(!output.stderr.contains("not verified"), "after {lines} lines: {output}");
        let certificate: Value =
            serde_json::from_str(&fs::read_to_string(scene.path("proof.json")).unwrap()).unwrap();
        assert_eq!(certificate["verdict"], "clean", "after {lines} lines: {certificate:#}");
        scene.assert_nothing_left();
    }
    // The engine may have been late.
    let stays_clean = throughout(Duration::from_secs(2), || scene.left().is_empty());
    assert!(stays_clean, "{:#?}", scene.left());
    scene.assert_nothing_left();
}

#[test]
fn a_guard_that_dies_in_a_build_leaves_no_image() {
    let mut scene = Scene::set_up();
    scene.home.configure("[ledger]\nintent_window = \"2s\"\n");
    build_decoy(&scene);
    scene.remember();
    for lines in CUTS {
        let build = cut_build(&scene, lines, &format!("dead{lines} mark{lines}"));
        let guard = scene.start(&[], &build);
        scene.await_word(&format!("mark{lines}"));
        assert_killed(&guard.kill());
        let given_back = eventually(PATIENCE, || scene.home.open_records().is_empty());
        assert!(given_back, "after {lines} lines: {:#?}", scene.home.open_records());
        scene.home.await_quiet();
        // The builder removes its container when it has noticed.
        let nothing_left = eventually(PATIENCE, || scene.left().is_empty());
        assert!(nothing_left, "after {lines} lines: {:?}", scene.left());
    }
}

/// A guard dies in a step of BuildKit, and after the answer to the build. Somebody else's image of
/// the same first steps stays, whatever it shares with it.
#[test]
fn a_guard_that_dies_with_a_build_of_buildkit_leaves_no_image() {
    let mut scene = Scene::set_up();
    scene.add_plugins();
    scene.home.configure("[ledger]\nintent_window = \"2s\"\n");
    fs::write(scene.path("Theirs"), "FROM creel-test\nRUN echo kit >/kit\nENV THEIRS=1\n").unwrap();
    scene.outside("docker build -q -f Theirs -t theirs:1 . >/dev/null");
    scene.remember();
    let steps = "FROM creel-test\\nRUN echo kit >/kit\\n";
    for (number, last, after) in [
        (1, "RUN echo in >/in; sleep 1000\\n", "sleep 1000"),
        (2, "RUN echo done >/done\\n", "echo ready >ready2; sleep 1000"),
    ] {
        let script = format!(
            "printf '{steps}{last}' | docker build --progress plain -t kit:{number} - >log{number} 2>&1
             {after}"
        );
        let guard = scene.start(&[], &script);
        match number {
            1 => scene.await_text("log1", "sleep 1000"),
            _ => scene.await_text("ready2", "ready"),
        }
        assert_killed(&guard.kill());
        let given_back = eventually(PATIENCE, || scene.home.open_records().is_empty());
        assert!(given_back, "{number}: {:#?}", scene.home.open_records());
        scene.home.await_quiet();
        let nothing_left = eventually(PATIENCE, || scene.left().is_empty());
        assert!(nothing_left, "{number}: {:?}", scene.left());
    }
}

/// The second step runs in a container that the builder told, so what somebody builds upon the
/// first one is not taken for it.
#[test]
fn somebody_elses_build_upon_a_guarded_step_stays() {
    let scene = Scene::set_up();
    let (ready, go) = (scene.path("ready"), scene.path("go"));
    let script = format!(
        "printf 'FROM creel-test\\nRUN echo ours >/1\\nRUN echo two >/2 && false\\n' \
         | DOCKER_BUILDKIT=0 docker build -; echo ready >{}; until [ -e {} ]; do sleep 0.05; done",
        ready.display(),
        go.display(),
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    let theirs = scene.outside(
        "printf 'FROM creel-test\nRUN echo ours >/1\nENV THEIRS=1\n' | DOCKER_BUILDKIT=0 docker build -q -",
    );
    fs::write(go, "go").unwrap();
    // The step that theirs is built upon cannot go, and the guard says so.
    let output = guard.wait().expect_code(125);
    assert!(output.stderr.contains("1 not verified gone"), "{output}");
    scene.outside(&format!("docker run --rm {theirs} cat /1"));
    scene.outside(&format!("docker rmi {theirs}"));
    let given_back = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]);
        scene.home.open_records().is_empty()
    });
    assert!(given_back, "{:#?}", scene.home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn a_watchdog_that_waits_for_a_create_is_listed_and_ends_within_the_window() {
    let scene = Scene::set_up();
    scene.home.configure("[ledger]\nintent_window = \"15s\"\n");
    let script = "printf 'FROM creel-test\\nRUN sleep 1000\\n' \
        | DOCKER_BUILDKIT=0 docker build -t late:1 - &
        until [ -n \"$(docker ps -q)\" ]; do sleep 0.1; done; echo ready >ready; wait";
    let guard = scene.start(&[], script);
    scene.await_word("ready");
    assert_killed(&guard.kill());
    let is_in_json = || {
        let json = scene.home.creel.run(["ls", "--json"]).json();
        let creates = json["waiting"][0]["creates"].as_array().cloned().unwrap_or_default();
        creates.contains(&"image late:1".into())
    };
    assert!(eventually(Duration::from_secs(10), is_in_json));
    let is_listed = || {
        let output = scene.home.creel.run(["ls"]);
        output.stderr.contains("waits for") && output.stderr.contains("image late:1")
    };
    assert!(is_listed(), "{}", scene.home.creel.run(["ls"]));
    assert!(eventually(Duration::from_secs(40), || scene.home.processes().is_empty()));
    assert!(!is_listed());
    scene.assert_nothing_left();
}
