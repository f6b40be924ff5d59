//! The hidden `watchdog`: waits for a supervisor's end and releases what it left.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use creel_core::watchdog::{ProcessWatch, Reclaimed, reclaim};
use creel_ledger::{Ledger, LedgerError, WhenFull};
use creel_model::owner::Owner;
use tracing::info;

use crate::app::App;
use crate::output::{Exit, Failure};

/// The byte that reports that the watch has begun.
const READY: &[u8] = b"w";
/// The pause between two tries to open the ledger on a full disk.
const SPACE_PAUSE: Duration = Duration::from_secs(2);

/// Watch a supervisor (started by creel itself)
#[derive(Debug, Args)]
pub(crate) struct WatchdogCommand {
    /// The owner to watch
    owner: Owner,
}

impl WatchdogCommand {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let internal = |error: std::io::Error| Failure::internal("cannot watch", &error);
        // A session of its own: a signal to the supervisor's group or terminal spares the watchdog.
        rustix::process::setsid().map_err(|error| internal(error.into()))?;
        let watch = ProcessWatch::over(self.owner.process).map_err(internal)?;
        std::io::stdout()
            .write_all(READY)
            .and_then(|()| std::io::stdout().flush())
            .map_err(internal)?;
        watch.ended().await.map_err(internal)?;
        info!(owner = %self.owner, "the supervisor has ended");
        let providers = app.providers(&[])?;
        loop {
            let ledger = open_ledger(app).await?;
            let reconciler = app.reconciler(&ledger, &providers)?;
            let reclaimed = reclaim(&reconciler, &self.owner, |status| {
                info!(
                    released = status.released(),
                    open_intents = status.open_intents,
                    runs_closed = status.runs_closed,
                    "reclaimed"
                );
            });
            if reclaimed.await? == Reclaimed::Done {
                return Ok(Exit::Done);
            }
        }
    }
}

/// Opens the ledger. If the disk is too full even for that, waits until it is not.
async fn open_ledger(app: &App) -> Result<Ledger, LedgerError> {
    loop {
        match Ledger::open(&app.environment.home).await {
            Err(error) if error.is_disk_full() => tokio::time::sleep(SPACE_PAUSE).await,
            opened => return opened,
        }
    }
}

/// Starts a watchdog over this process and waits until it watches.
pub(crate) fn start(app: &App) -> Result<u32, Failure> {
    let internal = |error: std::io::Error| Failure::internal("cannot start the watchdog", &error);
    let owner = Owner::this_process().map_err(internal)?;
    let home = &app.environment.home;
    std::fs::create_dir_all(home).map_err(internal)?;
    let log =
        OpenOptions::new().create(true).append(true).mode(0o600).open(home.join("watchdog.log"));
    let mut child = Command::new("/proc/self/exe")
        .args(["watchdog", "-v", &owner.to_string()])
        .env_remove(crate::environment::CREEL_CRASHPOINT)
        .env(crate::environment::CREEL_HOME, home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_err(internal)?)
        .spawn()
        .map_err(internal)?;
    let mut ready = [0_u8; 1];
    let mut stdout = child.stdout.take().expect("stdout was asked for as a pipe");
    stdout.read_exact(&mut ready).map_err(internal)?;
    Ok(child.id())
}
