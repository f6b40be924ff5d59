//! Another owner uses a name of ours: its objects stay.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use creel_model::provider::{IdentityCheck, Kind, Provider, ReleaseMode, Released};
use creel_process::Containment;
use rustix::fs::{Mode, OFlags, RenameFlags, renameat_with};

use crate::fixture::{
    ProcessFixture, command, die_during_create, directory, eventually, groups_named, may_mount,
    odd_seconds, sleeper_count, wait,
};

fn create(fixture: &ProcessFixture) -> (String, PathBuf) {
    let id = wait(fixture.provider.create(&directory())).expect("it can be made");
    let path = fixture.provider.directory(&id).expect("it is an id of ours");
    (id, path)
}

fn release(fixture: &ProcessFixture, id: &str) -> creel_model::provider::Result<Released> {
    wait(fixture.provider.release(Kind::Directory, id, ReleaseMode::AT_ONCE))
}

/// Asserts that a release keeps the object, and reports that.
fn assert_kept(fixture: &ProcessFixture, id: &str) {
    for _ in 0..2 {
        let kept = release(fixture, id).expect("everything can be inspected");
        let Released::Kept(check) = kept else { panic!("{kept:?}") };
        let why = match check {
            IdentityCheck::Replaced { why } | IdentityCheck::Unproven { why } => why,
            IdentityCheck::Same { .. } => panic!("it is not the same"),
        };
        assert!(why.contains("kept"), "{why}");
    }
}

/// Creates a foreign directory with a file in it.
fn foreign(path: &Path) -> PathBuf {
    fs::create_dir_all(path.join("inner")).expect("the name is free");
    fs::write(path.join("inner/kept"), "kept").expect("it is theirs");
    path.join("inner/kept")
}

fn assert_survives(file: &Path) {
    assert_eq!(fs::read_to_string(file).expect("it must be untouched"), "kept", "{file:?}");
}

#[test]
fn a_directory_recreated_by_hand_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::remove_dir_all(&path).expect("it is there");
    let kept = foreign(&path);
    let seen = wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable");
    assert_eq!(seen.expect("something has the name").state, "replaced");
    assert!(creel_process::STATES.contains(&"replaced"));
    assert_kept(&fixture, &id);
    assert_survives(&kept);
    let again = wait(fixture.successor().release(Kind::Directory, &id, ReleaseMode::AT_ONCE));
    assert!(!matches!(again, Ok(Released::Done)), "the next supervisor knows no better");
    assert_survives(&kept);
}

#[test]
fn the_ledger_decides_and_not_the_record_beside_it() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let seen = wait(fixture.provider.inspect(Kind::Directory, &id)).expect("readable");
    let identity = seen.expect("it was made").identity;
    let expecting = |expected| ReleaseMode { expected, ..ReleaseMode::AT_ONCE };
    let by = |mode| wait(fixture.provider.release(Kind::Directory, &id, mode));
    // Another process recreated it, and wrote a record that claims it is the original.
    fs::rename(&path, fixture.outside()).expect("it is ours");
    let kept = foreign(&path);
    let theirs = fs::symlink_metadata(&path).expect("it was made").ino();
    let ours = fs::symlink_metadata(fixture.outside()).expect("it was moved").ino();
    let sidecar = fixture.root().join(format!("{}.json", &id["creel-".len()..]));
    let text = fs::read_to_string(&sidecar).expect("it was written");
    let forged = text.replace(&format!("\"inode\": {ours}"), &format!("\"inode\": {theirs}"));
    assert_ne!(text, forged);
    fs::write(&sidecar, forged).expect("anybody may");
    let released = by(expecting(identity.clone())).expect("everything can be inspected");
    assert!(matches!(released, Released::Kept(_)), "{released:?}");
    assert_survives(&kept);
    // The original has its name again, without a record beside it.
    fs::rename(&path, fixture.outside().with_extension("theirs")).expect("anybody may");
    fs::rename(fixture.outside(), &path).expect("anybody may");
    assert_eq!(by(expecting(identity)).expect("it can go"), Released::Done);
    assert_survives(&fixture.outside().with_extension("theirs").join("inner/kept"));
    fixture.assert_empty();
}

#[test]
fn a_directory_recreated_during_its_removal_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::write(path.join("ours"), "ours").expect("it is ours");
    let removing = path.with_file_name(format!(".{id}.removing"));
    fs::rename(&path, &removing).expect("it is ours");
    let kept = foreign(&path);
    assert_kept(&fixture, &id);
    assert_survives(&kept);
    assert!(!removing.exists(), "what was ours is removed all the same");
}

#[test]
fn a_link_to_a_foreign_directory_survives_with_its_target() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let kept = foreign(&fixture.outside());
    fs::remove_dir(&path).expect("it is empty");
    symlink(fixture.outside(), &path).expect("links can be made");
    assert_kept(&fixture, &id);
    assert_survives(&kept);
    assert!(fs::symlink_metadata(&path).expect("it is there").is_symlink());
}

fn mount(arguments: &[&str], point: &Path) -> bool {
    let done = Command::new("mount").args(arguments).arg(point).status();
    let done = done.expect("mount is installed").success();
    assert!(done || !may_mount(), "the right is there and the mount failed");
    done
}

fn unmount(point: &Path) {
    let done = Command::new("umount").arg(point).status();
    assert!(done.expect("umount is installed").success());
}

#[test]
fn a_foreign_directory_mounted_in_its_place_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let kept = foreign(&fixture.outside());
    if !mount(&["--bind", &fixture.outside().display().to_string()], &path) {
        return;
    }
    let refused = release(&fixture, &id);
    assert_survives(&kept);
    unmount(&path);
    refused.expect_err("something is mounted there");
    assert_eq!(release(&fixture, &id).expect("now it is ours"), Released::Done);
    assert_survives(&kept);
}

#[test]
fn a_foreign_directory_mounted_inside_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let kept = foreign(&fixture.outside());
    let point = path.join("a/b");
    fs::create_dir_all(&point).expect("it is ours");
    // The same file system: the device number does not distinguish it.
    if !mount(&["--bind", &fixture.outside().display().to_string()], &point) {
        return;
    }
    let refused = release(&fixture, &id);
    assert_survives(&kept);
    unmount(&point);
    let refused = refused.expect_err("something is mounted there");
    assert!(refused.message.contains("mounted at"), "{}", refused.message);
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    assert_survives(&kept);
}

#[test]
fn a_foreign_file_mounted_inside_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    let kept = foreign(&fixture.outside());
    let point = path.join("file");
    fs::write(&point, "ours").expect("it is ours");
    if !mount(&["--bind", &kept.display().to_string()], &point) {
        return;
    }
    let refused = release(&fixture, &id);
    assert_survives(&kept);
    unmount(&point);
    refused.expect_err("something is mounted there");
    assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
    assert_survives(&kept);
}

#[test]
fn links_that_appear_during_the_walk_are_not_followed() {
    let fixture = ProcessFixture::new();
    let kept = foreign(&fixture.outside());
    for _ in 0..20 {
        let (id, path) = create(&fixture);
        for number in 0..200 {
            fs::create_dir_all(path.join(format!("d{number}/inner"))).expect("it is ours");
            fs::write(path.join(format!("d{number}/inner/kept")), "ours").expect("it is ours");
        }
        let handle = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty());
        let handle = handle.expect("it is ours");
        let (outside, is_over) = (fixture.outside(), Arc::new(AtomicBool::new(false)));
        let seen_over = Arc::clone(&is_over);
        let attacker = std::thread::spawn(move || {
            // Through the handle, so that the private name makes no difference.
            for number in (0..200).cycle() {
                if seen_over.load(Ordering::Relaxed) {
                    return;
                }
                let (name, link) = (format!("d{number}"), format!("l{number}"));
                let _ = rustix::fs::symlinkat(&outside, &handle, &link);
                let _ = renameat_with(&handle, &name, &handle, &link, RenameFlags::EXCHANGE);
            }
        });
        let released = release(&fixture, &id);
        is_over.store(true, Ordering::Relaxed);
        attacker.join().expect("it does not panic");
        assert_survives(&kept);
        if !matches!(released, Ok(Released::Done)) {
            assert_eq!(release(&fixture, &id).expect("now it can go"), Released::Done);
        }
    }
    assert_survives(&kept);
    fixture.assert_empty();
}

#[test]
fn a_copied_directory_with_a_copied_record_survives() {
    let fixture = ProcessFixture::new();
    let (id, path) = create(&fixture);
    fs::write(path.join("ours"), "ours").expect("it is ours");
    let other = directory();
    let copy = path.with_file_name(&other.name);
    let kept = foreign(&copy);
    let digits = id.strip_prefix("creel-").expect("an object name");
    let record = fs::read_to_string(fixture.root().join(format!("{digits}.json")));
    let record = record.expect("it was written").replace(digits, &other.resource.digits());
    let record = record.replace(&id, &other.name);
    fs::write(fixture.root().join(format!("{}.json", other.resource.digits())), record)
        .expect("anybody may copy it");
    assert_kept(&fixture, &other.name);
    assert_survives(&kept);
    assert!(path.join("ours").exists(), "the original is not touched either");
    assert_eq!(release(&fixture, &id).expect("it can go"), Released::Done);
    assert_survives(&kept);
}

#[test]
fn a_directory_without_a_record_survives() {
    let fixture = ProcessFixture::new();
    fs::create_dir_all(fixture.root()).expect("it can be made");
    let request = directory();
    let kept = foreign(&fixture.root().join(&request.name));
    assert_kept(&fixture, &request.name);
    assert_survives(&kept);
}

#[test]
fn a_directory_that_was_never_named_is_found_and_removed() {
    let fixture = ProcessFixture::new();
    let request = directory();
    die_during_create(&fixture, &request, "directory-unnamed");
    let private = fixture.root().join(format!(".{}.making", request.name));
    assert!(private.is_dir(), "the fault did not strike where it should");
    let successor = fixture.successor();
    let found = wait(successor.find(&request.marks())).expect("readable");
    assert_eq!(found.len(), 1);
    let released = wait(successor.release(Kind::Directory, &found[0].id, ReleaseMode::AT_ONCE));
    assert_eq!(released.expect("it is empty"), Released::Done);
    assert_eq!(wait(successor.find(&request.marks())).expect("readable"), []);
    fixture.assert_empty();

    // Another process put a file there, so it is not the leftover of a create.
    let request = directory();
    die_during_create(&fixture, &request, "directory-unnamed");
    let kept = foreign(&fixture.root().join(format!(".{}.making", request.name)));
    assert_kept(&fixture, &request.name);
    assert_survives(&kept);
}

/// A foreign process in a control group. It ends with the test.
struct ForeignProcess {
    process: Child,
    groups: Vec<PathBuf>,
}

impl ForeignProcess {
    fn in_groups(groups: &[PathBuf]) -> Self {
        let process = Command::new("sleep").arg("600").spawn().expect("sleep is installed");
        for group in groups {
            fs::create_dir(group).expect("the name is free");
            fs::write(group.join("cgroup.procs"), process.id().to_string()).expect("root may");
        }
        Self { process, groups: groups.to_vec() }
    }

    fn lives(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}

#[test]
fn a_recreated_control_group_keeps_its_processes() {
    for containment in [Containment::Cgroup, Containment::Subreaper] {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let Ok(id) = wait(fixture.provider.create(&command(&["sleep", &seconds]))) else {
            continue;
        };
        let generation = fixture.process(&id).expect("it runs").generation;
        let pid = generation.split([' ', '-']).nth(1).expect("state, pid, start").to_owned();
        let killed = Command::new("kill").args(["-KILL", &pid]).status();
        assert!(killed.expect("kill is installed").success());
        eventually("the tree is gone", || sleeper_count(&seconds) == 0);
        let groups = groups_named(&id);
        if groups.is_empty() {
            continue;
        }
        for group in &groups {
            eventually("the group is empty", || fs::remove_dir(group).is_ok() || !group.exists());
        }
        let mut foreign_process = ForeignProcess::in_groups(&groups);
        let state = fixture.process(&id).expect("it is recorded").state;
        assert_eq!(state, "lost", "a process in a foreign group does not count");
        let mode =
            ReleaseMode { stop_timeout: Some(Duration::from_millis(100)), ..ReleaseMode::AT_ONCE };
        let released = wait(fixture.provider.release(Kind::Process, &id, mode));
        assert_eq!(released.expect("what is ours can go"), Released::Done);
        assert!(foreign_process.lives(), "{containment:?}: a foreign process was killed");
        assert_eq!(groups_named(&id).len(), groups.len(), "foreign groups were removed");
        assert_eq!(fixture.process(&id), None, "what is ours is gone");
        fixture.assert_empty();
    }
}

#[test]
fn an_existing_control_group_of_the_same_name_does_not_disturb_a_new_tree() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let probe = wait(fixture.provider.create(&command(&["sleep", &seconds]))).expect("it starts");
    let parents: Vec<PathBuf> = groups_named(&probe)
        .iter()
        .map(|group| group.parent().expect("groups have parents").to_owned())
        .collect();
    fixture.release(&probe);
    let request = command(&["sleep", &seconds]);
    let groups: Vec<PathBuf> = parents.iter().map(|parent| parent.join(&request.name)).collect();
    if groups.is_empty() {
        return;
    }
    let mut foreign_process = ForeignProcess::in_groups(&groups);
    let id = wait(fixture.provider.create(&request)).expect("it starts outside of these groups");
    assert!(foreign_process.lives(), "a foreign process was killed");
    let released = wait(fixture.provider.release(Kind::Process, &id, ReleaseMode::AT_ONCE));
    assert_eq!(released.expect("it can be ended"), Released::Done);
    assert_eq!(sleeper_count(&seconds), 0);
    assert!(foreign_process.lives(), "a foreign process was killed");
    fixture.assert_empty();
}
