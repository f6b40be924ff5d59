//! `creel stop` and `creel rm`: by name, one by one.

use std::time::Duration;

use creel_testkit::docker::ContainerSpec;

use super::fixture::{CliFixture, text};

/// Returns a container's state and exit code.
fn state(fixture: &CliFixture, id: &str) -> Option<(String, i64)> {
    let details = fixture.docker().inspect_container(id).unwrap()?;
    let state = &details["State"];
    Some((text(state, "Status").to_owned(), state["ExitCode"].as_i64().unwrap()))
}

#[test]
fn rm_finds_by_name_id_prefix_and_kind_and_releases_running_containers() {
    let fixture = CliFixture::new();
    fixture.running("-name");
    let whole = fixture.running("-whole");
    let prefix = fixture.running("-prefix");
    fixture.network("-twin");
    fixture.volume("-twin");
    fixture.exited("-stays");
    fixture.run(&format!("rm {}", fixture.named("-name"))).expect_code(0);
    fixture.run(&format!("rm {whole}")).expect_code(0);
    fixture.run(&format!("rm {}", &prefix[..12])).expect_code(0);
    let output = fixture.run(&format!("rm --json network/{0} {0}", fixture.named("-twin")));
    let output = output.expect_code(2);
    assert!(output.stderr.starts_with("error[CR0038]: "), "{output}");
    assert_eq!(fixture.there(), ["c-stays", "n-twin", "v-twin"], "all names are found first");
    let output = fixture.run(&format!("rm --json network/{0} volume/{0}", fixture.named("-twin")));
    assert_eq!(output.expect_code(0).json()["gone"], 2);
    assert_eq!(fixture.there(), ["c-stays"]);
}

#[test]
fn an_ambiguous_or_unknown_name_is_a_usage_error() {
    let fixture = CliFixture::new();
    fixture.network("-twin");
    fixture.volume("-twin");
    let output = fixture.run(&format!("rm {}", fixture.named("-twin"))).expect_code(2);
    let twin = fixture.named("-twin");
    let expected = format!("error[CR0038]: `{twin}` may mean network/{twin}, volume/{twin}\n");
    assert!(output.stderr.starts_with(&expected), "{output}");
    for command in ["rm", "stop"] {
        let output = fixture.run(&format!("{command} {}-absent", fixture.name)).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0037]: "), "{output}");
        assert!(output.stderr.contains("\n\nhint: creel ls lists what is there"), "{output}");
    }
    fixture.run("rm").expect_code(2);
    assert_eq!(fixture.there(), ["n-twin", "v-twin"]);
}

#[test]
fn a_second_rm_reports_that_nothing_matches() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let line = format!("rm {}", fixture.named("-a"));
    fixture.run(&line).expect_code(0);
    fixture.run(&line).expect_code(2);
    let hold = fixture.hold("--volume --no-watchdog");
    let resource = hold.resource("volume");
    hold.kill();
    fixture.run(&format!("rm {resource}")).expect_code(0);
    let again = fixture.run(&format!("rm {resource}")).expect_code(0);
    assert!(again.stderr.contains(&format!("{resource} is gone already")), "{again}");
}

#[test]
fn protected_objects_are_refused_whatever_the_flags() {
    let fixture = CliFixture::new();
    let spec = ContainerSpec::sleeping(&fixture.named("-db")).label("dev.creel.protect", "yes");
    let id = fixture.docker().run(&spec).unwrap();
    fixture.exited("-other");
    for line in ["rm --force", "stop --force", "rm"] {
        let output = fixture.run(&format!("{line} {0}-other {0}-db", fixture.name)).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0033]: "), "{output}");
        assert!(output.stderr.contains("label dev.creel.protect"), "{output}");
    }
    assert_eq!(state(&fixture, &id).unwrap().0, "running");
    assert_eq!(fixture.there(), ["c-db", "c-other"]);
}

#[test]
fn resources_of_a_live_owner_require_force() {
    let fixture = CliFixture::new();
    let hold = fixture.hold("--container IMAGE --volume");
    let (id, resource) = (hold.id("container"), hold.resource("container"));
    for line in [format!("rm {id}"), format!("rm {resource}"), format!("stop {resource}")] {
        let output = fixture.run(&line).expect_code(4);
        assert!(output.stderr.starts_with("error[CR0034]: "), "{output}");
        assert!(output.stderr.contains("--force"), "{output}");
    }
    assert_eq!(state(&fixture, &id).unwrap().0, "running");
    fixture.run(&format!("stop --force {resource}")).expect_code(0);
    assert_eq!(state(&fixture, &id).unwrap().0, "exited");
    fixture.run(&format!("rm --force {resource}")).expect_code(0);
    assert_eq!(state(&fixture, &id), None);
    assert_eq!(hold.end().code(), Some(130));
}

#[test]
fn stop_keeps_the_container_and_waits_for_the_timeout() {
    let fixture = CliFixture::new();
    let polite = ContainerSpec::script(
        &fixture.named("-polite"),
        "trap 'exit 7' TERM; while :; do sleep 0.05; done",
    );
    let polite = fixture.docker().run(&polite).unwrap();
    let deaf = ContainerSpec::stubborn(&fixture.named("-deaf"));
    let deaf = fixture.docker().run(&deaf).unwrap();
    let output = fixture.run(&format!("stop --json {}", fixture.named("-polite"))).expect_code(0);
    assert_eq!((&output.json()["version"], &output.json()["stopped"]), (&1.into(), &1.into()));
    assert_eq!(state(&fixture, &polite), Some(("exited".to_owned(), 7)));
    let line = format!("stop {} {polite} --stop-timeout 1s", fixture.named("-deaf"));
    let output = fixture.run(&line).expect_code(0);
    assert!(output.took < Duration::from_secs(8), "{output}");
    assert_eq!(state(&fixture, &deaf), Some(("exited".to_owned(), 137)));
    fixture.network("-net");
    let output = fixture.run(&format!("stop network/{}", fixture.named("-net"))).expect_code(3);
    assert!(output.stderr.contains("could not be stopped"), "{output}");
}

#[test]
fn with_a_dead_engine_a_name_is_not_reported_as_unknown() {
    let fixture = CliFixture::new();
    let creel = fixture.creel().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    for command in ["rm", "stop"] {
        let output = creel.run([command, "web-1", "--json"]).expect_code(7);
        assert!(output.stderr.starts_with("error[CR0020]"), "{output}");
        assert_eq!(output.json()["error"]["code"], "CR0020");
    }
}
