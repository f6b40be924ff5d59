//! A directory and a process tree as a sandbox.
//!
//! The tree's workload is a shell that reads orders from a pipe in the
//! directory and starts programs, so everything that ever runs in the sandbox
//! descends from it and ends with the tree, whatever it does to get away:
//!
//! ```text
//!   server ──orders──▶ stage (sh) ──▶ setsid sh run ──▶ the program
//!      ▲                                  │    │
//!      └──────────────out, err────────────┘    └─end──▶ server
//! ```
//!
//! Only the server holds the pipe of orders open. When it dies, the stage
//! reads the end of it and ends, and the holder ends the rest.
//!
//! Paths: the sandbox's root is its directory. An absolute path of the files
//! API is taken below it, a relative one below the home directory in it. Where
//! the system allows a mount namespace, `/tmp` and `/home` in the sandbox are
//! the directory's own, so a command and the files API agree about these;
//! elsewhere commands see the machine's own files under absolute paths.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use creel_core::provider::process::ProcessProvider;
use creel_core::provider::{Limits, ProcessSpec, ProviderName, Spec};
use creel_core::scope::{Held, Request, Supervisor};
use creel_core::task;
use rustix::fs::{CWD, Mode, mkfifoat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::HOME;
use super::execution::{BACKLOG, Event, Execution, Program, Script, Stream};
use super::shell::{SHELL, exports, quoted};
use super::terminal::Terminal;
use crate::sandbox::Pairs;

/// Where the server keeps what it needs in the directory.
const OWN: &str = ".creel";
/// The largest piece of output that is passed on.
const PIECE: usize = 16 * 1024;

/// The shell that starts programs. It ends when its pipe does.
///
/// The root itself must stay reachable under its own path when that path is about to be
/// covered, so it is mounted into what covers it first.
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
    /// The directory, on the ledger.
    directory: Mutex<Option<Held>>,
    /// What runs, while it does.
    tree: Mutex<Option<Tree>>,
    /// Numbers the programs.
    next: AtomicU64,
}

/// A running tree.
#[derive(Debug)]
struct Tree {
    held: Held,
    /// The pipe that keeps the stage alive.
    orders: pipe::Sender,
    /// Tells the programs' readers that nothing more will come.
    ended: CancellationToken,
}

impl ProcessBody {
    /// Makes the directory.
    pub(super) async fn make(
        supervisor: &Supervisor,
        provider: &ProcessProvider,
        env: &Arc<Pairs>,
    ) -> Result<Self, String> {
        let request = Request::new(ProviderName::Process, Spec::Directory);
        let held = supervisor.create(request).await.map_err(|error| error.to_string())?;
        let root = provider.directory(&held.id).ok_or("the directory has no place")?;
        furnish(&root).map_err(|error| format!("the directory cannot be furnished: {error}"))?;
        Ok(Self {
            supervisor: supervisor.clone(),
            root,
            env: Arc::clone(env),
            directory: Mutex::new(Some(held)),
            tree: Mutex::new(None),
            next: AtomicU64::new(1),
        })
    }

    /// Starts the tree, unless it runs.
    pub(super) async fn start(&self) -> Result<(), String> {
        let mut tree = self.tree.lock().await;
        if tree.is_some() {
            return Ok(());
        }
        let failed = |error: io::Error| format!("the pipe of orders cannot be made: {error}");
        let orders = self.root.join(OWN).join("orders");
        let _ = fs::remove_file(&orders);
        make_pipe(&orders).map_err(failed)?;
        let orders = open_sender(&orders).map_err(failed)?;
        let root = self.root.display().to_string();
        let spec = ProcessSpec {
            command: ["/bin/sh", ".creel/stage", &root].map(str::to_owned).to_vec(),
            env: self.environment(),
            directory: Some(self.root.clone()),
            limits: Limits::default(),
        };
        let request = Request::new(ProviderName::Process, Spec::Process(spec));
        let held = self.supervisor.create(request).await.map_err(|error| error.to_string())?;
        *tree = Some(Tree { held, orders, ended: CancellationToken::new() });
        Ok(())
    }

    fn environment(&self) -> Pairs {
        let mut env = self.env.as_ref().clone();
        env.insert("HOME".to_owned(), self.home());
        env.entry("TMPDIR".to_owned())
            .or_insert_with(|| self.root.join("tmp").display().to_string());
        env
    }

    /// Ends the tree and keeps the directory.
    pub(super) async fn stop(&self) -> Result<(), String> {
        let Some(tree) = self.tree.lock().await.take() else { return Ok(()) };
        tree.ended.cancel();
        let released = self.supervisor.release(tree.held).await;
        released.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Ends the tree and removes the directory.
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

    /// Returns the home directory, by a path that is good inside and outside.
    pub(super) fn home(&self) -> String {
        self.root.join(HOME.trim_start_matches('/')).display().to_string()
    }

    /// Returns where a path of the files API is on this machine.
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
                // Above the root there is only the root.
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
        if let Script::Fed(text) = &program.script {
            fs::write(place.join("script"), text)?;
        }
        tree.orders.write_all(format!("run {name}\n").as_bytes()).await?;
        let (sender, events) = mpsc::channel(BACKLOG);
        let (kill, killed) = mpsc::channel(1);
        let orders = self.root.join(OWN).join("orders");
        let pump = Pump { name, place, orders, pipes, events: sender, ended: tree.ended.clone() };
        task::background(pump.run(killed));
        Ok(Execution { events, stdin: Some(Box::pin(stdin)), kill })
    }

    /// Writes the script that runs a program and tells its end.
    fn wrapper(&self, place: &Path, program: &Program, terminal: Option<&Terminal>) -> String {
        let at = |name: &str| quoted(&place.join(name).display().to_string());
        let cwd = match &program.cwd {
            Some(cwd) => self.host_path(cwd).display().to_string(),
            None => self.home(),
        };
        let stderr = if program.merged { "&1".to_owned() } else { at("err") };
        let fed = |stdin: &str| format!("{SHELL} <{} >{} 2>{stderr}", at(stdin), at("out"));
        let run = match (&program.script, terminal) {
            (Script::Fed(_), _) => fed("script"),
            // The leader of a session gets the terminal that it opens first as its own.
            (Script::Terminal, Some(terminal)) => {
                let place = quoted(terminal.path());
                format!("exec <{place} >{place} 2>&1\n{SHELL} -i -l")
            }
            (Script::Open | Script::Terminal, _) => fed("in"),
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

/// The ends of a program's pipes that the server reads.
struct Pipes {
    out: pipe::Receiver,
    err: pipe::Receiver,
    end: pipe::Receiver,
}

/// Carries what a program does to whoever ran it.
struct Pump {
    name: String,
    place: PathBuf,
    orders: PathBuf,
    pipes: Pipes,
    events: mpsc::Sender<Event>,
    ended: CancellationToken,
}

impl Pump {
    async fn run(mut self, mut killed: mpsc::Receiver<()>) {
        let mut out = vec![0; PIECE];
        let mut err = vec![0; PIECE];
        let mut end = [0; 32];
        let code = loop {
            tokio::select! {
                read = self.pipes.out.read(&mut out) => match read {
                    Ok(count) => self.tell(Stream::Stdout, &out[..count]).await,
                    Err(_) => break None,
                },
                read = self.pipes.err.read(&mut err) => match read {
                    Ok(count) => self.tell(Stream::Stderr, &err[..count]).await,
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
            // Whoever ran it may have gone.
            let _ = self.events.send(Event::Ended(code)).await;
        }
        // The sandbox may be gone, and this with it.
        let _ = fs::remove_dir_all(&self.place);
    }

    /// Passes on what was written before the end.
    async fn drain(&mut self, buffer: &mut [u8]) {
        while let Ok(count @ 1..) = self.pipes.out.try_read(buffer) {
            self.tell(Stream::Stdout, &buffer[..count]).await;
        }
        while let Ok(count @ 1..) = self.pipes.err.try_read(buffer) {
            self.tell(Stream::Stderr, &buffer[..count]).await;
        }
    }

    async fn tell(&self, stream: Stream, text: &[u8]) {
        let event = Event::Output(stream, bytes::Bytes::copy_from_slice(text));
        // Whoever ran it may have gone; the program goes on, as in the real service.
        let _ = self.events.send(event).await;
    }

    /// Asks the stage, which is where the process group is known by its number.
    async fn kill(&self) {
        if let Ok(mut orders) = open_sender(&self.orders) {
            // A stage that is gone has taken the program with it.
            let _ = orders.write_all(format!("kill {}\n", self.name).as_bytes()).await;
        }
    }
}

/// Makes what a sandbox starts with.
fn furnish(root: &Path) -> io::Result<()> {
    for place in [OWN, "tmp", "home", HOME.trim_start_matches('/')] {
        fs::create_dir_all(root.join(place))?;
    }
    fs::write(root.join(OWN).join("stage"), STAGE)
}

fn make_pipe(path: &Path) -> io::Result<()> {
    Ok(mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)?)
}

/// Opens for both directions: neither end ever waits for the other to appear.
fn open_sender(path: &Path) -> io::Result<pipe::Sender> {
    pipe::OpenOptions::new().read_write(true).open_sender(path)
}

fn open_receiver(path: &Path) -> io::Result<pipe::Receiver> {
    pipe::OpenOptions::new().read_write(true).open_receiver(path)
}
