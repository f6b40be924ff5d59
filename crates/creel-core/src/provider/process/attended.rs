//! Commands that run in front of the user, as a process tree of this world.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tokio::sync::mpsc;

use crate::provider::{CreateOrder, ErrorClass, Limits, Result};

use super::attendant::{self, Attendance};
use super::cgroup::{Hierarchies, PlannedGroup};
use super::channel::{
    AttendantOrder, AttendantReport, Channel, Containment, Ending, Heard, TreeRecord, write_message,
};
use super::cover::Cover;
use super::sidecar::{Shelf, Sidecar};
use super::world::{World, failure, io_failure};
use super::{ProcessProvider, lease, terminal};

/// How long an attendant may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// How many reports may wait to be read; a user presses keys slowly.
const REPORTS: usize = 64;

/// What to run in front of the user.
#[derive(Debug, Clone)]
pub struct AttendedCommand {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What is changed in the environment of this process.
    pub environment: CommandEnvironment,
    /// A directory for a socket of our own.
    pub directory: PathBuf,
    /// What the command finds in another's place.
    pub cover: Option<Cover>,
}

/// What is changed in an environment.
#[derive(Debug, Clone, Default)]
pub struct CommandEnvironment {
    /// Variables that are set.
    pub set: Vec<(OsString, OsString)>,
    /// Variables that are taken away.
    pub removed: Vec<OsString>,
}

/// What happens to a command that runs in front of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// It ended.
    Ended(Ending),
    /// Its process group got this signal, from the terminal for one.
    Signalled(i32),
    /// The user asked to suspend it.
    Suspended,
    /// Its attendant is gone, and with it the tree.
    Lost,
}

/// A command that runs in front of the user.
#[derive(Debug)]
pub struct Attended {
    reports: mpsc::Receiver<Attention>,
    orders: std::os::unix::net::UnixStream,
    /// The command's process group, which its attendant leads.
    group: Option<Pid>,
}

impl Attended {
    /// Waits for the next thing to happen.
    pub async fn next(&mut self) -> Attention {
        self.reports.recv().await.unwrap_or(Attention::Lost)
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        // An attendant that is gone has taken the group along.
        let _ = write_message(&self.orders, &AttendantOrder::Signal { signal });
    }

    /// Lets a suspended command go on, in the foreground if this process has it.
    pub fn resume(&self) {
        let _ = self.group.map(terminal::hand_over);
        let _ = write_message(&self.orders, &AttendantOrder::Resume);
    }
}

impl ProcessProvider {
    /// Starts a command in front of the user, as the process tree of this order; returns its
    /// id and the handle to it. The tree ends when the handle is dropped.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be recorded or started; `Invalid` means that there is no such
    /// program or that it is not executable.
    pub async fn attend(
        &self,
        order: CreateOrder,
        command: AttendedCommand,
    ) -> Result<(String, Attended)> {
        let attended = self.blocking(move |world| {
            let attended = world.attend(&order, command)?;
            Ok((order.resource.object_name(), attended))
        });
        attended.await
    }
}

impl World {
    fn attend(&self, order: &CreateOrder, command: AttendedCommand) -> Result<Attended> {
        let operation = format!("start {}", order.name);
        let wrong = |error: io::Error| io_failure(&operation, &error);
        let shelf = Shelf::make(&self.settings.root).map_err(wrong)?;
        let hierarchies = Hierarchies::of_this_process().unwrap_or_default();
        let (planned, _) = hierarchies.plan(&order.resource.object_name(), &Limits::default());
        let mut sidecar = Sidecar::of_order(order).map_err(wrong)?;
        sidecar.cgroups = planned.iter().map(PlannedGroup::record).collect();
        shelf.write(&sidecar).map_err(wrong)?;
        // Without a group the tree is found by marker and descent.
        let made = planned.iter().filter_map(|group| group.make().ok());
        sidecar.cgroups = made.map(|(group, _)| group).collect();
        shelf.write(&sidecar).map_err(wrong)?;
        let lease_file = shelf.lease_file(&order.resource);
        lease::renew(&lease_file).map_err(wrong)?;
        let socket = command.directory.join("attend.sock");
        let listener = UnixListener::bind(&socket).map_err(wrong)?;
        let attendance = Attendance { socket, resource: order.resource, command: command.command };
        let child = attendant::start(&self.settings.holder, &attendance, &command.environment);
        let child = child.map_err(wrong)?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // Before the command starts, because it may read from it at once.
        let _ = group.map(terminal::hand_over);
        self.adopt(child);
        let stream = accept(&listener).map_err(wrong)?;
        let _ = fs::remove_file(&attendance.socket);
        let mut channel = Channel::over(stream);
        let begin = AttendantOrder::Begin {
            cgroups: sidecar.cgroups.clone(),
            lease: order.lease,
            lease_file,
            cover: command.cover,
        };
        channel.send(&begin).map_err(wrong)?;
        match channel.receive(Some(ANSWER_PATIENCE)).map_err(wrong)? {
            Heard::Message(AttendantReport::Started { attendant }) => {
                let containment = Containment::Subreaper;
                let tree = TreeRecord { containment, holder: attendant, init: attendant };
                sidecar.tree = Some(tree);
                shelf.write(&sidecar).map_err(wrong)?;
                listen(channel, &shelf, order, group).map_err(wrong)
            }
            Heard::Message(AttendantReport::Refused { reason, not_found }) => {
                let class = if not_found { ErrorClass::Gone } else { ErrorClass::Invalid };
                Err(failure(&operation, class, reason))
            }
            Heard::Message(_) | Heard::Silence | Heard::End => {
                let message = "its attendant did not answer";
                Err(failure(&operation, ErrorClass::Transient, message))
            }
        }
    }
}

/// Waits for the attendant to call.
fn accept(listener: &UnixListener) -> io::Result<std::os::unix::net::UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + ANSWER_PATIENCE;
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

/// Passes on what the attendant reports, from a thread of its own.
fn listen(
    mut channel: Channel,
    shelf: &Shelf,
    order: &CreateOrder,
    group: Option<Pid>,
) -> io::Result<Attended> {
    let orders = channel.writer()?;
    let (tell, reports) = mpsc::channel(REPORTS);
    let ending_file = shelf.ending_file(&order.resource);
    std::thread::Builder::new().name("attend".to_owned()).spawn(move || {
        while let Ok(Heard::Message(report)) = channel.receive::<AttendantReport>(None) {
            let attention = match report {
                AttendantReport::Ended(ending) => {
                    let text = serde_json::to_vec(&ending).unwrap_or_default();
                    // Only listings read it.
                    let _ = super::sidecar::write_whole(&ending_file, &text);
                    Attention::Ended(ending)
                }
                AttendantReport::Signalled { signal } => Attention::Signalled(signal),
                AttendantReport::Suspended => Attention::Suspended,
                AttendantReport::Started { .. } | AttendantReport::Refused { .. } => continue,
            };
            if tell.blocking_send(attention).is_err() {
                return;
            }
        }
    })?;
    Ok(Attended { reports, orders, group })
}

impl Drop for Attended {
    fn drop(&mut self) {
        // The attendant hears the end of the conversation, and ends the tree.
        let _ = self.orders.shutdown(std::net::Shutdown::Both);
    }
}
