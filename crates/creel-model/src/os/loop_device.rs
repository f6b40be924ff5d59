//! Loop devices: a file as a block device. No library supports these requests.
//!
//! A device is always configured to release its file when its last user goes. Until it is mounted,
//! that user is the handle that configured it. A process that dies in between therefore leaves
//! nothing behind.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};

/// The configuration of a loop device, as defined in `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    own_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// The device releases its file when its last user goes.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_ADD: Opcode = 0x4C80;

/// Adds a loop device. Succeeds if it exists already.
///
/// # Errors
///
/// Fails where this process lacks permission, and where there are no loop devices.
#[expect(unsafe_code, reason = "no library knows this request")]
pub fn add(number: u32) -> io::Result<()> {
    let control = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let number = usize::try_from(number).map_err(io::Error::other)?;
    // SAFETY: this request takes a number and touches no memory of this process.
    let added = unsafe { ioctl(&control, IntegerSetter::<LOOP_CTL_ADD>::new_usize(number)) };
    match added {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Attaches a file to a free loop device, which releases it when its last user goes.
///
/// # Errors
///
/// Fails with `ResourceBusy` when the device has a file already. Also fails on kernels older than
/// 5.8.
#[expect(unsafe_code, reason = "no library knows this request")]
pub fn configure(device: &fs::File, file: &fs::File) -> io::Result<()> {
    let config = LoopConfig {
        file: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
        block_size: 0,
        device: 0,
        inode: 0,
        own_device: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads a `struct loop_config` here, which has this layout, and keeps no
    // reference to it. Both descriptors are open for the duration of the call.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }?;
    Ok(())
}
