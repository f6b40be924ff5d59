//! A directory and a process tree as a sandbox.
//!
//! The tree's workload is a shell that reads commands from a pipe in the directory and starts
//! programs. So everything that ever runs in the sandbox descends from it and ends with the tree,
//! whatever it does to escape:
//!
//! ```text
//!   server ──commands──▶ stage (sh) ──▶ setsid sh run ──▶ the program
//!      ▲                                    │    │
//!      └───────────────out, err─────────────┘    └─end──▶ server
//! ```
//!
//! Only the server holds the command pipe open. When it dies, the stage reads the end of the pipe
//! and ends, and the holder ends the rest.
//!
//! Paths: the sandbox's root is its directory. An absolute path of the files API is resolved below
//! it, a relative one below the home directory in it. If the system allows a mount namespace,
//! `/tmp` and `/home` in the sandbox are the directory's own, so commands and the files API agree
//! about them. Otherwise, commands see the machine's own files under absolute paths.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use creel_core::scope::{Held, Request, Supervisor};
use creel_model::provider::{Limits, ProcessSpec, Spec};
use creel_model::task;
use creel_process::ProcessProvider;
use rustix::fs::{CWD, Mode, mkfifoat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::sandbox::Pairs;

use super::HOME;
use super::execution::{BACKLOG, Execution, ExecutionEvent, OutputStream, Program, ShellInput};
use super::shell::{SHELL, exports, quoted};
use super::terminal::Terminal;

/// The subdirectory for the server's own files.
const OWN: &str = ".creel";
/// The largest piece of output that is passed on.
const CHUNK: usize = 16 * 1024;

/// The shell that starts programs. It ends when its pipe does.
///
/// The root must stay reachable under its own path, even if a mount is about to cover that path. So
/// the root is first mounted into the covering directory.
const STAGE: &str = r#"root=$1
cd "$root" || exit 1
if [ -z "$2" ] && unshare --mount true 2>/dev/null; then
    exec unshare --mount sh .creel/stage "$root" inside
fi
if [ -n "$2" ]; then
    for place in tmp home; do
        [ -d "/$place" ] || continue
        case $root in
            "/$place/"*) mkdir -p ".$root" && mount --bind "$root" ".$root" || continue ;;
        esac
        mount --rbind "$place" "/$place"
    done
fi
while read -r verb which; do
    case $verb in
        # Not in the background: what a shell puts there can never be interrupted.
        run) setsid --fork sh ".creel/$which/run" </dev/null ;;
        kill)
            read -r leader <".creel/$which/pid" || continue
            # An interactive shell gives each job a group of its own.
            pkill -KILL -s "$leader"
            kill -s KILL -- "-$leader"
            ;;
    esac
done <.creel/orders
"#;

/// A directory and a process tree.
#[derive(Debug)]
pub(crate) struct ProcessBody {
    supervisor: Supervisor,
    /// The sandbox's root.
    root: PathBuf,
    /// The sandbox's environment.
    env: Arc<Pairs>,
    /// The directory, recorded in the ledger.
    directory: Mutex<Option<Held>>,
    /// The process tree, while it runs.
    tree: Mutex<Option<ProcessTree>>,
    /// The number of the next program.
    next: AtomicU64,
}

/// A running tree.
#[derive(Debug)]
struct ProcessTree {
    held: Held,
    /// The pipe that keeps the stage alive.
    commands: pipe::Sender,
    /// Signals the programs' readers that no output follows.
    ended: CancellationToken,
}

impl ProcessBody {
    /// Creates the directory.
    pub(super) async fn make(
        supervisor: &Supervisor,
        provider: &ProcessProvider,
        env: &Arc<Pairs>,
    ) -> Result<Self, String> {
        let request = Request::new(creel_process::NAME, Spec::Directory);
        let held = supervisor.create(request).await.map_err(|error| error.to_string())?;
        let root = provider.directory(&held.id).ok_or("the directory has no place")?;
        populate(&root).map_err(|error| format!("the directory cannot be furnished: {error}"))?;
        Ok(Self {
            supervisor: supervisor.clone(),
            root,
            env: Arc::clone(env),
            directory: Mutex::new(Some(held)),
            tree: Mutex::new(None),
            next: AtomicU64::new(1),
        })
    }

    /// Starts the tree, unless it is running.
    pub(super) async fn start(&self) -> Result<(), String> {
        let mut tree = self.tree.lock().await;
        if tree.is_some() {
            return Ok(());
        }
        let failed = |error: io::Error| format!("the pipe of orders cannot be made: {error}");
        let commands = self.root.join(OWN).join("orders");
        let _ = fs::remove_file(&commands);
        make_pipe(&commands).map_err(failed)?;
        let commands = open_sender(&commands).map_err(failed)?;
        let root = self.root.display().to_string();
        let spec = ProcessSpec {
            command: ["/bin/sh", ".creel/stage", &root].map(str::to_owned).to_vec(),
            env: self.environment(),
            directory: Some(self.root.clone()),
            limits: Limits::default(),
        };
        let request = Request::new(creel_process::NAME, Spec::Process(spec));
        let held = self.supervisor.create(request).await.map_err(|error| error.to_string())?;
        *tree = Some(ProcessTree { held, commands, ended: CancellationToken::new() });
        Ok(())
    }

    fn environment(&self) -> Pairs {
        let mut env = self.env.as_ref().clone();
        env.insert("HOME".to_owned(), self.home());
        env.entry("TMPDIR".to_owned())
            .or_insert_with(|| self.root.join("tmp").display().to_string());
        env
    }

    /// Ends the tree, and keeps the directory.
    pub(super) async fn stop(&self) -> Result<(), String> {
        let Some(tree) = self.tree.lock().await.take() else { return Ok(()) };
        tree.ended.cancel();
        let released = self.supervisor.release(tree.held).await;
        released.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Ends the tree, and removes the directory.
    pub(super) async fn destroy(&self) -> Result<(), String> {
        self.stop().await?;
        let Some(held) = self.directory.lock().await.take() else { return Ok(()) };
        let released = self.supervisor.release(held).await;
        released.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Leaves the release to the supervisor.
    pub(super) async fn forget(&self) {
        if let Some(tree) = self.tree.lock().await.take() {
            tree.ended.cancel();
            tree.held.forget();
        }
        if let Some(held) = self.directory.lock().await.take() {
            held.forget();
        }
    }

    /// Returns the home directory, by a path that is valid inside and outside.
    pub(super) fn home(&self) -> String {
        self.root.join(HOME.trim_start_matches('/')).display().to_string()
    }

    /// Returns the host path of a path of the files API.
    pub(super) fn host_path(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let (base, rest) = match path.strip_prefix(&self.root) {
            Ok(rest) => (self.root.clone(), rest),
            Err(_) if path.is_absolute() => (self.root.clone(), path),
            Err(_) => (self.root.join(HOME.trim_start_matches('/')), path),
        };
        let mut inside = base.strip_prefix(&self.root).unwrap_or(Path::new("")).to_owned();
        for component in rest.components() {
            match component {
                Component::Normal(name) => inside.push(name),
                // The parent of the root is the root.
                Component::ParentDir => drop(inside.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        self.root.join(inside)
    }

    /// Starts a program.
    pub(super) async fn run(
        &self,
        program: Program,
        terminal: Option<&Terminal>,
    ) -> io::Result<Execution> {
        let mut tree = self.tree.lock().await;
        let tree = tree.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let name = format!("x{}", self.next.fetch_add(1, Ordering::Relaxed));
        let place = self.root.join(OWN).join(&name);
        fs::create_dir(&place)?;
        for pipe in ["in", "out", "err", "end"] {
            make_pipe(&place.join(pipe))?;
        }
        let pipes = Pipes {
            out: open_receiver(&place.join("out"))?,
            err: open_receiver(&place.join("err"))?,
            end: open_receiver(&place.join("end"))?,
        };
        let stdin = open_sender(&place.join("in"))?;
        fs::write(place.join("run"), self.wrapper(&place, &program, terminal))?;
        if let ShellInput::Fed(text) = &program.script {
            fs::write(place.join("script"), text)?;
        }
        tree.commands.write_all(format!("run {name}\n").as_bytes()).await?;
        let (sender, events) = mpsc::channel(BACKLOG);
        let (kill, killed) = mpsc::channel(1);
        let commands = self.root.join(OWN).join("orders");
        let pump = Pump { name, place, commands, pipes, events: sender, ended: tree.ended.clone() };
        task::background(pump.run(killed));
        Ok(Execution { events, stdin: Some(Box::pin(stdin)), kill })
    }

    /// Returns the script that runs a program and reports its end.
    fn wrapper(&self, place: &Path, program: &Program, terminal: Option<&Terminal>) -> String {
        let at = |name: &str| quoted(&place.join(name).display().to_string());
        let cwd = match &program.cwd {
            Some(cwd) => self.host_path(cwd).display().to_string(),
            None => self.home(),
        };
        let stderr = if program.merged { "&1".to_owned() } else { at("err") };
        let fed = |stdin: &str| format!("{SHELL} <{} >{} 2>{stderr}", at(stdin), at("out"));
        let run = match (&program.script, terminal) {
            (ShellInput::Fed(_), _) => fed("script"),
            // A session leader gets the first terminal that it opens as its own.
            (ShellInput::Terminal, Some(terminal)) => {
                let place = quoted(terminal.path());
                format!("exec <{place} >{place} 2>&1\n{SHELL} -i -l")
            }
            (ShellInput::Open | ShellInput::Terminal, _) => fed("in"),
        };
        format!(
            "echo $$ >{pid}\n{exports}cd {cwd} || {{ echo -1 >{end}; exit; }}\n\
             {run}\necho $? >{end}\n",
            pid = at("pid"),
            exports = exports(&program.env),
            cwd = quoted(&cwd),
            end = at("end"),
        )
    }
}

/// The server's ends of a program's pipes.
struct Pipes {
    out: pipe::Receiver,
    err: pipe::Receiver,
    end: pipe::Receiver,
}

/// Forwards the events of a program to its caller.
struct Pump {
    name: String,
    place: PathBuf,
    commands: PathBuf,
    pipes: Pipes,
    events: mpsc::Sender<ExecutionEvent>,
    ended: CancellationToken,
}

impl Pump {
    async fn run(mut self, mut killed: mpsc::Receiver<()>) {
        let mut out = vec![0; CHUNK];
        let mut err = vec![0; CHUNK];
        let mut end = [0; 32];
        let code = loop {
            tokio::select! {
                read = self.pipes.out.read(&mut out) => match read {
                    Ok(count) => self.send_output(OutputStream::Stdout, &out[..count]).await,
                    Err(_) => break None,
                },
                read = self.pipes.err.read(&mut err) => match read {
                    Ok(count) => self.send_output(OutputStream::Stderr, &err[..count]).await,
                    Err(_) => break None,
                },
                read = self.pipes.end.read(&mut end) => {
                    let text = read.ok().and_then(|count| std::str::from_utf8(&end[..count]).ok());
                    break text.and_then(|text| text.trim().parse().ok());
                }
                Some(()) = killed.recv() => self.kill().await,
                () = self.ended.cancelled() => break None,
            }
        };
        if let Some(code) = code {
            self.drain(&mut out).await;
            // The caller may be gone.
            let _ = self.events.send(ExecutionEvent::Ended(code)).await;
        }
        // The sandbox may be gone, and the directory with it.
        let _ = fs::remove_dir_all(&self.place);
    }

    /// Passes on the output written before the end.
    async fn drain(&mut self, buffer: &mut [u8]) {
        while let Ok(count @ 1..) = self.pipes.out.try_read(buffer) {
            self.send_output(OutputStream::Stdout, &buffer[..count]).await;
        }
        while let Ok(count @ 1..) = self.pipes.err.try_read(buffer) {
            self.send_output(OutputStream::Stderr, &buffer[..count]).await;
        }
    }

    async fn send_output(&self, stream: OutputStream, text: &[u8]) {
        let event = ExecutionEvent::Output(stream, bytes::Bytes::copy_from_slice(text));
        // The caller may be gone. The program continues, as in the real service.
        let _ = self.events.send(event).await;
    }

    /// Requests the kill from the stage, because the process group id is valid there.
    async fn kill(&self) {
        if let Ok(mut commands) = open_sender(&self.commands) {
            // If the stage is gone, the program is gone with it.
            let _ = commands.write_all(format!("kill {}\n", self.name).as_bytes()).await;
        }
    }
}

/// Creates the initial files of a sandbox.
fn populate(root: &Path) -> io::Result<()> {
    for place in [OWN, "tmp", "home", HOME.trim_start_matches('/')] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::write(root.join(OWN).join("stage"), STAGE)
}

fn make_pipe(path: &Path) -> io::Result<()> {
    Ok(mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)?)
}

/// Opens for both directions, so that neither end waits for the other to appear.
fn open_sender(path: &Path) -> io::Result<pipe::Sender> {
    pipe::OpenOptions::new().read_write(true).open_sender(path)
}

fn open_receiver(path: &Path) -> io::Result<pipe::Receiver> {
    pipe::OpenOptions::new().read_write(true).open_receiver(path)
}
