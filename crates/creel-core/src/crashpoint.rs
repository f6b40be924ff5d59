//! Named places where a test may kill us.
//!
//! Each place in the life of a resource or of a run's records where a crash leaves something else
//! behind has a name. A test arms one (the binary does so from
//! `CREEL_CRASHPOINT`), the process then dies there by SIGKILL, just as the
//! kernel would kill it, and leaves a mark that proves the fault fired. A place
//! armed as `NAME:panic` panics once instead, as a mistake of ours would. At a place armed as
//! `NAME:stop` the process stops by SIGSTOP until the test sends SIGCONT.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The places, in life order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crashpoint {
    /// Nothing is written yet.
    BeforeIntent,
    /// The intent is durable, nothing was sent.
    AfterIntent,
    /// A directory exists under its private name; nothing says which one it is.
    DirectoryUnnamed,
    /// The file of a disk exists, and no file system is on it.
    DiskUnformatted,
    /// A loop device has the file, and nothing is mounted.
    DiskAttached,
    /// The provider has the create, its answer never reached us.
    CreateSent,
    /// The answer is here, the id is not recorded.
    CreatedNotRecorded,
    /// A disk is unmounted, and its file is still there.
    DiskUnmounted,
    /// The provider has the release, its answer never reached us.
    ReleaseSent,
    /// The release was answered, the absence is not verified.
    ReleasedNotVerified,
    /// The absence is verified, the record is still open.
    VerifiedNotClosed,
    /// A run has its row, and no event.
    RunCreatedNotLogged,
    /// An event of a run is in the log, its row is behind.
    RunLoggedNotSaved,
    /// A run was taken over from a dead owner, and nothing was written about it.
    RunClaimedNotWritten,
    /// A turn was ordered of the bridge, nothing was heard of it.
    TurnToldNotHeard,
}

/// What happens at a place that is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed.
    Kill,
    /// The thread panics, once.
    Panic,
    /// The process stops, once, until it gets SIGCONT.
    Stop,
}

impl Crashpoint {
    /// All places in the life of a resource, in life order.
    pub const ALL: [Self; 7] = [
        Self::BeforeIntent,
        Self::AfterIntent,
        Self::CreateSent,
        Self::CreatedNotRecorded,
        Self::ReleaseSent,
        Self::ReleasedNotVerified,
        Self::VerifiedNotClosed,
    ];

    /// All further places in the life of a directory, in life order.
    pub const OF_DIRECTORIES: [Self; 1] = [Self::DirectoryUnnamed];

    /// All further places in the life of a directory with a disk, in life order.
    pub const OF_DISKS: [Self; 3] =
        [Self::DiskUnformatted, Self::DiskAttached, Self::DiskUnmounted];

    /// All places in the records of a run, in life order.
    pub const OF_RUNS: [Self; 3] =
        [Self::RunCreatedNotLogged, Self::RunLoggedNotSaved, Self::RunClaimedNotWritten];

    /// All places in the turns of a run.
    pub const OF_TURNS: [Self; 1] = [Self::TurnToldNotHeard];

    /// Returns the name used in `CREEL_CRASHPOINT`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeIntent => "before-intent",
            Self::AfterIntent => "after-intent",
            Self::DirectoryUnnamed => "directory-unnamed",
            Self::DiskUnformatted => "disk-unformatted",
            Self::DiskAttached => "disk-attached",
            Self::CreateSent => "create-sent",
            Self::CreatedNotRecorded => "created-not-recorded",
            Self::DiskUnmounted => "disk-unmounted",
            Self::ReleaseSent => "release-sent",
            Self::ReleasedNotVerified => "released-not-verified",
            Self::VerifiedNotClosed => "verified-not-closed",
            Self::RunCreatedNotLogged => "run-created-not-logged",
            Self::RunLoggedNotSaved => "run-logged-not-saved",
            Self::RunClaimedNotWritten => "run-claimed-not-written",
            Self::TurnToldNotHeard => "turn-told-not-heard",
        }
    }
}

impl FromStr for Crashpoint {
    type Err = UnknownCrashpoint;

    fn from_str(name: &str) -> Result<Self, UnknownCrashpoint> {
        Self::ALL
            .into_iter()
            .chain(Self::OF_DIRECTORIES)
            .chain(Self::OF_DISKS)
            .chain(Self::OF_RUNS)
            .chain(Self::OF_TURNS)
            .find(|point| point.name() == name)
            .ok_or_else(|| UnknownCrashpoint { name: name.to_owned() })
    }
}

/// A name that is no crashpoint.
#[derive(Debug, thiserror::Error)]
#[error("`{name}` is not a crashpoint")]
pub struct UnknownCrashpoint {
    name: String,
}

/// Reads what `CREEL_CRASHPOINT` says: a place, and what happens there.
///
/// # Errors
///
/// Fails for a place that has no name here.
pub fn parse(text: &str) -> Result<(Crashpoint, Crash), UnknownCrashpoint> {
    let (name, crash) = match text.rsplit_once(':') {
        Some((name, "panic")) => (name, Crash::Panic),
        Some((name, "stop")) => (name, Crash::Stop),
        _ => (text, Crash::Kill),
    };
    Ok((name.parse()?, crash))
}

/// A crashpoint that is armed, and where it leaves its mark.
#[derive(Debug)]
struct Armed {
    point: Crashpoint,
    crash: Crash,
    mark: Option<PathBuf>,
    has_struck: AtomicBool,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Arms one place for the rest of this process; the first call wins.
pub fn arm(point: Crashpoint, crash: Crash, mark: Option<PathBuf>) {
    // A second arming cannot happen: the binary arms once, at its start.
    let _ = ARMED.set(Armed { point, crash, mark, has_struck: AtomicBool::new(false) });
}

/// Returns whether this place is armed, for code that must set the scene.
pub fn is_armed(point: Crashpoint) -> bool {
    ARMED.get().is_some_and(|armed| armed.point == point)
}

/// Dies here, panics or stops, if this place is armed.
///
/// # Panics
///
/// Panics the first time, where that was asked for.
pub fn reach(point: Crashpoint) {
    let Some(armed) = ARMED.get().filter(|armed| armed.point == point) else { return };
    if armed.has_struck.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(mark) = &armed.mark {
        // A lost mark fails the test that asked for it; there is nobody else to tell.
        let _ = fs::write(mark, point.name());
    }
    match armed.crash {
        Crash::Panic => panic!("a test wants a panic at {}", point.name()),
        Crash::Stop => {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        Crash::Kill => {
            let _ = kill_process(getpid(), Signal::KILL);
            std::thread::park();
        }
    }
}
