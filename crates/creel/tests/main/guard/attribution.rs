//! What is the command's goes; what is not stays, however much it looks like it.

use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::docker::ContainerSpec;

use super::scene::Scene;

/// Returns what the engine has, by name.
fn names(scene: &Scene, kind: &str) -> String {
    let list = match kind {
        "container" => "docker ps -a --format '{{.Names}}'",
        "volume" => "docker volume ls -q",
        "network" => "docker network ls --filter type=custom --format '{{.Name}}'",
        _ => "docker images --format '{{.Repository}}:{{.Tag}}'",
    };
    scene.outside(&format!("{list} | sort | tr '\\n' ' '"))
}

#[test]
fn volumes_go_unless_they_were_there_before() {
    let mut scene = Scene::set_up();
    scene.outside(
        "docker volume create bound; docker volume create mounted; docker volume create asked",
    );
    scene.outside(
        "docker run --rm -v bound:/d -v mounted:/e creel-test sh -c 'echo 1 >/d/1; echo 2 >/e/2'",
    );
    scene.remember();
    let script = "set -e
        docker run --rm -v bound:/d creel-test cat /d/1
        docker run --rm --mount source=mounted,target=/d creel-test cat /d/2
        docker volume create asked
        docker run --name one -v implicit:/a -v /anonymous --mount type=volume,target=/b \\
            --mount source=by-mount,target=/c creel-test true
        printf 'FROM creel-test\\nVOLUME /data\\n' | DOCKER_BUILDKIT=0 docker build -q -t volume - >/dev/null
        docker run --name two volume true
        docker volume create explicit >/dev/null
        docker volume create >/dev/null
        docker rm one two >/dev/null
        docker volume ls -q | wc -l";
    let output = scene.guarded(script).expect_code(0);
    // Three that were there, implicit, by-mount, explicit, and four that nobody named.
    assert_eq!(output.stdout, "1\n2\nasked\n10\n", "{output}");
    scene.assert_nothing_left();
    assert_eq!(names(&scene, "volume"), "asked bound mounted");
    let kept = scene.outside("docker run --rm -v bound:/d -v mounted:/e creel-test cat /d/1 /e/2");
    assert_eq!(kept, "1\n2");
}

#[test]
fn a_volume_that_is_borrowed_from_a_stranger_stays() {
    let mut scene = Scene::set_up();
    let stranger = ContainerSpec::sleeping("stranger").anonymous_volume("/data");
    scene.docker().run(&stranger).unwrap();
    scene.outside("docker exec stranger sh -c 'echo precious >/data/file'");
    let volume = scene.outside("docker inspect -f '{{(index .Mounts 0).Name}}' stranger");
    scene.remember();
    // By sharing, by name in a bind, and by name in a mount; ended in each way.
    let script = format!(
        "set -e
        docker run --name one --volumes-from stranger:ro creel-test cat /data/file
        docker run --name two -v {volume}:/d creel-test cat /d/file
        docker run --name three --mount source={volume},target=/d creel-test cat /d/file
        docker run --rm --volumes-from stranger creel-test cat /data/file
        docker rm one two >/dev/null"
    );
    let output = scene.guarded(&script).expect_code(0);
    assert_eq!(output.stdout, "precious\n".repeat(4));
    scene.assert_nothing_left();
    // Not even when nobody else uses it any more.
    scene.outside("docker rm -f stranger >/dev/null");
    let script = format!("docker run -v {volume}:/d creel-test cat /d/file");
    assert_eq!(scene.guarded(&script).expect_code(0).stdout, "precious\n");
    assert_eq!(names(&scene, "volume"), volume);
}

#[test]
fn networks_are_known_by_id_and_not_by_name() {
    let mut scene = Scene::set_up();
    scene.outside("docker network create same; docker run -d --init --name peer --network same creel-test sleep 1000");
    scene.remember();
    scene.write_api();
    // The CLI asks for no duplicates; the engine itself makes them.
    let script = "python3 api.py /networks/create '{\"Name\":\"same\"}'
        docker network ls --filter name=same --format '{{.Name}}'
        docker network create other >/dev/null
        docker run -d --init --name own --network other creel-test sleep 1000 >/dev/null";
    let output = scene.guarded(script).expect_code(0);
    assert_eq!(output.stdout, "201\nsame\nsame\n", "{output}");
    scene.assert_nothing_left();
    assert_eq!(names(&scene, "network"), "same");
}

#[test]
fn prunes_reach_no_further_than_the_guards_own() {
    let mut scene = Scene::set_up();
    let original = Lookalike {
        name: "pruned".to_owned(),
        label_key: "dev.creel.run".to_owned(),
        label_value: "run_0".to_owned(),
    };
    let decoys = Decoys::plant(&scene.engine(), &original).unwrap();
    scene.outside(
        "docker volume create dangling; docker network create unused
         printf 'FROM creel-test\\nRUN true\\n' | DOCKER_BUILDKIT=0 docker build -q - >/dev/null",
    );
    scene.remember();
    let script = "set -e
        docker run --name mine creel-test true; docker network create mine >/dev/null
        docker volume create mine >/dev/null; docker tag creel-test mine:1
        docker container prune -f | grep -c '^[0-9a-f]\\{64\\}$'
        docker network prune -f | grep -x mine; docker volume prune -f | grep -x mine
        docker image prune -af | tail -n 1; docker builder prune -af >/dev/null
        docker run --name mine creel-test true; docker network create mine >/dev/null
        docker system prune -af --volumes | grep -x -e mine -e '[0-9a-f]\\{64\\}' | wc -l
        docker container prune -f --filter label=no=such | tail -n 1";
    let output = scene.guarded(script).expect_code(0);
    let none = "Total reclaimed space: 0B\n";
    assert_eq!(output.stdout, format!("1\nmine\nmine\n{none}2\n{none}"), "{output}");
    scene.assert_nothing_left();
    decoys.assert_untouched();
    assert!(names(&scene, "volume").contains("dangling"));
}

#[test]
fn a_prune_stops_before_a_stranger_that_inherited_the_label() {
    let scene = Scene::set_up();
    // The commit and the container are somebody else's; the guard blanks only its own commits.
    let go = scene.path("go");
    let script = format!(
        "docker run --name mine creel-test true; echo ready >{}
         until [ -e {} ]; do sleep 0.05; done; docker container prune -f",
        scene.path("ready").display(),
        go.display()
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    scene.outside("docker commit mine inherited; docker run --name stranger inherited true");
    std::fs::write(&go, "go").unwrap();
    let output = guard.wait().expect_code(1);
    assert!(output.stderr.contains("belongs to another client"), "{output}");
    assert_eq!(names(&scene, "container"), "stranger");
    scene.clear();
}

#[test]
fn the_volume_of_a_stranger_that_inherited_the_label_stays() {
    let scene = Scene::set_up();
    let go = scene.path("go");
    let script = format!(
        "docker run --name mine -v /ours creel-test true; echo ready >{}
         until [ -e {} ]; do sleep 0.05; done; docker rm -f stranger >/dev/null",
        scene.path("ready").display(),
        go.display()
    );
    let guard = scene.start(&[], &script);
    scene.await_word("ready");
    scene.outside(
        "docker commit mine inherited
         docker run --name stranger -v /theirs inherited sh -c 'echo precious >/theirs/file'",
    );
    let volume = "docker inspect -f '{{range .Mounts}}{{if eq .Destination \"/theirs\"}}{{.Name}}{{end}}{{end}}' stranger";
    let volume = scene.outside(volume);
    std::fs::write(&go, "go").unwrap();
    guard.wait().expect_code(0);
    let kept = scene.outside(&format!("docker run --rm -v {volume}:/d creel-test cat /d/file"));
    assert_eq!(kept, "precious");
    scene.clear();
}

#[test]
fn an_encoded_path_hides_no_create() {
    let scene = Scene::set_up();
    scene.write_api();
    let script = r#"
        python3 api.py '/v1.41/containers/%63reate?name=hidden' \
            '{"Image":"creel-test","labels":{"a":"1"},"LABELS":{"b":"2"}}'
        python3 api.py /%76olumes/cre%61te '{"Name":"hidden"}'
        python3 api.py /v1.41/networks/create '{"name":"hidden"}'
        docker inspect -f '{{.Config.Labels.a}}{{.Config.Labels.b}}' hidden"#;
    let output = scene.guarded(script).expect_code(0);
    assert_eq!(output.stdout, "201\n201\n201\n12\n", "{output}");
    scene.assert_nothing_left();
}

#[test]
fn the_socket_in_a_container_leads_to_the_guard() {
    let scene = Scene::set_up();
    let theirs = scene.engine().socket().display().to_string();
    // The machine's own CLI, inside.
    let tools = "-v /usr:/usr:ro -v /lib:/lib:ro -v /lib64:/lib64:ro";
    for mount in [
        format!("-v {theirs}:/docker.sock"),
        format!("--mount type=bind,source={theirs},target=/docker.sock"),
        "-v ${DOCKER_HOST#unix://}:/docker.sock".to_owned(),
    ] {
        let script = format!(
            "docker run --rm {tools} {mount} creel-test $(command -v docker) \
             -H unix:///docker.sock run --name nested creel-test echo inside\n\
             docker inspect -f '{{{{index .Config.Labels \"dev.creel.run\"}}}}' nested"
        );
        let output = scene.guarded(&script).expect_code(0);
        assert!(output.stdout.starts_with("inside\nrun_"), "{mount}: {output}");
        scene.assert_nothing_left();
    }
}
