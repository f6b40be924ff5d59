//! `creel doctor`: checks what works here, and how to fix the rest.

use clap::Args;
use comfy_table::Color;
use creel_core::watchdog::ProcessWatch;
use creel_ledger::{Ledger, RecordFilter};
use creel_model::backend::{Backend, Verdict};
use creel_model::failure::Code;
use creel_model::os::ProcessKey;
use futures::future::join_all;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::app::App;
use crate::backends::BACKENDS;
use crate::output::table::{self, Cell};
use crate::output::{Exit, Failure};

/// Free space below which doctor warns.
const LITTLE_ROOM: u64 = 100 << 20;

/// Check the setup and suggest fixes
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  creel doctor\n  creel doctor --json | jq '.checks[] | select(.status != \"ok\")'"
)]
pub(crate) struct Doctor {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    Ok,
    Note,
    Problem,
}

#[derive(Debug, Serialize)]
struct DoctorCheck {
    name: &'static str,
    status: Health,
    detail: String,
    hint: Option<String>,
    #[serde(skip)]
    exit: Exit,
}

impl DoctorCheck {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Health::Ok, detail: detail.into(), hint: None, exit: Exit::Done }
    }

    fn note(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        let hint = Some(hint.to_owned());
        Self { name, status: Health::Note, detail: detail.into(), hint, exit: Exit::Done }
    }

    fn problem(name: &'static str, exit: Exit, detail: impl Into<String>, hint: &str) -> Self {
        let hint = Some(hint.to_owned());
        Self { name, status: Health::Problem, detail: detail.into(), hint, exit }
    }
}

#[derive(Serialize)]
struct DoctorJson<'a> {
    version: u32,
    healthy: bool,
    checks: &'a [DoctorCheck],
}

impl Doctor {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let mut checks = vec![state_directory(app), ledger(app).await, watchdog()];
        checks.extend(join_all(BACKENDS.iter().map(|backend| provider(app, backend))).await);
        let exit = checks.iter().fold(Exit::Done, |exit, check| exit.and(check.exit));
        if app.printer.json {
            app.printer.json(&DoctorJson {
                version: 1,
                healthy: exit == Exit::Done,
                checks: &checks,
            });
        } else {
            show(app, &checks);
        }
        match exit {
            Exit::Done => Ok(Exit::Done),
            exit => {
                let code = if exit == Exit::Provider { Code::Unreachable } else { Code::Home };
                let bad = checks.iter().filter(|check| check.status == Health::Problem);
                let names: Vec<&str> = bad.map(|check| check.name).collect();
                let message = format!(
                    "{} of {} checks found a problem: {}",
                    names.len(),
                    checks.len(),
                    names.join(", ")
                );
                Err(Failure::new(code, exit, message).after_output())
            }
        }
    }
}

fn show(app: &App, checks: &[DoctorCheck]) {
    let mut table = table::new(&["", "CHECK", "FOUND"]);
    for check in checks {
        let mark = match check.status {
            Health::Ok => Cell::new("ok").fg(Color::Green),
            Health::Note => Cell::new("note").fg(Color::Yellow),
            Health::Problem => Cell::new("problem").fg(Color::Red),
        };
        table.add_row([mark, Cell::new(check.name), Cell::new(&check.detail)]);
    }
    app.printer.data(&table::render(&table));
    for check in checks {
        if let Some(hint) = &check.hint {
            app.printer.say(&format!("{}: {}: {hint}", "hint".cyan(), check.name));
        }
    }
}

fn state_directory(app: &App) -> DoctorCheck {
    const NAME: &str = "state directory";
    let home = &app.environment.home;
    let place = home.ancestors().find(|path| path.exists()).unwrap_or(home);
    if !place.is_dir() {
        let detail = format!("{} is not a directory", place.display());
        return DoctorCheck::problem(NAME, Exit::Usage, detail, "set CREEL_HOME to another place");
    }
    if rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_err() {
        let detail = format!("{} cannot be written", home.display());
        return DoctorCheck::problem(
            NAME,
            Exit::Usage,
            detail,
            "set CREEL_HOME to a directory that can",
        );
    }
    let room = rustix::fs::statvfs(place).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
    let detail = format!("{}, {} MiB free", home.display(), room >> 20);
    if room < LITTLE_ROOM {
        return DoctorCheck::note(NAME, detail, "a full disk stops every create: free some space");
    }
    DoctorCheck::ok(NAME, detail)
}

async fn ledger(app: &App) -> DoctorCheck {
    const NAME: &str = "ledger";
    let path = Ledger::path(&app.environment.home);
    if !Ledger::is_begun(&app.environment.home) {
        return DoctorCheck::ok(NAME, "none yet; it is begun with the first create");
    }
    let opened = async {
        let ledger = Ledger::open(&app.environment.home).await?;
        let problems = ledger.check().await?;
        Ok::<_, creel_ledger::LedgerError>((ledger.records(&RecordFilter::open()).await?, problems))
    };
    match opened.await {
        Ok((open, problems)) if problems.is_empty() => {
            DoctorCheck::ok(NAME, format!("{}, sound, {} open records", path.display(), open.len()))
        }
        Ok((_, problems)) => {
            DoctorCheck::problem(NAME, Exit::Internal, problems.join("; "), "creel explain CR0013")
        }
        Err(error) => {
            let failure = Failure::from(error);
            let hint = match failure.code {
                Code::LedgerVanished | Code::LedgerCorrupt => {
                    "creel ledger rebuild shows what can be put on record again".to_owned()
                }
                code => format!("creel explain {code}"),
            };
            DoctorCheck::problem(NAME, failure.exit, failure.sentence(), &hint)
        }
    }
}

fn watchdog() -> DoctorCheck {
    const NAME: &str = "watchdog";
    match ProcessKey::of_this_process().and_then(ProcessWatch::over) {
        Ok(_) => DoctorCheck::ok(NAME, "a killed supervisor is noticed at once (pidfd)"),
        Err(error) => DoctorCheck::note(
            NAME,
            format!("a killed supervisor is not noticed: {error}"),
            "run creel reconcile after a crash; the kernel is older than 5.3",
        ),
    }
}

/// Lets a backend check whether it works here.
async fn provider(app: &App, backend: &dyn Backend) -> DoctorCheck {
    let found = backend.diagnose(&app.backend_context()).await;
    let (status, exit) = match found.verdict {
        Verdict::Works => (Health::Ok, Exit::Done),
        Verdict::Unavailable => (Health::Note, Exit::Done),
        Verdict::Misconfigured => (Health::Problem, Exit::Usage),
        Verdict::Broken => (Health::Problem, Exit::Provider),
    };
    let name = backend.name().name();
    DoctorCheck { name, status, detail: found.detail, hint: found.hint, exit }
}
