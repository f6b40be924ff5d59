//! What is ours is known by its identity: a replacement, a copy or a look-alike stays.

use creel_core::crashpoint::Crashpoint;
use creel_testkit::decoys::Decoys;
use creel_testkit::docker::Labels;
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use serde_json::Value;

use crate::support::{Home, LEDGER_LABEL};

/// The settings under which an unanswered create counts as never made at once.
const NO_WINDOW: &str = "[ledger]\nintent_window = \"0s\"\n";

fn set_up() -> (Home, PrivateEngine) {
    let engine = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    (Home::on(&engine.engine()), engine)
}

fn labels_of(record: &Value, ledger: &str) -> Labels {
    Labels::from([
        ("dev.creel.resource".to_owned(), record["resource"].as_str().unwrap().to_owned()),
        (LEDGER_LABEL.to_owned(), ledger.to_owned()),
    ])
}

#[test]
fn a_volume_of_the_library_that_was_replaced_stays() {
    for line in [&["reconcile"][..], &["sweep", "--apply", "--owned"], &["rm"]] {
        let (home, engine) = set_up();
        let docker = engine.engine().docker();
        let holding = home.hold(&["--volume", "--no-watchdog"]);
        let resource = holding.resources().remove(0);
        holding.running.kill();
        let name = home.records()[0]["name"].as_str().unwrap().to_owned();
        docker.remove_volume(&name).unwrap();
        docker.create_volume(&name, &Labels::new()).unwrap();
        let before = docker.inspect_volume(&name).unwrap();
        let words = if line == ["rm"] { vec!["rm", &resource] } else { line.to_vec() };
        let output = home.creel.run(&words).expect_code(0);
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(told.contains("it is not ours"), "{output}");
        home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(docker.inspect_volume(&name).unwrap(), before, "{line:?}");
        assert_eq!(home.records()[0]["state"], "gone");
        docker.remove_volume(&name).unwrap();
    }
}

#[test]
fn copied_labels_make_nothing_ours_while_no_id_is_on_record() {
    let (home, engine) = set_up();
    for flags in [&["--container", "creel-test"][..], &["--network"], &["--volume"]] {
        let flags = [&["--no-watchdog"], flags].concat();
        let (_, reached) = home.hold_until(Crashpoint::AfterIntent, &flags);
        assert!(reached);
        let records = home.open_records();
        let labels = labels_of(&records[0], &home.ledger_id());
        let copies = Decoys::copies(&engine.engine(), "copied", &labels).unwrap();
        // The create may still land: the code says so, and nothing is released.
        home.creel.run(["reconcile"]);
        home.creel.run(["sweep", "--apply", "--owned"]);
        copies.assert_untouched();
        home.configure(NO_WINDOW);
        home.creel.run(["reconcile"]).expect_code(0);
        home.configure("");
        copies.assert_untouched();
        assert!(home.open_records().is_empty());
    }
}

#[test]
fn every_release_of_a_sweep_says_by_which_rule() {
    let (home, engine) = set_up();
    let docker = engine.engine().docker();
    let labels = Labels::from([("job".to_owned(), "nightly".to_owned())]);
    let network = docker.create_network("theirs", &labels).unwrap();
    docker.create_volume("theirs", &labels).unwrap();
    home.creel.run(["sweep", "--apply", "--label", "job=nightly"]).expect_code(0);
    for id in [network.as_str(), "theirs"] {
        let why = home.creel.run(["ledger", "why", id, "--json"]).expect_code(0).json();
        let releases = why["releases"].as_array().unwrap();
        assert!(!releases.is_empty(), "{why:#}");
        for row in releases {
            assert!(row["evidence"].as_str().unwrap().starts_with("rule: "), "{why:#}");
        }
        let outcomes: Vec<&str> =
            releases.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
        assert!(outcomes.contains(&"ok") && outcomes.contains(&"planned"), "{why:#}");
    }
    let unknown = home.creel.run(["ledger", "why", "nobody-knows"]).expect_code(2);
    assert!(unknown.stderr.contains("no release of `nobody-knows` is on record"), "{unknown}");
}
