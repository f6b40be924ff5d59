//! Directories: removed as a whole, with no effect on their neighbours or on link targets.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use creel_model::provider::{ErrorClass, Kind, Marks, Provider, ReleaseMode, Released};

use crate::fixture::{
    ProcessFixture, command, directory, may_mount, odd_seconds, process_of, wait,
};

fn release(fixture: &ProcessFixture, id: &str) -> creel_model::provider::Result<Released> {
    wait(fixture.provider.release(Kind::Directory, id, ReleaseMode::AT_ONCE))
}

fn create(fixture: &ProcessFixture) -> (String, PathBuf) {
    let id = wait(fixture.provider.create(&directory())).expect("it can be made");
    let path = fixture.provider.directory(&id).expect("it is an id of ours");
    (id, path)
}

#[test]
fn a_directory_is_created_listed_and_removed() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::write(path.join("file"), "text").expect("it is ours");
    let listed = wait(fixture.provider.list(&[Kind::Directory])).expect("readable");
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id.as_str(), listed[0].state.as_str()), (id.as_str(), "present"));
    assert_eq!(listed[0].labels.len(), 1);
    assert_eq!(wait(fixture.provider.list(&[Kind::Process])).expect("readable"), []);
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    assert_eq!(wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable"), None);
    assert_eq!(release(&fixture, &id).expect("twice is fine"), Released::AlreadyGone);
    fixture.assert_empty();
}

#[test]
fn near_identical_directories_survive() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let decoys = [
        path.with_file_name(format!("{id}0")),
        path.with_file_name(&id[..id.len() - 1]),
        path.with_file_name(id.to_uppercase()),
    ];
    for decoy in &decoys {
        fs::create_dir(decoy).expect("the name is free");
    }
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    for decoy in &decoys {
        let name = decoy.file_name().expect("named above").to_str().expect("plain");
        let refused = release(&fixture, name).expect_err("not an id of ours");
        assert_eq!(refused.class, ErrorClass::Invalid, "{refused}");
        assert!(decoy.is_dir(), "{decoy:?} was removed");
    }
}

#[test]
fn a_link_to_the_outside_does_not_delete_its_target() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::create_dir(fixture.outside()).expect("the name is free");
    fs::write(fixture.outside().join("kept"), "kept").expect("it is ours");
    symlink(fixture.outside(), path.join("link")).expect("links can be made");
    fs::create_dir(path.join("inner")).expect("the name is free");
    symlink(fixture.outside().join("kept"), path.join("inner/link")).expect("links can be made");
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    assert_eq!(fs::read_to_string(fixture.outside().join("kept")).expect("untouched"), "kept");
    fixture.assert_empty();
}

#[test]
fn a_link_in_place_of_a_directory_is_refused() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::create_dir(fixture.outside()).expect("the name is free");
    fs::remove_dir(&path).expect("it is empty");
    symlink(fixture.outside(), &path).expect("links can be made");
    let released = release(&fixture, &id).expect("everything can be inspected");
    assert!(matches!(released, Released::Kept(_)), "{released:?}");
    assert!(fixture.outside().is_dir() && fs::symlink_metadata(&path).is_ok());
}

#[test]
fn a_mount_inside_blocks_the_release() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let point = path.join("a mount");
    fs::create_dir(&point).expect("the name is free");
    let mount = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).arg(&point).status();
        status.expect("it is installed").success()
    };
    if !mount("mount", &["-t", "tmpfs", "none"]) {
        assert!(!may_mount(), "the right is there and the mount failed");
        return;
    }
    fs::write(point.join("kept"), "kept").expect("it is ours");
    let refused = release(&fixture, &id);
    let kept = fs::read_to_string(point.join("kept"));
    assert!(mount("umount", &[]));
    let refused = refused.expect_err("something is mounted in it");
    assert_eq!(refused.class, ErrorClass::InUse);
    assert!(refused.message.contains("a mount"), "{}", refused.message);
    assert_eq!(kept.expect("untouched"), "kept");
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
}

#[test]
fn unwritable_and_deep_directories_are_removed() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let locked = path.join("locked/inner");
    fs::create_dir_all(&locked).expect("it is ours");
    fs::write(locked.join("file"), "text").expect("it is ours");
    for one in [locked.as_path(), &path.join("locked"), &path] {
        fs::set_permissions(one, Permissions::from_mode(0o000)).expect("it is ours");
    }
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);

    let (id, path) = create(&fixture);
    // Deeper than the limits for open files and for the length of a path.
    fs::create_dir(path.join("0")).expect("it is ours");
    for level in 1..3000 {
        let outer = path.join(level.to_string());
        fs::create_dir(&outer).expect("it is ours");
        let inner = path.join((level - 1).to_string());
        fs::rename(inner, outer.join("deep-directory")).expect("it is ours");
    }
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    fixture.assert_empty();
}

#[test]
fn a_partially_removed_directory_is_listed_and_its_removal_is_finished() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::write(path.join("file"), "text").expect("it is ours");
    let before = wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable");
    fs::rename(&path, path.with_file_name(format!(".{id}.removing"))).expect("it is ours");
    let after = wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable");
    assert_eq!(before, after);
    assert!(after.is_some());
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    fixture.assert_empty();
}

#[test]
fn a_directory_with_a_running_tree_is_in_use() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let mut request = command(&["sleep", &odd_seconds()]);
    process_of(&mut request).directory = Some(path.clone());
    let tree = wait(fixture.provider.create(&request)).expect("sleep is installed");
    let refused = release(&fixture, &id).expect_err("a tree runs in it");
    assert_eq!(refused.class, ErrorClass::InUse);
    assert_eq!(refused.message, format!("process {tree} runs in it"));
    assert!(path.is_dir());
    fixture.release(&tree);
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    fixture.assert_empty();
}

#[test]
fn a_record_without_a_directory_is_lost_and_released() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::remove_dir(&path).expect("it is empty");
    let seen = wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable");
    assert_eq!(seen.expect("the record is there").state, "lost");
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    fixture.assert_empty();
}

#[test]
fn a_record_that_was_never_finished_is_found_and_released() {
    for (kind, request) in [(Kind::Directory, directory()), (Kind::Process, command(&[]))] {
        let fixture = ProcessFixture::new();
        fs::create_dir_all(fixture.root()).expect("it can be made");
        let half = fixture.root().join(format!("{}.json.new", request.resource.digits()));
        fs::write(half, "{\"version\":").expect("it is ours");
        let marks = Marks { kind, resource: request.resource, name: request.name };
        let found = wait(fixture.provider.find(&marks)).expect("readable");
        assert_eq!(found.len(), 1, "{kind}");
        assert_eq!(found[0].state, "lost", "{kind}");
        let released = wait(fixture.provider.release(kind, &found[0].id, ReleaseMode::AT_ONCE));
        assert_eq!(released.expect("it can go"), Released::Done, "{kind}");
        assert_eq!(wait(fixture.provider.find(&marks)).expect("readable"), [], "{kind}");
        fixture.assert_empty();
    }
}

#[test]
fn other_kinds_and_malformed_ids_are_refused_and_never_absent() {
    let fixture = ProcessFixture::new();
    let (id, _) = create(&fixture);
    let wrong = [
        (Kind::Container, id.as_str()),
        (Kind::Volume, id.as_str()),
        (Kind::Sandbox, id.as_str()),
        (Kind::Directory, "creel-not-an-id"),
        (Kind::Directory, ""),
        (Kind::Directory, "../outside"),
        (Kind::Process, "12"),
    ];
    for (kind, id) in wrong {
        let inspected = wait(fixture.provider.inspect(kind, id)).map(drop);
        let released = wait(fixture.provider.release(kind, id, ReleaseMode::AT_ONCE)).map(drop);
        for result in [inspected, released] {
            let error = result.expect_err("it is refused");
            assert_eq!(error.class, ErrorClass::Invalid, "{kind} {id}: {error}");
        }
    }
    assert!(wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable").is_some());
}

/// Makes files and directories immovable (`+i`), or removable again (`-i`).
fn change(paths: &[PathBuf], how: &str) {
    let status = Command::new("chattr").arg(how).args(paths).status();
    assert!(status.expect("it is installed").success(), "chattr {how} {paths:?}");
}

/// Returns the files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("readable").map(|entry| entry.expect("readable"));
    let paths = entries.map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn what_cannot_be_removed_does_not_keep_the_rest() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    for inner in ["a/b/c", "d/e/f", "sealed/inner"] {
        fs::create_dir_all(path.join(inner)).expect("the name is free");
    }
    for file in ["1", "a/2", "a/b/3", "a/b/c/4", "d/5", "d/e/6", "d/e/f/7", "sealed/inner/8"] {
        fs::write(path.join(file), file).expect("it is ours");
    }
    let deep = path.join("d/e/f/stuck");
    fs::write(&deep, "").expect("it is ours");
    change(&[path.join("1"), deep, path.join("sealed")], "+i");
    let refused = release(&fixture, &id);
    let private = path.with_file_name(format!(".{id}.removing"));
    let left = files_below(&private);
    let name_of = |file: &PathBuf| file.file_name().expect("it has one").to_owned();
    let is_stuck = |file: &&PathBuf| name_of(file) == "1" || name_of(file) == "stuck";
    let mut stuck: Vec<PathBuf> = left.iter().filter(is_stuck).cloned().collect();
    stuck.push(private.join("sealed"));
    change(&stuck, "-i");
    let mut names: Vec<_> = left.iter().map(name_of).collect();
    names.sort();
    // Nothing can be moved out of a sealed directory, so what is below it stays too.
    assert_eq!(names, ["1", "8", "stuck"]);
    refused.expect_err("something cannot be removed");
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    fixture.assert_empty();
}
