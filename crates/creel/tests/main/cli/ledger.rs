//! A ledger that cannot be used: nothing untracked is created, nothing on record is lost.

use std::fs;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::fake_engine::FakeEngine;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::small_disk::SmallDisk;

use super::bench::{Bench, Hold, reason, results, text};

/// Holds a directory until it is killed, so that the ledger has one record of a dead owner.
fn leave_a_record(bench: &Bench) -> String {
    let hold = bench.hold("--directory --no-watchdog");
    let resource = hold.resource("directory");
    hold.kill();
    resource
}

fn records(bench: &Bench) -> Vec<String> {
    let json = bench.run("ledger --json").expect_code(0).json();
    let records = json["records"].as_array().unwrap().iter();
    records.map(|record| text(record, "resource").to_owned()).collect()
}

/// Asks for a volume on an engine that would tell, and checks that nobody asked it for one.
fn refused_hold(bench: &Bench, code: &str) -> Output {
    let fake = FakeEngine::start().unwrap();
    let creel = bench.creel().env("DOCKER_HOST", fake.host());
    let output = creel.run(["dev", "hold", "--volume", "--for", "1ms"]);
    assert!(output.stderr.contains(&format!("error[{code}]: ")), "{output}");
    let made = fake.requests().into_iter().filter(|request| request.starts_with("POST"));
    assert_eq!(made.collect::<Vec<_>>(), [""; 0], "nothing may be created untracked");
    output
}

async fn database(bench: &Bench) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(bench.state().join("ledger.db"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn a_command_waits_for_as_long_as_another_process_writes_the_ledger() {
    let bench = Bench::new();
    let resource = leave_a_record(&bench);
    let waiting = block_on(async {
        let mut database = database(&bench).await;
        sqlx::query("BEGIN EXCLUSIVE").execute(&mut database).await.unwrap();
        // Readers do not wait.
        assert_eq!(records(&bench), std::slice::from_ref(&resource));
        let command = bench.creel();
        let waiting = std::thread::spawn(move || command.run(["reconcile"]));
        // Longer than SQLite itself waits.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert!(!waiting.is_finished(), "it did not wait");
        sqlx::query("ROLLBACK").execute(&mut database).await.unwrap();
        waiting
    });
    let output = waiting.join().unwrap().expect_code(0);
    assert!(output.stderr.contains("1 released"), "{output}");
    assert_eq!(records(&bench), [""; 0]);
}

#[test]
fn a_read_only_ledger_stops_creates_but_not_the_cleaning_of_foreign_things() {
    let bench = Bench::new();
    let mount = SmallDisk::tmpfs(&bench.state(), "16m");
    let hold = bench.hold("--volume --no-watchdog");
    let (tracked, resource) = (hold.name("volume"), hold.resource("volume"));
    hold.kill();
    bench.volume("-foreign");
    mount.remount("ro");

    refused_hold(&bench, "CR0011").expect_code(1);
    let listed = bench.run("ls --json --kind volume").expect_code(0);
    assert!(listed.stdout.contains(&tracked) && listed.stderr.contains("read-only"), "{listed}");
    let line = format!("sweep --json --apply --name {tracked} --name {}-*", bench.name);
    let output = bench.run(&line).expect_code(3);
    assert!(output.stderr.starts_with("warning: "), "{output}");
    assert!(output.stderr.contains("did not release: 1"), "{output}");
    assert_eq!(results(&output, "gone"), [format!("volume {}", bench.named("-foreign"))]);
    let why = "creel tracks it, and the ledger cannot be written";
    assert_eq!(reason(&output, &tracked), why);
    // Orphans are left, whatever was meant: that is never 0.
    for line in ["sweep --apply", "sweep --apply --name nothing-has-this-name"] {
        let output = bench.run(line).expect_code(3);
        assert!(output.stderr.contains("error[CR0011]: "), "{output}");
    }
    bench.run("sweep").expect_code(0);

    mount.remount("rw");
    assert_eq!(records(&bench), [resource]);
    let output = bench.run("reconcile").expect_code(0);
    assert!(output.stderr.contains("1 released"), "{output}");
    assert!(bench.docker().inspect_volume(&tracked).unwrap().is_none());
}

#[test]
fn a_full_disk_stops_creates_and_loses_no_record() {
    let bench = Bench::new();
    let disk = SmallDisk::tmpfs(&bench.state(), "2m");
    // One that lives and one whose owner is dead, on a ledger that is in use.
    let live = Hold::start(&bench.creel(), "--directory");
    let orphan = leave_a_record(&bench);
    bench.volume("-foreign");
    let filler = disk.fill();
    let refused = refused_hold(&bench, "CR0012").expect_code(1);
    // What a dead owner left is released all the same, with the space that is kept for that.
    assert!(refused.stderr.contains("also released 1 orphaned"), "{refused}");
    bench.run("ls").expect_code(0);
    let line = format!("sweep --json --apply --name {}-*", bench.name);
    let output = bench.run(&line);
    assert_eq!(bench.there(), [""; 0], "{output}");
    fs::remove_file(filler).unwrap();
    assert_eq!(records(&bench), [live.resource("directory")], "{orphan} is released");
    bench.run("ledger check").expect_code(0);
    assert_eq!(live.end().code(), Some(130));
    bench.run("reconcile").expect_code(0);
    assert_eq!(records(&bench), [""; 0]);
}

#[test]
fn a_damaged_ledger_is_refused_and_not_changed() {
    let bench = Bench::new();
    leave_a_record(&bench);
    // Everything into the one file, where damage meets it.
    block_on(async {
        let mut database = database(&bench).await;
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    });
    let file = bench.state().join("ledger.db");
    let whole = fs::read(&file).unwrap();
    let mut middle = whole.clone();
    middle[4096..].fill(0x5a);
    for damaged in [b"this is not a database, whatever its name says".to_vec(), middle] {
        fs::write(&file, &damaged).unwrap();
        for line in ["sweep --apply --owned", "reconcile", "rm anything", "ledger"] {
            let output = bench.run(line).expect_code(1);
            assert!(output.stderr.starts_with("error[CR0013]: "), "{output}");
            assert!(output.stderr.contains("\n\nhint: creel ledger rebuild"), "{output}");
        }
        refused_hold(&bench, "CR0013").expect_code(1);
        let listed = bench.run("ls").expect_code(0);
        assert!(listed.stderr.starts_with("warning: owners are read from labels"), "{listed}");
        assert_eq!(fs::read(&file).unwrap(), damaged, "what is damaged is evidence");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(records(&bench).len(), 1);
}

#[test]
fn a_ledger_of_a_newer_creel_is_refused_and_not_changed() {
    let bench = Bench::new();
    let resource = leave_a_record(&bench);
    block_on(async {
        let mut database = database(&bench).await;
        let newer = "INSERT INTO _sqlx_migrations \
                     (version, description, success, checksum, execution_time) \
                     VALUES (99, 'later', 1, x'00', 0)";
        sqlx::query(newer).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    });
    for line in ["sweep --apply --owned", "reconcile", "rm anything", "ledger check"] {
        let output = bench.run(line).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0014]: "), "{output}");
        assert!(output.stderr.contains("(schema 99, this one knows "), "{output}");
    }
    refused_hold(&bench, "CR0014").expect_code(2);
    bench.run("ls").expect_code(0);
    block_on(async {
        let mut database = database(&bench).await;
        let undo = "DELETE FROM _sqlx_migrations WHERE version = 99";
        assert_eq!(sqlx::query(undo).execute(&mut database).await.unwrap().rows_affected(), 1);
    });
    assert_eq!(records(&bench), [resource]);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_named() {
    let bench = Bench::new();
    let file = bench.path("file");
    fs::write(&file, "").unwrap();
    let creel = bench.creel().env("CREEL_HOME", file.join("state"));
    let output = creel.run(["dev", "hold", "--directory", "--for", "1ms"]).expect_code(2);
    assert!(output.stderr.starts_with("error[CR0015]: "), "{output}");
    assert!(output.stderr.contains("hint: set CREEL_HOME"), "{output}");
}
