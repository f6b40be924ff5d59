//! `creel demo`: demonstrates the cleanup after a killed supervisor.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use creel_core::pipeline::{CertificateRequest, Listing, Pipeline};
use creel_core::reap::{Certificate, CertificateVerdict, ItemReport, Outcome, Report};
use creel_ledger::{Event, Ledger, RecordFilter, StateName};
use creel_model::failure::Code;
use creel_model::os::process_stat;
use creel_model::provider::{Kind, Observed, Providers};
use jiff::Timestamp;
use owo_colors::OwoColorize;
use rustix::process::{Pid, Signal, kill_process};

use crate::app::App;
use crate::environment::CREEL_HOME;
use crate::output::{Exit, Failure, table};

use super::dev::HeldJson;

/// How long the watchdog may take before the demo fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an engine may take to respond before the demo continues without it.
const ENGINE_PATIENCE: Duration = Duration::from_secs(2);
/// A process tree that daemonises: a double fork, its own session, children that ignore SIGTERM.
const STUBBORN_TREE: &str =
    "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000 & sleep 1000 & wait' &) ; exec sleep 1000";

/// Kill a supervisor and watch its resources being released
///
/// Creates a process tree and a directory and, if a Docker Engine is available, a
/// network, a volume and a container. Then kills the supervisor with SIGKILL,
/// shows how its watchdog releases everything, and prints a leak certificate.
/// State is kept in a temporary directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  creel demo\n  creel demo --json | jq .verdict")]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        let demo_home = DemoHome::new()?;
        let app = &demo_home.app(app);
        let providers = demo_home.providers(app).await?;
        let baseline = Listing::read(&providers, &[]).await.inventory;
        let image = usable_image(&baseline);
        let mut supervisor = demo_home.start_supervisor(&providers, image)?;
        let held = supervisor.held()?;
        let during = Listing::read(&providers, &[]).await;
        print_held(app, &held);
        let killed = supervisor.kill(app)?;
        let ledger = app.ledger().await?;
        wait_until_all_is_released(&ledger, killed).await?;
        let took = killed.elapsed();
        print_timeline(app, &ledger).await?;
        let pipeline = Pipeline::new(providers, Some(ledger.clone()));
        let after = pipeline.list().await;
        let report = report_of(&ledger).await?;
        let request = CertificateRequest::of_plan(Timestamp::now(), (&during, &after), &report);
        let certificate = pipeline.certify(request).await;
        print_certificate(app, &certificate, &baseline, took);
        supervisor.wait_for_watchdog(&held);
        demo_home.clear();
        if certificate.verdict == CertificateVerdict::Clean {
            return Ok(Exit::Done);
        }
        Err(Failure::new(Code::NotGone, Exit::Unverified, "something is left").after_output())
    }
}

/// The temporary directory of the demo.
struct DemoHome {
    home: PathBuf,
}

impl DemoHome {
    fn new() -> Result<Self, Failure> {
        let name = format!("creel-demo-{}", creel_model::id::RunId::new().digits());
        let home = std::env::temp_dir().join(name);
        std::fs::create_dir(&home)
            .map_err(|error| Failure::internal("cannot make a throw-away directory", &error))?;
        Ok(Self { home })
    }

    /// Returns the app with its state in the temporary directory.
    fn app(&self, app: &App) -> App {
        let mut environment = app.environment.clone();
        environment.home.clone_from(&self.home);
        App {
            printer: app.printer.clone(),
            environment,
            layers: app.layers.clone(),
            config: app.config.clone(),
        }
    }

    /// Returns the providers that respond; the demo requires only processes.
    async fn providers(&self, app: &App) -> Result<Providers, Failure> {
        let all = app.providers(&[]).unwrap_or_default();
        let mut reachable = Vec::new();
        for provider in all.iter() {
            let identity = tokio::time::timeout(ENGINE_PATIENCE, provider.identity()).await;
            match identity {
                Ok(Ok(_)) => reachable.push(provider.clone()),
                _ => app
                    .printer
                    .say(&format!("{} does not answer; going on without it", provider.name())),
            }
        }
        Ok(Providers::new(reachable))
    }

    fn start_supervisor(
        &self,
        providers: &Providers,
        image: Option<String>,
    ) -> Result<DemoSupervisor, Failure> {
        let has_engine = providers.get(creel_docker::NAME).is_ok();
        let mut command = Command::new("/proc/self/exe");
        command.args(["dev", "hold", "--process", "--directory"]).env(CREEL_HOME, &self.home);
        if has_engine {
            command.args(["--network", "--volume"]);
            command.args(image.iter().flat_map(|image| ["--container", image.as_str()]));
        } else {
            command.env("DOCKER_HOST", format!("unix://{}", self.home.join("none").display()));
        }
        command.args(["--", "sh", "-c", STUBBORN_TREE]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| Failure::internal("cannot start a supervisor", &error))?;
        Ok(DemoSupervisor { child })
    }

    fn clear(&self) {
        // The directory is temporary and ours alone; leftovers do no harm.
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// The process that the demo kills.
struct DemoSupervisor {
    child: Child,
}

impl DemoSupervisor {
    /// Waits until it holds everything, and returns what it holds.
    fn held(&mut self) -> Result<HeldJson, Failure> {
        let stdout = self.child.stdout.take().expect("stdout was asked for as a pipe");
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| Failure::internal("the supervisor printed nothing", &error))?;
        serde_json::from_str(&line).map_err(|error| {
            Failure::internal("the supervisor could not create everything", &error)
        })
    }

    /// Kills it with SIGKILL: no handler runs, nothing is flushed.
    fn kill(&mut self, app: &App) -> Result<Instant, Failure> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a child has a pid");
        app.printer.say(&format!("\n{} {}", "$ kill -9".bold(), self.child.id().bold()));
        kill_process(pid, Signal::KILL)
            .map_err(|error| Failure::internal("cannot kill the supervisor", &error))?;
        let killed = Instant::now();
        self.child.wait().map_err(|error| Failure::internal("cannot reap", &error))?;
        Ok(killed)
    }

    /// Waits for the watchdog, which exits last; only then can its directory be removed.
    fn wait_for_watchdog(&self, held: &HeldJson) {
        let end = Instant::now() + Duration::from_secs(2);
        // There may be no parent to reap it, so a zombie counts as exited.
        let lives = |pid: u32| process_stat(pid.cast_signed()).is_ok_and(|stat| !stat.is_dead());
        while held.watchdog.is_some_and(lives) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Picks a local image that most likely has a shell.
fn usable_image(inventory: &[Observed]) -> Option<String> {
    const LIKELY: [&str; 6] = ["busybox", "alpine", "debian", "ubuntu", "creel-test", "python"];
    let tagged =
        || inventory.iter().filter(|seen| seen.kind == Kind::Image && seen.state == "tagged");
    LIKELY.iter().find_map(|name| {
        tagged().find(|seen| seen.name.contains(name)).map(|seen| seen.name.clone())
    })
}

fn print_held(app: &App, held: &HeldJson) {
    app.printer.say(&format!(
        "supervisor {} holds {} resources, its watchdog is {}:",
        held.pid,
        held.held.len(),
        held.watchdog.map_or("missing".to_owned(), |pid| pid.to_string())
    ));
    let mut table = table::new(&["KIND", "ID", "RESOURCE"]);
    for item in &held.held {
        table.add_row([
            item.kind.to_string(),
            table::short_id(&item.id).to_owned(),
            item.resource.to_string(),
        ]);
    }
    app.printer.say(&table::render(&table));
}

/// Waits until every record is closed.
async fn wait_until_all_is_released(ledger: &Ledger, killed: Instant) -> Result<(), Failure> {
    while !ledger.records(&RecordFilter::open()).await?.is_empty() {
        if killed.elapsed() > PATIENCE {
            let message = "the watchdog did not release everything in time";
            return Err(Failure::new(Code::NotGone, Exit::Unverified, message)
                .hint("its log is watchdog.log in the demo's directory"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Prints from the ledger what the watchdog did, and when.
async fn print_timeline(app: &App, ledger: &Ledger) -> Result<(), Failure> {
    let mut timeline = Vec::new();
    for record in ledger.records(&RecordFilter::default()).await? {
        for stored in ledger.history(record.id).await? {
            let what = match &stored.event {
                Event::OwnerChanged { .. } => "the watchdog takes over",
                Event::VerifiedGone => "verified gone",
                _ => continue,
            };
            timeline.push((stored.at_ms, record.kind, what));
        }
    }
    timeline.sort();
    let Some(&(first, ..)) = timeline.first() else { return Ok(()) };
    for (at, kind, what) in timeline {
        app.printer.say(&format!("  +{:>4} ms  {what}: {kind}", at - first));
    }
    Ok(())
}

async fn report_of(ledger: &Ledger) -> Result<Report, Failure> {
    let records = ledger.records(&RecordFilter::default()).await?;
    let mut report = Report::default();
    for record in records {
        let gone = record.state.name() == StateName::Gone;
        let created =
            ledger.history(record.id).await?.into_iter().find_map(|stored| match stored.event {
                Event::Created { object, .. } | Event::Found { object, .. } => Some(object),
                _ => None,
            });
        report.items.push(ItemReport {
            kept_until: None,
            known_before: false,
            is_protected: false,
            provider: record.provider,
            kind: record.kind,
            id: created.unwrap_or_default(),
            name: record.name,
            rule: "its supervisor was killed".to_owned(),
            result: if gone { Outcome::Gone } else { Outcome::Failed },
            tries: 1,
            reason: None,
            evidence: None,
            resource: Some(record.id),
            class: None,
        });
    }
    Ok(report)
}

fn print_certificate(app: &App, certificate: &Certificate, before: &[Observed], took: Duration) {
    if app.printer.json {
        app.printer.json(certificate);
        return;
    }
    let verdict = match certificate.verdict {
        CertificateVerdict::Clean => "CLEAN".green().bold().to_string(),
        CertificateVerdict::Leaking => "LEAKING".red().bold().to_string(),
        CertificateVerdict::Kept => "KEPT".yellow().bold().to_string(),
        CertificateVerdict::InventoryUnread => "INVENTORY UNREAD".yellow().bold().to_string(),
    };
    let difference = &certificate.difference;
    app.printer.data(&format!(
        "\nleak certificate: {verdict}\n  \
           before the run     {} resources\n  \
           held by the run    {}\n  \
           released, verified {} in {:.2} s after kill -9\n  \
           left behind        {}\n  \
           after the run      {} resources",
        before.len(),
        certificate.actions.len(),
        difference.released.len(),
        took.as_secs_f64(),
        difference.remaining.len(),
        certificate.inventory.len(),
    ));
}
