//! Directories with a disk of a fixed size: the size is enforced, and the release leaves no trace.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use creel_model::crashpoint::Crashpoint;
use creel_model::provider::{
    CreateRequest, ErrorClass, Kind, Provider, ReleaseMode, Released, Spec,
};
use creel_process::{Containment, disk_refusal};

use crate::fixture::{
    ProcessFixture, command, die_during_create, directory, odd_seconds, process_of, sleeper_count,
    wait,
};

const BYTES: u64 = 32 << 20;

fn disk() -> CreateRequest {
    CreateRequest { spec: Spec::Disk { bytes: BYTES }, ..directory() }
}

fn release(fixture: &ProcessFixture, id: &str) -> creel_model::provider::Result<Released> {
    wait(fixture.provider.release(Kind::Directory, id, ReleaseMode::AT_ONCE))
}

/// Returns whether disks are available. If they are not, asserts that this is reported.
fn available(fixture: &ProcessFixture) -> bool {
    let Some(reason) = disk_refusal() else { return true };
    let refused = wait(fixture.provider.create(&disk())).expect_err("it cannot be had");
    assert_eq!((refused.class, refused.message), (ErrorClass::Denied, reason));
    fixture.assert_empty();
    false
}

/// Returns the loop devices and mounts that refer to a root.
fn traces(root: &Path) -> Vec<String> {
    let root = root.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("procfs is mounted");
    let mut found: Vec<String> =
        mounts.lines().filter(|line| line.contains(&root)).map(str::to_owned).collect();
    for device in fs::read_dir("/sys/block").expect("sysfs is mounted") {
        let file = device.expect("readable").path().join("loop/backing_file");
        found.extend(fs::read_to_string(file).ok().filter(|text| text.contains(&root)));
    }
    found
}

fn create(fixture: &ProcessFixture) -> (String, PathBuf) {
    let id = wait(fixture.provider.create(&disk())).expect("it can be made");
    let path = fixture.provider.work_directory(&id).expect("it is an id of ours");
    (id, path)
}

#[test]
fn a_disk_has_its_size_and_is_released() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let (id, path) = create(&fixture);
    assert_ne!(Some(&path), fixture.provider.directory(&id).as_ref());
    fs::create_dir(path.join("inner")).expect("it is ours");
    let mut file = File::create(path.join("inner/file")).expect("it is ours");
    let chunk = vec![7; 1 << 20];
    let full = (0..2 * (BYTES >> 20)).find_map(|_| file.write_all(&chunk).err());
    assert_eq!(full.expect("it is full before that").kind(), ErrorKind::StorageFull);
    drop(file);
    assert_eq!(traces(&fixture.root()).len(), 2, "a mount and a device");
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    assert_eq!(wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable"), None);
    assert_eq!(release(&fixture, &id).expect("twice is fine"), Released::AlreadyGone);
    assert_eq!(traces(&fixture.root()), [""; 0]);
    fixture.assert_empty();
}

#[test]
fn a_crash_at_every_step_of_a_disk_leaves_nothing() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let points = Crashpoint::OF_DIRECTORIES.into_iter().chain(Crashpoint::OF_DISKS);
    let points = points.chain([Crashpoint::CreateSent, Crashpoint::ReleaseSent]);
    for point in points.map(Crashpoint::name).chain(["after-create"]) {
        let request = disk();
        die_during_create(&fixture, &request, point);
        let successor = fixture.successor();
        let found = wait(successor.find(&request.marks())).expect("readable");
        assert_eq!(found.len(), 1, "{point}");
        let released = wait(successor.release(Kind::Directory, &found[0].id, ReleaseMode::AT_ONCE));
        assert_eq!(released.expect("it can go"), Released::Done, "{point}");
        assert_eq!(wait(successor.find(&request.marks())).expect("readable"), [], "{point}");
        assert_eq!(traces(&fixture.root()), [""; 0], "{point}");
        fixture.assert_empty();
    }
}

#[test]
fn creating_the_same_disk_twice_creates_one_disk() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let request = disk();
    let first = wait(fixture.provider.create(&request)).expect("it can be made");
    let path = fixture.provider.work_directory(&first).expect("it is an id of ours");
    fs::write(path.join("file"), "kept").expect("it is ours");
    let second = wait(fixture.provider.create(&request)).expect("it is ours already");
    assert_eq!(first, second);
    assert_eq!(fs::read_to_string(path.join("file")).expect("it is the same disk"), "kept");
    assert_eq!(release(&fixture, &first).expect("it can go"), Released::Done);

    // A partial disk is created again.
    let request = disk();
    die_during_create(&fixture, &request, Crashpoint::DiskAttached.name());
    let id = wait(fixture.provider.create(&request)).expect("it can be made");
    let path = fixture.provider.work_directory(&id).expect("it is an id of ours");
    fs::write(path.join("file"), "kept").expect("it is ours");
    assert_eq!(traces(&fixture.root()).len(), 2, "a mount and a device");
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    fixture.assert_empty();
}

#[test]
fn a_disk_is_released_while_other_trees_run() {
    for containment in Containment::ALL {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        if !available(&fixture) {
            return;
        }
        let (id, path) = create(&fixture);
        let mut inside = command(&["sleep", &seconds]);
        process_of(&mut inside).directory = Some(path);
        let Ok(inside) = wait(fixture.provider.create(&inside)) else { continue };
        // It has its own mount namespace with a copy of every mount.
        let other = wait(fixture.provider.create(&command(&["sleep", &seconds])));
        let other = other.expect("sleep is installed");
        let in_use = release(&fixture, &id).expect_err("a tree runs in it");
        assert_eq!(in_use.class, ErrorClass::InUse);
        fixture.release(&inside);
        assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done, "{containment:?}");
        assert_eq!(traces(&fixture.root()), [""; 0]);
        assert_eq!(sleeper_count(&seconds), 1, "the other tree goes on");
        fixture.release(&other);
        fixture.assert_empty();
    }
}

#[test]
fn a_foreign_mount_in_place_of_a_disk_survives() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let (id, path) = create(&fixture);
    fs::create_dir(fixture.outside()).expect("the name is free");
    fs::write(fixture.outside().join("kept"), "kept").expect("it is theirs");
    let mounted = Command::new("mount").arg("--bind").arg(fixture.outside()).arg(&path).status();
    assert!(mounted.expect("mount is installed").success());
    let refused = release(&fixture, &id);
    assert_eq!(fs::read_to_string(path.join("kept")).expect("it is still mounted"), "kept");
    let unmounted = Command::new("umount").arg(&path).status();
    assert!(unmounted.expect("umount is installed").success());
    assert_eq!(refused.expect_err("something is mounted there").class, ErrorClass::InUse);
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    assert_eq!(fs::read_to_string(fixture.outside().join("kept")).expect("untouched"), "kept");
    assert_eq!(traces(&fixture.root()), [""; 0]);
    fixture.assert_empty();
}

#[test]
fn a_disk_in_use_stays_until_its_users_leave() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let (id, path) = create(&fixture);
    fs::write(path.join("file"), "kept").expect("it is ours");
    let held = File::open(path.join("file")).expect("it is there");
    let refused = release(&fixture, &id).expect_err("this test uses it");
    assert!(refused.class.may_pass(), "{refused:?}");
    assert!(refused.message.contains("uses"), "{}", refused.message);
    drop(held);
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    assert_eq!(traces(&fixture.root()), [""; 0]);
    fixture.assert_empty();
}

#[test]
fn a_disk_that_is_too_small_is_refused() {
    let fixture = ProcessFixture::new();
    if !available(&fixture) {
        return;
    }
    let request = CreateRequest { spec: Spec::Disk { bytes: 1 << 20 }, ..directory() };
    let refused = wait(fixture.provider.create(&request)).expect_err("no file system fits");
    assert_eq!(refused.class, ErrorClass::Invalid);
    assert_eq!(refused.message, "a disk needs at least 16 MiB");
    fixture.assert_empty();
}
