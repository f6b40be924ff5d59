//! A ledger that has vanished or is damaged: noticed by every command, and rebuilt.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use creel_core::rebuild::{self, RebuildError};
use creel_daytona_server::Settings;
use creel_model::provider::Providers;
use creel_testkit::decoys::Decoys;
use creel_testkit::docker::Labels;
use creel_testkit::engine::Engine;
use creel_testkit::image;
use serde_json::{Value, json};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::daytona::Daytona;
use crate::support::{Home, assert_killed, assignments_of, unique};

/// Commands that need the ledger.
const COMMANDS: [&str; 8] = [
    "reconcile",
    "sweep --apply",
    "sweep --apply --state exited",
    "rm something",
    "ledger",
    "ledger check",
    "runs",
    "dev hold --directory --for 1ms",
];

fn run(home: &Home, line: &str) -> creel_testkit::creel::Output {
    home.creel.run(line.split_whitespace())
}

fn ledger_files(home: &Home) -> [PathBuf; 3] {
    ["ledger.db", "ledger.db-wal", "ledger.db-shm"].map(|name| home.creel.state().join(name))
}

/// Acquires resources, and kills the owner and its watchdog.
fn orphan(home: &Home, flags: &[&str]) -> Vec<String> {
    let holding = home.hold(&[&["--no-watchdog"], flags].concat());
    let resources = holding.resources();
    assert_killed(&holding.running.kill());
    resources
}

/// The ways to lose a ledger.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    Deleted,
    Emptied,
    Overwritten,
    Truncated,
}

impl Loss {
    fn strike(self, home: &Home) {
        let [database, wal, shm] = ledger_files(home);
        gather(&database);
        for beside in [wal, shm] {
            let _ = fs::remove_file(beside);
        }
        match self {
            Self::Deleted => fs::remove_file(database).unwrap(),
            Self::Emptied => fs::write(database, "").unwrap(),
            Self::Overwritten => fs::write(database, "no database at all").unwrap(),
            Self::Truncated => {
                let whole = fs::read(&database).unwrap();
                fs::write(database, &whole[..whole.len() / 2]).unwrap();
            }
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Deleted | Self::Emptied => "error[CR0016]: ",
            Self::Overwritten | Self::Truncated => "error[CR0013]: ",
        }
    }
}

/// Checkpoints everything into the one file, where the loss is simulated.
fn gather(database: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = SqliteConnectOptions::new().filename(database);
        let mut database = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    });
}

#[test]
fn a_fresh_state_directory_is_initialised_silently() {
    let home = Home::without_engine();
    let output = run(&home, "reconcile").expect_code(0);
    assert_eq!(output.stderr, "0 records examined, 0 released\n");
    let id = fs::read_to_string(home.creel.state().join("ledger.id")).unwrap();
    assert_eq!(id.trim(), home.ledger_id());
}

#[test]
fn an_older_ledger_gets_its_id_file_with_the_next_command() {
    let home = Home::without_engine();
    let id = home.ledger_id();
    let file = home.creel.state().join("ledger.id");
    fs::remove_file(&file).unwrap();
    assert_eq!(home.ledger_id(), id);
    assert_eq!(fs::read_to_string(file).unwrap().trim(), id);
}

/// Loses the ledger of two orphans. Asserts that every command reports it and changes nothing.
fn lose(home: &Home, loss: Loss) -> Vec<String> {
    let resources = orphan(home, &["--process", "--directory"]);
    loss.strike(home);
    let left = fs::read(&ledger_files(home)[0]).ok();
    for line in COMMANDS {
        let output = run(home, line).expect_code(1);
        assert!(output.stderr.starts_with(loss.code()), "{loss:?}\n{output}");
        assert!(output.stderr.contains("creel ledger rebuild"), "{output}");
    }
    let listed = run(home, "ls").expect_code(0);
    assert!(listed.stderr.starts_with("warning: owners are read from labels alone"), "{listed}");
    let doctor = run(home, "doctor --json").expect_code(1).json();
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "ledger").unwrap();
    assert_eq!(check["status"], "problem", "{doctor}");
    assert!(check["hint"].as_str().unwrap().contains("creel ledger rebuild"), "{doctor}");
    assert_eq!(fs::read(&ledger_files(home)[0]).ok(), left, "the file was changed");
    resources
}

#[test]
fn a_lost_ledger_is_noticed_by_every_command_and_rebuilt() {
    for loss in [Loss::Deleted, Loss::Emptied, Loss::Overwritten, Loss::Truncated] {
        let home = Home::without_engine();
        let id = home.ledger_id();
        let foreign = home.creel.state().join("sandboxes/notes");
        let resources = lose(&home, loss);
        fs::create_dir_all(&foreign).unwrap();

        let shown = run(&home, "ledger rebuild --json").expect_code(0).json();
        let found: Vec<&Value> =
            shown["resources"].as_array().unwrap().iter().map(|one| &one["resource"]).collect();
        assert_eq!((&shown["applied"], &shown["ledger"]), (&json!(false), &json!(id)), "{loss:?}");
        assert_eq!(json!(found), json!(resources), "{loss:?}");
        run(&home, "reconcile").expect_code(1);

        // The leftovers of an interrupted rebuild are no obstacle.
        fs::create_dir(home.creel.state().join("ledger.rebuild")).unwrap();
        let output = run(&home, "ledger rebuild --apply").expect_code(0);
        assert!(output.stdout.contains(&resources[0]), "{output}");
        assert!(output.stderr.contains("2 resources"), "{output}");
        assert_eq!(home.ledger_id(), id, "the ledger has another id");
        assert_eq!(home.open_records().len(), 2);
        run(&home, "ledger check").expect_code(0);
        assert!(!home.creel.state().join("ledger.rebuild").exists(), "a draft was left");
        let entries = fs::read_dir(home.creel.state()).unwrap().flatten();
        let kept = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("ledger.db.damaged-"));
        assert_eq!(kept.count(), usize::from(loss != Loss::Deleted), "{loss:?}");

        run(&home, "reconcile").expect_code(0);
        assert!(foreign.is_dir(), "a foreign directory was removed");
        fs::remove_dir(&foreign).unwrap();
        assert_eq!(home.on_machine(), [""; 0]);
        assert!(home.open_records().is_empty());
        run(&home, "ledger rebuild").expect_code(4);
    }
}

#[test]
fn a_rebuilt_ledger_keeps_the_resources_of_a_live_owner() {
    let home = Home::without_engine();
    let holding = home.hold(&["--process", "--directory"]);
    for file in ledger_files(&home) {
        let _ = fs::remove_file(file);
    }
    run(&home, "reconcile").expect_code(1);
    let shown = run(&home, "ledger rebuild --apply --json").expect_code(0).json();
    let owners: Vec<&Value> =
        shown["resources"].as_array().unwrap().iter().map(|one| &one["owner"]).collect();
    assert_eq!(json!(owners), json!(["alive", "alive"]));
    let kept = run(&home, "reconcile --json").expect_code(0).json();
    assert_eq!((&kept["kept"], &kept["items"]), (&json!(2), &json!([])));
    holding.running.signal("INT");
    holding.running.wait();
    home.await_quiet();
    run(&home, "reconcile").expect_code(0);
    assert!(home.open_records().is_empty());
    assert_eq!(home.on_machine(), [""; 0]);
}

#[test]
fn a_sandbox_without_a_readable_record_is_put_on_record_by_its_name_and_kept_for_a_lease() {
    let home = Home::without_engine();
    let resource = orphan(&home, &["--directory"]).remove(0);
    let sandboxes = home.creel.state().join("sandboxes");
    fs::write(sandboxes.join(format!("{}.json", &resource[4..])), "damaged").unwrap();
    Loss::Deleted.strike(&home);
    let shown = run(&home, "ledger rebuild --apply --json").expect_code(0).json();
    let found = &shown["resources"][0];
    assert_eq!((&found["resource"], &found["owner"]), (&json!(resource), &json!("unknown")));
    assert!(found["evidence"].as_str().unwrap().contains("this ledger's directory"), "{shown}");
    let kept = run(&home, "reconcile --json").expect_code(0).json();
    assert_eq!(kept["kept"], 1, "{kept}");
}

#[test]
fn without_an_id_file_the_ledger_id_comes_from_the_sandboxes_or_the_user() {
    let home = Home::without_engine();
    let id = home.ledger_id();
    orphan(&home, &["--directory"]);
    Loss::Deleted.strike(&home);
    let id_file = home.creel.state().join("ledger.id");
    fs::remove_file(&id_file).unwrap();
    let shown = run(&home, "ledger rebuild --json").expect_code(0).json();
    assert_eq!(shown["ledger"], json!(id));

    // Only an event log is left.
    fs::remove_dir_all(home.creel.state().join("sandboxes")).unwrap();
    assert_eq!(run(&home, "reconcile").code(), Some(0), "nothing is left of it");
    Loss::Deleted.strike(&home);
    fs::remove_file(&id_file).unwrap();
    fs::write(home.creel.state().join("events.db"), "damaged").unwrap();
    run(&home, "reconcile").expect_code(1);
    let refused = run(&home, "ledger rebuild").expect_code(4);
    assert!(refused.stderr.starts_with("error[CR0018]: "), "{refused}");
    let shown = run(&home, &format!("ledger rebuild --json --id {id}")).expect_code(0).json();
    assert_eq!(shown["ledger"], json!(id));
    assert_eq!(shown["unreadable"].as_array().unwrap().len(), 1, "{shown}");
}

#[test]
fn a_new_ledger_is_started_only_on_request_and_keeps_the_old_files() {
    let home = Home::without_engine();
    let (old, resources) = (home.ledger_id(), lose(&home, Loss::Emptied));
    run(&home, "ledger rebuild --new").expect_code(0);
    run(&home, "reconcile").expect_code(1);
    let output = run(&home, "ledger rebuild --new --apply").expect_code(0);
    assert!(output.stderr.contains(&format!("creel sweep --ledger {old}")), "{output}");
    assert_ne!(home.ledger_id(), old);
    run(&home, "reconcile").expect_code(0);
    assert!(home.open_records().is_empty());
    // The objects of the old ledger are found by its id, and released only when it is named.
    let line = format!("sweep --ledger {old} --apply --json");
    let swept = run(&home, &line).expect_code(0).json();
    assert_eq!(swept["items"].as_array().unwrap().len(), resources.len(), "{swept}");
    assert_eq!(home.on_machine(), [""; 0]);
}

#[test]
fn leftovers_in_a_moved_state_directory_are_released_at_their_new_place() {
    let home = Home::without_engine();
    let resources = orphan(&home, &["--process", "--directory"]);
    let moved = home.path("moved");
    fs::rename(home.creel.state(), &moved).unwrap();
    let creel = home.creel.clone().env("CREEL_HOME", &moved);
    let report = creel.run(["reconcile", "--json"]).expect_code(0).json();
    assert_eq!(report["items"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(fs::read_dir(moved.join("sandboxes")).unwrap().count(), 0);
    let running = assignments_of("CREEL_RESOURCE");
    assert!(!running.iter().any(|(_, resource)| resources.contains(resource)), "{running:?}");
}

#[test]
fn the_ledger_of_another_directory_is_refused() {
    let (home, other) = (Home::without_engine(), Home::without_engine());
    let (mine, theirs) = (home.ledger_id(), other.ledger_id());
    let file = &ledger_files(&home)[0];
    gather(file);
    gather(&ledger_files(&other)[0]);
    let own = fs::read(file).unwrap();
    fs::copy(&ledger_files(&other)[0], file).unwrap();
    for line in COMMANDS {
        let output = run(&home, line).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0017]: "), "{output}");
        assert!(output.stderr.contains(&mine) && output.stderr.contains(&theirs), "{output}");
    }
    fs::write(file, own).unwrap();
    assert_eq!(home.ledger_id(), mine);
}

#[test]
fn objects_on_an_engine_are_found_again_and_copies_of_their_labels_are_not() {
    let engine = Engine::from_env();
    let home = Home::on(&engine);
    let flags = ["--container", image::REFERENCE, "--network", "--volume"];
    let resources = orphan(&home, &flags);
    // Copies of our labels under other names, and a volume without any label.
    let copied = home.labels_of(&json!({ "resource": resources[0] }));
    let docker = engine.docker();
    let copies = Decoys::copies(&engine, &unique("vanished.copy"), &copied).unwrap();
    let other = docker.create_volume(&unique("vanished.other"), &Labels::new()).unwrap();
    Loss::Deleted.strike(&home);
    run(&home, "reconcile").expect_code(1);
    run(&home, "sweep --apply").expect_code(1);

    let shown = run(&home, "ledger rebuild --json --apply").expect_code(0).json();
    assert_eq!(shown["resources"].as_array().unwrap().len(), 3, "{shown:#}");
    let unproven = shown["unproven"].as_array().unwrap().iter();
    let unproven: BTreeSet<&str> = unproven.map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(unproven, copies.ids().into_iter().collect(), "{shown:#}");
    run(&home, "reconcile").expect_code(0);
    let left = home.on_engine(&engine);
    let left: BTreeSet<&str> = left.objects().map(|one| one.id.as_str()).collect();
    assert_eq!(left, copies.ids().into_iter().collect());
    copies.assert_untouched();
    assert!(docker.inspect_volume(&other).unwrap().is_some());
    docker.remove_volume(&other).unwrap();
}

#[test]
fn sandboxes_at_daytona_are_found_again_and_decoys_stay() {
    let daytona = Daytona::start(Settings::hollow());
    let mut home = Home::without_engine();
    home.creel = daytona.point(home.creel.clone());
    let id = home.ledger_id();
    let mut resources = orphan(&home, &["--sandbox", "--count", "2"]);
    resources.sort();
    for record in home.records() {
        let text = |name: &str| record[name].as_str().unwrap().to_owned();
        daytona.plant(&text("name"), &text("resource"), &id);
    }
    let ours: Vec<Value> = daytona.left();
    assert_eq!(ours.len(), 2, "{ours:#?}");
    Loss::Deleted.strike(&home);
    for line in ["reconcile", "sweep --apply"] {
        let output = run(&home, line).expect_code(1);
        assert!(output.stderr.contains("creel ledger rebuild"), "{output}");
    }

    // Without `--apply` nothing is written and nothing is released.
    let shown = run(&home, "ledger rebuild --json").expect_code(0).json();
    assert_eq!((&shown["applied"], &shown["ledger"]), (&json!(false), &json!(id)), "{shown:#}");
    let found = shown["resources"].as_array().unwrap().iter();
    assert_eq!(json!(found.map(|one| &one["resource"]).collect::<Vec<_>>()), json!(resources));
    assert!(!shown["unproven"].as_array().unwrap().is_empty(), "{shown:#}");
    run(&home, "reconcile").expect_code(1);
    assert_eq!(daytona.left(), ours);

    run(&home, "ledger rebuild --apply").expect_code(0);
    assert_eq!((home.ledger_id(), home.open_records().len()), (id, 2));
    run(&home, "reconcile").expect_code(0);
    assert_eq!(daytona.left(), Vec::<Value>::new());
    assert!(home.open_records().is_empty());
    daytona.assert_decoys_untouched();
}

/// Returns how many ledgers were put aside as damaged.
fn put_aside(home: &Home) -> usize {
    let entries = fs::read_dir(home.creel.state()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("ledger.db.damaged-")).count()
}

#[test]
fn a_rebuild_that_was_overtaken_leaves_the_ledger_of_the_other_alone() {
    let home = Home::without_engine();
    home.ledger_id();
    orphan(&home, &["--directory"]);
    Loss::Deleted.strike(&home);
    let state = home.creel.state();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let providers = Providers::new(Vec::new());
    let survey = runtime.block_on(rebuild::survey(&state, &providers, None)).unwrap();

    run(&home, "ledger rebuild --apply").expect_code(0);
    orphan(&home, &["--directory"]);
    let records = home.open_records();
    assert_eq!(records.len(), 1, "the first orphan is released by the next command");
    let overtaken = runtime.block_on(rebuild::write(&state, &survey));
    assert!(matches!(overtaken, Err(RebuildError::NotNeeded)), "{overtaken:?}");
    assert_eq!((home.open_records(), put_aside(&home)), (records, 0));
    run(&home, "reconcile").expect_code(0);
    assert_eq!(home.on_machine(), [""; 0]);
}

#[test]
fn rebuilds_at_once_lose_nothing_and_double_nothing() {
    for _ in 0..4 {
        let daytona = Daytona::start(Settings::hollow());
        let mut home = Home::without_engine();
        home.creel = daytona.point(home.creel.clone());
        let id = home.ledger_id();
        let mut resources = orphan(&home, &["--sandbox", "--directory", "--count", "2"]);
        resources.sort();
        for record in home.records().iter().filter(|record| record["kind"] == "sandbox") {
            let text = |name: &str| record[name].as_str().unwrap().to_owned();
            daytona.plant(&text("name"), &text("resource"), &id);
        }
        Loss::Deleted.strike(&home);
        let rebuild = || home.creel.spawn(["ledger", "rebuild", "--apply"]);
        let rebuilds: Vec<_> = (0..4).map(|_| rebuild()).collect();
        let outputs: Vec<_> = rebuilds.into_iter().map(|rebuild| rebuild.wait()).collect();
        let count = |code| outputs.iter().filter(|output| output.code() == Some(code)).count();
        // The others were refused: another one had the lock, or was done.
        assert_eq!((count(0), count(1) + count(4)), (1, 3), "{outputs:#?}");
        assert_eq!((home.ledger_id(), put_aside(&home)), (id, 0));
        let records = home.open_records();
        let mut found: Vec<&str> =
            records.iter().map(|record| record["resource"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, resources);
        run(&home, "ledger check").expect_code(0);
        run(&home, "reconcile").expect_code(0);
        assert_eq!(daytona.left(), Vec::<Value>::new());
        daytona.assert_decoys_untouched();
        assert_eq!(home.on_machine(), [""; 0]);
        assert!(home.open_records().is_empty());
    }
}
