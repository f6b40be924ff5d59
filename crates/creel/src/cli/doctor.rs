//! `creel doctor`: checks what works here, and how to fix the rest.

use clap::Args;
use comfy_table::Color;
use creel_core::watchdog::ProcessWatch;
use creel_docker::DockerProvider;
use creel_ledger::{Ledger, RecordFilter};
use creel_model::failure::Code;
use creel_model::os::ProcessKey;
use creel_process::{CgroupVersion, Containment};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::app::App;
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
        let checks = vec![
            state_directory(app),
            ledger(app).await,
            watchdog(),
            docker(app).await,
            daytona(app).await,
            process(app).await,
        ];
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

async fn docker(app: &App) -> DoctorCheck {
    const NAME: &str = "docker";
    let endpoint = match app.docker_endpoint() {
        Ok(Some(endpoint)) => endpoint,
        Ok(None) => {
            return DoctorCheck::note(
                NAME,
                "not configured: no DOCKER_HOST, no context, no socket at the usual places",
                "start an engine or set DOCKER_HOST to use containers",
            );
        }
        Err(failure) => {
            let hint = format!("creel explain {}", failure.code);
            return DoctorCheck::problem(NAME, Exit::Usage, failure.sentence(), &hint);
        }
    };
    let response = async {
        let patience = app.config.docker.timeout;
        let provider = DockerProvider::connect(endpoint)?.with_read_timeout(patience);
        let engine = provider.engine().await?;
        Ok::<_, creel_model::provider::ProviderError>((
            creel_model::provider::Provider::address(&provider),
            engine,
        ))
    };
    match response.await {
        Ok((address, engine)) => DoctorCheck::ok(
            NAME,
            format!(
                "{} {} (API {}) at {address}",
                engine.name(),
                engine.version,
                engine.api_version
            ),
        ),
        Err(error) => {
            let failure = Failure::from(error);
            let hint = format!("creel explain {}", failure.code);
            DoctorCheck::problem(NAME, Exit::Provider, failure.sentence(), &hint)
        }
    }
}

async fn daytona(app: &App) -> DoctorCheck {
    const NAME: &str = "daytona";
    let provider = match app.daytona() {
        Ok(Some(provider)) => provider,
        Ok(None) => {
            return DoctorCheck::ok(NAME, "not configured: DAYTONA_API_KEY is not set");
        }
        Err(failure) => {
            let hint = "check DAYTONA_API_KEY and DAYTONA_API_URL";
            return DoctorCheck::problem(NAME, Exit::Usage, failure.sentence(), hint);
        }
    };
    let address = creel_model::provider::Provider::address(&provider);
    let response = async {
        let missing = provider.key_rights().await?.missing();
        provider.probe().await?;
        Ok::<_, creel_model::provider::ProviderError>(missing)
    };
    match response.await {
        Ok(missing) if missing.is_empty() => {
            let found = format!("{address} answers, and the key may make and delete sandboxes");
            daytona_toolbox(NAME, &provider, found).await
        }
        Ok(missing) => DoctorCheck::problem(
            NAME,
            Exit::Provider,
            format!("the key lacks {}", missing.join(" and ")),
            "make a key with the scopes write:sandboxes and delete:sandboxes: without the second, sandboxes cannot be deleted",
        ),
        Err(error) => {
            let failure = Failure::from(error);
            let hint = format!(
                "check DAYTONA_API_KEY and DAYTONA_API_URL; creel explain {}",
                failure.code
            );
            DoctorCheck::problem(NAME, Exit::Provider, failure.sentence(), &hint)
        }
    }
}

/// Checks the address for commands and files, which the service itself reports.
async fn daytona_toolbox(
    name: &'static str,
    provider: &creel_daytona::DaytonaProvider,
    found: String,
) -> DoctorCheck {
    match provider.probe_toolbox().await {
        Ok(Some(address)) => {
            DoctorCheck::ok(name, format!("{found}; its toolboxes answer at {address}"))
        }
        Ok(None) => DoctorCheck::ok(
            name,
            format!(
                "{found}; it does not say where its toolboxes are, and there is no sandbox to ask"
            ),
        ),
        Err(error) => DoctorCheck::problem(
            name,
            Exit::Provider,
            format!("{found}, but its toolboxes cannot be reached: {}", error.message),
            "sandboxes can be made and deleted, but no command runs in them: let this machine reach that address",
        ),
    }
}

async fn process(app: &App) -> DoctorCheck {
    const NAME: &str = "process";
    match app.process().capabilities().await {
        Ok(can) => {
            let limits =
                if can.limits.is_empty() { "none".to_owned() } else { can.limits.join(", ") };
            let groups = match can.cgroup {
                Some(CgroupVersion::V1) => "cgroup v1",
                Some(CgroupVersion::V2) => "cgroup v2",
                Some(CgroupVersion::Hybrid) => "cgroup v1 and v2",
                None => "no cgroups",
            };
            let held_by = match can.containment {
                Containment::PidNamespace => "a pid namespace",
                Containment::Cgroup => "a control group",
                Containment::Subreaper => "a subreaper",
            };
            let detail = format!("trees are held by {held_by}; {groups}; limits: {limits}");
            DoctorCheck::ok(NAME, detail)
        }
        Err(error) => DoctorCheck::problem(
            NAME,
            Exit::Provider,
            error.message,
            "process sandboxes cannot be used on this machine",
        ),
    }
}
