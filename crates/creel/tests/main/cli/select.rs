//! What a sweep means: every selector takes exactly what it says.

use std::collections::BTreeMap;

use creel_testkit::decoys::Decoys;
use creel_testkit::docker::ContainerSpec;
use creel_testkit::wait::eventually;
use creel_testkit::world::{Kind, World};
use std::time::Duration;

use super::bench::{Bench, results};

/// Returns what a dry run would release, without the test's prefix, sorted.
fn planned(bench: &Bench, flags: &str) -> Vec<String> {
    let output = bench.run(&format!("sweep --json {flags}")).expect_code(0);
    let mut names = results(&output, "planned");
    names.iter_mut().for_each(|name| *name = name.replace(&bench.name, ""));
    names.sort();
    names
}

/// Sweeps for good, checks that everything planned is gone, and returns it like [`planned`].
fn swept(bench: &Bench, flags: &str) -> Vec<String> {
    let before = planned(bench, flags);
    let output = bench.run(&format!("sweep --json --apply {flags}")).expect_code(0);
    let mut gone = results(&output, "gone");
    gone.iter_mut().for_each(|name| *name = name.replace(&bench.name, ""));
    gone.sort();
    assert_eq!(gone, before, "{output}");
    gone
}

#[test]
fn a_name_means_whole_names_and_look_alikes_survive() {
    let bench = Bench::new();
    let decoys = Decoys::plant(bench.engine(), &bench.lookalike()).unwrap();
    bench.running("");
    bench.network("");
    bench.volume("");
    let name = &bench.name;
    assert_eq!(swept(&bench, &format!("--name {name}")), ["container ", "network ", "volume "]);
    assert_eq!(planned(&bench, &format!("--name {name}")), [""; 0]);

    bench.running(".a1");
    bench.running(".a2");
    bench.running(".ab");
    assert_eq!(swept(&bench, &format!("--name {name}.a[0-9]")), ["container .a1", "container .a2"]);
    assert_eq!(swept(&bench, &format!("--name {name}.?b --name absent")), ["container .ab"]);
    decoys.assert_untouched();
}

#[test]
fn a_label_means_its_whole_key_and_value() {
    let bench = Bench::new();
    let decoys = Decoys::plant(bench.engine(), &bench.lookalike()).unwrap();
    bench.running(".own");
    bench.network(".own");
    let gone = swept(&bench, &format!("--label {}", bench.label()));
    // What took the label over from its image carries it, as every tool shows it.
    let heirs = ["container -inherited", "image -decoy:latest"];
    assert_eq!(gone, ["container -inherited", "container .own", heirs[1], "network .own"]);
    let touched = decoys.touched();
    assert_eq!(touched.len(), heirs.len(), "{touched:?}");
    assert!(touched.iter().all(|line| line.contains("inherited")), "{touched:?}");
}

#[test]
fn a_label_without_value_means_any_value_and_several_labels_mean_all() {
    let bench = Bench::new();
    let docker = bench.docker();
    let (key, other) = (bench.key(), format!("{}.other", bench.key()));
    let make = |suffix: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        docker.create_volume(&bench.named(suffix), &labels).unwrap();
    };
    make("-a", &[(&key, "1")]);
    make("-b", &[(&key, "2"), (&other, "")]);
    make("-c", &[(&other, "1")]);
    assert_eq!(planned(&bench, &format!("--label {key}")), ["volume -a", "volume -b"]);
    assert_eq!(planned(&bench, &format!("--label {key}=2")), ["volume -b"]);
    assert_eq!(planned(&bench, &format!("--label {key}=")), [""; 0]);
    assert_eq!(planned(&bench, &format!("--label {other}=")), ["volume -b"]);
    assert_eq!(swept(&bench, &format!("--label {key} --label {other}")), ["volume -b"]);
    assert_eq!(bench.there(), ["v-a", "v-c"]);
}

#[test]
fn kind_state_project_provider_and_age_narrow() {
    let bench = Bench::new();
    let decoys = Decoys::plant(bench.engine(), &bench.lookalike()).unwrap();
    let project = BTreeMap::from([("com.docker.compose.project".to_owned(), bench.name.clone())]);
    bench.running(".run");
    bench.exited(".out");
    bench.created(".new");
    bench.network(".net");
    bench.volume(".vol");
    let compose = ContainerSpec::sleeping(&bench.named(".web")).labels(&project);
    bench.docker().run(&compose).unwrap();
    bench.docker().create_network(&bench.named(".default"), &project).unwrap();
    let own = format!(
        "--name {0}.run --name {0}.out --name {0}.new --name {0}.net --name {0}.vol",
        bench.name
    );

    assert_eq!(planned(&bench, &format!("{own} --provider process")), [""; 0]);
    assert_eq!(planned(&bench, &format!("{own} --provider docker")).len(), 5);
    assert_eq!(planned(&bench, &format!("{own} --older-than 1h")), [""; 0]);
    assert_eq!(swept(&bench, &format!("{own} --state created")), ["container .new"]);
    assert_eq!(swept(&bench, &format!("{own} --state exited --state dead")), ["container .out"]);
    assert_eq!(swept(&bench, &format!("{own} --kind network")), ["network .net"]);
    assert_eq!(
        swept(&bench, &format!("--project {}", bench.name)),
        ["container .web", "network .default"]
    );
    let old = || planned(&bench, &format!("{own} --older-than 1s")).len() == 2;
    assert!(eventually(Duration::from_secs(10), old), "things grow a second old");
    assert_eq!(swept(&bench, &format!("{own} --older-than 1s")), ["container .run", "volume .vol"]);
    decoys.assert_untouched();
}

#[test]
fn owned_means_what_this_ledger_tracks() {
    let bench = Bench::new();
    bench.running("-foreign");
    let hold = bench.hold("--container IMAGE --network --no-watchdog");
    let (container, network) = (hold.name("container"), hold.name("network"));
    let other = Bench::new();
    assert_eq!(results(&other.run("sweep --json --owned"), "spared"), [""; 0]);
    hold.kill();
    // Without selectors it means the same.
    for flags in ["--owned", ""] {
        let output = bench.run(&format!("sweep --json {flags}")).expect_code(0);
        let meant = [format!("container {container}"), format!("network {network}")];
        assert_eq!(results(&output, "planned"), meant, "{output}");
    }
    let output = bench.run("sweep --json --apply").expect_code(0);
    assert_eq!(output.json()["gone"], 2);
    assert_eq!(bench.there(), ["c-foreign"]);
    let records = bench.run("ledger --json").expect_code(0).json();
    assert_eq!(records["records"].as_array().unwrap().len(), 0);
}

#[test]
fn what_another_ledger_left_is_meant_only_when_it_is_named() {
    let lost = Bench::new();
    let hold = lost.hold("--volume --no-watchdog");
    let volume = hold.name("volume");
    let ledger = lost.run("ledger --json").expect_code(0).json();
    let ledger = ledger["ledger"].as_str().unwrap().to_owned();
    let bench = Bench::new();
    let count = |flags: &str| {
        let output = bench.run(&format!("sweep --json --name {volume} {flags}")).expect_code(0);
        (results(&output, "planned").len(), results(&output, "spared").len())
    };
    assert_eq!(count("--ledger lost"), (0, 0), "its owner lives");
    assert_eq!(count(&format!("--ledger {ledger}")), (0, 1));
    hold.kill();
    assert_eq!(count("--owned"), (0, 0));
    assert_eq!(count(&format!("--ledger {ledger}")), (1, 0));
    let output = bench.run(&format!("sweep --json --apply --ledger lost --name {volume}"));
    assert_eq!(output.expect_code(0).json()["gone"], 1);
    assert!(lost.docker().inspect_volume(&volume).unwrap().is_none());
    // Its own ledger learns of it.
    lost.run("reconcile").expect_code(0);
    let left = lost.run("ledger --json").expect_code(0).json();
    assert_eq!(left["records"].as_array().unwrap().len(), 0);
}

#[test]
fn presets_mean_what_the_help_says() {
    let bench = Bench::new();
    bench.running("-run");
    bench.exited("-out");
    bench.created("-new");
    bench.network("-net");
    bench.volume("-vol");
    let label = bench.label();
    let preset = |name: &str| planned(&bench, &format!("--preset {name} --label {label}"));
    assert_eq!(preset("stopped"), ["container -out"]);
    assert_eq!(preset("default"), ["container -out"]);
    assert_eq!(preset("aggressive"), ["container -new", "container -out"]);
    let output = bench.run(&format!("sweep --preset stopped --label {label} --json"));
    assert_eq!(output.json()["items"][0]["rule"], "preset:stopped/stopped");
    assert_eq!(swept(&bench, &format!("--preset aggressive --label {label}")).len(), 2);
    assert_eq!(bench.there(), ["c-run", "n-net", "v-vol"]);
}

#[test]
fn other_flags_narrow_a_preset_and_never_widen_it() {
    let bench = Bench::new();
    bench.exited("-out");
    bench.running("-run");
    bench.network("-net");
    let label = bench.label();
    let planned = |flags: &str| planned(&bench, &format!("{flags} --label {label}"));
    assert_eq!(planned("--preset stopped --kind container"), ["container -out"]);
    assert_eq!(planned("--preset stopped --state exited"), ["container -out"]);
    assert_eq!(planned("--preset stopped --older-than 1h"), [""; 0]);
    assert_eq!(planned("--preset aggressive --kind network"), [""; 0]);
    let nothing = bench.run("sweep --preset stopped --state running").expect_code(2);
    assert!(nothing.stderr.contains("means nothing of that"), "{nothing}");
    bench.run("sweep --preset stopped --all").expect_code(2);
}

#[test]
fn foreign_resources_are_not_meant_by_accident() {
    let bench = Bench::new();
    bench.exited("-out");
    let everywhere = World::snapshot(bench.engine()).unwrap().of_kind(Kind::Container);
    assert!(!everywhere.is_empty());
    for flags in ["--kind container", "--provider docker", "--provider docker --kind volume"] {
        for apply in ["", "--apply", "--apply --yes --force"] {
            let output = bench.run(&format!("sweep {flags} {apply}")).expect_code(4);
            assert!(output.stderr.starts_with("error[CR0030]"), "{output}");
            assert_eq!(output.stdout, "");
        }
    }
    assert_eq!(bench.there(), ["c-out"]);
}
