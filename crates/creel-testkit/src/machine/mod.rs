//! A whole machine of its own: another kernel, control groups of version 2 alone, and a plug to
//! pull.
//!
//! It is emulated, so it needs no support of the processor and is slow. Its files are those of
//! this machine, read-only; what it changes is kept on a disk that outlives its power.

mod modules;

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use modules::Modules;

const INIT: &str = include_str!("init.sh");
const BUSYBOX: &str = "/bin/busybox";
const DISK_BYTES: u64 = 4 << 30;

/// What the kernel needs to reach its files, in whatever order; their own needs are looked up.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_blk",
    "9p",
    "9pnet_virtio",
    "ext4",
    "crc32c_generic",
    "overlay",
    "bridge",
    "veth",
];

/// A machine that is switched off.
pub struct Machine {
    kernel: PathBuf,
    directory: TempDir,
}

/// A machine that runs; its power is cut on drop.
pub struct Booted {
    process: Child,
    console: Receiver<String>,
    said: Vec<String>,
}

impl Machine {
    /// Makes a machine with a kernel that was unpacked into a directory. When it is switched on
    /// it runs this script and nothing else.
    ///
    /// # Errors
    ///
    /// Fails when a part is missing.
    pub fn make(kernel: &Path, script: &str) -> Result<Self> {
        let directory = TempDir::new().context("no room for a machine")?;
        let machine = Self { kernel: image_in(kernel)?, directory };
        machine.make_initial_files(kernel, script)?;
        let disk = machine.path("disk");
        File::create(&disk)?.set_len(DISK_BYTES)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&disk))?;
        Ok(machine)
    }

    /// Switches it on; the script finds the variables in its environment.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be started.
    pub fn boot(&self, variables: &[(&str, &str)]) -> Result<Booted> {
        let variables: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "2048"])
            .args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot"])
            .args(["-nic", "none"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(self.path("initial"))
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 {}", variables.join(" ")))
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio", self.path("disk").display()))
            .args([
                "-fsdev",
                "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            ])
            .args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut process = command.spawn().context("cannot start qemu-system-x86_64")?;
        let console = listen(process.stdout.take().context("it has no console")?);
        Ok(Booted { process, console, said: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Packs what the kernel finds first: a shell, its modules and the scripts.
    fn make_initial_files(&self, kernel: &Path, script: &str) -> Result<()> {
        let root = self.path("root");
        for part in ["bin", "proc", "sys", "dev", "modules"] {
            fs::create_dir_all(root.join(part))?;
        }
        fs::copy(BUSYBOX, root.join("bin/busybox")).context("no busybox")?;
        fs::write(root.join("init"), INIT)?;
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
        fs::write(root.join("script"), script)?;
        let mut order = String::new();
        let modules = Modules::in_directory(&kernel.join("lib/modules"))?;
        for module in modules.with_needs(&MODULES)? {
            let name = module.file_name().context("a module has a name")?;
            fs::copy(&module, root.join("modules").join(name))?;
            order += &format!("{}\n", name.to_string_lossy());
        }
        fs::write(root.join("modules/order"), order)?;
        let pack = format!("find . | {BUSYBOX} cpio -o -H newc 2>/dev/null");
        let packed = File::create(self.path("initial"))?;
        run(Command::new("sh").args(["-c", &pack]).current_dir(&root).stdout(packed))
    }
}

impl Booted {
    /// Waits for a line of the console that begins so.
    ///
    /// # Errors
    ///
    /// Fails when the machine ends before, or after the patience; with what it said.
    pub fn wait_for(&mut self, line: &str, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(said) = self.console.recv_timeout(left) else {
                bail!("the machine did not say `{line}`; it said:\n{self}");
            };
            let found = said.starts_with(line);
            self.said.push(said);
            if found {
                return Ok(());
            }
        }
    }

    /// Returns the lines that begin so, without that beginning.
    pub fn lines(&self, beginning: &str) -> Vec<String> {
        self.said.iter().filter_map(|line| Some(line.strip_prefix(beginning)?.to_owned())).collect()
    }

    /// Cuts its power: whatever it has not written to its disk is lost.
    pub fn cut_power(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Display for Booted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.said.iter().try_for_each(|line| writeln!(formatter, "{line}"))
    }
}

/// Passes the lines of a console on, without the returns of a terminal.
fn listen(console: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(console).split(b'\n').map_while(Result::ok);
        for line in lines {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Finds the kernel among the unpacked files.
fn image_in(directory: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(directory.join("boot"))?.filter_map(Result::ok);
    let image = files.find(|file| file.file_name().to_string_lossy().starts_with("vmlinuz"));
    Ok(image.with_context(|| format!("no kernel in {}", directory.display()))?.path())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
