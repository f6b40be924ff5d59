//! Runs the real binary, always with a deadline.
//!
//! The environment is built from scratch, so a developer's own settings never reach a test, and the
//! state directory belongs to the test.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::wait::eventually_some;

/// The default time limit of a command.
const DEADLINE: Duration = Duration::from_secs(60);

/// The configuration to run the binary with.
#[derive(Debug, Clone)]
pub struct Creel {
    binary: PathBuf,
    home: PathBuf,
    environment: Vec<(OsString, OsString)>,
    deadline: Duration,
    /// The network namespace it runs in, if not the test's.
    namespace: Option<PathBuf>,
}

/// The output and the exit status of a finished command.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How it ended.
    pub status: ExitStatus,
    /// How long it ran.
    pub took: Duration,
}

impl Output {
    /// Returns the exit code, or `None` when a signal ended the command.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns standard output as JSON.
    ///
    /// # Panics
    ///
    /// Panics with all output when it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON ({error})\n{self}"))
    }

    /// Checks the exit code, and returns the output for more checks.
    ///
    /// # Panics
    ///
    /// Panics with all output when the code differs.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert!(self.code() == Some(code), "expected exit code {code}\n{self}");
        self
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(formatter, "$ {}\n{} after {:?}", self.command, self.status, self.took)?;
        writeln!(formatter, "--- stdout\n{}", self.stdout.trim_end())?;
        write!(formatter, "--- stderr\n{}", self.stderr.trim_end())
    }
}

impl Creel {
    /// Returns a runner of `binary` with its state in `home`, against `docker_host`.
    pub fn new(
        binary: impl Into<PathBuf>,
        home: impl Into<PathBuf>,
        docker_host: impl AsRef<OsStr>,
    ) -> Self {
        let creel = Self::without_docker(binary, home);
        creel.env("DOCKER_HOST", docker_host)
    }

    /// Returns a runner of `binary` without an engine.
    pub fn without_docker(binary: impl Into<PathBuf>, home: impl Into<PathBuf>) -> Self {
        let home = home.into();
        let creel = Self {
            binary: binary.into(),
            home: home.clone(),
            environment: Vec::new(),
            deadline: DEADLINE,
            namespace: None,
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        creel.env("PATH", path).env("HOME", &home).env("CREEL_HOME", home.join("state"))
    }

    /// Sets an environment variable, replacing an earlier value.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(known, _)| known != key.as_ref());
        self.environment.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(known, _)| known != key.as_ref());
        self
    }

    /// Returns the value of an environment variable.
    pub fn variable(&self, key: impl AsRef<OsStr>) -> Option<&OsStr> {
        let known = self.environment.iter().find(|(known, _)| known == key.as_ref());
        known.map(|(_, value)| value.as_os_str())
    }

    /// Puts a directory first in the search path.
    #[must_use]
    pub fn path_first(self, directory: &Path) -> Self {
        let known = self.environment.iter().find(|(key, _)| key == "PATH");
        let mut path = OsString::from(directory);
        path.push(":");
        path.push(known.map(|(_, value)| value.clone()).unwrap_or_default());
        self.env("PATH", path)
    }

    /// Sets the time limit of a command.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs the binary in a network namespace, in which a private engine has its TCP ports.
    #[must_use]
    pub fn within(mut self, namespace: impl Into<PathBuf>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Returns the directory that is `HOME`. The state is in `state` below it.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the state directory.
    pub fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    ///
    /// Panics with all output when the deadline passes.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.spawn(arguments).wait()
    }

    /// Starts a command.
    ///
    /// # Panics
    ///
    /// Panics when the binary cannot be started.
    #[track_caller]
    pub fn spawn<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Running {
        let mut command = self.command();
        command.args(arguments).env_clear().envs(self.environment.iter().cloned());
        let line = describe(&command);
        // Files, not pipes: a child that outlives the command cannot block the test.
        let stdout = tempfile::tempfile().expect("temporary files can be made");
        let stderr = tempfile::tempfile().expect("temporary files can be made");
        let clone = |file: &File| file.try_clone().expect("a descriptor is free");
        command.stdin(Stdio::null()).stdout(clone(&stdout)).stderr(clone(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {line}: {error}"));
        let deadline = self.deadline;
        Running { child, line, stdout, stderr, deadline, started_at: Instant::now(), status: None }
    }

    fn command(&self) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(&self.binary) };
        // `nsenter` replaces itself with the binary, so the pid is the binary's.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace.display())).arg(&self.binary);
        command
    }
}

/// A started command; it is killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    stdout: File,
    stderr: File,
    deadline: Duration,
    started_at: Instant,
    /// Set once the command was waited for.
    status: Option<ExitStatus>,
}

impl Running {
    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the command has ended.
    pub fn has_ended(&mut self) -> bool {
        self.poll().is_some()
    }

    /// Returns whether it exceeds its time limit; [`Running::wait`] then ends it.
    pub fn is_overdue(&self) -> bool {
        self.started_at.elapsed() >= self.deadline
    }

    /// Returns its standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Kills only this process with SIGKILL, and waits for it.
    pub fn kill(mut self) -> Output {
        self.end();
        let status = self.poll().expect("a killed child was waited for");
        self.output(status)
    }

    /// Sends a signal by its name, such as `INT`.
    ///
    /// # Panics
    ///
    /// Panics when `kill` does not know the signal.
    pub fn signal(&self, name: &str) {
        // A child that is not waited for yet keeps its pid.
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -s {name} {pid} failed");
    }

    /// Waits for the end.
    ///
    /// # Panics
    ///
    /// Kills the command and panics with all output when the deadline passes.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let left = self.deadline.saturating_sub(self.started_at.elapsed());
        match eventually_some(left, || self.poll()) {
            Some(status) => self.output(status),
            None => {
                let deadline = self.deadline;
                let output = self.kill();
                panic!("killed after the deadline of {deadline:?}\n{output}");
            }
        }
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own child can be waited for");
        }
        self.status
    }

    fn end(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    fn output(&self, status: ExitStatus) -> Output {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        let took = self.started_at.elapsed();
        Output { command: self.line.clone(), stdout, stderr, status, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(file: &File) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    // Read by position, because the child shares the offset of our descriptor.
    while let Ok(count @ 1..) = file.read_at(&mut buffer, bytes.len() as u64) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let start = program.to_string_lossy().into_owned();
    command.get_args().fold(start, |line, argument| line + " " + &argument.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_exit_code_are_captured_in_a_clean_environment() {
        let home = tempfile::tempdir().unwrap();
        let shell = Creel::without_docker("/bin/sh", home.path()).env("ONLY", "this");
        let output = shell.run(["-c", "echo \"$ONLY $CARGO\"; echo talk >&2; exit 3"]);
        assert_eq!(output.stdout, "this \n");
        assert_eq!(output.stderr, "talk\n");
        output.expect_code(3);
    }

    #[test]
    #[should_panic(expected = "killed after the deadline")]
    fn a_command_that_hangs_is_killed_and_shown() {
        let home = tempfile::tempdir().unwrap();
        let shell = Creel::without_docker("/bin/sh", home.path());
        shell.deadline(Duration::from_millis(100)).run(["-c", "exec sleep 1000"]);
    }

    #[test]
    fn output_can_be_read_while_the_command_runs() {
        let home = tempfile::tempdir().unwrap();
        let shell = Creel::without_docker("/bin/sh", home.path());
        let running = shell.spawn(["-c", "echo one; exec sleep 1000"]);
        let seen = eventually_some(Duration::from_secs(5), || {
            Some(running.stdout()).filter(|text| text.contains("one"))
        });
        assert_eq!(seen.as_deref(), Some("one\n"));
        assert_eq!(running.kill().code(), None);
    }
}
