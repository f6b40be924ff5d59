//! What a guard refuses, and what it writes down.

use serde_json::Value;

use super::scene::Scene;

fn refused(scene: &Scene, flags: &[&str], script: &str, words: &str) {
    let events = scene.path("events");
    let _ = std::fs::remove_file(&events);
    let flags = [&["--events", events.to_str().unwrap()], flags].concat();
    let output = scene.guarded_with(&flags, script).expect_code(125);
    let said = format!("Error response from daemon: creel guard: {words}");
    assert!(output.stderr.contains(&said), "{output}");
    let lines = scene.events("events");
    let line = lines.iter().find(|line| line["event"] == "refused").expect("a line says so");
    assert_eq!((&line["version"], &line["provider"]), (&1.into(), &"docker".into()));
    assert!(line["reason"].as_str().unwrap().contains(words), "{line}");
    assert!(line["id"].is_null() && line["at"].is_string(), "{line}");
    scene.assert_nothing_left();
}

#[test]
fn what_a_limit_forbids_is_refused_in_the_engines_shape() {
    let scene = Scene::set_up();
    let run = "docker run --rm";
    for (flag, words, scripts) in [
        (
            &["--deny-privileged"][..],
            "privileged containers are denied",
            &[
                "--privileged creel-test true",
                "--cap-add SYS_ADMIN creel-test true",
                "--pid host creel-test true",
            ][..],
        ),
        (
            &["--deny-host-mounts"],
            "mounting /",
            &["-v /etc:/x creel-test true", "--mount type=bind,source=/,target=/x creel-test true"],
        ),
        (
            &["--max-memory", "64m"],
            "the container asks for 134217728 bytes of memory, 67108864 are allowed",
            &["--memory 128m creel-test true"],
        ),
    ] {
        for script in scripts {
            refused(&scene, flag, &format!("{run} {script}"), words);
        }
    }
    let two =
        "docker run -d --init creel-test sleep 1000 >/dev/null && docker run --rm creel-test true";
    refused(&scene, &["--max-containers", "1"], two, "1 containers exist already");
}

#[test]
fn what_a_limit_allows_runs() {
    let scene = Scene::set_up();
    let flags =
        ["--deny-privileged", "--deny-host-mounts", "--max-memory", "64m", "--max-containers", "1"];
    let script = "set -e
        docker run --rm -v data:/x creel-test cat /sys/fs/cgroup/memory/memory.limit_in_bytes \
            /sys/fs/cgroup/memory.max 2>/dev/null || true
        docker run --name one --memory 32m creel-test true; docker inspect -f '{{.HostConfig.Memory}}' one
        docker rm one; docker run --name two creel-test true; docker inspect -f '{{.HostConfig.Memory}}' two";
    let output = scene.guarded_with(&flags, script).expect_code(0);
    assert_eq!(output.stdout, "67108864\n33554432\none\n67108864\n", "{output}");
    let exec = "docker run -d --init --name it creel-test sleep 1000 >/dev/null
        docker exec it echo plain; docker exec --privileged it echo mighty";
    let output = scene.guarded_with(&["--deny-privileged"], exec).expect_code(1);
    assert_eq!(output.stdout, "plain\n", "{output}");
    assert!(output.stderr.contains("privileged commands are denied"), "{output}");
    scene.assert_nothing_left();
}

#[test]
fn what_cannot_be_tracked_is_refused_unless_it_is_allowed() {
    let scene = Scene::set_up();
    let output = scene.guarded("docker swarm init").expect_code(1);
    assert!(output.stderr.contains("--allow-untracked"), "{output}");
    let active = "docker info -f '{{.Swarm.LocalNodeState}}'";
    assert_eq!(scene.outside(active), "inactive");
    let script = "docker swarm init --advertise-addr lo >/dev/null; docker info -f '{{.Swarm.LocalNodeState}}'
        docker swarm leave --force >/dev/null";
    let output = scene.guarded_with(&["--allow-untracked"], script).expect_code(0);
    assert_eq!(output.stdout, "active\n");
}

#[test]
fn every_create_and_every_release_has_a_line() {
    let scene = Scene::set_up();
    let script = "docker network create net >/dev/null; docker volume create data >/dev/null
        docker tag creel-test copy:1; docker run --name one -v data:/d --network net creel-test true";
    let events = scene.path("events");
    scene.guarded_with(&["--events", events.to_str().unwrap()], script).expect_code(0);
    let lines = scene.events("events");
    let of = |event: &str, kind: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["event"] == event && line["kind"] == kind).collect()
    };
    for (kind, name) in
        [("container", "one"), ("network", "net"), ("volume", "data"), ("image", "copy:1")]
    {
        let (created, released) = (of("created", kind), of("released", kind));
        assert_eq!((created.len(), released.len()), (1, 1), "{kind}: {lines:#?}");
        assert_eq!(created[0]["name"], name);
        assert_eq!(created[0]["id"], released[0]["id"]);
    }
    assert_eq!((of("released", "process").len(), of("released", "directory").len()), (1, 1));
    scene.assert_nothing_left();
}
