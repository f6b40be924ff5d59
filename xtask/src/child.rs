//! Runs a command with its output passed through, and ends it when this program is asked to end.
//!
//! Each command leads its own process group. A signal to this program is forwarded to the whole
//! group, so that cargo does not leave a test program behind, and the engine is stopped only after
//! the last test has ended.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The polling interval for a running command.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long an interrupted command may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);
/// How long the output may stay open after its command has ended.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(5);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Turns signals that would end this program into a flag that running commands watch.
pub(crate) fn heed_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot handle signals")?;
    }
    Ok(())
}

/// Returns an error once a signal has asked this program to end.
pub(crate) fn check_interrupted() -> Result<()> {
    if is_interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::SeqCst))
}

/// Runs a command to its end. Any exit code but zero is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = wait(&mut spawn(command)?)?;
    if !status.success() {
        bail!("{} failed: {status}", describe(command));
    }
    Ok(())
}

/// Runs a command, and also passes every line of its standard output to `on_line`, with the time at
/// which it was printed.
pub(crate) fn run_reading(
    command: &mut Command,
    mut on_line: impl FnMut(&str, Instant),
) -> Result<ExitStatus> {
    let mut child = spawn(command.stdout(Stdio::piped()))?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || copy(output, &sender));
    let status = wait(&mut child)?;
    drain(&lines, &mut on_line);
    Ok(status)
}

fn spawn(command: &mut Command) -> Result<Child> {
    check_interrupted()?;
    command.stdin(Stdio::null()).process_group(0);
    command.spawn().with_context(|| format!("cannot run {}", describe(command)))
}

fn describe(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    command.get_args().fold(name, |text, argument| text + " " + &argument.to_string_lossy())
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let leader = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let leader = leader.context("a child has a positive pid")?;
    let mut interrupted_at: Option<Instant> = None;
    // An ended leader that is not reaped yet keeps its id, so the group is surely ours.
    while !has_ended(leader)? {
        if is_interrupted() && interrupted_at.is_none() {
            println!("xtask: interrupted, ending the running command (up to {GRACE:?}) …");
            let _ = kill_process_group(leader, Signal::TERM);
            interrupted_at = Some(Instant::now());
        }
        if interrupted_at.is_some_and(|at| at.elapsed() > GRACE) {
            let _ = kill_process_group(leader, Signal::KILL);
        }
        thread::sleep(INTERVAL);
    }
    if interrupted_at.is_some() {
        let _ = kill_process_group(leader, Signal::KILL);
    }
    let status = child.wait().context("cannot wait for a command")?;
    check_interrupted()?;
    Ok(status)
}

fn has_ended(pid: Pid) -> Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(pid), options).context("cannot wait for a command")?.is_some())
}

/// Copies bytes as they come, so that a prompt or a dot appears at once, and sends whole lines.
fn copy(mut output: impl Read, lines: &Sender<(String, Instant)>) {
    let mut pending = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = match output.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut terminal = io::stdout().lock();
        // A closed terminal must not lose the count of the tests.
        let _ = terminal.write_all(&buffer[..count]).and_then(|()| terminal.flush());
        pending.extend_from_slice(&buffer[..count]);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let _ = lines.send((line, Instant::now()));
        }
    }
}

fn drain(lines: &Receiver<(String, Instant)>, on_line: &mut impl FnMut(&str, Instant)) {
    let deadline = Instant::now() + OUTPUT_DEADLINE;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((line, printed_at)) => on_line(&line, printed_at),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                println!("xtask: a process started by the command still holds its output");
                return;
            }
        }
    }
}
