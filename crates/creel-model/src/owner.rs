//! Owners: the process that is responsible for a resource, and whether it still lives.
//!
//! A pid is reused, so an owner is identified by host, boot, pid namespace, pid and start time
//! together. The liveness of an owner on another host or in another pid namespace is *unknown*.
//! Unknown means keep: only the lease decides then.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::os;
use crate::os::ProcessKey;

/// The identity of a process that holds resources.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The machine.
    pub host: String,
    /// The boot of that machine.
    pub boot: String,
    /// The inode of the process's pid namespace.
    pub pid_namespace: u64,
    /// The process in that namespace.
    pub process: ProcessKey,
}

/// Whether an owner is still alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Liveness {
    /// The process runs.
    Alive,
    /// The process is provably gone.
    Dead,
    /// The liveness cannot be determined from here.
    Unknown,
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alive => "alive",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
        })
    }
}

impl Owner {
    /// Returns this process as an owner.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn this_process() -> io::Result<Self> {
        Self::of_process(ProcessKey::of_this_process()?)
    }

    /// Returns a process of this machine and pid namespace as an owner.
    ///
    /// # Errors
    ///
    /// Fails when `/proc` cannot be read.
    pub fn of_process(process: ProcessKey) -> io::Result<Self> {
        Ok(Self {
            host: os::host_id()?,
            boot: os::boot_id()?,
            pid_namespace: os::pid_namespace()?,
            process,
        })
    }

    /// Checks from this process whether the owner is alive.
    pub fn liveness(&self) -> Liveness {
        match Self::this_process() {
            Ok(here) => self.liveness_from(&here, |process| process.has_first_thread()),
            Err(_) => Liveness::Unknown,
        }
    }

    /// Returns whether the owner has died with all its threads.
    ///
    /// None of its own operations can still take effect then. An owner counts as dead as soon as
    /// its first thread ends, while another thread may still be in a system call.
    pub fn has_ended(&self) -> bool {
        let is_of_this_boot = os::boot_id().is_ok_and(|boot| boot == self.boot);
        self.liveness() == Liveness::Dead
            && (!is_of_this_boot || self.process.is_alive().is_ok_and(|alive| !alive))
    }

    fn liveness_from(
        &self,
        here: &Self,
        is_alive: impl FnOnce(&ProcessKey) -> io::Result<bool>,
    ) -> Liveness {
        if self.host != here.host {
            return Liveness::Unknown;
        }
        if self.boot != here.boot {
            return Liveness::Dead;
        }
        if self.pid_namespace != here.pid_namespace {
            return Liveness::Unknown;
        }
        match is_alive(&self.process) {
            Ok(true) => Liveness::Alive,
            Ok(false) => Liveness::Dead,
            Err(_) => Liveness::Unknown,
        }
    }
}

/// Prints one line without spaces, suitable for a label and for SQL equality.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessKey { pid, started_ticks } = self.process;
        write!(f, "{}/{}/{}/{pid}/{started_ticks}", self.host, self.boot, self.pid_namespace)
    }
}

/// A text that is not a valid owner.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not an owner of the form host/boot/namespace/pid/start")]
pub struct InvalidOwner {
    text: String,
}

impl FromStr for Owner {
    type Err = InvalidOwner;

    fn from_str(text: &str) -> Result<Self, InvalidOwner> {
        let parse = || {
            let mut parts = text.split('/');
            let owner = Self {
                host: parts.next()?.to_owned(),
                boot: parts.next()?.to_owned(),
                pid_namespace: parts.next()?.parse().ok()?,
                process: ProcessKey {
                    pid: parts.next()?.parse().ok()?,
                    started_ticks: parts.next()?.parse().ok()?,
                },
            };
            parts.next().is_none().then_some(owner)
        };
        parse().ok_or_else(|| InvalidOwner { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_owner() -> Owner {
        Owner {
            host: "h".to_owned(),
            boot: "b".to_owned(),
            pid_namespace: 1,
            process: ProcessKey { pid: 10, started_ticks: 99 },
        }
    }

    #[test]
    fn an_owner_survives_the_round_trip_through_its_label() {
        let owner = some_owner();
        assert_eq!(owner.to_string().parse::<Owner>().expect("printed by us"), owner);
        assert!("h/b/1/10".parse::<Owner>().is_err());
        assert!("h/b/1/10/99/7".parse::<Owner>().is_err());
    }

    #[test]
    fn liveness_is_unknown_where_it_cannot_be_judged() {
        let here = some_owner();
        let judge = |change: fn(&mut Owner), alive: bool| {
            let mut owner = some_owner();
            change(&mut owner);
            owner.liveness_from(&here, |_| Ok(alive))
        };
        assert_eq!(judge(|o| o.host = "other".to_owned(), false), Liveness::Unknown);
        assert_eq!(judge(|o| o.pid_namespace = 2, false), Liveness::Unknown);
        assert_eq!(judge(|o| o.boot = "later".to_owned(), true), Liveness::Dead);
        assert_eq!(judge(|_| {}, true), Liveness::Alive);
        assert_eq!(judge(|_| {}, false), Liveness::Dead);
        let denied = |_: &ProcessKey| Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(some_owner().liveness_from(&here, denied), Liveness::Unknown);
    }
}
