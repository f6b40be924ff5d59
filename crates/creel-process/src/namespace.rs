//! The pid namespace of a tree.
//!
//! The holder calls [`prepare`] and then starts the init, which is pid 1 of the new namespace and
//! calls [`enter`]. An ordinary user gets a user namespace around it that maps them to themselves.
//! The one capability that the init needs in it must survive its exec, so it is in the ambient set.

use std::fs;
use std::io;
use std::path::Path;

use creel_model::os::unshare;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    set_capabilities,
};

use super::disk;

/// Makes the children of this process start in a pid namespace of their own.
pub(super) fn prepare() -> io::Result<()> {
    // Root may lack the permission, for example in a container; then it does the same as other
    // users.
    if geteuid().is_root() && unshare(UnshareFlags::NEWPID).is_ok() {
        return Ok(());
    }
    unshare_as_oneself(UnshareFlags::NEWPID)?;
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
    Ok(())
}

/// Enters namespaces inside a user namespace that maps this user to themselves.
pub(super) fn unshare_as_oneself(namespaces: UnshareFlags) -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | namespaces)?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Sets up the mounts of this process, the first of its pid namespace.
///
/// Its `/proc` shows only that namespace, and of the sandbox disks only its own stays mounted.
pub(super) fn enter(directory: Option<&Path>) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    disk::leave_others(directory)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    if !geteuid().is_root() {
        let none = CapabilitySet::empty();
        set_capabilities(
            None,
            CapabilitySets { effective: none, permitted: none, inheritable: none },
        )?;
    }
    Ok(())
}
