//! What a sweep spares, and how it reports that.

use creel_testkit::docker::{ContainerSpec, Labels};
use creel_testkit::fake_engine::{FakeEngine, container_row};
use creel_testkit::inventory::{Inventory, Kind};

use super::fixture::{CliFixture, reason, results};
use crate::guard::scene::Scene;
use crate::support::Home;

#[test]
fn a_protected_object_is_spared_with_its_reason() {
    let fixture = CliFixture::new();
    let protected = ContainerSpec::sleeping(&fixture.named("-keep"))
        .labels(&fixture.labels())
        .label("dev.creel.protect", "");
    fixture.docker().run(&protected).unwrap();
    let released = ContainerSpec::sleeping(&fixture.named("-go"))
        .labels(&fixture.labels())
        .label("dev.creel.protect", "false");
    fixture.docker().run(&released).unwrap();
    let line = format!("sweep --json --apply --force --label {}", fixture.label());
    let output = fixture.run(&line).expect_code(0);
    assert_eq!(results(&output, "gone"), [format!("container {}", fixture.named("-go"))]);
    let why = reason(&output, &fixture.named("-keep"));
    assert_eq!(why, "protected by its label dev.creel.protect");
    assert_eq!(output.json()["spared"], 1);
    assert_eq!(fixture.there(), ["c-keep"]);
}

#[test]
fn rules_in_the_settings_protect_what_matches_all_of_them() {
    let fixture = CliFixture::new();
    for suffix in ["-db", "-web"] {
        fixture.volume(suffix);
        fixture.exited(suffix);
    }
    fixture.configure(&format!("[[protect]]\nkind = \"volume\"\nname = \"{}-d*\"\n", fixture.name));
    let line = format!("sweep --json --apply --label {}", fixture.label());
    let output = fixture.run(&line).expect_code(0);
    let why = format!("protected by the rule kind=volume name={}-d*", fixture.name);
    let spared = output.json();
    let spared = spared["items"].as_array().unwrap().iter().find(|item| item["result"] == "spared");
    assert_eq!(spared.unwrap()["reason"], why.as_str());
    assert_eq!(fixture.there(), ["v-db"]);
    let listed = fixture.run(&format!("ls --json --label {}", fixture.label())).json();
    assert_eq!(listed["resources"][0]["protected"], true);
}

#[test]
fn a_rule_that_cannot_be_evaluated_protects() {
    let fake = FakeEngine::start().unwrap();
    let mut ageless = container_row(1, "exited");
    ageless["Created"] = 0.into();
    fake.list_containers(vec![ageless, container_row(2, "exited")]);
    let fixture = CliFixture::on(fake.engine());
    fixture.configure("[[protect]]\nyounger_than = \"1h\"\n");
    let output = fixture.run("sweep --json --label dev.example.suite=fake").expect_code(0);
    assert_eq!(results(&output, "spared"), ["container fake-1"]);
    assert_eq!(results(&output, "planned"), ["container fake-2"]);
    assert_eq!(reason(&output, "fake-1"), "protected by the rule younger-than=1h");
}

#[test]
fn resources_of_a_live_owner_are_spared_and_force_releases_them() {
    let fixture = CliFixture::new();
    let hold = fixture.hold("--container IMAGE --directory");
    let (name, pid) = (hold.name("container"), hold.report["pid"].clone());
    let output = fixture.run("sweep --json --apply --owned").expect_code(0);
    assert_eq!(output.json()["spared"], 2, "{output}");
    let why = format!("held by a live owner: pid {pid} (creel dev hold)");
    assert_eq!(reason(&output, &name), why);
    // Foreign to another ledger, and still alive.
    let other = CliFixture::new();
    let output = other.run(&format!("sweep --json --apply --name {name}")).expect_code(0);
    assert!(reason(&output, &name).starts_with("held by a live owner: an owner on ledger"));
    let id = hold.id("container");
    assert!(fixture.docker().inspect_container(&id).unwrap().is_some());

    let output = fixture.run("sweep --json --apply --owned --force").expect_code(0);
    assert_eq!(output.json()["gone"], 2, "{output}");
    assert!(fixture.docker().inspect_container(&id).unwrap().is_none());
    let ended = hold.end();
    assert_eq!(ended.code(), Some(130), "{ended}");
}

#[test]
fn an_object_in_use_is_spared_with_the_name_of_its_user() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    let network = fixture.named("-net");
    fixture.network("-net");
    fixture.volume("-vol");
    fixture.image("-img");
    // Another name, so that the sweep does not select it.
    let user = ContainerSpec::sleeping(&format!("user-{}", fixture.name))
        .network(&network)
        .volume(&fixture.named("-vol"), "/data")
        .image(&fixture.named("-img"));
    let user = docker.run(&user).unwrap();
    let line = format!("sweep --json --apply --name {}-*", fixture.name);
    let output = fixture.run(&line).expect_code(0);
    let why = format!("in use by container user-{}, which stays", fixture.name);
    for name in ["-net", "-vol", "-img:latest"] {
        assert_eq!(reason(&output, &fixture.named(name)), why, "{output}");
    }
    assert_eq!(output.json()["spared"], 3);
    assert_eq!(fixture.there(), ["i-img:latest", "n-net", "v-vol"]);
    docker.remove_container(&user).unwrap();
    assert_eq!(fixture.run(&line).expect_code(0).json()["gone"], 3);
    assert_eq!(fixture.there(), [""; 0]);
}

#[test]
fn resources_of_a_container_that_never_started_are_in_use() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    fixture.network("-net");
    fixture.volume("-vol");
    let user = ContainerSpec::sleeping(&format!("user-{}", fixture.name))
        .network(&fixture.named("-net"))
        .volume(&fixture.named("-vol"), "/data");
    let user = docker.create(&user).unwrap();
    let line = format!("sweep --json --apply --name {}-*", fixture.name);
    let output = fixture.run(&line).expect_code(0);
    assert_eq!(output.json()["spared"], 2, "{output}");
    docker.start(&user).unwrap();
    docker.remove_container(&user).unwrap();
}

#[test]
fn the_engines_own_networks_are_never_released() {
    let fixture = CliFixture::new();
    let before = fixture.engine().api().get("/networks").unwrap();
    let output = fixture.run("sweep --json --apply --name bridge --name host --name none --force");
    let output = output.expect_code(0);
    assert_eq!(output.json()["spared"], 3, "{output}");
    assert_eq!(reason(&output, "bridge"), "belongs to the engine itself");
    let after = fixture.engine().api().get("/networks").unwrap();
    let ids = |networks: &serde_json::Value| -> Vec<String> {
        let rows = networks.as_array().unwrap().iter();
        let own = rows.filter(|row| ["bridge", "host", "none"].iter().any(|n| row["Name"] == *n));
        own.map(|row| row["Id"].to_string()).collect()
    };
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(ids(&before)), sorted(ids(&after)));
}

#[test]
fn a_container_that_inherited_our_labels_from_an_image_is_not_ours() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    let hold = fixture.hold("--container IMAGE --no-watchdog");
    let id = hold.id("container");
    // The image inherits the labels of the held container, and its container inherits them too.
    docker.commit(&id, &fixture.named("-heir"), "latest").unwrap();
    let heir = ContainerSpec::sleeping(&fixture.named("-heir")).image(&fixture.named("-heir"));
    docker.run(&heir).unwrap();
    hold.kill();
    let output = fixture.run("sweep --json --apply --owned").expect_code(0);
    assert_eq!(output.json()["gone"], 1, "{output}");
    assert_eq!(fixture.there(), ["c-heir", "i-heir:latest"]);
    let inherited: Labels = Inventory::snapshot(fixture.engine())
        .unwrap()
        .named(Kind::Container, &fixture.named("-heir"))
        .unwrap()
        .labels
        .clone();
    assert!(inherited.contains_key("dev.creel.resource"), "the decoy carries our labels");
}

#[test]
fn an_image_is_released_only_if_all_its_names_are_selected() {
    let scene = Scene::set_up();
    let image = "printf 'FROM creel-test\\nENV TWO=names\\n' | DOCKER_BUILDKIT=0 docker build -qt aaa:1 - >/dev/null
        docker tag aaa:1 zzz:precious";
    let names = "docker images --format '{{.Repository}}:{{.Tag}}' | sort | tr '\\n' ' '";
    scene.outside(image);
    let creel = &scene.home.creel;
    // Every name matches it, and is shown.
    for name in ["aaa:1", "zzz*"] {
        let listed = creel.run(["ls", "--name", name]).expect_code(0);
        assert!(listed.stdout.contains("aaa:1, zzz:precious"), "{listed}");
        let swept = creel.run(["sweep", "--name", name, "--apply"]).expect_code(0);
        assert!(swept.stdout.contains("which is not selected"), "{swept}");
    }
    assert_eq!(scene.outside(names), "aaa:1 creel-test:latest zzz:precious");
    // A selector for one name selects only that name.
    creel.run(["rm", "zzz:precious"]).expect_code(0);
    assert_eq!(scene.outside(names), "aaa:1 creel-test:latest");
    scene.outside("docker tag aaa:1 zzz:precious");
    scene.home.configure("[[protect]]\nname = \"zzz*\"\n");
    let refused = creel.run(["rm", "aaa:1"]).expect_code(4);
    assert!(refused.stderr.contains("protected by the rule name=zzz*"), "{refused}");
    creel.run(["sweep", "--name", "aaa*", "--name", "zzz*", "--apply"]).expect_code(0);
    assert_eq!(scene.outside(names), "aaa:1 creel-test:latest zzz:precious");
    scene.home.configure("");
    creel.run(["sweep", "--name", "aaa*", "--name", "zzz*", "--apply"]).expect_code(0);
    assert_eq!(scene.outside(names), "creel-test:latest");
}

#[test]
fn objects_of_a_live_guard_of_another_home_are_spared() {
    let scene = Scene::set_up();
    let script = "docker run -d --init --label bench=1 --name theirs creel-test sleep 1000
        docker volume create --label bench=1 theirs; echo ready >ready
        until [ -e go ]; do sleep 0.05; done";
    let guard = scene.start(&[], script);
    scene.await_word("ready");
    let other = Home::on(&scene.engine());
    let listed = other.creel.run(["ls", "--label", "bench"]).expect_code(0);
    assert_eq!(listed.stdout.matches("alive pid").count(), 2, "{listed}");
    let swept = other.creel.run(["sweep", "--label", "bench", "--apply"]).expect_code(0);
    assert_eq!(swept.stdout.matches("held by a live owner").count(), 2, "{swept}");
    other.creel.run(["rm", "container/theirs"]).expect_code(4);
    assert_eq!(
        scene.outside("docker ps --format '{{.Names}}'; docker volume ls -q"),
        "theirs\ntheirs"
    );
    std::fs::write(scene.path("go"), "go").unwrap();
    guard.wait().expect_code(0);
    scene.assert_nothing_left();
}
