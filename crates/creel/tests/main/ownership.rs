//! Ownership is proven by identity: a replacement, a copy or a decoy stays.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use creel_daytona_server::Settings;
use creel_model::crashpoint::Crashpoint;
use creel_model::id::ResourceId;
use creel_testkit::decoys::Decoys;
use creel_testkit::docker::{ContainerSpec, Docker, Labels};
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use crate::crash::HeldKind;
use crate::daytona::Daytona;
use crate::support::{Home, PATIENCE, text_of};

/// Settings under which an unanswered create counts as never made at once.
const NO_WINDOW: &str = "[ledger]\nintent_window = \"0s\"\n";

fn set_up() -> (Home, PrivateEngine) {
    let engine = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
    (Home::on(&engine.engine()), engine)
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
        let args = if line == ["rm"] { vec!["rm", &resource] } else { line.to_vec() };
        let output = home.creel.run(&args).expect_code(0);
        let report = format!("{}{}", output.stdout, output.stderr);
        assert!(report.contains("it is not ours"), "{output}");
        home.creel.run(["reconcile"]).expect_code(0);
        assert_eq!(docker.inspect_volume(&name).unwrap(), before, "{line:?}");
        assert_eq!(home.records()[0]["state"], "gone");
        docker.remove_volume(&name).unwrap();
    }
}

#[test]
fn copied_labels_prove_no_ownership_while_no_id_is_on_record() {
    let (mut home, engine) = set_up();
    let daytona = Daytona::start(Settings::hollow());
    home.creel = daytona.point(home.creel.clone());
    for held_kind in [HeldKind::Container, HeldKind::Network, HeldKind::Volume, HeldKind::Sandbox] {
        let flags = [&["--no-watchdog"], held_kind.flags()].concat();
        let (_, reached) = home.hold_until(Crashpoint::AfterIntent, &flags);
        assert!(reached);
        let records = home.open_records();
        let labels = home.labels_of(&records[0]);
        let copies = Decoys::copies(&engine.engine(), "copied", &labels).unwrap();
        let name = records[0]["name"].as_str().unwrap();
        daytona.plant(name, records[0]["resource"].as_str().unwrap(), &home.ledger_id());
        // The create may still land: the exit code reports that, and nothing is released.
        home.creel.run(["reconcile"]);
        home.creel.run(["sweep", "--apply", "--owned"]);
        copies.assert_untouched();
        daytona.assert_decoys_untouched();
        home.configure(NO_WINDOW);
        home.creel.run(["reconcile"]).expect_code(0);
        home.configure("");
        copies.assert_untouched();
        daytona.assert_decoys_untouched();
        assert!(home.open_records().is_empty());
    }
}

/// Creates a foreign object with this name. Returns its id.
fn create_foreign(docker: &Docker, held_kind: HeldKind, name: &str, labels: &Labels) -> String {
    match held_kind {
        HeldKind::Container => docker.run(&ContainerSpec::sleeping(name).labels(labels)).unwrap(),
        HeldKind::Network => docker.create_network(name, labels).unwrap(),
        HeldKind::Volume => docker.create_volume(name, labels).unwrap(),
        other => panic!("{other:?} does not exist on an engine"),
    }
}

fn inspect(docker: &Docker, held_kind: HeldKind, id: &str) -> Option<Value> {
    let seen = match held_kind {
        HeldKind::Container => docker.inspect_container(id),
        HeldKind::Network => docker.inspect_network(id),
        HeldKind::Volume => docker.inspect_volume(id),
        other => panic!("{other:?} does not exist on an engine"),
    };
    seen.unwrap()
}

fn remove(docker: &Docker, held_kind: HeldKind, name: &str) {
    let removed = match held_kind {
        HeldKind::Container => docker.remove_container(name),
        HeldKind::Network => docker.remove_network(name),
        HeldKind::Volume => docker.remove_volume(name),
        other => panic!("{other:?} does not exist on an engine"),
    };
    removed.unwrap();
}

/// Closes the open records, and asserts that the replacement was never touched.
#[track_caller]
fn assert_stays(home: &Home, untouched: impl Fn() -> bool) {
    assert!(untouched(), "the undo touched the replacement");
    home.creel.run(["reconcile"]);
    home.creel.run(["sweep", "--apply", "--owned"]);
    home.configure(NO_WINDOW);
    home.creel.run(["reconcile"]).expect_code(0);
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(home.open_records().is_empty(), "{:#?}", home.open_records());
    assert!(untouched(), "the recovery touched the replacement");
}

/// Returns the labels of a record's object with another resource id.
fn labels_with_other_resource(home: &Home, record: &Value) -> Labels {
    let mut labels = home.labels_of(record);
    labels.insert("dev.creel.resource".to_owned(), ResourceId::new().to_string());
    labels
}

/// Loses the response of one request that creates or starts something.
fn lose_response(wire: &Wire, path: &str) -> Arc<Rule> {
    wire.add(Rule::new(path, Fault::LoseResponse).method("POST").times(1))
}

#[test]
fn an_object_that_was_replaced_before_the_undo_of_a_failed_create_stays() {
    let places = [
        (HeldKind::Volume, "/volumes/create", false),
        (HeldKind::Volume, "/volumes/create", true),
        (HeldKind::Network, "/networks/create", false),
        (HeldKind::Container, "/containers/create", false),
        // The container was created, and its removal after the failed start failed too.
        (HeldKind::Container, "/containers/[^/]*/start", false),
    ];
    let (_, engine) = set_up();
    let docker = engine.engine().docker();
    for (held_kind, path, has_other_labels) in places {
        let wire = Wire::start(&engine.engine(), 1).unwrap();
        let home = Home::on(&wire.engine());
        let lost = lose_response(&wire, path);
        wire.add(Rule::new("/containers/", Fault::Reset).method("DELETE").times(1));
        let running = home.hold_stopped_at(Crashpoint::CreatedNotRecorded, held_kind.flags());
        assert_eq!(lost.fired(), 1);
        let record = home.open_records().remove(0);
        let name = record["name"].as_str().unwrap();
        assert!(
            inspect(&docker, held_kind, name).is_some(),
            "nothing was created that could be replaced"
        );
        remove(&docker, held_kind, name);
        let labels = if has_other_labels {
            labels_with_other_resource(&home, &record)
        } else {
            Labels::new()
        };
        let id = create_foreign(&docker, held_kind, name, &labels);
        let before = inspect(&docker, held_kind, &id);
        wire.heal();
        running.signal("CONT");
        let output = running.wait();
        assert_ne!(output.code(), Some(0), "{held_kind:?}: the create failed\n{output}");
        assert_stays(&home, || inspect(&docker, held_kind, &id) == before);
        remove(&docker, held_kind, &id);
    }
}

/// The object is found despite the lost response, and its identity is recorded. It is replaced
/// before it is read again for its release.
#[test]
fn a_volume_that_was_replaced_after_it_was_found_again_stays() {
    let (_, engine) = set_up();
    let docker = engine.engine().docker();
    for has_other_labels in [false, true] {
        let wire = Wire::start(&engine.engine(), 1).unwrap();
        let home = Home::on(&wire.engine());
        lose_response(&wire, "/volumes/create");
        let slow = Fault::Delay { by: Duration::from_secs(5) };
        let read = wire.add(Rule::new("/volumes/creel-", slow).method("GET").times(1));
        let running = home.creel.spawn(["dev", "hold", "--no-watchdog", "--for", "0s", "--volume"]);
        assert!(eventually(PATIENCE, || read.fired() == 1), "{}", running.stderr());
        let record = home.open_records().remove(0);
        assert_eq!(record["state"], "created", "{record:#}");
        let name = record["name"].as_str().unwrap();
        let labels = if has_other_labels {
            labels_with_other_resource(&home, &record)
        } else {
            Labels::new()
        };
        remove(&docker, HeldKind::Volume, name);
        let id = create_foreign(&docker, HeldKind::Volume, name, &labels);
        let before = inspect(&docker, HeldKind::Volume, &id);
        running.wait();
        assert_eq!(home.last_events().last().unwrap()["event"], "replaced");
        assert_stays(&home, || inspect(&docker, HeldKind::Volume, &id) == before);
        remove(&docker, HeldKind::Volume, &id);
    }
}

#[test]
fn a_sandbox_that_was_replaced_before_the_undo_of_a_failed_create_stays() {
    for fault in ["create_fails_after_alloc", "cut_after"] {
        let daytona = Daytona::start(Settings::hollow());
        let mut home = Home::without_engine();
        home.creel = daytona.point(home.creel.clone());
        daytona.arm(&json!({"at": "create", "fault": fault, "count": 1}));
        let running = home.hold_stopped_at(Crashpoint::CreateSent, HeldKind::Sandbox.flags());
        let record = home.open_records().remove(0);
        let name = record["name"].as_str().unwrap();
        assert_eq!(
            (daytona.left().len(), daytona.fired()),
            (1, 1),
            "nothing was created that could be replaced"
        );
        daytona.remove_named(name);
        let labels = json!(labels_with_other_resource(&home, &record));
        daytona.plant_one(name, &labels, "started");
        running.signal("CONT");
        let output = running.wait();
        assert_ne!(output.code(), Some(0), "{fault}: the create failed\n{output}");
        assert_stays(&home, || {
            daytona.assert_decoys_untouched();
            daytona.left().is_empty()
        });
    }
}

#[test]
fn a_directory_that_was_replaced_before_its_identity_was_recorded_stays() {
    let home = Home::without_engine();
    let running = home.hold_stopped_at(Crashpoint::CreatedNotRecorded, HeldKind::Directory.flags());
    let name = home.open_records()[0]["name"].as_str().unwrap().to_owned();
    let path = home.creel.state().join("sandboxes").join(name);
    // Kept under another name, so that its inode is not reused.
    fs::rename(&path, home.path("moved")).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("kept"), "kept").unwrap();
    running.signal("CONT");
    running.wait();
    assert_stays(&home, || text_of(&path.join("kept")) == "kept");
}

#[test]
fn every_release_of_a_sweep_names_its_rule() {
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

/// Returns the anonymous volumes of a container.
fn anonymous_of(docker: &Docker, container: &str) -> Vec<String> {
    let details = docker.inspect_container(container).unwrap().unwrap();
    let mounts = details["Mounts"].as_array().unwrap().iter();
    mounts.map(|mount| mount["Name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the outcome and evidence of each release that `creel ledger why` shows, newest first.
fn releases_of(home: &Home, id: &str) -> Vec<(String, String)> {
    let why = home.creel.run(["ledger", "why", id, "--json"]).expect_code(0).json();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let rows = why["releases"].as_array().unwrap().iter();
    rows.map(|row| (text(row, "outcome"), text(row, "evidence"))).collect()
}

#[test]
fn a_volume_that_is_removed_with_its_container_has_its_own_rows() {
    let (home, engine) = set_up();
    let docker = engine.engine().docker();
    let swept = ContainerSpec::sleeping("swept").label("job", "nightly").anonymous_volume("/data");
    let swept = docker.run(&swept).unwrap();
    let volume = anonymous_of(&docker, &swept).remove(0);
    home.creel.run(["sweep", "--apply", "--label", "job=nightly"]).expect_code(0);
    assert!(docker.inspect_volume(&volume).unwrap().is_none());
    let releases = releases_of(&home, &volume);
    let outcomes: Vec<&str> = releases.iter().map(|(outcome, _)| outcome.as_str()).collect();
    assert_eq!(outcomes, ["ok", "planned"]);
    for (_, evidence) in &releases {
        assert!(evidence.starts_with("it goes with container swept: rule: "), "{evidence}");
    }
    assert!(home.creel.run(["ledger", "why", &volume]).stdout.contains("container swept"));

    // A volume that another container uses stays, and its row reports that.
    let first = ContainerSpec::sleeping("first").label("job", "weekly").anonymous_volume("/data");
    let first = docker.run(&first).unwrap();
    let shared = anonymous_of(&docker, &first).remove(0);
    docker.run(&ContainerSpec::sleeping("second").volume(&shared, "/data")).unwrap();
    home.creel.run(["sweep", "--apply", "--label", "job=weekly"]).expect_code(0);
    assert!(docker.inspect_volume(&shared).unwrap().is_some());
    let outcomes: Vec<String> =
        releases_of(&home, &shared).into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, ["kept", "planned"]);
}

#[test]
fn a_volume_that_is_removed_with_a_tracked_container_has_the_evidence_of_the_container() {
    let (home, engine) = set_up();
    let docker = engine.engine().docker();
    let image = docker.create(&ContainerSpec::sleeping("base")).and_then(|id| {
        docker.cli(&["commit", "--change", "VOLUME /data", &id, "with-volume:1"])?;
        docker.remove_container(&id)
    });
    image.unwrap();
    for how in ["reconcile", "rm", "released"] {
        let holding = home.hold(&["--container", "with-volume:1", "--no-watchdog"]);
        let resource = holding.resources().remove(0);
        let container = holding.report["held"][0]["id"].as_str().unwrap().to_owned();
        let volume = anonymous_of(&docker, &container).remove(0);
        match how {
            "released" => {
                holding.running.signal("INT");
                holding.running.wait();
            }
            how => {
                holding.running.kill();
                let arguments = if how == "rm" { vec!["rm", &resource] } else { vec![how] };
                home.creel.run(arguments).expect_code(0);
            }
        }
        assert!(docker.inspect_volume(&volume).unwrap().is_none(), "{how}");
        let releases = releases_of(&home, &volume);
        let outcomes: Vec<&str> = releases.iter().map(|(outcome, _)| outcome.as_str()).collect();
        assert_eq!(outcomes, ["ok", "planned"], "{how}");
        let evidence = &releases[0].1;
        assert!(evidence.starts_with("it goes with container creel-"), "{how}: {evidence}");
        assert!(evidence.ends_with(&format!("; its id {container} is on record")), "{evidence}");
    }
}

/// Makes an image without a name, and a named one upon it. Returns the ids of both.
fn commit_chain(docker: &Docker, reference: &str) -> (String, String) {
    let commit = |from: Option<&str>, repository: &str| {
        let spec = ContainerSpec::sleeping("source");
        let spec = from.map_or(spec.clone(), |image| spec.image(image));
        let source = docker.create(&spec).unwrap();
        let image = docker.commit(&source, repository, "1").unwrap();
        docker.remove_container(&source).unwrap();
        image
    };
    let below = commit(None, "");
    let above = commit(Some(&below), reference);
    (below, above)
}

#[test]
fn a_sweep_of_an_image_keeps_the_nameless_images_below_it() {
    let (home, engine) = set_up();
    let docker = engine.engine().docker();
    for line in [&["sweep", "--apply", "--name", "theirs:1"][..], &["rm", "theirs:1"]] {
        let (below, above) = commit_chain(&docker, "theirs");
        home.creel.run(line).expect_code(0);
        assert!(docker.inspect_image(&above).unwrap().is_none(), "{line:?}");
        assert!(docker.inspect_image(&below).unwrap().is_some(), "{line:?}: it was not selected");
        // It can be selected on its own, and then has its own rows.
        home.creel
            .run(["sweep", "--apply", "--kind", "image", "--state", "dangling"])
            .expect_code(0);
        assert!(docker.inspect_image(&below).unwrap().is_none(), "{line:?}");
        let releases = releases_of(&home, &below);
        assert_eq!(releases.first().map(|(outcome, _)| outcome.as_str()), Some("ok"), "{line:?}");
    }
}
