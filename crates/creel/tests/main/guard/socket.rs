//! Programs that do not ask the environment where the engine is.

use super::scene::Scene;

/// Runs a script in a mount namespace in which the engine's socket is in its usual place.
fn with_usual_socket(scene: &Scene, script: &str) -> String {
    let host = scene.engine().host().to_owned();
    let socket = host.strip_prefix("unix://").unwrap();
    format!(
        "exec unshare --mount sh -c 'mount -t tmpfs none /run && touch /run/docker.sock && \
         mount --bind {socket} /run/docker.sock && {script}'"
    )
}

#[test]
fn a_program_with_a_hard_coded_socket_is_covered_on_demand() {
    let scene = Scene::set_up();
    let creel = env!("CARGO_BIN_EXE_creel");
    let stubborn = "docker -H unix:///var/run/docker.sock";
    let guarded = |flag: &str, name: &str| {
        let inner = format!("{stubborn} run -d --name {name} creel-test sleep 1000 >/dev/null");
        let guard = format!("{creel} guard --events {name}.json {flag} -- {inner}");
        scene.direct(&with_usual_socket(&scene, &guard)).expect_code(0);
    };
    guarded("--cover-socket", "covered");
    scene.assert_nothing_left();
    let created = |name: &str| {
        let file = format!("{name}.json");
        scene.path(&file).exists()
            && scene.events(&file).iter().any(|event| event["event"] == "created")
    };
    assert!(created("covered"));
    // Without it the guard never hears of it.
    guarded("", "missed");
    assert!(!created("missed"));
    scene.outside("docker rm -f missed");
    // Nobody else noticed.
    assert!(!scene.outside("mount").contains("docker.sock on "));
}

#[test]
fn a_guard_says_so_when_there_is_no_socket_to_cover() {
    let scene = Scene::set_up();
    let creel = env!("CARGO_BIN_EXE_creel");
    let script = format!("{creel} guard --cover-socket -- true");
    let output =
        scene.direct(&format!("exec unshare --mount sh -c 'mount -t tmpfs none /run && {script}'"));
    let output = output.expect_code(0);
    assert!(output.stderr.contains("there is no /var/run/docker.sock to cover"), "{output}");
}

#[test]
fn a_container_that_mounts_the_directory_of_the_socket_is_told_of() {
    let scene = Scene::set_up();
    let directory = scene.engine.directory().display().to_string();
    let script = format!("docker run --rm -v {directory}:/around:ro creel-test true");
    let output = scene.guarded(&script).expect_code(0);
    assert!(output.stderr.contains("the engine's own socket in it"), "{output}");
}
