//! Failed releases: retried by reconcile and by name, and released once the obstacle is gone.

use std::path::PathBuf;
use std::process::Command;

use creel_testkit::engine::Engine;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::json;

use crate::support::{Home, assert_killed};

/// A file that no user can remove, in a directory of creel's. It can be removed again on drop.
pub(crate) struct Immovable {
    file: PathBuf,
}

impl Immovable {
    pub(crate) fn plant(home: &Home, name: &str, text: &str) -> Self {
        let file = home.creel.state().join("sandboxes").join(name).join("kept");
        std::fs::write(&file, text).unwrap();
        change(&file, "+i");
        Self { file }
    }

    pub(crate) fn lift(self) {}
}

impl Drop for Immovable {
    fn drop(&mut self) {
        let removing = |name: &std::ffi::OsStr| format!(".{}.removing", name.to_string_lossy());
        let directory = self.file.parent().unwrap();
        let moved = directory.with_file_name(removing(directory.file_name().unwrap()));
        for file in [self.file.clone(), moved.join("kept")] {
            if file.exists() {
                change(&file, "-i");
            }
        }
    }
}

fn change(file: &std::path::Path, how: &str) {
    let status = Command::new("chattr").arg(how).arg(file).status().unwrap();
    assert!(status.success(), "chattr {how} {}", file.display());
}

/// Acquires a directory, kills its owner, and makes the directory immovable.
fn stuck_directory(home: &Home) -> (String, String, Immovable) {
    let holding = home.hold(&["--directory", "--no-watchdog"]);
    let name = holding.report["held"][0]["name"].as_str().unwrap().to_owned();
    let resource = holding.resources().remove(0);
    assert_killed(&holding.running.kill());
    let obstacle = Immovable::plant(home, &name, "x");
    let refused = home.creel.run(["reconcile", "--json"]).expect_code(3).json();
    assert_eq!(refused["items"][0]["result"], "quarantined", "{refused}");
    (resource, name, obstacle)
}

#[test]
fn a_quarantined_directory_is_retried_by_every_reconcile_and_released_once_possible() {
    let home = Home::without_engine();
    let (resource, _, obstacle) = stuck_directory(&home);
    for _ in 0..2 {
        let report = home.creel.run(["reconcile", "--json"]).expect_code(3).json();
        assert_eq!(
            (&report["quarantined"], &report["items"][0]["result"]),
            (&json!(1), &json!("quarantined"))
        );
        assert_eq!(home.open_records()[0]["state"], "quarantined");
    }
    obstacle.lift();
    let report = home.creel.run(["reconcile", "--json"]).expect_code(0).json();
    assert_eq!((&report["quarantined"], &report["left_quarantine"]), (&json!(0), &json!(1)));
    assert!(home.open_records().is_empty());
    assert_eq!(home.on_machine(), [""; 0]);
    assert_eq!(home.events(&resource).last().unwrap()["event"], "verified_gone");
}

#[test]
fn a_quarantined_resource_is_released_by_every_name_in_the_explanation() {
    for by in ["resource", "name", "prefix", "kind"] {
        let home = Home::without_engine();
        let (resource, name, obstacle) = stuck_directory(&home);
        let named = match by {
            "resource" => resource.clone(),
            "name" => name.clone(),
            "prefix" => name[..20].to_owned(),
            _ => format!("directory/{name}"),
        };
        home.creel.run(["rm", &named]).expect_code(3);
        assert_eq!(home.open_records()[0]["state"], "quarantined", "by {by}");
        obstacle.lift();
        home.creel.run(["rm", &named]).expect_code(0);
        assert!(home.open_records().is_empty(), "by {by}");
        assert_eq!(home.on_machine(), [""; 0], "by {by}");
        home.creel.run(["reconcile"]).expect_code(0);
    }
}

#[test]
fn a_quarantined_resource_that_vanished_is_closed_by_reconcile_and_by_rm() {
    for named in [false, true] {
        let home = Home::without_engine();
        let (resource, name, obstacle) = stuck_directory(&home);
        obstacle.lift();
        std::fs::remove_dir_all(home.creel.state().join("sandboxes")).unwrap();
        if named {
            home.creel.run(["rm", &name]).expect_code(0);
        } else {
            home.creel.run(["reconcile"]).expect_code(0);
        }
        assert!(home.open_records().is_empty(), "{resource}");
        let again = home.creel.run(["rm", &resource]).expect_code(0);
        assert!(again.stderr.contains("is gone already"), "{again}");
    }
}

#[test]
fn a_quarantined_volume_is_released_once_the_engine_allows_it() {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    let home = Home::on(&wire.engine());
    let holding = home.hold(&["--volume", "--no-watchdog"]);
    assert_killed(&holding.running.kill());
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/volumes/", denied).method("DELETE"));
    home.creel.run(["reconcile"]).expect_code(3);
    let again = home.creel.run(["reconcile"]).expect_code(3);
    assert!(
        again.stderr.starts_with("error[CR0040]: ") || again.stderr.contains("CR0040"),
        "{again}"
    );
    assert!(home.open_records()[0]["reason"].as_str().unwrap().contains("not yours"));
    wire.heal();
    home.creel.run(["reconcile"]).expect_code(0);
    assert!(home.open_records().is_empty() && home.on_engine(&engine).is_empty());
}
