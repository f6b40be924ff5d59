//! Writes the new ledger, and puts it in the place of the old one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use creel_ledger::event_log::EventLog;
use creel_ledger::{
    Event, Intent, Ledger, LedgerError, OnOwnerDeath, OwnerRecord, RunRecord, SqliteStore, Store,
    presence,
};
use creel_model::clock::SystemClock;
use creel_model::id::LedgerId;
use creel_model::os;
use creel_model::os::ProcessKey;
use creel_model::owner::Owner;
use creel_model::provider::ProviderName;
use creel_sanitise::Masked;
use jiff::Timestamp;

use super::{FoundResource, FoundRun, RebuildError, RebuildSurvey, damage};

/// How long a resource with an owner of unknown liveness is kept.
const LEASE: Duration = Duration::from_secs(600);
/// The name of runs whose workflow is no longer known.
const RUN_NAME: &str = "(rebuilt)";
/// The suffixes of a SQLite database and its side files.
const BESIDE: [&str; 3] = ["", "-wal", "-shm"];

/// Writes the ledger that a survey describes. Returns the new path of the old file, if there was
/// one.
///
/// # Errors
///
/// Fails when a file cannot be written. The old ledger is then unchanged, or no ledger is in its
/// place and the write can be repeated. Fails also when another rebuild was faster.
pub async fn write(home: &Path, survey: &RebuildSurvey) -> Result<Option<PathBuf>, RebuildError> {
    let _lock = lock_damaged(home).await?;
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

/// Creates a new ledger with a new id, and moves the old one and its event log aside.
///
/// Returns the new id and the new paths of the old files.
///
/// # Errors
///
/// Fails when a file cannot be written, or when another rebuild was faster.
pub async fn begin_anew(home: &Path) -> Result<(LedgerId, Vec<PathBuf>), RebuildError> {
    let _lock = lock_damaged(home).await?;
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

/// Rejects a draft with data left in its write-ahead log.
fn require_whole(file: &Path) -> Result<(), LedgerError> {
    if presence::has_content(&with_suffix(file, "-wal")) {
        let source = io::Error::other("its write-ahead log could not be merged into it");
        return Err(LedgerError::Home { path: file.to_owned(), source });
    }
    Ok(())
}

/// Takes the lock of a rebuild, and checks once more that the ledger is damaged.
///
/// Another rebuild may have finished since the survey. Its ledger may hold newer records by now.
async fn lock_damaged(home: &Path) -> Result<File, RebuildError> {
    let lock = lock(home)?;
    match damage(home).await? {
        Some(_) => Ok(lock),
        None => Err(RebuildError::NotNeeded),
    }
}

/// Prevents two rebuilds from running at once.
fn lock(home: &Path) -> Result<File, LedgerError> {
    let path = home.join("ledger.rebuild.lock");
    let file = File::create(&path).map_err(in_file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(LedgerError::Locked { path: Ledger::path(home) }),
        Err(fs::TryLockError::Error(source)) => Err(LedgerError::Home { path, source }),
    }
}

/// Records one resource as it was found.
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

/// Creates the row of a run. Its driver is the owner of a resource that was found for it.
fn run_record(found: &FoundRun, survey: &RebuildSurvey) -> Result<RunRecord, LedgerError> {
    let resource = survey.resources.iter().find(|resource| resource.run == Some(found.run));
    let owner = match resource {
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
        provider: resource.map_or(ProviderName::UNKNOWN, |resource| resource.seen.provider),
        owner,
        on_owner_death: OnOwnerDeath::Release,
        created_at_ms: found.began_at_ms,
        changed_at_ms: found.changed_at_ms,
        state: found.state.clone(),
    })
}

/// Returns an owner on this machine that has ended: a run without any resources has no driver.
fn ended_owner() -> Result<Owner, LedgerError> {
    let host = os::host_id();
    let host = host.map_err(|source| LedgerError::Home { path: "/proc".into(), source })?;
    let process = ProcessKey { pid: 0, started_ticks: 0 };
    Ok(Owner { host, boot: "unknown".to_owned(), pid_namespace: 0, process })
}

/// Renames a file and its SQLite side files. Returns the new path if the file existed.
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

/// Removes the draft of an earlier rebuild, or one that is no longer needed.
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
