//! Loop devices: a file as a block device. No library knows these requests.
//!
//! A device is always told to let go of its file when its last user goes. Until
//! it is mounted that is the handle it was configured by, so a process that dies
//! in between leaves nothing behind.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl};

/// What a loop device is given, as `linux/loop.h` has it.
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

/// The device lets go of its file when its last user goes.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_ADD: Opcode = 0x4C80;

/// Makes one more loop device; one that exists already is fine.
///
/// # Errors
///
/// Fails where this process may not, and where there are no loop devices.
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

/// Attaches a file to a free loop device, which lets go of it when its last user goes.
///
/// # Errors
///
/// `ResourceBusy` when the device has a file already; also where the kernel is older than 5.8.
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
    // SAFETY: the kernel reads a `struct loop_config` here, whose layout this is, and keeps none
    // of it; both descriptors are open for as long as the call takes.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }?;
    Ok(())
}
