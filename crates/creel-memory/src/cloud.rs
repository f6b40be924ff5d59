//! The remote system, as small as it can be: objects in a list, behind a connection that can fail.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use creel_model::labels::Labels;
use creel_model::provider::Kind;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use uuid::Uuid;

/// How long the file of a program may be busy.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// A cloud with containers and volumes. All connections see the same objects.
#[derive(Debug)]
pub struct Cloud {
    name: String,
    objects: Mutex<Vec<CloudObject>>,
}

impl Cloud {
    /// Returns the cloud of a name, which is empty at first.
    pub fn named(name: &str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<String, Arc<Cloud>>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Self { name: name.to_owned(), objects: Mutex::default() });
        Arc::clone(all.entry(name.to_owned()).or_insert_with(new))
    }

    /// Returns the name that distinguishes this cloud from any other.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a connection of its own.
    pub fn connect(self: &Arc<Self>) -> Connection {
        Connection { cloud: Arc::clone(self), outage: AtomicU8::new(Outage::None as u8) }
    }
}

/// What is wrong with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Nothing.
    None,
    /// Requests do not arrive.
    Down,
    /// The next request is carried out, and its answer is lost.
    LosesAnswer,
}

/// A connection to a cloud.
#[derive(Debug)]
pub struct Connection {
    cloud: Arc<Cloud>,
    outage: AtomicU8,
}

impl Connection {
    /// Returns the cloud.
    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    /// Breaks or mends the connection.
    pub fn set(&self, outage: Outage) {
        self.outage.store(outage as u8, Ordering::SeqCst);
    }

    /// Sends one request, which is carried out as a whole. `None` means that no answer came.
    pub fn call<T>(&self, act: impl FnOnce(&mut Vec<CloudObject>) -> T) -> Option<T> {
        if self.outage.load(Ordering::SeqCst) == Outage::Down as u8 {
            return None;
        }
        let mut objects = self.cloud.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = act(&mut objects);
        let (lost, mended) = (Outage::LosesAnswer as u8, Outage::None as u8);
        let is_lost =
            self.outage.compare_exchange(lost, mended, Ordering::SeqCst, Ordering::SeqCst);
        is_lost.is_err().then_some(answer)
    }
}

/// Returns the object of an id.
pub(crate) fn find<'a>(
    objects: &'a mut [CloudObject],
    kind: Kind,
    id: &str,
) -> Option<&'a mut CloudObject> {
    objects.iter_mut().find(|object| object.kind == kind && object.id == id)
}

/// A container or volume.
#[derive(Debug)]
pub struct CloudObject {
    /// What it is.
    pub kind: Kind,
    /// A container's own id; a volume's name.
    pub id: String,
    /// Its name, unique among those of its kind.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Its state.
    pub state: &'static str,
    /// When it was created.
    pub created_at: Timestamp,
    /// The files of a container, which go with it.
    files: Option<TempDir>,
    /// Changes when the connections to its commands are cut, and closes when it is deleted.
    connections: watch::Sender<()>,
}

impl CloudObject {
    /// Creates an object; a container runs at once.
    pub fn new(kind: Kind, name: &str, labels: Labels) -> Self {
        let is_container = kind == Kind::Container;
        let id = Uuid::new_v4().simple().to_string();
        Self {
            kind,
            id: if is_container { id } else { name.to_owned() },
            name: name.to_owned(),
            labels,
            state: if is_container { "running" } else { "present" },
            created_at: Timestamp::now(),
            files: is_container.then(|| tempfile::tempdir().ok()).flatten(),
            connections: watch::channel(()).0,
        }
    }

    /// Stops it. Its commands end.
    pub fn stop(&mut self) {
        self.state = "exited";
        self.cut();
    }

    /// Starts it again.
    pub fn start(&mut self) {
        self.state = "running";
    }

    /// Cuts the connections to its commands, and returns how many there were.
    pub fn cut(&self) -> usize {
        self.connections.send_replace(());
        self.connections.receiver_count()
    }

    /// Starts a command in it, and connects to its input and output.
    ///
    /// # Errors
    ///
    /// Fails when it does not run, or the program cannot be started.
    pub fn exec(&self, command: &[&str]) -> io::Result<ExecStream> {
        if self.state != "running" {
            return Err(io::Error::other("the container is stopped"));
        }
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = spawn(&mut command)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(ExecStream { input, output, cut: self.connections.subscribe() })
    }

    /// Returns the directory of its files.
    pub fn directory(&self) -> &str {
        self.files.as_ref().and_then(|files| files.path().to_str()).unwrap_or_default()
    }
}

/// The input and output of a command. Dropping it closes both.
#[derive(Debug)]
pub struct ExecStream {
    input: ChildStdin,
    output: ChildStdout,
    /// Changes when the connection is cut, and closes when the container is deleted.
    cut: watch::Receiver<()>,
}

impl ExecStream {
    /// Writes to the command's input.
    ///
    /// # Errors
    ///
    /// Fails when the command does not read any more.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.input.write_all(bytes).await
    }

    /// Reads the command's output; 0 means that nothing more comes.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        tokio::select! {
            count = self.output.read(buffer) => count,
            _ = self.cut.changed() => Ok(0),
        }
    }
}

/// Starts a program that was just written.
///
/// Another thread that starts a program at this moment has the file open for writing, until its
/// child has become that program.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < deadline =>
            {
                thread::yield_now();
            }
            started => return started,
        }
    }
}
