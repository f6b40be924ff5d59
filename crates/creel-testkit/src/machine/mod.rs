//! A virtual machine with another kernel, control groups of version 2 only, and a power cut on
//! demand.
//!
//! It is emulated, so it needs no processor support and is slow. Its files are those of this
//! machine, read-only. Its changes are kept on a disk that survives a power cut.

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

/// The modules that the kernel needs to reach its files. Their dependencies are added.
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

/// A running machine. Its power is cut on drop.
pub struct Booted {
    process: Child,
    console: Receiver<String>,
    printed: Vec<String>,
}

impl Machine {
    /// Creates a machine with a kernel unpacked into a directory. After boot, it runs only this
    /// script.
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

    /// Boots the machine. The script gets the variables in its environment.
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
        Ok(Booted { process, console, printed: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Packs the initial file system: a shell, modules and the scripts.
    fn make_initial_files(&self, kernel: &Path, script: &str) -> Result<()> {
        let root = self.path("root");
        for part in ["bin", "proc", "sys", "dev", "modules"] {
            fs::create_dir_all(root.join(part))?;
        }
        fs::copy(BUSYBOX, root.join("bin/busybox")).context("no busybox")?;
        fs::write(root.join("init"), INIT)?;
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
        fs::write(root.join("script"), script)?;
        let mut load_order = String::new();
        let modules = Modules::in_directory(&kernel.join("lib/modules"))?;
        for module in modules.with_dependencies(&MODULES)? {
            let name = module.file_name().context("a module has a name")?;
            fs::copy(&module, root.join("modules").join(name))?;
            load_order += &format!("{}\n", name.to_string_lossy());
        }
        fs::write(root.join("modules/order"), load_order)?;
        let pack = format!("find . | {BUSYBOX} cpio -o -H newc 2>/dev/null");
        let packed = File::create(self.path("initial"))?;
        run(Command::new("sh").args(["-c", &pack]).current_dir(&root).stdout(packed))
    }
}

impl Booted {
    /// Waits for a line of the console that begins with `line`.
    ///
    /// # Errors
    ///
    /// Fails when the machine ends before, or after `patience`. The error holds the console output.
    pub fn wait_for(&mut self, line: &str, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(printed) = self.console.recv_timeout(left) else {
                bail!("the machine did not print `{line}`; its console:\n{self}");
            };
            let found = printed.starts_with(line);
            self.printed.push(printed);
            if found {
                return Ok(());
            }
        }
    }

    /// Returns the lines that begin with `beginning`, without it.
    pub fn lines(&self, beginning: &str) -> Vec<String> {
        self.printed
            .iter()
            .filter_map(|line| Some(line.strip_prefix(beginning)?.to_owned()))
            .collect()
    }

    /// Cuts the power. Everything that was not written to its disk is lost.
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
        self.printed.iter().try_for_each(|line| writeln!(formatter, "{line}"))
    }
}

/// Passes on the lines of a console, without carriage returns.
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
