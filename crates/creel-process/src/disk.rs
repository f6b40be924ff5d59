//! A disk of a fixed size for a directory: a file with a file system, mounted through a loop
//! device.
//!
//! ```text
//!   creel-<digits>/disk.img   the file; it takes room on the machine only as it fills
//!   creel-<digits>/disk/      where it is mounted
//! ```
//!
//! Undoing it needs no further records. Before the mount, only a descriptor of this process holds
//! the loop device, so the device is released with the process. After the mount, the mount holds
//! it, and it is released with the mount. The mount is found in the directory, which has its own
//! identity. It is ours only if the file behind its device is the one next to it. Any other mount
//! is kept, and the directory with it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use creel_model::crashpoint::{Crashpoint, reach};
use creel_model::id::ResourceId;
use creel_model::os::loop_device;
use rustix::fs::major;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::geteuid;

use super::inode::Inode;
use super::mounts::{self, MountPoint};

/// The smallest disk: a file system needs space for itself.
pub const SMALLEST_DISK: u64 = 16 << 20;
/// The image file.
const IMAGE: &str = "disk.img";
/// The mount point.
const POINT: &str = "disk";
/// The program that creates the file system.
const FORMATTER: &str = "mkfs.ext4";
/// Directories to search in addition to `PATH`, which often lacks them for ordinary users.
const SYSTEM_PATHS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// The major device number of loop devices.
const LOOP_MAJOR: u32 = 7;
/// Maximum number of loop devices to try.
const MOST_DEVICES: u32 = 4096;
/// How long an unmounted disk may take to be released.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two checks whether it is released.
const UNMOUNT_PAUSE: Duration = Duration::from_millis(20);

/// Returns why no disk of a fixed size is available here; `None` where one is.
pub fn disk_refusal() -> Option<String> {
    if !geteuid().is_root() {
        return Some("only root may mount one for a process sandbox".to_owned());
    }
    if formatter().is_none() {
        return Some(format!("there is no {FORMATTER} on this machine to make one"));
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("this machine has no loop devices to mount one".to_owned());
    }
    None
}

fn formatter() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM_PATHS.map(PathBuf::from));
    places.map(|place| place.join(FORMATTER)).find(|program| program.is_file())
}

/// Returns the mount point of a directory's disk.
pub(super) fn point_of(directory: &Path) -> PathBuf {
    directory.join(POINT)
}

/// Creates the disk of a directory that was just created.
pub(super) fn make(directory: &Path, bytes: u64) -> io::Result<()> {
    let image = directory.join(IMAGE);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&image)?;
    file.set_len(bytes)?;
    reach(Crashpoint::DiskUnformatted);
    format(&image)?;
    DirBuilder::new().mode(0o700).create(point_of(directory))?;
    attach_and_mount(directory)
}

fn format(image: &Path) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no {FORMATTER}"));
    let output = Command::new(formatter().ok_or_else(missing)?)
        // It need not survive a crash of the machine, and all of its space is for the workload.
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal"])
        .args(["-E", "nodiscard,lazy_itable_init=1"])
        .arg(image)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(io::Error::other(format!("{FORMATTER} failed: {line}")))
}

/// Mounts the disk of a directory if it is not mounted, as after a reboot.
pub(super) fn ensure_mounted(directory: &Path) -> io::Result<()> {
    if is_mounted(directory)? { Ok(()) } else { attach_and_mount(directory) }
}

/// Returns whether the disk of a directory is mounted.
pub(super) fn is_mounted(directory: &Path) -> io::Result<bool> {
    let point = point_of(directory);
    let mount = mounts::read()?.into_iter().rfind(|mount| mount.path == point);
    Ok(mount.is_some_and(|mount| is_own(&mount, directory)))
}

fn attach_and_mount(directory: &Path) -> io::Result<()> {
    let image = OpenOptions::new().read(true).write(true).open(directory.join(IMAGE))?;
    let (device, _held) = attach(&image)?;
    reach(Crashpoint::DiskAttached);
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    mount(&device, point_of(directory), "ext4", flags, None)?;
    Ok(())
}

/// Attaches a file to a free loop device; it is detached when its last user is gone.
fn attach(image: &File) -> io::Result<(PathBuf, File)> {
    for number in 0..MOST_DEVICES {
        let device = PathBuf::from(format!("/dev/loop{number}"));
        if !device.exists() {
            loop_device::add(number)?;
        }
        let handle = match OpenOptions::new().read(true).write(true).open(&device) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let reason = format!("{} cannot be made here", device.display());
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
            Err(error) => return Err(error),
        };
        match loop_device::configure(&handle, image) {
            Ok(()) => return Ok((device, handle)),
            // It is already in use.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::QuotaExceeded, "all loop devices are in use"))
}

/// Unmounts the disk of a directory, if it has one, and waits until its device is released.
///
/// The directory must have been compared with its record. A mount that is not the disk of this
/// directory is left alone.
pub(super) fn unmount_own(directory: &Path) -> io::Result<()> {
    if !directory.join(IMAGE).exists() {
        return Ok(());
    }
    let (point, deadline) = (point_of(directory), Instant::now() + UNMOUNT_PATIENCE);
    while is_mounted(directory)? {
        match unmount(&point, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(UNMOUNT_PAUSE),
            Err(Errno::BUSY) => {
                let reason = format!("a process outside of the sandbox uses {}", point.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
            }
            Err(error) => return Err(error.into()),
        }
    }
    wait_until_let_go(&directory.join(IMAGE), deadline)?;
    reach(Crashpoint::DiskUnmounted);
    Ok(())
}

fn wait_until_let_go(image: &Path, deadline: Instant) -> io::Result<()> {
    while let Some(device) = device_of(image)? {
        if Instant::now() >= deadline {
            let reason =
                format!("{device} still holds the disk: it is mounted in another mount namespace");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
        std::thread::sleep(UNMOUNT_PAUSE);
    }
    Ok(())
}

/// Returns whether a mount is the disk of this directory, by the file behind its device.
fn is_own(mount: &MountPoint, directory: &Path) -> bool {
    if major(mount.device) != LOOP_MAJOR {
        return false;
    }
    let number = rustix::fs::minor(mount.device);
    backing_file(&format!("loop{number}"))
        .is_some_and(|file| is_same(&file, &directory.join(IMAGE)))
}

/// Returns whether two paths refer to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| Inode::at(path).ok().flatten();
    read(one).is_some() && read(one) == read(other)
}

/// Returns the loop device that a file is attached to.
fn device_of(image: &Path) -> io::Result<Option<String>> {
    if !image.exists() {
        return Ok(None);
    }
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("loop") && backing_file(&name).is_some_and(|file| is_same(&file, image))
        {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn backing_file(device: &str) -> Option<PathBuf> {
    let mut bytes = fs::read(format!("/sys/block/{device}/loop/backing_file")).ok()?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// Unmounts the disks of other sandboxes in this process's own mount namespace.
///
/// A new namespace begins with a copy of every mount. Without this, the disk of a sandbox would
/// stay held until the last tree that was started next to it has ended.
pub(super) fn leave_others(own: Option<&Path>) -> io::Result<()> {
    for mount in mounts::read()? {
        let directory = mount.path.parent();
        let name = directory.and_then(|path| path.file_name()?.to_str());
        let is_disk = major(mount.device) == LOOP_MAJOR
            && mount.path.ends_with(POINT)
            && name.is_some_and(|name| ResourceId::of_object(name).is_some());
        let is_used = own.zip(directory).is_some_and(|(own, path)| own.starts_with(path));
        if is_disk && !is_used {
            // A disk that cannot be unmounted here only delays the release of that other sandbox.
            let _ = unmount(&mount.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
    Ok(())
}
