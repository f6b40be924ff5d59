//! `hold`: the lease, the socket, and the end of everything below.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use creel_bridge::exec::ExecEnding;
use rustix::process::Signal;

use crate::support::{
    ExecReport, is_alive, line, pid_in, program, script, signal, throughout, until,
};

/// A holder with a socket.
struct Held {
    home: tempfile::TempDir,
    child: Child,
}

impl Held {
    fn start(lease: Duration) -> Self {
        Self::start_with(program(&["hold"]), lease)
    }

    /// Starts a holder that is the first process of a pid namespace.
    fn start_first(lease: Duration) -> Self {
        let mut unshare = Command::new("unshare");
        if !rustix::process::getuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare.args([env!("CARGO_BIN_EXE_creel-bridge"), "hold"]);
        Self::start_with(unshare, lease)
    }

    fn start_with(hold: Command, lease: Duration) -> Self {
        let held = Self::spawn(hold, lease);
        until("the socket", || held.socket().exists());
        held
    }

    /// Starts a holder, which has no socket yet.
    fn spawn(mut hold: Command, lease: Duration) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("lease"), "0").unwrap();
        // The path is longer than a socket path may be.
        let deep = home.path().join("d".repeat(200));
        fs::create_dir(&deep).unwrap();
        let child = hold
            .arg("--lease-file")
            .arg(home.path().join("lease"))
            .args(["--lease-ms", &lease.as_millis().to_string(), "--socket"])
            .arg(deep.join("socket"))
            .env("SANDBOX", "mine")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { home, child }
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("d".repeat(200)).join("socket")
    }

    fn connect(&self) -> UnixStream {
        let directory = fs::File::open(self.socket().parent().unwrap()).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&directory);
        UnixStream::connect(format!("/proc/self/fd/{descriptor}/socket")).unwrap()
    }

    /// Starts a process that writes its id to a file, and then sleeps.
    fn start_sleeper(&self, before: &str, file: &Path) -> (UnixStream, u32) {
        let mut connection = self.connect();
        let sleep = format!("{before} sh -c 'echo $$ > {}; exec sleep 1000'", file.display());
        connection.write_all(&line(&script(&sleep))).unwrap();
        let pid = pid_in(file);
        (connection, pid)
    }

    fn request_end(&self) {
        signal(self.child.id(), Signal::TERM);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A failed test must not leave the holder until the lease ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_over_the_socket_has_the_environment_of_the_holder() {
    let held = Held::start(Duration::from_secs(60));
    let mode = fs::metadata(held.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut connection = held.connect();
    connection.write_all(&line(&script("echo $SANDBOX; exit 4"))).unwrap();
    let report = ExecReport::read(connection);
    assert_eq!(
        (report.output.as_slice(), report.ending()),
        (&b"mine\n"[..], ExecEnding::Code { code: 4 })
    );
}

#[test]
fn a_visible_socket_accepts_connections() {
    for _ in 0..20 {
        let mut held = Held::spawn(program(&["hold"]), Duration::from_secs(60));
        while !held.socket().exists() {
            assert!(held.child.try_wait().unwrap().is_none(), "the holder ended");
            std::hint::spin_loop();
        }
        drop(held.connect());
    }
}

#[test]
fn disconnecting_kills_that_command_and_no_other() {
    let held = Held::start(Duration::from_secs(60));
    let (first, second) = (held.home.path().join("1"), held.home.path().join("2"));
    let (one, its_command) = held.start_sleeper("", &first);
    let (_two, other_command) = held.start_sleeper("", &second);
    drop(one);
    until("the end of the command", || !is_alive(its_command));
    assert!(is_alive(other_command));
}

#[test]
fn without_a_renewal_everything_ends() {
    let mut held = Held::start(Duration::from_millis(1500));
    let (one, two) = (held.home.path().join("1"), held.home.path().join("2"));
    let (_connection, command) = held.start_sleeper("", &one);
    let (_other, daemon) = held.start_sleeper("setsid", &two);
    let mut renewal = 0;
    throughout("each renewal keeps it", Duration::from_secs(2), || {
        renewal += 1;
        fs::write(held.home.path().join("lease"), renewal.to_string()).unwrap();
        held.child.try_wait().unwrap().is_none()
    });
    assert_eq!(held.child.wait().unwrap().code(), Some(3));
    assert!(!is_alive(command) && !is_alive(daemon));
}

#[test]
fn on_sigterm_a_holder_signals_the_others_first() {
    let mut held = Held::start(Duration::from_secs(60));
    let (pid, farewell) = (held.home.path().join("pid"), held.home.path().join("said"));
    // The shell reports the end of its child before it runs the trap, so it needs an open output.
    let daemon = format!(
        "setsid sh -c 'trap \"echo bye > {farewell}; exit\" TERM; echo $$ > {pid}; \
         while :; do sleep 0.01; done' > /dev/null 2>&1 & while ! [ -s {pid} ]; do sleep 0.01; done",
        farewell = farewell.display(),
        pid = pid.display(),
    );
    let mut connection = held.connect();
    connection.write_all(&line(&script(&daemon))).unwrap();
    assert_eq!(ExecReport::read(connection).ending(), ExecEnding::Code { code: 0 });
    let daemon = pid_in(&pid);
    held.request_end();
    assert_eq!(held.child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_to_string(farewell).unwrap(), "bye\n");
    assert!(!is_alive(daemon));
}

#[test]
fn orphans_are_reaped() {
    let held = Held::start(Duration::from_secs(60));
    let mut connection = held.connect();
    let orphans = "for i in 1 2 3 4 5; do (setsid sleep 0.3 &) ; done; sleep 0.1";
    connection.write_all(&line(&script(orphans))).unwrap();
    assert_eq!(ExecReport::read(connection).ending(), ExecEnding::Code { code: 0 });
    let children = || {
        let pid = held.child.id();
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
    };
    until("all orphans to be reaped", || children().is_empty());
}

#[test]
fn as_the_first_process_a_holder_kills_all_others() {
    let mut held = Held::start_first(Duration::from_millis(1500));
    let naps: Vec<String> =
        (0..3).map(|nap| format!("1000.{:07}{nap}", std::process::id())).collect();
    let mut connection = held.connect();
    let start = format!(
        "setsid sleep {} & (setsid sh -c 'setsid sleep {} & sleep {}' &); sleep 1000",
        naps[0], naps[1], naps[2],
    );
    connection.write_all(&line(&script(&start))).unwrap();
    until("all of them", || naps.iter().all(|nap| is_any_process_napping(nap)));
    assert_eq!(held.child.wait().unwrap().code(), Some(3));
    assert!(!naps.iter().any(|nap| is_any_process_napping(nap)));
}

/// Returns whether a process has this as its last argument.
fn is_any_process_napping(nap: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.ends_with(format!("\0{nap}\0").as_bytes()))
}
