//! Saved plans: they release exactly the named objects, and only if unchanged.

use std::fs;

use creel_testkit::creel::Output;
use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use serde_json::{Value, json};

use super::fixture::{CliFixture, read_json, reason, results};

/// Saves a plan of everything with the test's label.
fn keep(fixture: &CliFixture) -> String {
    let path = fixture.path("plan.json").display().to_string();
    let line = format!("sweep --label {} --plan-out {path}", fixture.label());
    let output = fixture.run(&line).expect_code(0);
    assert!(output.stderr.contains(&format!("creel apply {path}")), "{output}");
    path
}

fn apply(fixture: &CliFixture, path: &str) -> Output {
    fixture.run(&format!("apply {path} --json"))
}

#[test]
fn a_saved_plan_releases_exactly_what_it_names() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    fixture.volume("-b");
    let path = keep(&fixture);
    assert_eq!(fixture.there(), ["c-a", "v-b"]);
    fixture.exited("-later");
    let output = apply(&fixture, &path).expect_code(0);
    let json = output.json();
    assert_eq!(
        (&json["applied"], &json["planned"], &json["gone"]),
        (&true.into(), &2.into(), &2.into())
    );
    assert_eq!(fixture.there(), ["c-later"]);
    // The second time everything is already gone, which is a success.
    let output = apply(&fixture, &path).expect_code(0);
    assert_eq!(reason(&output, &fixture.named("-a")), "it was gone already");
}

#[test]
fn changed_objects_are_spared_and_the_rest_is_released() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    let restarted = fixture.exited("-restarted");
    let remade = fixture.exited("-remade");
    fixture.exited("-same");
    fixture.network("-net");
    fixture.image("-img");
    let path = keep(&fixture);

    docker.start(&restarted).unwrap();
    docker.remove_container(&remade).unwrap();
    fixture.exited("-remade");
    let newcomer =
        ContainerSpec::sleeping(&format!("user-{}", fixture.name)).network(&fixture.named("-net"));
    let newcomer = docker.run(&newcomer).unwrap();
    let (image, tag) = (fixture.named("-img:latest"), fixture.named("-img:other"));
    assert!(docker.cli(&["tag", &image, &tag]).unwrap().status.success());

    let output = apply(&fixture, &path).expect_code(4);
    let json = output.json();
    let drifted = results(&output, "drifted");
    let expected = [
        format!("container {}", fixture.named("-restarted")),
        format!("network {}", fixture.named("-net")),
        format!("image {image}"),
    ];
    assert_eq!(drifted, expected, "{output}");
    assert_eq!(json["gone"], 2, "the old one of the remade is gone: {output}");
    assert!(output.stderr.contains("error[CR0036]: 3 changed and left alone"), "{output}");
    let why = reason(&output, &fixture.named("-net"));
    assert_eq!(why, "others use it now than when the plan was made");
    docker.remove_container(&newcomer).unwrap();
    let there = fixture.there();
    assert_eq!(there, ["c-remade", "c-restarted", "i-img:latest", "n-net"]);
}

#[test]
fn a_network_and_its_only_container_are_released_by_one_plan() {
    let fixture = CliFixture::new();
    fixture.network("-net");
    fixture.volume("-vol");
    let user = ContainerSpec::sleeping(&fixture.named("-web"))
        .labels(&fixture.labels())
        .network(&fixture.named("-net"))
        .volume(&fixture.named("-vol"), "/data");
    fixture.docker().run(&user).unwrap();
    let path = keep(&fixture);
    let output = apply(&fixture, &path).expect_code(0);
    assert_eq!(output.json()["gone"], 3, "{output}");
    assert_eq!(fixture.there(), [""; 0]);
}

#[test]
fn a_plan_for_another_engine_is_refused() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let path = keep(&fixture);
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let creel = fixture.creel().env("DOCKER_HOST", private.engine().host());
    let output = creel.run(["apply", &path]).expect_code(4);
    assert!(
        output.stderr.starts_with("error[CR0035]: the plan was made for docker at"),
        "{output}"
    );
    assert_eq!(fixture.there(), ["c-a"]);
    private.stop().unwrap();
}

#[test]
fn the_hint_for_another_account_is_that_of_the_provider() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let path = keep(&fixture);
    for (provider, variable) in [("docker", "DOCKER_HOST"), ("process", "CREEL_HOME")] {
        let mut plan = read_json(path.as_ref());
        plan["worlds"] = json!([{
            "provider": provider, "identity": "of-another", "address": "elsewhere",
        }]);
        fs::write(&path, plan.to_string()).unwrap();
        let output = fixture.run(&format!("apply {path}")).expect_code(4);
        assert!(output.stderr.contains(variable), "{output}");
        let others = ["DOCKER_HOST", "CREEL_HOME"].into_iter().filter(|other| *other != variable);
        for other in others {
            assert!(!output.stderr.contains(other), "{output}");
        }
    }
    assert_eq!(fixture.there(), ["c-a"]);
}

#[test]
fn protection_added_after_the_plan_still_applies() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    let path = keep(&fixture);
    fixture.configure(&format!("[[protect]]\nname = \"{}-*\"\n", fixture.name));
    let output = apply(&fixture, &path).expect_code(0);
    assert_eq!(results(&output, "spared").len(), 1, "{output}");
    assert_eq!(fixture.there(), ["v-a"]);
}

#[test]
fn an_invalid_plan_file_is_refused_with_a_hint() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    let path = keep(&fixture);
    let whole = fs::read_to_string(&path).unwrap();
    let mut newer: Value = read_json(fixture.path("plan.json").as_path());
    newer["version"] = json!(2);
    let cases = [
        (whole[..whole.len() / 2].to_owned(), "is not a plan"),
        ("{}".to_owned(), "is not a plan"),
        (String::new(), "is not a plan"),
        (newer.to_string(), "has version 2, this creel knows 1"),
    ];
    for (text, expected) in cases {
        fs::write(&path, text).unwrap();
        let output = fixture.run(&format!("apply {path}")).expect_code(2);
        assert!(
            output.stderr.starts_with("error[CR0004]: ") && output.stderr.contains(expected),
            "{output}"
        );
        assert!(output.stderr.contains("\n\nhint: make a plan: creel sweep"), "{output}");
    }
    let output = fixture.run("apply /nowhere/plan.json").expect_code(2);
    assert!(output.stderr.contains("because: No such file or directory"), "{output}");
    assert_eq!(fixture.there(), ["v-a"]);
}
