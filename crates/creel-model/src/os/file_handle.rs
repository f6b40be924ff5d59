//! The handle by which a file system knows an inode.
//!
//! A handle names one inode for as long as that inode exists. Where inode numbers are reused, the
//! handle also holds a generation that the next owner of the number does not have. No program can
//! choose or copy it.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The size of the largest handle.
const MOST_BYTES: usize = libc::MAX_HANDLE_SZ as usize;

/// The structure that the kernel fills in: [`libc::file_handle`] with space for the handle.
#[repr(C)]
struct HandleBuffer {
    head: libc::file_handle,
    bytes: [u8; MOST_BYTES],
}

/// Returns the handle of an open file or directory as text; `None` where the file system has none.
///
/// # Errors
///
/// Fails when the system refuses the call for another reason.
pub fn file_handle(file: impl AsFd) -> io::Result<Option<String>> {
    let mut buffer = HandleBuffer {
        head: libc::file_handle {
            handle_bytes: MOST_BYTES as libc::c_uint,
            handle_type: 0,
            f_handle: [],
        },
        bytes: [0; MOST_BYTES],
    };
    if let Err(error) = read_handle(file, &mut buffer) {
        return match error.raw_os_error() {
            // Kernels and file systems without handles, and system call filters.
            Some(
                libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EOVERFLOW,
            ) => Ok(None),
            _ => Err(error),
        };
    }
    let length = usize::try_from(buffer.head.handle_bytes).unwrap_or(MOST_BYTES).min(MOST_BYTES);
    let mut text = format!("{:x}:", buffer.head.handle_type);
    for byte in &buffer.bytes[..length] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Some(text))
}

#[expect(unsafe_code, reason = "no safe library in use offers this system call")]
fn read_handle(file: impl AsFd, buffer: &mut HandleBuffer) -> io::Result<()> {
    let mut mount = 0;
    // SAFETY: the descriptor and the empty path are valid for the duration of the call, and the
    // kernel writes at most `handle_bytes` bytes after the head, which the buffer has.
    let result = unsafe {
        libc::name_to_handle_at(
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            std::ptr::from_mut(buffer).cast(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_handle_belongs_to_one_inode() {
        let home = tempfile::tempdir().unwrap();
        let read = |name: &str| {
            let path = home.path().join(name);
            fs::create_dir_all(&path).unwrap();
            file_handle(File::open(path).unwrap()).unwrap()
        };
        let one = read("one");
        assert_eq!(read("one"), one);
        // A file system of the test machine may have none, and then it has none at all.
        assert_eq!(read("two") == one, one.is_none());
    }
}
