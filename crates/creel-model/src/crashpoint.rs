//! Named points where a test may kill this process.
//!
//! Every point in the life of a resource or of a run's records where a crash leaves a different
//! state behind has a name. A test arms one point; the binary reads it from `CREEL_CRASHPOINT`. The
//! process then dies there by SIGKILL, just as the kernel would kill it, and leaves a mark that
//! proves the fault fired. A point armed as `NAME:panic` panics once instead, as a bug in creel
//! would. At a point armed as `NAME:stop` the process stops by SIGSTOP until the test sends
//! SIGCONT.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The crashpoints, in lifecycle order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crashpoint {
    /// Nothing is written yet.
    BeforeIntent,
    /// The intent is durable, nothing was sent.
    AfterIntent,
    /// A directory exists under its private name; nothing records which resource it belongs to.
    DirectoryUnnamed,
    /// The file of a disk exists, without a file system.
    DiskUnformatted,
    /// The file is attached to a loop device, and nothing is mounted.
    DiskAttached,
    /// The provider received the create; its response never arrived.
    CreateSent,
    /// The response arrived; the id is not recorded.
    CreatedNotRecorded,
    /// A disk is unmounted; its file still exists.
    DiskUnmounted,
    /// The provider received the release; its response never arrived.
    ReleaseSent,
    /// The release was acknowledged; the absence is not verified.
    ReleasedNotVerified,
    /// The absence is verified; the record is still open.
    VerifiedNotClosed,
    /// A run has its row, but no event.
    RunCreatedNotLogged,
    /// An event of a run is in the log; the run's row is behind.
    RunLoggedNotSaved,
    /// A run was taken over from a dead owner, and no event records it.
    RunClaimedNotWritten,
    /// A turn was sent to the bridge; nothing was received for it.
    TurnSentNotConfirmed,
}

/// What happens at an armed crashpoint.
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
    /// All crashpoints in the life of a resource, in lifecycle order.
    pub const ALL: [Self; 7] = [
        Self::BeforeIntent,
        Self::AfterIntent,
        Self::CreateSent,
        Self::CreatedNotRecorded,
        Self::ReleaseSent,
        Self::ReleasedNotVerified,
        Self::VerifiedNotClosed,
    ];

    /// All additional crashpoints of a directory, in lifecycle order.
    pub const OF_DIRECTORIES: [Self; 1] = [Self::DirectoryUnnamed];

    /// All additional crashpoints of a directory with a disk, in lifecycle order.
    pub const OF_DISKS: [Self; 3] =
        [Self::DiskUnformatted, Self::DiskAttached, Self::DiskUnmounted];

    /// All crashpoints in the records of a run, in lifecycle order.
    pub const OF_RUNS: [Self; 3] =
        [Self::RunCreatedNotLogged, Self::RunLoggedNotSaved, Self::RunClaimedNotWritten];

    /// All crashpoints in the turns of a run.
    pub const OF_TURNS: [Self; 1] = [Self::TurnSentNotConfirmed];

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
            Self::TurnSentNotConfirmed => "turn-told-not-heard",
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

/// A name that is not a crashpoint.
#[derive(Debug, thiserror::Error)]
#[error("`{name}` is not a crashpoint")]
pub struct UnknownCrashpoint {
    name: String,
}

/// Parses the value of `CREEL_CRASHPOINT`: a crashpoint, and what happens there.
///
/// # Errors
///
/// Fails for an unknown crashpoint.
pub fn parse(text: &str) -> Result<(Crashpoint, Crash), UnknownCrashpoint> {
    let (name, crash) = match text.rsplit_once(':') {
        Some((name, "panic")) => (name, Crash::Panic),
        Some((name, "stop")) => (name, Crash::Stop),
        _ => (text, Crash::Kill),
    };
    Ok((name.parse()?, crash))
}

/// An armed crashpoint, and the file for its mark.
#[derive(Debug)]
struct ArmedCrashpoint {
    point: Crashpoint,
    crash: Crash,
    mark: Option<PathBuf>,
    has_fired: AtomicBool,
}

/// The longest time that a process takes to stop after it received the signal.
const STOPPING: Duration = Duration::from_millis(200);

static ARMED: OnceLock<ArmedCrashpoint> = OnceLock::new();

/// Arms one crashpoint for the rest of this process. The first call wins.
pub fn arm(point: Crashpoint, crash: Crash, mark: Option<PathBuf>) {
    // A second call cannot happen: the binary arms once, at its start.
    let _ = ARMED.set(ArmedCrashpoint { point, crash, mark, has_fired: AtomicBool::new(false) });
}

/// Returns whether this crashpoint is armed, for code that must prepare the fault.
pub fn is_armed(point: Crashpoint) -> bool {
    ARMED.get().is_some_and(|armed| armed.point == point)
}

/// Kills the process, panics or stops if this crashpoint is armed.
///
/// # Panics
///
/// Panics the first time, if the crashpoint was armed to panic.
pub fn reach(point: Crashpoint) {
    let Some(armed) = ARMED.get().filter(|armed| armed.point == point) else { return };
    if armed.has_fired.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(mark) = &armed.mark {
        // A lost mark fails the test that asked for it. There is no one else to report it to.
        let _ = fs::write(mark, point.name());
    }
    match armed.crash {
        Crash::Panic => panic!("a test wants a panic at {}", point.name()),
        Crash::Stop => {
            let _ = kill_process(getpid(), Signal::STOP);
            // Another thread may receive the signal. This one must not continue before all have
            // stopped.
            std::thread::sleep(STOPPING);
        }
        Crash::Kill => {
            let _ = kill_process(getpid(), Signal::KILL);
            std::thread::park();
        }
    }
}
