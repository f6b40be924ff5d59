//! What others put in the place of a guarded command's things is theirs.
//!
//! Each attack is made while the guard lives, after it was killed, and after
//! its watchdog was killed too: the same comparison stands before each release.

use std::fs;
use std::thread;
use std::time::Duration;

use creel_testkit::creel::Running;
use creel_testkit::wait::eventually;

use super::kills::watchdog_of;
use super::scene::Scene;
use crate::support::{Ending, PATIENCE, assert_killed, kill};

/// The settings under which an unanswered create is searched for no longer than a test can wait.
const SHORT_WINDOW: &str = "[ledger]\nintent_window = \"3s\"\n";

const DOCKERFILE: &str = "FROM creel-test\\nRUN echo built >/built\\n";

/// How a guard ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its command ends.
    Itself,
    /// It is killed.
    Killed,
    /// It is killed together with its watchdog.
    KilledWithWatchdog,
}

impl End {
    const ALL: [Self; 3] = [Self::Itself, Self::Killed, Self::KilledWithWatchdog];

    /// Runs a script behind a guard, then lets somebody else act, and ends the guard before or
    /// after that; returns when everything has settled.
    fn around(self, scene: &Scene, script: &str, others: &str) {
        let _ = fs::remove_file(scene.path("ready"));
        let _ = fs::remove_file(scene.path("go"));
        let script = format!("{script}\necho ready >ready; until [ -e go ]; do sleep 0.05; done");
        let guard = scene.start(&[], &script);
        scene.await_word("ready");
        if self == Self::Killed {
            // Stopped, so that others are quicker than the watchdog.
            let watchdog = watchdog(&guard);
            signal("STOP", watchdog);
            assert_killed(&guard.kill());
            scene.outside(others);
            signal("CONT", watchdog);
            scene.home.await_quiet();
            return;
        }
        if self == Self::KilledWithWatchdog {
            kill(watchdog(&guard).try_into().unwrap());
            assert_killed(&guard.kill());
            scene.outside(others);
            for _ in 0..2 {
                thread::sleep(Duration::from_secs(2));
                scene.home.creel.run(["reconcile"]);
            }
            return;
        }
        scene.outside(others);
        fs::write(scene.path("go"), "go").unwrap();
        guard.wait();
    }
}

fn watchdog(guard: &Running) -> u32 {
    watchdog_of(guard.pid()).expect("a guard that runs a command has a watchdog")
}

fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn scene() -> Scene {
    let scene = Scene::set_up();
    scene.home.configure(SHORT_WINDOW);
    scene
}

#[test]
fn a_volume_that_was_created_again_is_kept() {
    let scene = scene();
    for end in End::ALL {
        let script = "set -e; docker volume create pgdata >/dev/null
            docker run -d --init --name db -v pgdata:/d -v implicit:/e creel-test sleep 1000 >/dev/null";
        let others = "docker rm -f db; docker volume rm pgdata implicit
            docker volume create pgdata; docker volume create --label copied=yes implicit
            docker run --rm -v pgdata:/d -v implicit:/e creel-test sh -c 'echo mine >/d/f; echo mine >/e/f'";
        end.around(&scene, script, others);
        let kept = "docker run --rm -v pgdata:/d -v implicit:/e creel-test cat /d/f /e/f";
        assert_eq!(scene.outside(kept), "mine\nmine", "{end:?}");
        scene.outside("docker volume rm pgdata implicit");
        assert!(scene.home.open_records().is_empty(), "{end:?}: {:#?}", scene.home.open_records());
    }
    scene.assert_nothing_left();
}

#[test]
fn a_tag_that_was_moved_by_somebody_else_is_kept() {
    let scene = scene();
    for end in End::ALL {
        let script = format!(
            "set -e; printf '{DOCKERFILE}' | DOCKER_BUILDKIT=0 docker build -q -t app:1 - >/dev/null
             docker tag creel-test app:2"
        );
        let others = "printf 'FROM creel-test\nRUN echo mine >/mine\n' >Theirs
            DOCKER_BUILDKIT=0 docker build -q -f Theirs -t app:1 -t app:2 . >/dev/null";
        end.around(&scene, &script, others);
        for tag in ["app:1", "app:2"] {
            let kept = scene.outside(&format!("docker run --rm {tag} cat /mine"));
            assert_eq!(kept, "mine", "{end:?}");
        }
        scene.outside("docker rmi app:1 app:2; rm Theirs");
        let settled = eventually(PATIENCE, || {
            scene.home.creel.run(["reconcile"]);
            scene.home.open_records().is_empty()
        });
        assert!(settled, "{end:?}: {:#?}", scene.home.open_records());
        scene.assert_nothing_left();
    }
}

#[test]
fn the_same_dockerfile_built_again_by_hand_is_kept() {
    let scene = scene();
    let build = format!("printf '{DOCKERFILE}' | DOCKER_BUILDKIT=0 docker build -q -t myapp -");
    for end in End::ALL {
        let id = "docker image inspect -f '{{.Id}}' myapp";
        let script = format!("set -e; {build} >/dev/null; {id} >built");
        // Everything comes from the cache: the same image under the same name.
        end.around(&scene, &script, &format!("{build}; {id} >again; cmp built again"));
        assert_eq!(scene.outside("docker run --rm myapp cat /built"), "built", "{end:?}");
        scene.outside("docker rmi myapp");
        let settled = eventually(PATIENCE, || {
            scene.home.creel.run(["reconcile"]);
            scene.home.open_records().is_empty()
        });
        assert!(settled, "{end:?}: {:#?}", scene.home.open_records());
        scene.assert_nothing_left();
    }
}

#[test]
fn a_tag_built_by_hand_after_a_guard_was_killed_in_its_build_is_kept() {
    let scene = scene();
    let dockerfile = "FROM creel-test\\nRUN echo built >/built\\nRUN sleep 3\\n";
    let build = format!("printf '{dockerfile}' | DOCKER_BUILDKIT=0 docker build -t myapp -");
    let is_last_step = "docker ps --no-trunc | grep -q 'sleep 3'";
    let script =
        format!("{build} >log & until {is_last_step}; do sleep 0.1; done; echo ready >ready; wait");
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    assert_killed(&guard.kill());
    // A step that comes from the cache may go with the guard while it is used: then once more.
    scene.outside(&format!("{build} >/dev/null || {build} >/dev/null"));
    scene.home.await_quiet();
    scene.home.creel.run(["reconcile"]);
    assert_eq!(scene.outside("docker run --rm myapp cat /built"), "built");
    scene.outside("docker rmi myapp");
    let settled = eventually(PATIENCE, || {
        scene.home.creel.run(["reconcile"]);
        scene.home.open_records().is_empty()
    });
    assert!(settled, "{:#?}", scene.home.open_records());
    scene.clear();
}

#[test]
fn an_image_without_a_name_that_somebody_named_is_kept() {
    let scene = scene();
    for end in End::ALL {
        let script =
            format!("printf '{DOCKERFILE}' | DOCKER_BUILDKIT=0 docker build -q - >id; sleep 0.3");
        end.around(&scene, &script, "docker tag $(cat id) mine:1");
        assert_eq!(scene.outside("docker run --rm mine:1 cat /built"), "built", "{end:?}");
        scene.outside("docker rmi mine:1");
        let settled = eventually(PATIENCE, || {
            scene.home.creel.run(["reconcile"]);
            scene.home.open_records().is_empty()
        });
        assert!(settled, "{end:?}: {:#?}", scene.home.open_records());
        scene.assert_nothing_left();
    }
}

#[test]
fn a_tag_that_the_command_moved_goes_back_to_the_image_it_had() {
    let mut scene = scene();
    scene.add_plugins();
    scene.outside(
        "printf 'FROM creel-test\nRUN echo first >/v\n' | DOCKER_BUILDKIT=0 docker build -q -t rb:1 - >/dev/null
         docker tag creel-test rb:2; docker tag creel-test rb:3",
    );
    scene.remember();
    let names = "for tag in 1 2 3; do docker image inspect -f '{{.Id}}' rb:$tag; done";
    let before = scene.outside(names);
    let proof = scene.path("proof.json").display().to_string();
    for builder in ["DOCKER_BUILDKIT=0 docker build", "docker build"] {
        for end in End::ALL {
            let script = format!(
                "set -e; printf 'FROM creel-test\\nRUN echo second >/v\\n' | {builder} -q -t rb:1 - >/dev/null
                 printf 'FROM creel-test\\nRUN echo third >/v\\n' | {builder} -q -t rb:1 -t rb:2 - >/dev/null
                 docker tag rb:1 rb:3; docker run --rm rb:3 cat /v >said"
            );
            end.around(&scene, &script, "cat said");
            assert_eq!(scene.outside("cat said"), "third");
            assert_eq!(scene.outside(names), before, "{builder} {end:?}");
            scene.assert_nothing_left();
        }
    }
    let script = "printf 'FROM creel-test\\nRUN echo last >/v\\n' \
        | DOCKER_BUILDKIT=0 docker build -q -t rb:1 - >/dev/null";
    scene.guarded_with(&["--certificate", &proof], script).expect_code(0);
    let text = fs::read_to_string(proof).unwrap();
    assert!(text.contains("\"verdict\": \"clean\""), "{text}");
    assert_eq!(scene.outside(names), before);
}

/// Keeps every other writer of a ledger waiting for most of the time.
const SLOW_LEDGER: &str = r#"
import sqlite3, sys, time
ledger = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
while True:
    ledger.execute("BEGIN IMMEDIATE")
    time.sleep(float(sys.argv[2]))
    ledger.execute("ROLLBACK")
    time.sleep(float(sys.argv[3]))
"#;

#[test]
fn a_tag_that_is_moved_twice_goes_back_however_slow_the_ledger_is() {
    let mut scene = scene();
    scene.outside("docker tag creel-test rb:9");
    scene.remember();
    let name = "docker image inspect -f '{{.Id}}' rb:9";
    let before = scene.outside(name);
    scene.home.creel.run(["ledger"]).expect_code(0);
    let ledger = scene.home.creel.state().join("ledger.db");
    assert!(ledger.exists());
    // Longer than the guard waits for what it has still to record, and shorter.
    for (held, free) in [("1.2", "0.5"), ("0.3", "0.1")] {
        let mut slow = std::process::Command::new("python3");
        slow.args(["-c", SLOW_LEDGER]).arg(&ledger).args([held, free]);
        let slow = Ending(slow.spawn().unwrap());
        let script = "set -e; export DOCKER_BUILDKIT=0
            printf 'FROM creel-test\nLABEL move=1\n' | docker build -q -t rb:9 - >/dev/null
            printf 'FROM creel-test\nLABEL move=2\n' | docker build -q -t rb:9 - >/dev/null";
        scene.guarded(script).expect_code(0);
        drop(slow);
        assert_eq!(scene.outside(name), before, "held for {held} s");
        scene.assert_nothing_left();
    }
}

#[test]
fn builds_of_one_tag_side_by_side_leave_no_image() {
    let mut scene = scene();
    scene.outside("docker tag creel-test app:1");
    scene.remember();
    let name = "docker image inspect -f '{{.Id}}' app:1";
    let before = scene.outside(name);
    for round in 0..4 {
        let quiet = if round % 2 == 0 { "-q" } else { "" };
        let script = format!(
            "export DOCKER_BUILDKIT=0; for number in 1 2 3; do
                printf \"FROM creel-test\nRUN echo $number{round} >/v\nLABEL round=$number\nRUN sleep 0.3; echo y >/y\n\" \\
                    | docker build {quiet} -t app:1 - >/dev/null &
             done; wait"
        );
        scene.guarded(&script).expect_code(0);
        assert_eq!(scene.outside(name), before, "round {round}");
        scene.assert_nothing_left();
    }
}

#[test]
fn what_will_not_go_is_a_failure_and_a_leak_on_the_certificate() {
    use creel_testkit::wire::{Fault, Rule, Wire};
    let scene = Scene::set_up();
    let wire = Wire::start(&scene.engine(), 0).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/networks/", denied).method("DELETE"));
    let home = crate::support::Home::on(&wire.engine());
    let proof = home.path("proof.json");
    let flags = ["guard", "--certificate", proof.to_str().unwrap(), "--"];
    let command = ["sh", "-c", "docker network create stuck >/dev/null; exit 7"];
    let output = home.creel.run([&flags[..], &command].concat()).expect_code(125);
    assert!(output.stderr.contains("1 not verified gone"), "{output}");
    let text = fs::read_to_string(&proof).unwrap();
    assert!(text.contains("\"verdict\": \"leaking\"") && text.contains("stuck"), "{text}");
    wire.heal();
    // The watchdog of the guard tries again, and may be faster.
    scene.direct("docker network rm stuck");
    scene.assert_nothing_left();
}

/// A build starts when its context is uploaded. If another client builds the same image during the
/// upload, the guarded build takes it from the cache, and it belongs to the other client.
#[test]
fn an_image_built_by_hand_while_the_context_is_uploaded_stays() {
    let scene = Scene::set_up();
    let dockerfile = "FROM creel-test\nRUN echo same >/same\nENV SAME=1\n";
    fs::write(scene.path("Dockerfile"), dockerfile).unwrap();
    // Clients send the head of a request together with the first kilobytes.
    scene.outside("head -c 100000 /dev/zero >padding; tar cf context.tar padding Dockerfile");
    let (script, go) = (
        "(head -c 50000 context.tar; until [ -e go ]; do sleep 0.05; done; tail -c +50001 context.tar) \
         | DOCKER_BUILDKIT=0 docker build -t same:1 -",
        scene.path("go"),
    );
    let guard = scene.start(&[], script);
    let is_asked = || scene.home.open_records().iter().any(|record| record["name"] == "same:1");
    assert!(eventually(PATIENCE, is_asked));
    let theirs = scene.outside("DOCKER_BUILDKIT=0 docker build -q -t same:1 - <Dockerfile");
    fs::write(go, "go").unwrap();
    let output = guard.wait().expect_code(0);
    assert!(output.stdout.contains("Using cache"), "{output}");
    assert_eq!(scene.outside("docker image inspect -f '{{.Id}}' same:1"), theirs, "{output}");
    assert!(scene.home.open_records().is_empty(), "{:#?}", scene.home.open_records());
    scene.outside("docker rmi same:1");
    scene.assert_nothing_left();
}
