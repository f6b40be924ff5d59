//! Directories: removed whole, and nothing beside or behind them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use creel_model::provider::{ErrorClass, Kind, Marks, Provider, ReleaseMode, Released};

use crate::bench::{Bench, command, directory, may_mount, odd_seconds, process_of, wait};
use crate::runner::tests;

tests![
    a_directory_is_created_listed_and_removed,
    near_identical_directories_survive,
    a_link_to_the_outside_keeps_the_outside,
    a_link_in_its_place_is_refused,
    a_mount_below_refuses_the_release,
    unwritable_and_deep_directories_are_removed,
    a_half_removed_directory_is_still_there_and_is_finished,
    a_directory_with_a_running_tree_is_in_use,
    a_record_without_a_directory_is_lost_and_released,
    a_record_that_was_never_finished_is_found_and_released,
    other_kinds_and_malformed_ids_are_refused_and_never_absent,
];

fn release(bench: &Bench, id: &str) -> creel_model::provider::Result<Released> {
    wait(bench.provider.release(Kind::Directory, id, ReleaseMode::AT_ONCE))
}

fn create(bench: &Bench) -> (String, std::path::PathBuf) {
    let id = wait(bench.provider.create(&directory())).expect("it can be made");
    let path = bench.provider.directory(&id).expect("it is an id of ours");
    (id, path)
}

fn a_directory_is_created_listed_and_removed() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    fs::write(path.join("file"), "text").expect("it is ours");
    let listed = wait(bench.provider.list(&[Kind::Directory])).expect("readable");
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id.as_str(), listed[0].state.as_str()), (id.as_str(), "present"));
    assert_eq!(listed[0].labels.len(), 1);
    assert_eq!(wait(bench.provider.list(&[Kind::Process])).expect("readable"), []);
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    assert_eq!(wait(bench.provider.inspect(Kind::Directory, &id)).expect("readable"), None);
    assert_eq!(release(&bench, &id).expect("twice is fine"), Released::AlreadyGone);
    bench.assert_empty();
}

fn near_identical_directories_survive() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    let decoys = [
        path.with_file_name(format!("{id}0")),
        path.with_file_name(&id[..id.len() - 1]),
        path.with_file_name(id.to_uppercase()),
    ];
    for decoy in &decoys {
        fs::create_dir(decoy).expect("the name is free");
    }
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    for decoy in &decoys {
        let name = decoy.file_name().expect("named above").to_str().expect("plain");
        let refused = release(&bench, name).expect_err("not an id of ours");
        assert_eq!(refused.class, ErrorClass::Invalid, "{refused}");
        assert!(decoy.is_dir(), "{decoy:?} was removed");
    }
}

fn a_link_to_the_outside_keeps_the_outside() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    fs::create_dir(bench.outside()).expect("the name is free");
    fs::write(bench.outside().join("kept"), "kept").expect("it is ours");
    symlink(bench.outside(), path.join("link")).expect("links can be made");
    fs::create_dir(path.join("inner")).expect("the name is free");
    symlink(bench.outside().join("kept"), path.join("inner/link")).expect("links can be made");
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    assert_eq!(fs::read_to_string(bench.outside().join("kept")).expect("untouched"), "kept");
    bench.assert_empty();
}

fn a_link_in_its_place_is_refused() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    fs::create_dir(bench.outside()).expect("the name is free");
    fs::remove_dir(&path).expect("it is empty");
    symlink(bench.outside(), &path).expect("links can be made");
    let released = release(&bench, &id).expect("everything can be looked at");
    assert!(matches!(released, Released::Kept(_)), "{released:?}");
    assert!(bench.outside().is_dir() && fs::symlink_metadata(&path).is_ok());
}

fn a_mount_below_refuses_the_release() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
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
    let refused = release(&bench, &id);
    let kept = fs::read_to_string(point.join("kept"));
    assert!(mount("umount", &[]));
    let refused = refused.expect_err("something is mounted in it");
    assert_eq!(refused.class, ErrorClass::InUse);
    assert!(refused.message.contains("a mount"), "{}", refused.message);
    assert_eq!(kept.expect("untouched"), "kept");
    assert_eq!(release(&bench, &id).expect("now it can go"), Released::Done);
}

fn unwritable_and_deep_directories_are_removed() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    let locked = path.join("locked/inner");
    fs::create_dir_all(&locked).expect("it is ours");
    fs::write(locked.join("file"), "text").expect("it is ours");
    for one in [locked.as_path(), &path.join("locked"), &path] {
        fs::set_permissions(one, Permissions::from_mode(0o000)).expect("it is ours");
    }
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);

    let (id, path) = create(&bench);
    // Deeper than the number of files a process may have open, and than a path may be long.
    fs::create_dir(path.join("0")).expect("it is ours");
    for level in 1..3000 {
        let outer = path.join(level.to_string());
        fs::create_dir(&outer).expect("it is ours");
        let inner = path.join((level - 1).to_string());
        fs::rename(inner, outer.join("deep-directory")).expect("it is ours");
    }
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    bench.assert_empty();
}

fn a_half_removed_directory_is_still_there_and_is_finished() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    fs::write(path.join("file"), "text").expect("it is ours");
    let before = wait(bench.provider.inspect(Kind::Directory, &id)).expect("readable");
    fs::rename(&path, path.with_file_name(format!(".{id}.removing"))).expect("it is ours");
    let after = wait(bench.provider.inspect(Kind::Directory, &id)).expect("readable");
    assert_eq!(before, after);
    assert!(after.is_some());
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    bench.assert_empty();
}

fn a_directory_with_a_running_tree_is_in_use() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    let mut request = command(&["sleep", &odd_seconds()]);
    process_of(&mut request).directory = Some(path.clone());
    let tree = wait(bench.provider.create(&request)).expect("sleep is installed");
    let refused = release(&bench, &id).expect_err("a tree runs in it");
    assert_eq!(refused.class, ErrorClass::InUse);
    assert_eq!(refused.message, format!("process {tree} runs in it"));
    assert!(path.is_dir());
    bench.release(&tree);
    assert_eq!(release(&bench, &id).expect("now it can go"), Released::Done);
    bench.assert_empty();
}

fn a_record_without_a_directory_is_lost_and_released() {
    let bench = Bench::new();
    let (id, path) = create(&bench);
    fs::remove_dir(&path).expect("it is empty");
    let seen = wait(bench.provider.inspect(Kind::Directory, &id)).expect("readable");
    assert_eq!(seen.expect("the record is there").state, "lost");
    assert_eq!(release(&bench, &id).expect("it can go"), Released::Done);
    bench.assert_empty();
}

fn a_record_that_was_never_finished_is_found_and_released() {
    for (kind, request) in [(Kind::Directory, directory()), (Kind::Process, command(&[]))] {
        let bench = Bench::new();
        fs::create_dir_all(bench.root()).expect("it can be made");
        let half = bench.root().join(format!("{}.json.new", request.resource.digits()));
        fs::write(half, "{\"version\":").expect("it is ours");
        let marks = Marks { kind, resource: request.resource, name: request.name };
        let found = wait(bench.provider.find(&marks)).expect("readable");
        assert_eq!(found.len(), 1, "{kind}");
        assert_eq!(found[0].state, "lost", "{kind}");
        let released = wait(bench.provider.release(kind, &found[0].id, ReleaseMode::AT_ONCE));
        assert_eq!(released.expect("it can go"), Released::Done, "{kind}");
        assert_eq!(wait(bench.provider.find(&marks)).expect("readable"), [], "{kind}");
        bench.assert_empty();
    }
}

fn other_kinds_and_malformed_ids_are_refused_and_never_absent() {
    let bench = Bench::new();
    let (id, _) = create(&bench);
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
        let inspected = wait(bench.provider.inspect(kind, id)).map(drop);
        let released = wait(bench.provider.release(kind, id, ReleaseMode::AT_ONCE)).map(drop);
        for result in [inspected, released] {
            let error = result.expect_err("it is refused");
            assert_eq!(error.class, ErrorClass::Invalid, "{kind} {id}: {error}");
        }
    }
    assert!(wait(bench.provider.inspect(Kind::Directory, &id)).expect("readable").is_some());
}
