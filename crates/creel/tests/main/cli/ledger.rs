//! A ledger that cannot be used: nothing untracked is created, nothing on record is lost.

use std::fs;
use std::time::Duration;

use creel_testkit::creel::Output;
use creel_testkit::fake_engine::FakeEngine;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::small_disk::SmallDisk;

use super::fixture::{CliFixture, Hold, reason, results, text};

/// Holds a directory until it is killed, so that the ledger has one record of a dead owner.
fn leave_record_of_dead_owner(fixture: &CliFixture) -> String {
    let hold = fixture.hold("--directory --no-watchdog");
    let resource = hold.resource("directory");
    hold.kill();
    resource
}

fn records(fixture: &CliFixture) -> Vec<String> {
    let json = fixture.run("ledger --json").expect_code(0).json();
    let records = json["records"].as_array().unwrap().iter();
    records.map(|record| text(record, "resource").to_owned()).collect()
}

/// Requests a volume on an engine that records requests, and asserts that none was sent.
fn refused_hold(fixture: &CliFixture, code: &str) -> Output {
    let fake = FakeEngine::start().unwrap();
    let creel = fixture.creel().env("DOCKER_HOST", fake.host());
    let output = creel.run(["dev", "hold", "--volume", "--for", "1ms"]);
    assert!(output.stderr.contains(&format!("error[{code}]: ")), "{output}");
    let made = fake.requests().into_iter().filter(|request| request.starts_with("POST"));
    assert_eq!(made.collect::<Vec<_>>(), [""; 0], "nothing may be created untracked");
    output
}

async fn database(fixture: &CliFixture) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(fixture.state().join("ledger.db"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn a_command_waits_while_another_process_writes_the_ledger() {
    let fixture = CliFixture::new();
    let resource = leave_record_of_dead_owner(&fixture);
    let waiting = block_on(async {
        let mut database = database(&fixture).await;
        sqlx::query("BEGIN EXCLUSIVE").execute(&mut database).await.unwrap();
        // Readers do not wait.
        assert_eq!(records(&fixture), std::slice::from_ref(&resource));
        let command = fixture.creel();
        let waiting = std::thread::spawn(move || command.run(["reconcile"]));
        // Longer than SQLite's own timeout.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert!(!waiting.is_finished(), "it did not wait");
        sqlx::query("ROLLBACK").execute(&mut database).await.unwrap();
        waiting
    });
    let output = waiting.join().unwrap().expect_code(0);
    assert!(output.stderr.contains("1 released"), "{output}");
    assert_eq!(records(&fixture), [""; 0]);
}

#[test]
fn a_read_only_ledger_stops_creates_but_not_the_release_of_foreign_objects() {
    let fixture = CliFixture::new();
    let mount = SmallDisk::tmpfs(&fixture.state(), "16m");
    let hold = fixture.hold("--volume --no-watchdog");
    let (tracked, resource) = (hold.name("volume"), hold.resource("volume"));
    hold.kill();
    fixture.volume("-foreign");
    mount.remount("ro");

    refused_hold(&fixture, "CR0011").expect_code(1);
    let listed = fixture.run("ls --json --kind volume").expect_code(0);
    assert!(listed.stdout.contains(&tracked) && listed.stderr.contains("read-only"), "{listed}");
    let line = format!("sweep --json --apply --name {tracked} --name {}-*", fixture.name);
    let output = fixture.run(&line).expect_code(3);
    assert!(output.stderr.starts_with("warning: "), "{output}");
    assert!(output.stderr.contains("did not release: 1"), "{output}");
    assert_eq!(results(&output, "gone"), [format!("volume {}", fixture.named("-foreign"))]);
    let why = "creel tracks it, and the ledger cannot be written";
    assert_eq!(reason(&output, &tracked), why);
    // Orphans are left, whatever was selected, so the exit code is not 0.
    for line in ["sweep --apply", "sweep --apply --name nothing-has-this-name"] {
        let output = fixture.run(line).expect_code(3);
        assert!(output.stderr.contains("error[CR0011]: "), "{output}");
    }
    fixture.run("sweep").expect_code(0);

    mount.remount("rw");
    assert_eq!(records(&fixture), [resource]);
    let output = fixture.run("reconcile").expect_code(0);
    assert!(output.stderr.contains("1 released"), "{output}");
    assert!(fixture.docker().inspect_volume(&tracked).unwrap().is_none());
}

#[test]
fn a_full_disk_stops_creates_and_loses_no_record() {
    let fixture = CliFixture::new();
    let disk = SmallDisk::tmpfs(&fixture.state(), "2m");
    // One with a live owner and one with a dead owner, on a ledger in use.
    let live = Hold::start(&fixture.creel(), "--directory");
    let orphan = leave_record_of_dead_owner(&fixture);
    fixture.volume("-foreign");
    let filler = disk.fill();
    let refused = refused_hold(&fixture, "CR0012").expect_code(1);
    // Resources of a dead owner are still released, in the space reserved for that.
    assert!(refused.stderr.contains("also released 1 orphaned"), "{refused}");
    fixture.run("ls").expect_code(0);
    let line = format!("sweep --json --apply --name {}-*", fixture.name);
    let output = fixture.run(&line);
    assert_eq!(fixture.there(), [""; 0], "{output}");
    fs::remove_file(filler).unwrap();
    assert_eq!(records(&fixture), [live.resource("directory")], "{orphan} is released");
    fixture.run("ledger check").expect_code(0);
    assert_eq!(live.end().code(), Some(130));
    fixture.run("reconcile").expect_code(0);
    assert_eq!(records(&fixture), [""; 0]);
}

#[test]
fn a_damaged_ledger_is_refused_and_not_changed() {
    let fixture = CliFixture::new();
    leave_record_of_dead_owner(&fixture);
    // Checkpoint everything into the one file, where the damage is done.
    block_on(async {
        let mut database = database(&fixture).await;
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    });
    let file = fixture.state().join("ledger.db");
    let whole = fs::read(&file).unwrap();
    let mut middle = whole.clone();
    middle[4096..].fill(0x5a);
    for damaged in [b"this is not a database, whatever its name says".to_vec(), middle] {
        fs::write(&file, &damaged).unwrap();
        for line in ["sweep --apply --owned", "reconcile", "rm anything", "ledger"] {
            let output = fixture.run(line).expect_code(1);
            assert!(output.stderr.starts_with("error[CR0013]: "), "{output}");
            assert!(output.stderr.contains("\n\nhint: creel ledger rebuild"), "{output}");
        }
        refused_hold(&fixture, "CR0013").expect_code(1);
        let listed = fixture.run("ls").expect_code(0);
        assert!(listed.stderr.starts_with("warning: owners are read from labels"), "{listed}");
        assert_eq!(fs::read(&file).unwrap(), damaged, "what is damaged is evidence");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(records(&fixture).len(), 1);
}

#[test]
fn a_ledger_of_a_newer_creel_is_refused_and_not_changed() {
    let fixture = CliFixture::new();
    let resource = leave_record_of_dead_owner(&fixture);
    block_on(async {
        let mut database = database(&fixture).await;
        let newer = "INSERT INTO _sqlx_migrations \
                     (version, description, success, checksum, execution_time) \
                     VALUES (99, 'later', 1, x'00', 0)";
        sqlx::query(newer).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    });
    for line in ["sweep --apply --owned", "reconcile", "rm anything", "ledger check"] {
        let output = fixture.run(line).expect_code(2);
        assert!(output.stderr.starts_with("error[CR0014]: "), "{output}");
        assert!(output.stderr.contains("(schema 99, this one knows "), "{output}");
    }
    refused_hold(&fixture, "CR0014").expect_code(2);
    fixture.run("ls").expect_code(0);
    block_on(async {
        let mut database = database(&fixture).await;
        let undo = "DELETE FROM _sqlx_migrations WHERE version = 99";
        assert_eq!(sqlx::query(undo).execute(&mut database).await.unwrap().rows_affected(), 1);
    });
    assert_eq!(records(&fixture), [resource]);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_named() {
    let fixture = CliFixture::new();
    let file = fixture.path("file");
    fs::write(&file, "").unwrap();
    let creel = fixture.creel().env("CREEL_HOME", file.join("state"));
    let output = creel.run(["dev", "hold", "--directory", "--for", "1ms"]).expect_code(2);
    assert!(output.stderr.starts_with("error[CR0015]: "), "{output}");
    assert!(output.stderr.contains("hint: set CREEL_HOME"), "{output}");
}
