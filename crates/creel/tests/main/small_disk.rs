//! Small private file systems: a full disk that affects no other process.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system. It is unmounted on drop.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    place: PathBuf,
}

impl SmallDisk {
    /// Mounts one in memory.
    pub(crate) fn tmpfs(place: &Path, size: &str) -> Self {
        fs::create_dir_all(place).unwrap();
        let options = format!("size={size},mode=0700");
        call("mount", &["-t", "tmpfs", "-o", &options, "creel-test", &place.display().to_string()]);
        Self { place: place.to_owned() }
    }

    /// Mounts an ext4 in a file, as most disks are.
    pub(crate) fn ext4(place: &Path, image: &Path, megabytes: u64) -> Self {
        fs::create_dir_all(place).unwrap();
        File::create(image).unwrap().set_len(megabytes << 20).unwrap();
        let image = image.display().to_string();
        // Nothing is reserved for root, so it is full for every user.
        call("mkfs.ext4", &["-q", "-F", "-m", "0", &image]);
        call("mount", &["-o", "loop", &image, &place.display().to_string()]);
        Self { place: place.to_owned() }
    }

    /// Mounts it again with other options.
    pub(crate) fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        call("mount", &["-o", &options, &self.place.display().to_string()]);
    }

    /// Writes a file until nothing more fits.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.place.join("filler");
        fill(&path);
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that a process that is still ending cannot keep it.
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

/// Writes a file until nothing more fits on its disk.
pub(crate) fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [65_536, 4_096, 1] {
        while file.write_all(&vec![b'x'; size]).is_ok() {}
    }
}

fn call(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
