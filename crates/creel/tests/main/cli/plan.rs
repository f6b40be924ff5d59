//! Kept plans: exactly those, exactly as they were.

use std::fs;

use creel_testkit::creel::Output;
use creel_testkit::docker::ContainerSpec;
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use serde_json::{Value, json};

use super::bench::{Bench, read_json, reason, results};

/// Keeps a plan of everything with the test's label.
fn keep(bench: &Bench) -> String {
    let path = bench.path("plan.json").display().to_string();
    let line = format!("sweep --label {} --plan-out {path}", bench.label());
    let output = bench.run(&line).expect_code(0);
    assert!(output.stderr.contains(&format!("creel apply {path}")), "{output}");
    path
}

fn apply(bench: &Bench, path: &str) -> Output {
    bench.run(&format!("apply {path} --json"))
}

#[test]
fn a_kept_plan_releases_exactly_what_it_names() {
    let bench = Bench::new();
    bench.exited("-a");
    bench.volume("-b");
    let path = keep(&bench);
    assert_eq!(bench.there(), ["c-a", "v-b"]);
    bench.exited("-later");
    let output = apply(&bench, &path).expect_code(0);
    let json = output.json();
    assert_eq!(
        (&json["applied"], &json["planned"], &json["gone"]),
        (&true.into(), &2.into(), &2.into())
    );
    assert_eq!(bench.there(), ["c-later"]);
    // A second time everything is gone already, which is what was wanted.
    let output = apply(&bench, &path).expect_code(0);
    assert_eq!(reason(&output, &bench.named("-a")), "it was gone already");
}

#[test]
fn what_changed_since_is_left_alone_and_the_rest_goes() {
    let bench = Bench::new();
    let docker = bench.docker();
    let restarted = bench.exited("-restarted");
    let remade = bench.exited("-remade");
    bench.exited("-same");
    bench.network("-net");
    bench.image("-img");
    let path = keep(&bench);

    docker.start(&restarted).unwrap();
    docker.remove_container(&remade).unwrap();
    bench.exited("-remade");
    let newcomer =
        ContainerSpec::sleeping(&format!("user-{}", bench.name)).network(&bench.named("-net"));
    let newcomer = docker.run(&newcomer).unwrap();
    let (image, tag) = (bench.named("-img:latest"), bench.named("-img:other"));
    assert!(docker.cli(&["tag", &image, &tag]).unwrap().status.success());

    let output = apply(&bench, &path).expect_code(4);
    let json = output.json();
    let drifted = results(&output, "drifted");
    let expected = [
        format!("container {}", bench.named("-restarted")),
        format!("network {}", bench.named("-net")),
        format!("image {image}"),
    ];
    assert_eq!(drifted, expected, "{output}");
    assert_eq!(json["gone"], 2, "the old one of the remade is gone: {output}");
    assert!(output.stderr.contains("error[CR0036]: 3 changed and left alone"), "{output}");
    let why = reason(&output, &bench.named("-net"));
    assert_eq!(why, "others use it now than when the plan was made");
    docker.remove_container(&newcomer).unwrap();
    let there = bench.there();
    assert_eq!(there, ["c-remade", "c-restarted", "i-img:latest", "n-net"]);
}

#[test]
fn a_network_and_its_only_container_go_in_one_plan() {
    let bench = Bench::new();
    bench.network("-net");
    bench.volume("-vol");
    let user = ContainerSpec::sleeping(&bench.named("-web"))
        .labels(&bench.labels())
        .network(&bench.named("-net"))
        .volume(&bench.named("-vol"), "/data");
    bench.docker().run(&user).unwrap();
    let path = keep(&bench);
    let output = apply(&bench, &path).expect_code(0);
    assert_eq!(output.json()["gone"], 3, "{output}");
    assert_eq!(bench.there(), [""; 0]);
}

#[test]
fn a_plan_for_another_engine_is_refused() {
    let bench = Bench::new();
    bench.exited("-a");
    let path = keep(&bench);
    let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    let creel = bench.creel().env("DOCKER_HOST", private.engine().host());
    let output = creel.run(["apply", &path]).expect_code(4);
    assert!(
        output.stderr.starts_with("error[CR0035]: the plan was made for docker at"),
        "{output}"
    );
    assert_eq!(bench.there(), ["c-a"]);
    private.stop().unwrap();
}

#[test]
fn the_hint_for_another_account_is_that_of_the_provider() {
    let bench = Bench::new();
    bench.exited("-a");
    let path = keep(&bench);
    for (provider, variable) in [("docker", "DOCKER_HOST"), ("process", "CREEL_HOME")] {
        let mut plan = read_json(path.as_ref());
        plan["worlds"] = json!([{
            "provider": provider, "identity": "of-another", "address": "elsewhere",
        }]);
        fs::write(&path, plan.to_string()).unwrap();
        let output = bench.run(&format!("apply {path}")).expect_code(4);
        assert!(output.stderr.contains(variable), "{output}");
        let others = ["DOCKER_HOST", "CREEL_HOME"].into_iter().filter(|other| *other != variable);
        for other in others {
            assert!(!output.stderr.contains(other), "{output}");
        }
    }
    assert_eq!(bench.there(), ["c-a"]);
}

#[test]
fn protection_that_came_after_the_plan_still_protects() {
    let bench = Bench::new();
    bench.volume("-a");
    let path = keep(&bench);
    bench.configure(&format!("[[protect]]\nname = \"{}-*\"\n", bench.name));
    let output = apply(&bench, &path).expect_code(0);
    assert_eq!(results(&output, "spared").len(), 1, "{output}");
    assert_eq!(bench.there(), ["v-a"]);
}

#[test]
fn a_file_that_is_no_plan_is_refused_with_a_hint() {
    let bench = Bench::new();
    bench.volume("-a");
    let path = keep(&bench);
    let whole = fs::read_to_string(&path).unwrap();
    let mut newer: Value = read_json(bench.path("plan.json").as_path());
    newer["version"] = json!(2);
    let cases = [
        (whole[..whole.len() / 2].to_owned(), "is not a plan"),
        ("{}".to_owned(), "is not a plan"),
        (String::new(), "is not a plan"),
        (newer.to_string(), "has version 2, this creel knows 1"),
    ];
    for (text, told) in cases {
        fs::write(&path, text).unwrap();
        let output = bench.run(&format!("apply {path}")).expect_code(2);
        assert!(
            output.stderr.starts_with("error[CR0004]: ") && output.stderr.contains(told),
            "{output}"
        );
        assert!(output.stderr.contains("\n\nhint: make a plan: creel sweep"), "{output}");
    }
    let output = bench.run("apply /nowhere/plan.json").expect_code(2);
    assert!(output.stderr.contains("because: No such file or directory"), "{output}");
    assert_eq!(bench.there(), ["v-a"]);
}
