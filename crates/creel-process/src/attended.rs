//! Commands that run in the user's terminal, as a process tree of this provider.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use creel_model::backend::HolderProgram;
use creel_model::provider::{CreateRequest, ErrorClass, Limits, Result};
use rustix::process::Pid;
use tokio::sync::mpsc;

use super::attendant::Attendance;
use super::cgroup::{Hierarchies, PlannedGroup};
use super::channel::{AttendantCommand, AttendantReport, Channel, Received, write_message};
use super::cover::SocketCover;
use super::sidecar::{Sidecar, SidecarDirectory};
use super::state::{ProviderState, failure, io_failure};
use super::tree_record::{Containment, ProcessEnding, TreeRecord};
use super::{ProcessProvider, RESOURCE_VARIABLE, lease, terminal};

/// How long an attendant may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of buffered reports; a user presses keys slowly.
const REPORTS: usize = 64;

/// A command to run in the user's terminal.
#[derive(Debug, Clone)]
pub struct AttendedCommand {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Changes to the environment of this process.
    pub environment: CommandEnvironment,
    /// A directory for our own socket.
    pub directory: PathBuf,
    /// The socket that replaces another one for the command.
    pub cover: Option<SocketCover>,
}

/// Changes to an environment.
#[derive(Debug, Clone, Default)]
pub struct CommandEnvironment {
    /// Variables to set.
    pub set: Vec<(OsString, OsString)>,
    /// Variables to remove.
    pub removed: Vec<OsString>,
}

/// An event of a command in the user's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEvent {
    /// It ended.
    Ended(ProcessEnding),
    /// Its process group received this signal, for example from the terminal.
    Signalled(i32),
    /// The user asked to suspend it.
    Suspended,
    /// Its attendant is gone, and the tree with it.
    Lost,
}

/// A command that runs in the user's terminal.
#[derive(Debug)]
pub struct Attended {
    reports: mpsc::Receiver<CommandEvent>,
    commands: std::os::unix::net::UnixStream,
    /// The command's process group, which its attendant leads.
    group: Option<Pid>,
}

impl Attended {
    /// Waits for the next event.
    pub async fn next(&mut self) -> CommandEvent {
        self.reports.recv().await.unwrap_or(CommandEvent::Lost)
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        // If the attendant is gone, so is the group.
        let _ = write_message(&self.commands, &AttendantCommand::Signal { signal });
    }

    /// Resumes a suspended command, in the foreground if this process has it.
    pub fn resume(&self) {
        let _ = self.group.map(terminal::hand_over);
        let _ = write_message(&self.commands, &AttendantCommand::Resume);
    }
}

impl ProcessProvider {
    /// Starts a command in the user's terminal, as the process tree of this request.
    ///
    /// Returns the id of the tree and a handle to the command. The tree ends when the handle is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be recorded or started; `Invalid` means that there is no such program
    /// or that it is not executable.
    pub async fn attend(
        &self,
        request: CreateRequest,
        command: AttendedCommand,
    ) -> Result<(String, Attended)> {
        let attended = self.blocking(move |state| {
            let attended = state.attend(&request, command)?;
            Ok((request.resource.object_name(), attended))
        });
        attended.await
    }
}

impl ProviderState {
    fn attend(&self, request: &CreateRequest, command: AttendedCommand) -> Result<Attended> {
        let operation = format!("start {}", request.name);
        let wrong = |error: io::Error| io_failure(&operation, &error);
        let records = SidecarDirectory::make(&self.settings.root).map_err(wrong)?;
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, _) = hierarchies.plan(&request.resource.object_name(), &Limits::default());
        let mut sidecar = Sidecar::of_request(request).map_err(wrong)?;
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        records.write(&sidecar).map_err(wrong)?;
        // A tree without a control group is found by marker and descent.
        let created = planned.iter().filter_map(|group| group.make().ok());
        sidecar.cgroups = created.map(|(group, _)| group).collect();
        records.write(&sidecar).map_err(wrong)?;
        let lease_file = records.lease_file(&request.resource);
        lease::renew(&lease_file).map_err(wrong)?;
        let socket = command.directory.join("attend.sock");
        let listener = UnixListener::bind(&socket).map_err(wrong)?;
        let attendance =
            Attendance { socket, resource: request.resource, command: command.command };
        let child = start_attendant(&self.settings.holder, &attendance, &command.environment);
        let child = child.map_err(wrong)?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // Before the command starts, because it may read from the terminal at once.
        let _ = group.map(terminal::hand_over);
        self.adopt(child);
        let stream = accept(&listener).map_err(wrong)?;
        let _ = fs::remove_file(&attendance.socket);
        let mut channel = Channel::over(stream);
        let begin = AttendantCommand::Begin {
            cgroups: sidecar.cgroups.clone(),
            lease: request.lease,
            lease_file,
            cover: command.cover,
        };
        channel.send(&begin).map_err(wrong)?;
        match channel.receive(Some(RESPONSE_TIMEOUT)).map_err(wrong)? {
            Received::Message(AttendantReport::Started { attendant }) => {
                let containment = Containment::Subreaper;
                let tree = TreeRecord { containment, holder: attendant, init: attendant };
                sidecar.tree = Some(tree);
                records.write(&sidecar).map_err(wrong)?;
                listen(channel, &records, request, group).map_err(wrong)
            }
            Received::Message(AttendantReport::Refused { reason, not_found }) => {
                let class = if not_found { ErrorClass::Gone } else { ErrorClass::Invalid };
                Err(failure(&operation, class, reason))
            }
            Received::Message(_) | Received::Silence | Received::End => {
                let message = "its attendant did not answer";
                Err(failure(&operation, ErrorClass::Transient, message))
            }
        }
    }
}

/// Starts an attendant for a tree.
fn start_attendant(
    program: &HolderProgram,
    attendance: &Attendance,
    environment: &CommandEnvironment,
) -> io::Result<Child> {
    let mut command = Command::new(&program.program);
    command
        .args(&program.args)
        .args(attendance.arguments())
        .arg0("creel")
        // A separate process group, so that signals for the guard's group do not reach the command,
        // and vice versa.
        .process_group(0);
    for name in &environment.removed {
        command.env_remove(name);
    }
    command.envs(environment.set.iter().cloned());
    command.env(RESOURCE_VARIABLE, attendance.resource.to_string());
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit()).spawn()
}

/// Waits for the attendant to connect.
fn accept(listener: &UnixListener) -> io::Result<std::os::unix::net::UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + RESPONSE_TIMEOUT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Forwards the attendant's reports from a separate thread.
fn listen(
    mut channel: Channel,
    records: &SidecarDirectory,
    request: &CreateRequest,
    group: Option<Pid>,
) -> io::Result<Attended> {
    let commands = channel.writer()?;
    let (sender, reports) = mpsc::channel(REPORTS);
    let ending_file = records.ending_file(&request.resource);
    std::thread::Builder::new().name("attend".to_owned()).spawn(move || {
        while let Ok(Received::Message(report)) = channel.receive::<AttendantReport>(None) {
            let attention = match report {
                AttendantReport::Ended(ending) => {
                    let text = serde_json::to_vec(&ending).unwrap_or_default();
                    // Only listings read it, so an error does not matter.
                    let _ = super::sidecar::write_whole(&ending_file, &text);
                    CommandEvent::Ended(ending)
                }
                AttendantReport::Signalled { signal } => CommandEvent::Signalled(signal),
                AttendantReport::Suspended => CommandEvent::Suspended,
                AttendantReport::Started { .. } | AttendantReport::Refused { .. } => continue,
            };
            if sender.blocking_send(attention).is_err() {
                return;
            }
        }
    })?;
    Ok(Attended { reports, commands, group })
}

impl Drop for Attended {
    fn drop(&mut self) {
        // The attendant sees the closed connection and ends the tree.
        let _ = self.commands.shutdown(std::net::Shutdown::Both);
    }
}
