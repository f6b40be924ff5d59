//! Writing the new ledger, and putting it in the place of the old one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::SystemClock;
use crate::id::LedgerId;
use crate::ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, RunRecord, SqliteStore, Store,
    presence,
};
use crate::os::{self, ProcessKey};
use crate::owner::Owner;
use crate::provider::ProviderName;
use crate::run::records::EventLog;
use crate::sanitise::Masked;

use super::{FoundResource, FoundRun, RebuildError, Survey};

/// How long a resource whose owner cannot be judged is kept.
const LEASE: Duration = Duration::from_secs(600);
/// The name of runs whose workflow is not known any more.
const RUN_NAME: &str = "(rebuilt)";
/// What SQLite adds to the name of a database for the files beside it.
const BESIDE: [&str; 3] = ["", "-wal", "-shm"];

/// Writes the ledger that a survey describes; returns where the old file was put, if there was
/// one.
///
/// # Errors
///
/// Fails when a file cannot be written; then the old ledger is as it was, or nothing is in its
/// place and this can be done again.
pub async fn write(home: &Path, survey: &Survey) -> Result<Option<PathBuf>, RebuildError> {
    let _lock = lock(home)?;
    let draft = home.join("ledger.rebuild");
    discard(&draft)?;
    let store = SqliteStore::begin(&draft, survey.ledger, Arc::new(SystemClock)).await?;
    for found in &survey.resources {
        record(&store, found).await?;
    }
    for run in &survey.runs {
        store.restore_run(&run_record(run, survey)?).await?;
    }
    store.close().await;
    require_whole(&Ledger::path(&draft))?;
    let aside = put_aside(&Ledger::path(home), "damaged")?;
    presence::record_id(home, survey.ledger)?;
    let (from, to) = (Ledger::path(&draft), Ledger::path(home));
    fs::rename(&from, &to).map_err(in_file(&to))?;
    sync_directory(home)?;
    discard(&draft)?;
    Ok(aside)
}

/// Begins a new ledger with a new id, and puts the old one and its event log aside; returns where
/// they were put.
///
/// # Errors
///
/// Fails when a file cannot be written.
pub async fn begin_anew(home: &Path) -> Result<(LedgerId, Vec<PathBuf>), RebuildError> {
    let _lock = lock(home)?;
    let mut aside = Vec::new();
    for file in [Ledger::path(home), EventLog::path(home), presence::id_file(home)] {
        aside.extend(put_aside(&file, "old")?);
    }
    let id = LedgerId::new();
    let store = SqliteStore::begin(home, id, Arc::new(SystemClock)).await?;
    store.close().await;
    sync_directory(home)?;
    Ok((id, aside))
}

/// Refuses a draft of which something is still in the files beside it.
fn require_whole(file: &Path) -> Result<(), LedgerError> {
    if presence::has_content(&with_suffix(file, "-wal")) {
        let source = io::Error::other("its write-ahead log could not be merged into it");
        return Err(LedgerError::Home { path: file.to_owned(), source });
    }
    Ok(())
}

/// Keeps two rebuilds from working at once.
fn lock(home: &Path) -> Result<File, LedgerError> {
    let path = home.join("ledger.rebuild.lock");
    let file = File::create(&path).map_err(in_file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(LedgerError::Locked { path: Ledger::path(home) }),
        Err(fs::TryLockError::Error(source)) => Err(LedgerError::Home { path, source }),
    }
}

/// Puts one resource on record, as it was found.
async fn record(store: &SqliteStore, found: &FoundResource) -> Result<(), LedgerError> {
    let seen = &found.seen;
    let intent = Intent {
        id: found.resource,
        run: found.run,
        provider: seen.provider,
        kind: seen.kind,
        name: seen.name.clone(),
        labels: seen.labels.clone(),
        owner: found.owner.clone(),
        on_owner_death: OnOwnerDeath::Release,
        lease: LEASE,
    };
    store.record_intent(&intent).await?;
    let event = Event::Found { object: seen.id.clone(), identity: seen.identity() };
    store.append(&[(found.resource, event)]).await?;
    Ok(())
}

/// Makes the row of a run. Its driver is the owner of what was found of it.
fn run_record(found: &FoundRun, survey: &Survey) -> Result<RunRecord, LedgerError> {
    let taken = survey.resources.iter().find(|resource| resource.run == Some(found.run));
    let owner = match taken {
        Some(resource) => resource.owner.clone(),
        None => OwnerRecord {
            owner: ended_owner()?,
            command: Masked::ours("rebuilt"),
            started_at_ms: found.began_at_ms,
        },
    };
    Ok(RunRecord {
        id: found.run,
        name: RUN_NAME.into(),
        provider: taken.map_or(ProviderName::Process, |resource| resource.seen.provider),
        owner,
        on_owner_death: OnOwnerDeath::Release,
        created_at_ms: found.began_at_ms,
        changed_at_ms: found.changed_at_ms,
        state: found.state.clone(),
    })
}

/// An owner of this machine that has ended: a run of which nothing is left has no driver.
fn ended_owner() -> Result<Owner, LedgerError> {
    let host = os::host_id();
    let host = host.map_err(|source| LedgerError::Home { path: "/proc".into(), source })?;
    let process = ProcessKey { pid: 0, started_ticks: 0 };
    Ok(Owner { host, boot: "unknown".to_owned(), pid_namespace: 0, process })
}

/// Renames a file, with those that SQLite keeps beside it; returns its new name if it was there.
fn put_aside(file: &Path, why: &str) -> Result<Option<PathBuf>, LedgerError> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut aside = None;
    for suffix in BESIDE {
        let from = with_suffix(file, suffix);
        let to = with_suffix(file, &format!(".{why}-{stamp}{suffix}"));
        match fs::rename(&from, &to) {
            Ok(()) if suffix.is_empty() => aside = Some(to),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(LedgerError::Home { path: from, source }),
        }
    }
    Ok(aside)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a draft that an earlier rebuild left, or that is done with.
fn discard(draft: &Path) -> Result<(), LedgerError> {
    match fs::remove_dir_all(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_file(draft)(error)),
        _ => Ok(()),
    }
}

fn sync_directory(home: &Path) -> Result<(), LedgerError> {
    File::open(home).and_then(|directory| directory.sync_all()).map_err(in_file(home))
}

fn in_file(path: &Path) -> impl Fn(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::Home { path: path.clone(), source }
}
