//! The holder and the init.
//!
//! [`run`] is the whole program of a hidden subcommand: it reads one request from its standard
//! input, which is a socket, and carries it out. It must be the first thing its process does,
//! because an ordinary user gets a pid namespace only in a process with one thread. It closes every
//! inherited descriptor, so that no process waits for the end of a pipe that a holder keeps open.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use creel_model::backend::HolderProgram;
use creel_model::id::ResourceId;
use creel_model::os;
use creel_model::os::ProcessKey;
use creel_model::provider::ErrorClass;
use rustix::process::{WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait};

use super::cgroup::GroupRecord;
use super::channel::{
    Channel, HolderReport, HolderRequest, Received, Role, Workload, write_message,
};
use super::lease::LeaseWatch;
use super::tree_record::{Containment, ProcessEnding, TreeRecord};
use super::{RESOURCE_VARIABLE, namespace, sidecar, tree};

/// How long the init may take to start the workload.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(15);
/// How long one attempt to end the tree may take before the next one.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// How long a newly written program may be busy.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts to start it.
const WRITE_PAUSE: Duration = Duration::from_millis(10);

/// Why a holder or an init gave up.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// The standard input is not a socket with a request.
    #[error("no order came in; this command is only for creel itself")]
    NoRequest,
    /// The system refused a step.
    #[error("the tree could not be held")]
    System(#[from] io::Error),
}

/// Carries out the request on the standard input, and returns when it is done.
///
/// The process must not have opened a file or started a thread before.
///
/// # Errors
///
/// Fails when there is no request or the system refuses a step. Where possible, the sender of the
/// request already got a report.
pub fn run() -> Result<(), HolderError> {
    os::close_inherited()?;
    let mut channel = Channel::of_this_process().map_err(|_| HolderError::NoRequest)?;
    let request: HolderRequest = match channel.receive(Some(START_PATIENCE)) {
        Ok(Received::Message(request)) => request,
        Ok(Received::Silence | Received::End) | Err(_) => return Err(HolderError::NoRequest),
    };
    match request.role {
        Role::Hold => hold(request, channel)?,
        Role::Init => init(request, channel)?,
    }
    Ok(())
}

/// Starts a holder or an init, with a request on its standard input.
pub(super) fn start(
    program: &HolderProgram,
    request: &HolderRequest,
) -> io::Result<(Child, Channel)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(&program.program)
        .args(&program.args)
        .arg(request.resource.to_string())
        .env_clear()
        .env(RESOURCE_VARIABLE, request.resource.to_string())
        .current_dir("/")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let channel = Channel::over(ours);
    channel.send(request)?;
    Ok((child, channel))
}

/// The holder: starts the init, reports to the supervisor, then watches until the tree ends.
fn hold(request: HolderRequest, supervisor: Channel) -> io::Result<()> {
    // It fails only for a process group leader, which needs no new session.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    if request.containment == Containment::PidNamespace
        && let Err(error) = namespace::prepare()
    {
        return supervisor.send(&HolderReport::Unavailable { reason: error.to_string() });
    }
    let watch = LeaseWatch::start(request.lease_file.clone(), request.lease);
    let (init, mut channel) =
        start(&request.program, &HolderRequest { role: Role::Init, ..request.clone() })?;
    let init = HolderTree { init, request: &request };
    let not_joined = match channel.receive(Some(START_PATIENCE))? {
        Received::Message(HolderReport::Spawned { not_joined }) => not_joined,
        Received::Message(refusal) => {
            init.end();
            return supervisor.send(&refusal);
        }
        Received::Silence | Received::End => {
            init.end();
            let reason = "the init ended without a word".to_owned();
            return supervisor.send(&HolderReport::Unavailable { reason });
        }
    };
    // A supervisor that died meanwhile cannot receive this; its successor finds the tree.
    let _ = supervisor.send(&HolderReport::Started { tree: init.record()?, not_joined });
    drop(supervisor);
    if request.workload.is_none() {
        init.end();
        return Ok(());
    }
    let ending = watch_until_end(&mut channel, watch);
    init.end();
    for group in &request.cgroups {
        // The release removes what is left.
        let _ = group.remove(&request.resource);
    }
    sidecar::write_whole(&request.ending_file, &serde_json::to_vec(&ending)?)
}

/// Waits for the end of the workload, of the init, or of the lease.
fn watch_until_end(channel: &mut Channel, mut lease: LeaseWatch) -> ProcessEnding {
    loop {
        match channel.receive(Some(lease.period())) {
            Ok(Received::Message(HolderReport::Ended(ending))) => return ending,
            Ok(Received::Silence) => {}
            // No other message is ever sent, so the init cannot be relied on.
            Ok(Received::Message(_) | Received::End) | Err(_) => return ProcessEnding::InitDied,
        }
        if lease.has_expired() {
            return ProcessEnding::LeaseExpired;
        }
    }
}

/// The tree under a holder.
struct HolderTree<'a> {
    init: Child,
    request: &'a HolderRequest,
}

impl HolderTree<'_> {
    fn record(&self) -> io::Result<TreeRecord> {
        let pid = i32::try_from(self.init.id()).map_err(io::Error::other)?;
        Ok(TreeRecord {
            containment: self.request.containment,
            holder: ProcessKey::of_this_process()?,
            init: ProcessKey::of(pid)?,
        })
    }

    /// Ends everything below this holder, however long it takes.
    ///
    /// While a process is left, the tree needs its holder.
    fn end(mut self) {
        let HolderRequest { resource, cgroups, .. } = self.request;
        // A dead init is as good as a killed one.
        let _ = self.init.kill();
        while tree::end(resource, cgroups, Instant::now() + END_PATIENCE).is_err() {
            reap_orphans();
        }
        reap_orphans();
    }
}

fn reap_orphans() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// The init: contains itself, starts the workload, reaps until the holder disconnects.
fn init(request: HolderRequest, mut holder: Channel) -> io::Result<()> {
    let not_joined = match contain(&request) {
        Ok(not_joined) => not_joined,
        Err(error) => return holder.send(&HolderReport::Unavailable { reason: error.to_string() }),
    };
    if let Some(workload) = &request.workload {
        let writer = holder.writer()?;
        let (started, starts) = mpsc::channel();
        // Before the workload: one that forks up to its limit at once would leave no room for this
        // thread.
        thread::Builder::new().spawn(move || {
            if let Ok(workload) = starts.recv() {
                reap(workload, &writer);
            }
        })?;
        let child = match spawn(workload) {
            Ok(child) => child,
            Err(refusal) => return holder.send(&refusal),
        };
        holder.send(&HolderReport::Spawned { not_joined })?;
        started.send(child.id()).map_err(io::Error::other)?;
    } else {
        holder.send(&HolderReport::Spawned { not_joined })?;
    }
    // The holder sends nothing more, so this returns when it dies; the result does not matter. As
    // pid 1 of a namespace this process then takes the rest with it; otherwise the rest is ended
    // here.
    let _ = holder.receive::<HolderReport>(None);
    if request.containment != Containment::PidNamespace {
        let deadline = Instant::now() + END_PATIENCE;
        tree::end(&request.resource, &request.cgroups, deadline).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Puts this process into its containment; returns the groups it could not join.
fn contain(request: &HolderRequest) -> io::Result<Vec<PathBuf>> {
    set_child_subreaper(Some(getpid()))?;
    let mut refused = String::new();
    let (joined, not_joined): (Vec<&GroupRecord>, Vec<&GroupRecord>) =
        request.cgroups.iter().partition(|group| match group.join() {
            Ok(()) => true,
            Err(error) => {
                refused = format!(": {}: {error}", group.path.display());
                false
            }
        });
    match request.containment {
        Containment::PidNamespace => {
            namespace::enter(
                request.workload.as_ref().map(|workload| workload.directory.as_path()),
            )?;
        }
        Containment::Cgroup if !joined.iter().any(|group| group.can_end()) => {
            return Err(io::Error::other(format!("no control group can be joined{refused}")));
        }
        Containment::Cgroup | Containment::Subreaper => {}
    }
    Ok(not_joined.into_iter().map(|group| group.path.clone()).collect())
}

fn spawn(workload: &Workload) -> Result<Child, HolderReport> {
    let refuse = |reason: String, class| HolderReport::Refused { reason, class };
    let Some((program, arguments)) = workload.command.split_first() else {
        return Err(refuse("the command is empty".to_owned(), ErrorClass::Invalid));
    };
    if !workload.directory.is_dir() {
        let reason = format!("no such directory: {}", workload.directory.display());
        return Err(refuse(reason, ErrorClass::Invalid));
    }
    let mut options = OpenOptions::new();
    let log = options.create(true).append(true).mode(0o600).open(&workload.log);
    let outputs = log.and_then(|log| Ok((log.try_clone()?, log)));
    let (stdout, stderr) = outputs.map_err(|error| {
        refuse(format!("the log cannot be opened: {error}"), ErrorClass::Transient)
    })?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&workload.env)
        .current_dir(&workload.directory)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    spawn_when_written(&mut command).map_err(|error| {
        let (reason, class) = explain_exec(program, &error);
        refuse(reason, class)
    })
}

/// Starts a program that may have been written just now.
///
/// A process that its writer started at the same time may keep the file open for a moment longer.
fn spawn_when_written(command: &mut Command) -> io::Result<Child> {
    let deadline = Instant::now() + WRITE_PATIENCE;
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < deadline =>
            {
                thread::sleep(WRITE_PAUSE);
            }
            result => return result,
        }
    }
}

fn explain_exec(program: &str, error: &io::Error) -> (String, ErrorClass) {
    match error.kind() {
        io::ErrorKind::NotFound => (format!("no such program: {program}"), ErrorClass::Invalid),
        io::ErrorKind::PermissionDenied => {
            (format!("not an executable program: {program}"), ErrorClass::Invalid)
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            (format!("no room to start {program}: {error}"), ErrorClass::Quota)
        }
        _ => (format!("{program} cannot be started: {error}"), ErrorClass::Invalid),
    }
}

/// Reaps every child, and reports the end of the workload to the holder.
fn reap(workload: u32, holder: &UnixStream) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if u32::try_from(pid.as_raw_pid()) == Ok(workload)
            && let Some(ending) = ending_of(status)
        {
            // A holder that is gone needs no report: the main thread ends this process.
            let _ = write_message(holder, &HolderReport::Ended(ending));
        }
    }
}

pub(super) fn ending_of(status: WaitStatus) -> Option<ProcessEnding> {
    status
        .exit_status()
        .map(ProcessEnding::Code)
        .or_else(|| status.terminating_signal().map(ProcessEnding::Signal))
}

/// Returns the environment of a workload: the requested one, on top of a bare one.
pub(super) fn environment_of(
    resource: &ResourceId,
    home: &Path,
    requested: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        (
            "PATH".to_owned(),
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ),
        ("HOME".to_owned(), home.display().to_string()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    env.extend(requested.clone());
    // Last, so that the request cannot override the marker.
    env.insert(RESOURCE_VARIABLE.to_owned(), resource.to_string());
    env
}
