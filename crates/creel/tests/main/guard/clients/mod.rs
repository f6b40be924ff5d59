//! Other clients of Docker, unchanged: each does the same with a guard as without.

use std::collections::HashMap;
use std::env;
use std::fs;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, ExecConfig, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, StartContainerOptions,
};
use creel_testkit::wait::eventually;
use futures::StreamExt;
use tokio::io::AsyncWriteExt;

use super::scene::{Scene, part};
use crate::support::{PATIENCE, assert_killed};

/// Makes a context to build from, and a project of two services.
fn write_project(scene: &Scene) {
    fs::create_dir_all(scene.path("web")).unwrap();
    let dockerfile = "FROM creel-test\nRUN echo built >/built\n";
    fs::write(scene.path("web/Dockerfile"), dockerfile).unwrap();
    fs::write(scene.path("compose.yaml"), include_str!("compose.yaml")).unwrap();
}

#[test]
fn compose_brings_a_project_up_and_down() {
    let scene = Scene::set_up();
    scene.add_plugins();
    write_project(&scene);
    let compose = "docker compose --progress quiet";
    let up = format!(
        "{compose} up -d --build web 2>/dev/null; {compose} ps --format '{{{{.Name}}}} {{{{.State}}}}'
         {compose} exec -T web cat /built; echo sent | {compose} exec -T web cat
         {compose} run --rm --quiet-pull job sh -c 'nslookup web | sort -u | grep -c web; exit 6' 2>/dev/null
         echo $?; {compose} logs --no-log-prefix web | grep -o serving
         before=$({compose} ps -q web); {compose} up -d web 2>/dev/null
         [ \"$before\" = \"$({compose} ps -q web)\" ] && echo the same"
    );
    let down =
        format!("{up}\n{compose} down --volumes --timeout 1 2>/dev/null; {compose} ps -a -q");
    scene.assert_same(&down);
    // Without an end of its own: everything is the guard's to end.
    let output = scene.assert_same(&up);
    let told = "proof-web-1 running\nbuilt\nsent\n1\n6\nserving\nthe same\n";
    assert_eq!(output.stdout, told, "{output}");
    scene
        .assert_same(&format!("{compose} run -T job true 2>/dev/null; {compose} down 2>/dev/null"));
    scene.assert_same(&format!(
        "{compose} up --abort-on-container-exit --exit-code-from job job >/dev/null 2>&1"
    ));
}

#[test]
fn buildkit_builds_the_same() {
    let scene = Scene::set_up();
    scene.add_plugins();
    write_project(&scene);
    for script in [
        "docker build -q -t plain web; docker run --rm plain cat /built; docker images -q | wc -l",
        "docker build -q -t one:1 -t two:2 web; docker run --rm two:2 cat /built",
        "tar -c -C web . | docker build -q - >id; docker run --rm $(cat id) cat /built",
        "printf 'FROM creel-test\\nRUN exit 5\\n' | docker build - 2>/dev/null; echo $?",
        "printf 'FROM creel-test\\nRUN --mount=type=secret,id=s cat /run/secrets/s >/s\\n' >D; \
         echo secret >s; docker build -q -f D --secret id=s,src=s -t secret . >/dev/null; \
         docker run --rm secret cat /s",
        "docker buildx build -q --build-arg A=b -t extra web >/dev/null; docker rmi -f extra plain",
    ] {
        let output = scene.assert_same(script);
        assert!(!output.stdout.is_empty(), "{output}");
    }
}

#[test]
fn an_image_is_on_record_before_its_session_ends() {
    let scene = Scene::set_up();
    scene.home.configure("[ledger]\nintent_window = \"2s\"\n");
    scene.add_plugins();
    let script = format!(
        "printf 'FROM creel-test\\nRUN echo 1 >/1\\n' | docker build -q -t first -
         printf 'FROM creel-test\\nRUN echo 2 >/2 && sleep 1000\\n' | docker build -q -t second - &
         until docker image inspect first >/dev/null 2>&1; do sleep 0.1; done; sleep 1
         echo ready >{}; wait",
        scene.path("ready").display(),
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    let claimed = |name: &str| {
        scene.home.open_records().iter().any(|record| record["name"] == format!("{name}:latest"))
    };
    assert!(claimed("first") && claimed("second"), "{:#?}", scene.home.open_records());
    assert_killed(&guard.kill());
    let given_back = eventually(PATIENCE, || scene.home.open_records().is_empty());
    assert!(given_back, "{:#?}", scene.home.open_records());
    scene.assert_nothing_left();
}

#[test]
fn docker_py_and_testcontainers_see_the_same() {
    let scene = Scene::set_up();
    let python = part("CREEL_TEST_DOCKER_PY").join("bin/python");
    fs::write(scene.path("docker_py.py"), include_str!("docker_py.py")).unwrap();
    fs::write(scene.path("containers.py"), include_str!("testcontainers.py")).unwrap();
    let output = scene.assert_same(&format!("{} docker_py.py", python.display()));
    assert_eq!(output.expect_code(0).stdout.lines().count(), 10);
    let quiet = "TESTCONTAINERS_RYUK_DISABLED=true";
    let script = format!("{quiet} {} containers.py 2>/dev/null", python.display());
    assert_eq!(scene.assert_same(&script).expect_code(4).stdout.lines().count(), 2);
}

/// Set in the process that is the client.
const CLIENT: &str = "CREEL_TEST_BOLLARD_CLIENT";

/// Two roles in one test: it starts its own program as the command, which is the client.
#[tokio::test]
async fn bollard_sees_the_same() {
    if env::var_os(CLIENT).is_some() {
        return bollard_client().await;
    }
    tokio::task::spawn_blocking(|| {
        let scene = Scene::set_up();
        let program = env::current_exe().unwrap();
        let test = "guard::clients::bollard_sees_the_same";
        let client = format!("{CLIENT}=1 {} --exact {test} --nocapture", program.display());
        let script = format!("{client} | grep '^client: '");
        let direct = scene.direct(&script).expect_code(0);
        assert_eq!(direct.stdout.lines().count(), 4, "{direct}");
        scene.clear();
        scene.assert_same(&script);
    })
    .await
    .unwrap();
}

async fn bollard_client() {
    let docker = Docker::connect_with_defaults().unwrap();
    let volume = VolumeCreateRequest { name: Some("data".to_owned()), ..Default::default() };
    say(&docker.create_volume(volume).await.unwrap().name);
    let host = HostConfig { binds: Some(vec!["data:/d".to_owned()]), ..Default::default() };
    let body = ContainerCreateBody {
        image: Some("creel-test".to_owned()),
        cmd: Some(
            ["sh", "-c", "read word; echo got $word; exec sleep 1000"].map(str::to_owned).to_vec(),
        ),
        open_stdin: Some(true),
        labels: Some(HashMap::from([("mine".to_owned(), "yes".to_owned())])),
        host_config: Some(host),
        ..Default::default()
    };
    let options = CreateContainerOptionsBuilder::new().name("worker").build();
    let id = docker.create_container(Some(options), body).await.unwrap().id;
    let attach = AttachContainerOptionsBuilder::new().stdin(true).stdout(true).stream(true).build();
    let mut attached = docker.attach_container(&id, Some(attach)).await.unwrap();
    docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
    attached.input.write_all(b"hello\n").await.unwrap();
    say(&told(attached.output.next().await.unwrap().unwrap()));
    let config = ExecConfig {
        attach_stdout: Some(true),
        cmd: Some(["echo", "inside"].map(str::to_owned).to_vec()),
        ..Default::default()
    };
    let exec = docker.create_exec(&id, config).await.unwrap().id;
    let started = docker.start_exec(&exec, None::<StartExecOptions>).await.unwrap();
    let StartExecResults::Attached { mut output, .. } = started else { panic!("it is detached") };
    say(&told(output.next().await.unwrap().unwrap()));
    let seen = docker.inspect_container("worker", None).await.unwrap();
    say(&seen.config.unwrap().labels.unwrap()["mine"]);
}

/// Tells the other role what was seen, among the lines of the test program itself.
#[expect(clippy::print_stdout, reason = "standard output is how the two roles speak")]
fn say(words: &str) {
    println!("client: {words}");
}

fn told(output: LogOutput) -> String {
    String::from_utf8_lossy(&output.into_bytes()).trim().to_owned()
}
