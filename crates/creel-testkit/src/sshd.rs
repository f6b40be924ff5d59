//! A private sshd: an engine, or repositories, reached over `ssh://`.
//!
//! The server listens on loopback with its own keys. Every session finds the engine by the
//! `DOCKER_HOST` that the server sets. The client's `ssh` takes its configuration from the user's
//! entry in the password file, not from `HOME`. So a wrapper of the same name, first in the search
//! path, selects our configuration.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::engine::{Engine, path_with_sbin, temporary_directory};
use crate::leftovers;
use crate::wait::eventually;

/// The time limit for the server to listen.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// A directory that sshd requires. Its package creates it only at boot.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// A running sshd. It ends on drop.
#[derive(Debug)]
pub struct Sshd {
    directory: PathBuf,
    port: u16,
    server: Child,
}

impl Sshd {
    /// Starts a server whose sessions use the engine.
    ///
    /// # Errors
    ///
    /// Fails when keys cannot be created or the server does not listen.
    pub fn start(engine: &Engine) -> Result<Self> {
        Self::start_with(&format!("DOCKER_HOST={}", engine.host()))
    }

    /// Starts a server without an engine.
    ///
    /// # Errors
    ///
    /// As [`Sshd::start`].
    pub fn without_engine() -> Result<Self> {
        Self::start_with("")
    }

    /// Starts a server whose sessions have these variables.
    fn start_with(variables: &str) -> Result<Self> {
        let directory = temporary_directory()?;
        fs::create_dir_all(PRIVILEGE_SEPARATION)
            .with_context(|| format!("cannot make {PRIVILEGE_SEPARATION}"))?;
        let port = free_port()?;
        make_key(&directory.join("host"))?;
        make_key(&directory.join("user"))?;
        configure_server(&directory, port, variables)?;
        configure_client(&directory, port)?;
        let log = fs::File::create(directory.join("sshd.log"))?;
        let server = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(directory.join("sshd_config"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot run sshd (package openssh-server)")?;
        let mut sshd = Self { directory, port, server };
        sshd.await_listening()?;
        Ok(sshd)
    }

    /// Returns the address in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("ssh://root@127.0.0.1:{}", self.port)
    }

    /// Returns the directory that must come first in the search path of the client.
    pub fn path_first(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// Returns the private key that the server accepts.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read.
    pub fn user_key(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.join("user"))?)
    }

    /// Returns the server's line for `known_hosts`.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read.
    pub fn known_host(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.join("known_hosts"))?.trim_end().to_owned())
    }

    /// Returns a private key that the server does not accept.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be created.
    pub fn rejected_key(&self) -> Result<String> {
        let path = self.directory.join("strange");
        if !path.exists() {
            make_key(&path)?;
        }
        Ok(fs::read_to_string(path)?)
    }

    fn await_listening(&mut self) -> Result<()> {
        let mut ended = false;
        let listening = eventually(START_DEADLINE, || {
            ended = matches!(self.server.try_wait(), Ok(Some(_)));
            ended || TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        if ended || !listening {
            let log = fs::read_to_string(self.directory.join("sshd.log")).unwrap_or_default();
            bail!("sshd does not listen; its log:\n{log}");
        }
        Ok(())
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = leftovers::clear(&self.directory);
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

fn make_key(path: &Path) -> Result<()> {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .status()
        .context("cannot run ssh-keygen (package openssh-client)")?;
    if !status.success() {
        bail!("ssh-keygen failed: {status}");
    }
    Ok(())
}

fn configure_server(directory: &Path, port: u16, variables: &str) -> Result<()> {
    let place = directory.display();
    let text = format!(
        "ListenAddress 127.0.0.1:{port}\n\
         HostKey {place}/host\n\
         AuthorizedKeysFile {place}/user.pub\n\
         PidFile none\n\
         UsePAM no\n\
         StrictModes no\n\
         PermitRootLogin prohibit-password\n\
         PasswordAuthentication no\n\
         MaxStartups 100\n\
         MaxSessions 100\n\
         SetEnv {variables} PATH={}\n",
        path_with_sbin(),
    );
    fs::write(directory.join("sshd_config"), text).context("cannot write sshd_config")
}

fn configure_client(directory: &Path, port: u16) -> Result<()> {
    let place = directory.display();
    let host_key = fs::read_to_string(directory.join("host.pub"))?;
    fs::write(directory.join("known_hosts"), format!("[127.0.0.1]:{port} {host_key}"))?;
    let text = format!(
        "Host *\n\
         IdentityFile {place}/user\n\
         IdentitiesOnly yes\n\
         UserKnownHostsFile {place}/known_hosts\n\
         GlobalKnownHostsFile /dev/null\n"
    );
    fs::write(directory.join("ssh_config"), text)?;
    let bin = directory.join("bin");
    fs::create_dir(&bin)?;
    let wrapper = bin.join("ssh");
    fs::write(&wrapper, format!("#!/bin/sh\nexec /usr/bin/ssh -F {place}/ssh_config \"$@\"\n"))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
