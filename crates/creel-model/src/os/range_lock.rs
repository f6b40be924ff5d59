//! Locks on byte ranges of a file, held by an open file and released by the kernel.
//!
//! These are the "open file description" locks of Linux. Unlike `flock`, they cover ranges, which
//! makes an ordered queue possible. Unlike classic POSIX locks, they belong to the open file and
//! not to the process, so closing another descriptor of the same file does not release them. The
//! kernel releases them when the last copy of the descriptor is closed, even after `kill -9`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A range of bytes. The bytes need not exist in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// The number of bytes; zero means all bytes that follow.
    pub length: u64,
}

/// Which other locks on the same bytes are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Other shared locks are allowed.
    Shared,
    /// No other lock is allowed.
    Exclusive,
}

/// Locks a range unless another open file holds a conflicting lock. Returns whether it did.
///
/// # Errors
///
/// Fails when the file system does not support such locks.
pub fn try_lock(file: &File, range: ByteRange, mode: LockMode) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, &mut request(range, lock_type(mode))) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Locks a range, and blocks this thread while another open file holds a conflicting lock.
///
/// # Errors
///
/// Fails when the file system does not support such locks.
pub fn lock(file: &File, range: ByteRange, mode: LockMode) -> io::Result<()> {
    loop {
        match control(file, libc::F_OFD_SETLKW, &mut request(range, lock_type(mode))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Releases every lock that this open file holds.
///
/// # Errors
///
/// Fails when the file system does not support such locks.
pub fn unlock_all(file: &File) -> io::Result<()> {
    let all_bytes = ByteRange { start: 0, length: 0 };
    control(file, libc::F_OFD_SETLK, &mut request(all_bytes, libc::F_UNLCK))
}

/// Returns the last byte of a lock that another open file holds at or after a byte.
///
/// # Errors
///
/// Fails when the file system does not support such locks.
pub fn end_of_any_lock_from(file: &File, start: u64) -> io::Result<Option<u64>> {
    let mut found = request(ByteRange { start, length: 0 }, libc::F_WRLCK);
    control(file, libc::F_OFD_GETLK, &mut found)?;
    if i32::from(found.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let last = match found.l_len {
        0 => i64::MAX,
        length => found.l_start.saturating_add(length - 1),
    };
    Ok(u64::try_from(last).ok())
}

fn lock_type(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    }
}

fn request(range: ByteRange, lock_type: i32) -> libc::flock {
    let offset = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    libc::flock {
        l_type: i16::try_from(lock_type).expect("lock types are small numbers"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("the origin is a small number"),
        l_start: offset(range.start),
        l_len: offset(range.length),
        l_pid: 0,
    }
}

#[expect(unsafe_code, reason = "no safe library in use offers locks on ranges")]
fn control(file: &File, operation: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open while `file` is borrowed, and these operations read and write
    // exactly one `flock`, which is `lock`.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), operation, std::ptr::from_mut(lock)) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
