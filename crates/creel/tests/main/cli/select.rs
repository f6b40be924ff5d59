//! What a sweep selects: every selector selects exactly what it says.

use std::collections::BTreeMap;

use creel_testkit::decoys::Decoys;
use creel_testkit::docker::ContainerSpec;
use creel_testkit::inventory::{Inventory, Kind};
use creel_testkit::wait::eventually;
use std::time::Duration;

use super::fixture::{CliFixture, results};

/// Returns what a dry run would release, without the test's prefix, sorted.
fn planned(fixture: &CliFixture, flags: &str) -> Vec<String> {
    let output = fixture.run(&format!("sweep --json {flags}")).expect_code(0);
    let mut names = results(&output, "planned");
    names.iter_mut().for_each(|name| *name = name.replace(&fixture.name, ""));
    names.sort();
    names
}

/// Runs an applied sweep, asserts that everything planned is gone, and returns it like [`planned`].
fn swept(fixture: &CliFixture, flags: &str) -> Vec<String> {
    let before = planned(fixture, flags);
    let output = fixture.run(&format!("sweep --json --apply {flags}")).expect_code(0);
    let mut gone = results(&output, "gone");
    gone.iter_mut().for_each(|name| *name = name.replace(&fixture.name, ""));
    gone.sort();
    assert_eq!(gone, before, "{output}");
    gone
}

#[test]
fn a_name_matches_exactly_and_decoys_survive() {
    let fixture = CliFixture::new();
    let decoys = Decoys::plant(fixture.engine(), &fixture.lookalike()).unwrap();
    fixture.running("");
    fixture.network("");
    fixture.volume("");
    let name = &fixture.name;
    assert_eq!(swept(&fixture, &format!("--name {name}")), ["container ", "network ", "volume "]);
    assert_eq!(planned(&fixture, &format!("--name {name}")), [""; 0]);

    fixture.running(".a1");
    fixture.running(".a2");
    fixture.running(".ab");
    assert_eq!(
        swept(&fixture, &format!("--name {name}.a[0-9]")),
        ["container .a1", "container .a2"]
    );
    assert_eq!(swept(&fixture, &format!("--name {name}.?b --name absent")), ["container .ab"]);
    decoys.assert_untouched();
}

#[test]
fn a_label_matches_its_exact_key_and_value() {
    let fixture = CliFixture::new();
    let decoys = Decoys::plant(fixture.engine(), &fixture.lookalike()).unwrap();
    fixture.running(".own");
    fixture.network(".own");
    let gone = swept(&fixture, &format!("--label {}", fixture.label()));
    // An object that inherited the label from its image carries it, as every tool shows.
    let inherited = ["container -inherited", "image -decoy:latest"];
    assert_eq!(gone, ["container -inherited", "container .own", inherited[1], "network .own"]);
    let touched = decoys.touched();
    assert_eq!(touched.len(), inherited.len(), "{touched:?}");
    assert!(touched.iter().all(|line| line.contains("inherited")), "{touched:?}");
}

#[test]
fn a_label_without_value_matches_any_value_and_several_labels_must_all_match() {
    let fixture = CliFixture::new();
    let docker = fixture.docker();
    let (key, other) = (fixture.key(), format!("{}.other", fixture.key()));
    let make = |suffix: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        docker.create_volume(&fixture.named(suffix), &labels).unwrap();
    };
    make("-a", &[(&key, "1")]);
    make("-b", &[(&key, "2"), (&other, "")]);
    make("-c", &[(&other, "1")]);
    assert_eq!(planned(&fixture, &format!("--label {key}")), ["volume -a", "volume -b"]);
    assert_eq!(planned(&fixture, &format!("--label {key}=2")), ["volume -b"]);
    assert_eq!(planned(&fixture, &format!("--label {key}=")), [""; 0]);
    assert_eq!(planned(&fixture, &format!("--label {other}=")), ["volume -b"]);
    assert_eq!(swept(&fixture, &format!("--label {key} --label {other}")), ["volume -b"]);
    assert_eq!(fixture.there(), ["v-a", "v-c"]);
}

#[test]
fn kind_state_project_provider_and_age_narrow() {
    let fixture = CliFixture::new();
    let decoys = Decoys::plant(fixture.engine(), &fixture.lookalike()).unwrap();
    let project = BTreeMap::from([("com.docker.compose.project".to_owned(), fixture.name.clone())]);
    fixture.running(".run");
    fixture.exited(".out");
    fixture.created(".new");
    fixture.network(".net");
    fixture.volume(".vol");
    let compose = ContainerSpec::sleeping(&fixture.named(".web")).labels(&project);
    fixture.docker().run(&compose).unwrap();
    fixture.docker().create_network(&fixture.named(".default"), &project).unwrap();
    let own = format!(
        "--name {0}.run --name {0}.out --name {0}.new --name {0}.net --name {0}.vol",
        fixture.name
    );

    assert_eq!(planned(&fixture, &format!("{own} --provider process")), [""; 0]);
    assert_eq!(planned(&fixture, &format!("{own} --provider docker")).len(), 5);
    assert_eq!(planned(&fixture, &format!("{own} --older-than 1h")), [""; 0]);
    assert_eq!(swept(&fixture, &format!("{own} --state created")), ["container .new"]);
    assert_eq!(swept(&fixture, &format!("{own} --state exited --state dead")), ["container .out"]);
    assert_eq!(swept(&fixture, &format!("{own} --kind network")), ["network .net"]);
    assert_eq!(
        swept(&fixture, &format!("--project {}", fixture.name)),
        ["container .web", "network .default"]
    );
    let old = || planned(&fixture, &format!("{own} --older-than 1s")).len() == 2;
    assert!(eventually(Duration::from_secs(10), old), "the objects are a second old");
    assert_eq!(
        swept(&fixture, &format!("{own} --older-than 1s")),
        ["container .run", "volume .vol"]
    );
    decoys.assert_untouched();
}

#[test]
fn owned_selects_what_this_ledger_tracks() {
    let fixture = CliFixture::new();
    fixture.running("-foreign");
    let hold = fixture.hold("--container IMAGE --network --no-watchdog");
    let (container, network) = (hold.name("container"), hold.name("network"));
    let other = CliFixture::new();
    assert_eq!(results(&other.run("sweep --json --owned"), "spared"), [""; 0]);
    hold.kill();
    // Without selectors, the sweep selects the same.
    for flags in ["--owned", ""] {
        let output = fixture.run(&format!("sweep --json {flags}")).expect_code(0);
        let expected = [format!("container {container}"), format!("network {network}")];
        assert_eq!(results(&output, "planned"), expected, "{output}");
    }
    let output = fixture.run("sweep --json --apply").expect_code(0);
    assert_eq!(output.json()["gone"], 2);
    assert_eq!(fixture.there(), ["c-foreign"]);
    let records = fixture.run("ledger --json").expect_code(0).json();
    assert_eq!(records["records"].as_array().unwrap().len(), 0);
}

#[test]
fn resources_of_another_ledger_are_selected_only_by_name() {
    let lost = CliFixture::new();
    let hold = lost.hold("--volume --no-watchdog");
    let volume = hold.name("volume");
    let ledger = lost.run("ledger --json").expect_code(0).json();
    let ledger = ledger["ledger"].as_str().unwrap().to_owned();
    let fixture = CliFixture::new();
    let count = |flags: &str| {
        let output = fixture.run(&format!("sweep --json --name {volume} {flags}")).expect_code(0);
        (results(&output, "planned").len(), results(&output, "spared").len())
    };
    assert_eq!(count("--ledger lost"), (0, 0), "its owner lives");
    assert_eq!(count(&format!("--ledger {ledger}")), (0, 1));
    hold.kill();
    assert_eq!(count("--owned"), (0, 0));
    assert_eq!(count(&format!("--ledger {ledger}")), (1, 0));
    let output = fixture.run(&format!("sweep --json --apply --ledger lost --name {volume}"));
    assert_eq!(output.expect_code(0).json()["gone"], 1);
    assert!(lost.docker().inspect_volume(&volume).unwrap().is_none());
    // Its own ledger records the release.
    lost.run("reconcile").expect_code(0);
    let left = lost.run("ledger --json").expect_code(0).json();
    assert_eq!(left["records"].as_array().unwrap().len(), 0);
}

#[test]
fn presets_select_what_the_help_says() {
    let fixture = CliFixture::new();
    fixture.running("-run");
    fixture.exited("-out");
    fixture.created("-new");
    fixture.network("-net");
    fixture.volume("-vol");
    let label = fixture.label();
    let preset = |name: &str| planned(&fixture, &format!("--preset {name} --label {label}"));
    assert_eq!(preset("stopped"), ["container -out"]);
    assert_eq!(preset("default"), ["container -out"]);
    assert_eq!(preset("aggressive"), ["container -new", "container -out"]);
    let output = fixture.run(&format!("sweep --preset stopped --label {label} --json"));
    assert_eq!(output.json()["items"][0]["rule"], "preset:stopped/stopped");
    assert_eq!(swept(&fixture, &format!("--preset aggressive --label {label}")).len(), 2);
    assert_eq!(fixture.there(), ["c-run", "n-net", "v-vol"]);
}

#[test]
fn other_flags_narrow_a_preset_and_never_widen_it() {
    let fixture = CliFixture::new();
    fixture.exited("-out");
    fixture.running("-run");
    fixture.network("-net");
    let label = fixture.label();
    let planned = |flags: &str| planned(&fixture, &format!("{flags} --label {label}"));
    assert_eq!(planned("--preset stopped --kind container"), ["container -out"]);
    assert_eq!(planned("--preset stopped --state exited"), ["container -out"]);
    assert_eq!(planned("--preset stopped --older-than 1h"), [""; 0]);
    assert_eq!(planned("--preset aggressive --kind network"), [""; 0]);
    let nothing = fixture.run("sweep --preset stopped --state running").expect_code(2);
    assert!(nothing.stderr.contains("means nothing of that"), "{nothing}");
    fixture.run("sweep --preset stopped --all").expect_code(2);
}

#[test]
fn foreign_resources_are_not_selected_by_accident() {
    let fixture = CliFixture::new();
    fixture.exited("-out");
    let everywhere = Inventory::snapshot(fixture.engine()).unwrap().of_kind(Kind::Container);
    assert!(!everywhere.is_empty());
    for flags in ["--kind container", "--provider docker", "--provider docker --kind volume"] {
        for apply in ["", "--apply", "--apply --yes --force"] {
            let output = fixture.run(&format!("sweep {flags} {apply}")).expect_code(4);
            assert!(output.stderr.starts_with("error[CR0030]"), "{output}");
            assert_eq!(output.stdout, "");
        }
    }
    assert_eq!(fixture.there(), ["c-out"]);
}
