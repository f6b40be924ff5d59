//! A file system without birth times reuses inode numbers at once: a replacement of ours has the
//! same device and inode, and still stays.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use creel_model::provider::{
    Identity, IdentityCheck, Kind, Provider, ReleaseMode, Released, Result,
};

use crate::fixture::{ProcessFixture, directory, may_mount, wait};

/// A mounted root; unmounted on drop.
struct OldDisk {
    fixture: ProcessFixture,
}

impl OldDisk {
    /// Mounts an ext4 whose inodes are too small for a birth time; `None` without the permission.
    fn mount() -> Option<Self> {
        may_mount().then(|| Self { fixture: ProcessFixture::on_disk(mount_ext4) })
    }

    fn create(&self) -> (String, PathBuf) {
        let id = wait(self.fixture.provider.create(&directory())).expect("it can be made");
        let path = self.fixture.provider.directory(&id).expect("it is an id of ours");
        assert!(
            fs::metadata(&path).expect("it was made").created().is_err(),
            "it has a birth time"
        );
        fs::write(path.join("ours"), "ours").expect("there is space");
        (id, path)
    }

    fn identity(&self, id: &str) -> Identity {
        let seen = wait(self.fixture.provider.inspect(Kind::Directory, id)).expect("readable");
        seen.expect("it was made").identity.expect("a directory has one")
    }

    fn release(&self, id: &str, expected: Option<Identity>) -> Result<Released> {
        let mode = ReleaseMode { expected, ..ReleaseMode::AT_ONCE };
        wait(self.fixture.provider.release(Kind::Directory, id, mode))
    }
}

impl Drop for OldDisk {
    fn drop(&mut self) {
        // Lazily: the test may have failed with a file open.
        let _ = Command::new("umount").arg("-l").arg(self.fixture.root()).status();
    }
}

fn mount_ext4(image: &Path, root: &Path) {
    File::create(image).expect("writable").set_len(16 << 20).expect("a sparse file");
    let call = |program: &str, args: &[&str]| {
        let status = Command::new(program).args(args).status().expect("it is installed");
        assert!(status.success(), "{program} {args:?}");
    };
    let (image, root) = (image.to_str().expect("UTF-8"), root.to_str().expect("UTF-8"));
    call("mkfs.ext4", &["-q", "-F", "-I", "128", image]);
    call("mount", &["-o", "loop", image, root]);
}

/// Replaces a directory by one with the same name and the same inode number, with a file in it.
fn replace(path: &Path) -> PathBuf {
    let inode = fs::metadata(path).expect("it is there").ino();
    fs::remove_dir_all(path).expect("it is there");
    let mut others = Vec::new();
    // The file system gives the lowest free number to the next directory, or to one soon after.
    for count in 0..1000 {
        fs::create_dir(path).expect("the name is free");
        if fs::metadata(path).expect("it was made").ino() == inode {
            break;
        }
        let other = path.with_file_name(format!("other-{count}"));
        fs::rename(path, &other).expect("the name is free");
        others.push(other);
    }
    others.iter().for_each(|other| fs::remove_dir(other).expect("it is empty"));
    assert_eq!(fs::metadata(path).expect("it was made").ino(), inode, "the number was not reused");
    fs::write(path.join("theirs"), "theirs").expect("there is space");
    path.join("theirs")
}

fn assert_survives(file: &Path) {
    assert_eq!(fs::read_to_string(file).expect("it must be untouched"), "theirs", "{file:?}");
}

#[test]
fn our_directory_is_released_by_its_file_handle() {
    let Some(disk) = OldDisk::mount() else { return };
    let (id, path) = disk.create();
    let recorded = disk.identity(&id);
    assert!(matches!(recorded, Identity::Directory { born_at: None, handle: Some(_), .. }));
    assert!(matches!(
        Identity::compare(&recorded, &disk.identity(&id)),
        IdentityCheck::Same { .. }
    ));
    assert_eq!(disk.release(&id, Some(recorded)).expect("it is ours"), Released::Done);
    assert!(!path.exists());
}

#[test]
fn a_replacement_with_the_same_inode_survives() {
    let Some(disk) = OldDisk::mount() else { return };
    for knows_identity in [true, false] {
        let (id, path) = disk.create();
        let recorded = disk.identity(&id);
        let theirs = replace(&path);
        let expected = knows_identity.then_some(recorded);
        for _ in 0..2 {
            let kept = disk.release(&id, expected.clone()).expect("everything can be inspected");
            assert!(matches!(kept, Released::Kept(_)), "{kept:?}");
            assert_survives(&theirs);
        }
    }
}

/// As an older version recorded it, or a file system that has no handles either.
#[test]
fn a_directory_with_nothing_but_its_inode_on_record_is_kept() {
    let Some(disk) = OldDisk::mount() else { return };
    let (id, path) = disk.create();
    let Identity::Directory { device, inode, .. } = disk.identity(&id) else {
        panic!("it is a directory")
    };
    let recorded = Identity::Directory { device, inode, born_at: None, handle: None };
    let check = Identity::compare(&recorded, &disk.identity(&id));
    assert!(matches!(check, IdentityCheck::Unproven { .. }), "{check:?}");
    let kept = disk.release(&id, Some(recorded)).expect("everything can be inspected");
    assert!(matches!(kept, Released::Kept(_)), "{kept:?}");
    assert_eq!(fs::read_to_string(path.join("ours")).expect("it is kept"), "ours");
}
