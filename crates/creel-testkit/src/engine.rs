//! A private Docker Engine, and how tests find it.
//!
//! A private engine has its own socket, data root, exec root, control group and network namespace,
//! all named by one directory. The namespace allows several engines on one machine: each has its
//! own `docker0`, bridges and address pool, and all of them vanish with it. Therefore, published
//! ports are reachable only inside the namespace.
//!
//! A killed test run leaves the engine running. The next start in the same directory finds it by
//! that directory and clears it first, see [`leftovers`]. A lock on the directory prevents two live
//! runs from using it.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::api::Api;
use crate::docker::Docker;
use crate::wait::eventually;
use crate::{image, leftovers};

/// The environment variable with the address of the engine under test.
pub const HOST_VARIABLE: &str = "CREEL_TEST_DOCKER_HOST";
/// The file that keeps a network namespace alive.
const NAMESPACE: &str = "netns";
/// The environment variable with the directory below which tests start more engines.
pub const DIRECTORY_VARIABLE: &str = "CREEL_TEST_ENGINE_DIR";

/// The time limit for an engine to answer.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// The time limit for an engine to end.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// The address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    socket: PathBuf,
}

impl Engine {
    /// Returns the engine that `cargo xtask test` started for the tests.
    ///
    /// # Panics
    ///
    /// Panics when there is none: a test that needs an engine is never skipped.
    pub fn from_env() -> Self {
        let host = env::var(HOST_VARIABLE).unwrap_or_default();
        let Some(socket) = host.strip_prefix("unix://") else {
            panic!(
                "{HOST_VARIABLE} names no engine (it is {host:?}): run the tests with \
                 `cargo xtask test`, or start an engine with `cargo xtask engine start` and \
                 type the export line it prints"
            );
        };
        Self::at(socket)
    }

    /// Returns the engine at a socket. Nothing is sent yet.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Returns the socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the network namespace of a private engine and of the containers that share its
    /// network. Its file is beside the socket.
    pub fn namespace(&self) -> PathBuf {
        self.socket.with_file_name(NAMESPACE)
    }

    /// Returns the address in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        self.api().host()
    }

    /// Returns the raw API.
    pub fn api(&self) -> Api {
        Api::at(&self.socket)
    }

    /// Returns a helper to create and inspect objects.
    pub fn docker(&self) -> Docker {
        Docker::new(self.api())
    }

    /// Returns whether the engine answers a ping.
    pub fn answers(&self) -> bool {
        self.api().request("GET", "/_ping", None).is_ok_and(|response| response.is_success())
    }
}

/// The options of a private engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The address range for user-defined networks.
    pub address_pool: String,
    /// Whether the test image is imported at the start.
    pub with_image: bool,
    /// Additional arguments for `dockerd`.
    pub arguments: Vec<String>,
    /// Whether to end test programs left by a killed run before the start. Use it only for a
    /// directory that no process outside the suite names in its environment.
    pub end_orphaned_tests: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        // 1,024 networks; the default pools end after 31.
        let address_pool = "base=10.213.0.0/16,size=26".to_owned();
        Self { address_pool, with_image: true, arguments: Vec::new(), end_orphaned_tests: false }
    }
}

/// A Docker Engine that this process started and will stop.
#[derive(Debug)]
pub struct PrivateEngine {
    /// Holds all files of this engine. Leftovers are found by its name.
    directory: PathBuf,
    /// The options of the daemon, also used after a restart.
    options: EngineOptions,
    /// The daemon, while it runs as our child.
    daemon: Option<Child>,
    /// Held as long as this process uses the directory. `None` once stopped or detached.
    lock: Option<File>,
}

impl PrivateEngine {
    /// Starts an engine in a directory, after clearing what an earlier one left there.
    ///
    /// # Errors
    ///
    /// Fails when another process uses the directory, or the engine does not start. The error holds
    /// the end of its log.
    pub fn start(directory: impl Into<PathBuf>, options: EngineOptions) -> Result<Self> {
        let directory = directory.into();
        let lock = lock_empty(&directory, options.end_orphaned_tests)?;
        let mut engine = Self { directory, options, daemon: None, lock: Some(lock) };
        engine.make_namespace()?;
        fs::write(engine.path("daemon.json"), "{}\n")?;
        engine.launch()?;
        if engine.options.with_image {
            image::import(&engine.engine().api())?;
        }
        Ok(engine)
    }

    /// Starts another engine, for a test that has to break it.
    ///
    /// It is below the directory of the suite's engine, so that it is cleared with it even when the
    /// test is killed.
    ///
    /// # Errors
    ///
    /// Fails as [`PrivateEngine::start`] does.
    pub fn start_temporary(options: EngineOptions) -> Result<Self> {
        Self::start(temporary_directory()?, options)
    }

    /// Returns the engine's address.
    pub fn engine(&self) -> Engine {
        Engine::at(self.path("docker.sock"))
    }

    /// Returns the directory that holds all files of this engine.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the network namespace that contains the engine's TCP and published ports.
    pub fn namespace(&self) -> PathBuf {
        self.path(NAMESPACE)
    }

    /// Returns the process id of the daemon, while it runs.
    pub fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Kills the daemon with SIGKILL. Its containers keep running until a restart.
    ///
    /// # Errors
    ///
    /// Fails when the daemon cannot be waited for.
    pub fn kill_hard(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().context("cannot kill dockerd")?;
            daemon.wait().context("cannot wait for dockerd")?;
        }
        Ok(())
    }

    /// Restarts the daemon on the same data, after ending it if it runs.
    ///
    /// # Errors
    ///
    /// Fails when the engine does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.end_daemon()?;
        self.launch()
    }

    /// Ends the engine and its containers, and removes all its files.
    ///
    /// # Errors
    ///
    /// Fails when something cannot be ended or removed.
    pub fn stop(mut self) -> Result<()> {
        self.shut_down()
    }

    /// Leaves the engine running after this process has ended.
    pub fn detach(mut self) -> Engine {
        let engine = self.engine();
        self.daemon = None;
        self.lock = None;
        engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn make_namespace(&self) -> Result<()> {
        let namespace = self.namespace();
        File::create(&namespace)?;
        let status = Command::new("unshare")
            .arg(argument("--net", &namespace))
            .args(["busybox", "ip", "link", "set", "lo", "up"])
            .status()
            .context("cannot run unshare (package util-linux)")?;
        if !status.success() {
            bail!("cannot make a network namespace: a private engine needs root");
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        self.remove_leftovers_of_predecessor()?;
        let log = File::options().create(true).append(true).open(self.path("dockerd.log"))?;
        let mut command = Command::new("nsenter");
        command
            .arg(argument("--net", &self.namespace()))
            .args(self.daemon_arguments())
            .env("PATH", path_with_sbin())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C at the terminal is for this process, which ends the daemon itself.
            .process_group(0);
        let daemon = command.spawn().context("cannot run nsenter (package util-linux)")?;
        self.daemon = Some(daemon);
        self.await_response()
    }

    /// Removes what a killed daemon leaves behind and the next one would stumble over.
    fn remove_leftovers_of_predecessor(&self) -> Result<()> {
        // Its containerd dies with it. A containerd that is not reaped still counts as running for
        // the next daemon, which then waits for it in vain. The same applies to a reused pid.
        leftovers::kill_program("containerd", &self.path("exec"))?;
        for pidfile in ["dockerd.pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.path(pidfile));
        }
        Ok(())
    }

    fn daemon_arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "dockerd".to_owned(),
            argument("--config-file", &self.path("daemon.json")),
            format!("--host={}", self.engine().host()),
            argument("--data-root", &self.path("data")),
            argument("--exec-root", &self.path("exec")),
            argument("--pidfile", &self.path("dockerd.pid")),
            format!("--cgroup-parent={}", leftovers::cgroup_of(&self.directory)),
            format!("--default-address-pool={}", self.options.address_pool),
        ];
        // The namespace has no route to the outside, so there is nothing to filter or translate.
        // The control-group driver is the one that needs no systemd.
        let fixed = [
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            "--exec-opt=native.cgroupdriver=cgroupfs",
        ];
        arguments.extend(fixed.map(str::to_owned));
        arguments.extend(self.options.arguments.iter().cloned());
        arguments
    }

    fn await_response(&mut self) -> Result<()> {
        let engine = self.engine();
        let started_at = Instant::now();
        let mut ended = None;
        let up = eventually(START_DEADLINE, || {
            ended = self.daemon.as_mut().and_then(|daemon| daemon.try_wait().ok().flatten());
            ended.is_some() || engine.answers()
        });
        if let Some(status) = ended {
            bail!("dockerd ended at its start ({status}); its log ends:\n{}", self.log_tail());
        }
        if !up {
            let waited = started_at.elapsed().as_secs();
            bail!("dockerd does not answer after {waited} s; its log ends:\n{}", self.log_tail());
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.path("dockerd.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn end_daemon(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw);
        // The pid cannot belong to another process, because this child is not waited for yet.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        if !eventually(STOP_DEADLINE, || matches!(daemon.try_wait(), Ok(Some(_)))) {
            daemon.kill().context("cannot kill dockerd")?;
            daemon.wait().context("cannot wait for dockerd")?;
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        // The daemon would wait 15 s for containers that ignore SIGTERM.
        leftovers::kill_containers(&self.directory)?;
        self.end_daemon()?;
        leftovers::clear(&self.directory)?;
        self.lock = None;
        Ok(())
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        // Best effort for failing tests. The next start clears whatever stays.
        let _ = self.shut_down();
    }
}

/// Ends any engine that runs in the directory, and removes all its files.
///
/// # Errors
///
/// Fails when another process uses the directory or something survives.
pub fn clear(directory: &Path) -> Result<()> {
    let lock = lock_empty(directory, false)?;
    let cleared = leftovers::clear(directory);
    drop(lock);
    cleared
}

/// Returns a temporary directory that is cleared with the suite's engine.
///
/// # Errors
///
/// Fails when the directory cannot be created.
pub fn temporary_directory() -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Socket paths are limited to 108 bytes, so every name here is short.
    let parent = env::var_os(DIRECTORY_VARIABLE).map_or_else(default_parent, PathBuf::from);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory = parent.join("t").join(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// Locks the directory, and clears its content.
fn lock_empty(directory: &Path, end_orphaned_tests: bool) -> Result<File> {
    let lock = lock(directory)?;
    if end_orphaned_tests {
        leftovers::kill_pointed_at(DIRECTORY_VARIABLE, directory)?;
    }
    if fs::read_dir(directory)?.next().is_none() {
        return Ok(lock);
    }
    leftovers::clear(directory)?;
    drop(lock);
    // Clearing removed the locked directory, so the new one needs its own lock.
    self::lock(directory)
}

fn lock(directory: &Path) -> Result<File> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let lock = File::open(directory)?;
    if lock.try_lock().is_err() {
        bail!("another process uses the engine in {}: wait for it", directory.display());
    }
    let same = fs::metadata(directory).is_ok_and(|now| {
        lock.metadata().is_ok_and(|locked| (locked.dev(), locked.ino()) == (now.dev(), now.ino()))
    });
    if !same {
        bail!("another process just cleared {}: try again", directory.display());
    }
    Ok(lock)
}

fn argument(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Returns the search path with the directories in which Debian installs daemons.
pub(crate) fn path_with_sbin() -> String {
    let path = env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")
}

fn default_parent() -> PathBuf {
    env::temp_dir().join("creel-engine")
}
