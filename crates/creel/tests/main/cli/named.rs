//! `creel stop` and `creel rm`: by name, one by one.

use std::time::Duration;

use creel_testkit::docker::ContainerSpec;

use super::bench::{Bench, text};

/// Returns a container's state and exit code.
fn state(bench: &Bench, id: &str) -> Option<(String, i64)> {
    let details = bench.docker().inspect_container(id).unwrap()?;
    let state = &details["State"];
    Some((text(state, "Status").to_owned(), state["ExitCode"].as_i64().unwrap()))
}

#[test]
fn rm_finds_by_name_id_prefix_and_kind_and_releases_what_runs() {
    let bench = Bench::new();
    bench.running("-name");
    let whole = bench.running("-whole");
    let prefix = bench.running("-prefix");
    bench.network("-twin");
    bench.volume("-twin");
    bench.exited("-stays");
    bench.run(&format!("rm {}", bench.named("-name"))).expect_code(0);
    bench.run(&format!("rm {whole}")).expect_code(0);
    bench.run(&format!("rm {}", &prefix[..12])).expect_code(0);
    let output = bench.run(&format!("rm --json network/{0} {0}", bench.named("-twin")));
    let output = output.expect_code(2);
    assert!(output.stderr.starts_with("error[CR0038]: "), "{output}");
    assert_eq!(bench.there(), ["c-stays", "n-twin", "v-twin"], "all names are found first");
    let output = bench.run(&format!("rm --json network/{0} volume/{0}", bench.named("-twin")));
    assert_eq!(output.expect_code(0).json()["gone"], 2);
    assert_eq!(bench.there(), ["c-stays"]);
}

#[test]
fn a_name_that_means_two_or_nothing_is_wrong_usage() {
    let bench = Bench::new();
    bench.network("-twin");
    bench.volume("-twin");
    let output = bench.run(&format!("rm {}", bench.named("-twin"))).expect_code(2);
    let twin = bench.named("-twin");
    let told = format!("error[CR0038]: `{twin}` may mean network/{twin}, volume/{twin}\n");
    assert!(output.stderr.starts_with(&told), "{output}");
    for command in ["rm", "stop"] {
        let output = bench.run(&format!("{command} {}-absent", bench.name)).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0037]: "), "{output}");
        assert!(output.stderr.contains("\n\nhint: creel ls lists what is there"), "{output}");
    }
    bench.run("rm").expect_code(2);
    assert_eq!(bench.there(), ["n-twin", "v-twin"]);
}

#[test]
fn rm_twice_says_that_there_is_nothing_any_more() {
    let bench = Bench::new();
    bench.exited("-a");
    let line = format!("rm {}", bench.named("-a"));
    bench.run(&line).expect_code(0);
    bench.run(&line).expect_code(2);
    let hold = bench.hold("--volume --no-watchdog");
    let resource = hold.resource("volume");
    hold.kill();
    bench.run(&format!("rm {resource}")).expect_code(0);
    let again = bench.run(&format!("rm {resource}")).expect_code(0);
    assert!(again.stderr.contains(&format!("{resource} is gone already")), "{again}");
}

#[test]
fn what_is_protected_is_refused_whatever_the_flags() {
    let bench = Bench::new();
    let spec = ContainerSpec::sleeping(&bench.named("-db")).label("dev.creel.protect", "yes");
    let id = bench.docker().run(&spec).unwrap();
    bench.exited("-other");
    for line in ["rm --force", "stop --force", "rm"] {
        let output = bench.run(&format!("{line} {0}-other {0}-db", bench.name)).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0033]: "), "{output}");
        assert!(output.stderr.contains("label dev.creel.protect"), "{output}");
    }
    assert_eq!(state(&bench, &id).unwrap().0, "running");
    assert_eq!(bench.there(), ["c-db", "c-other"]);
}

#[test]
fn what_a_live_owner_holds_needs_force() {
    let bench = Bench::new();
    let hold = bench.hold("--container IMAGE --volume");
    let (id, resource) = (hold.id("container"), hold.resource("container"));
    for line in [format!("rm {id}"), format!("rm {resource}"), format!("stop {resource}")] {
        let output = bench.run(&line).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0034]: "), "{output}");
        assert!(output.stderr.contains("--force"), "{output}");
    }
    assert_eq!(state(&bench, &id).unwrap().0, "running");
    bench.run(&format!("stop --force {resource}")).expect_code(0);
    assert_eq!(state(&bench, &id).unwrap().0, "exited");
    bench.run(&format!("rm --force {resource}")).expect_code(0);
    assert_eq!(state(&bench, &id), None);
    assert_eq!(hold.end().code(), Some(130));
}

#[test]
fn stop_keeps_the_container_and_waits_as_long_as_told() {
    let bench = Bench::new();
    let polite = ContainerSpec::script(
        &bench.named("-polite"),
        "trap 'exit 7' TERM; while :; do sleep 0.05; done",
    );
    let polite = bench.docker().run(&polite).unwrap();
    let deaf = ContainerSpec::stubborn(&bench.named("-deaf"));
    let deaf = bench.docker().run(&deaf).unwrap();
    let output = bench.run(&format!("stop --json {}", bench.named("-polite"))).expect_code(0);
    assert_eq!((&output.json()["version"], &output.json()["stopped"]), (&1.into(), &1.into()));
    assert_eq!(state(&bench, &polite), Some(("exited".to_owned(), 7)));
    let line = format!("stop {} {polite} --stop-timeout 1s", bench.named("-deaf"));
    let output = bench.run(&line).expect_code(0);
    assert!(output.took < Duration::from_secs(8), "{output}");
    assert_eq!(state(&bench, &deaf), Some(("exited".to_owned(), 137)));
    bench.network("-net");
    let output = bench.run(&format!("stop network/{}", bench.named("-net"))).expect_code(3);
    assert!(output.stderr.contains("could not be stopped"), "{output}");
}

#[test]
fn with_a_dead_engine_a_name_is_not_simply_unknown() {
    let bench = Bench::new();
    let creel = bench.creel().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    for command in ["rm", "stop"] {
        let output = creel.run([command, "web-1", "--json"]).expect_code(7);
        assert!(output.stderr.starts_with("error[CR0020]"), "{output}");
        assert_eq!(output.json()["error"]["code"], "CR0020");
    }
}
