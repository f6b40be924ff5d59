//! The mounts that this process sees.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::makedev;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountPoint {
    /// Its mount point.
    pub path: PathBuf,
    /// The device of its file system.
    pub device: u64,
}

/// Reads all mounts; a mount on top of another one comes later.
pub(super) fn read() -> io::Result<Vec<MountPoint>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

fn parse(mounts: &[u8]) -> Vec<MountPoint> {
    mounts.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = unescape(fields.nth(1)?);
    Some(MountPoint { path, device: makedev(major.parse().ok()?, minor.parse().ok()?) })
}

/// Decodes the octal escapes of `mountinfo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let mounts = b"1 2 0:1 / /a\\040b rw - tmpfs x rw\n3 4 7:2 / /c\\134d rw - tmpfs y rw\n";
        let found = parse(mounts);
        let expected = [("/a b", makedev(0, 1)), ("/c\\d", makedev(7, 2))];
        let expected = expected.map(|(path, device)| MountPoint { path: path.into(), device });
        assert_eq!(found, expected);
    }
}
