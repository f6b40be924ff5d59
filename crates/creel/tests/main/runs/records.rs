//! Records of runs as a user sees them: listed, shown, followed, commanded, and closed after the
//! death of their driver.

use std::io::Write;
use std::process::Stdio;

use creel_ledger::event_log::Journal;
use creel_ledger::{Ledger, NewRun, OnOwnerDeath, OwnerRecord, PlacedCommand, WorkflowRecord};
use creel_model::crashpoint::Crashpoint;
use creel_model::id::RunId;
use creel_model::os::ProcessKey;
use creel_model::owner::Owner;
use creel_model::run::{
    AttemptFrom, Cause, CauseClass, Certified, Phase, RunCommand, RunEvent, Step, StepStatus,
};
use creel_run::commands::CommandInbox;
use creel_sanitise::Diagnostic;
use creel_testkit::wait::{eventually, eventually_some};
use insta::{Settings, assert_snapshot};
use serde_json::Value;

use crate::support::{Holding, Home, PATIENCE, assert_killed};

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(work)
}

/// Returns this process as an owner. It is alive as long as the test.
fn alive() -> OwnerRecord {
    OwnerRecord::this_process("test").unwrap()
}

/// Returns an owner that is provably dead.
fn dead() -> OwnerRecord {
    let mut dead = alive();
    dead.owner.process.started_ticks += 1;
    dead
}

fn a_run_of(owner: OwnerRecord) -> NewRun {
    NewRun {
        id: RunId::new(),
        name: "hello".into(),
        provider: creel_process::NAME,
        owner,
        on_owner_death: OnOwnerDeath::Release,
        workflow: WorkflowRecord {
            source_name: "hello.toml".into(),
            source: "[task]\nprompt = \"the plan nobody may read\"".to_owned(),
            inputs: Default::default(),
        },
    }
}

fn enter(phase: Phase) -> RunEvent {
    RunEvent::PhaseEntered { phase }
}

fn started() -> RunEvent {
    RunEvent::AttemptStarted { attempt: 1, from: AttemptFrom::Scratch }
}

fn step(status: StepStatus, found: Option<&'static str>) -> Step {
    Step {
        step: "repositories verified".into(),
        status,
        expected: Diagnostic::ours("app at main"),
        found: found.map(Diagnostic::ours),
        exit_code: Some(128),
        seconds: Some(1.25),
        tries: 3,
        inactivity_limit: Some(60.0),
        hard_limit: 600.0,
        tail: Some(Diagnostic::ours("fatal: repository not found")),
    }
}

/// Returns the events of a run whose repository is missing, up to its release.
fn events_until_failure() -> Vec<RunEvent> {
    let message = Diagnostic::ours("the repository app is not there");
    let mut cause = Cause::new(CauseClass::WorkspaceIncomplete, message, 1);
    cause.step = Some("repositories verified".into());
    vec![
        started(),
        enter(Phase::Provisioning),
        enter(Phase::Bootstrapping),
        RunEvent::StepStarted { step: step(StepStatus::Running, None) },
        RunEvent::StepEnded { step: step(StepStatus::Failed, Some("nothing is there")) },
        RunEvent::CauseLatched { cause },
        enter(Phase::Releasing),
    ]
}

fn events_until_end() -> Vec<RunEvent> {
    let certificate = Certified { verified: true, left: Vec::new() };
    vec![RunEvent::Released { certificate }, enter(Phase::Failed)]
}

/// Records a run in a home.
async fn record(home: &Home, owner: OwnerRecord, events: Vec<RunEvent>) -> (Ledger, Journal) {
    let ledger = Ledger::open(&home.creel.state()).await.unwrap();
    let mut journal = Journal::begin(&ledger, &a_run_of(owner)).await.unwrap();
    if !events.is_empty() {
        journal.record_all(events).await.unwrap();
    }
    (ledger, journal)
}

fn record_and_close(home: &Home, owner: OwnerRecord, events: Vec<RunEvent>) -> String {
    block_on(async { record(home, owner, events).await.1.run().to_string() })
}

fn code_of(stderr: &str) -> &str {
    stderr.trim_start_matches("error[").split(']').next().unwrap_or_default()
}

#[test]
fn without_any_run_the_list_is_empty_and_no_ledger_is_created() {
    let home = Home::without_engine();
    let listed = home.creel.run(["runs", "--json"]).expect_code(0).json();
    assert_eq!(listed["runs"], Value::Array(Vec::new()));
    for args in [["show", "last"], ["events", "last"], ["cancel", "last"]] {
        let output = home.creel.run(args).expect_code(2);
        assert_eq!(code_of(&output.stderr), "CR0060", "{output}");
    }
    assert!(!home.creel.state().join("ledger.db").exists());
}

#[test]
fn runs_are_listed_by_phase_class_and_age() {
    let home = Home::without_engine();
    let failed =
        record_and_close(&home, alive(), [events_until_failure(), events_until_end()].concat());
    let under_way = record_and_close(&home, alive(), vec![started(), enter(Phase::Provisioning)]);
    let found = |args: &[&str]| -> String {
        let all = [&["runs", "--json"], args].concat();
        let json = home.creel.run(all).expect_code(0).json();
        let runs = json["runs"].as_array().unwrap().iter();
        runs.map(|run| run["run"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(&[]), format!("{failed} {under_way}"));
    assert_eq!(found(&["--phase", "failed"]), failed);
    assert_eq!(found(&["--phase", "provisioning", "--phase", "running"]), under_way);
    assert_eq!(found(&["--class", "workspace_incomplete"]), failed);
    assert_eq!(found(&["--newer-than", "1h"]), format!("{failed} {under_way}"));
    assert_eq!(found(&["--older-than", "1h"]), "");
    let table = home.creel.run(["runs"]).expect_code(0);
    assert!(table.stdout.contains("workspace_incomplete"), "{table}");
    assert!(table.stdout.contains("alive pid"), "{table}");
    let typo = home.creel.run(["runs", "--phase", "runing"]).expect_code(2);
    assert_eq!(code_of(&typo.stderr), "CR0002", "{typo}");
}

#[test]
fn a_run_is_shown_with_its_checklist_its_cause_and_its_certificate() {
    let home = Home::without_engine();
    let run =
        record_and_close(&home, alive(), [events_until_failure(), events_until_end()].concat());
    let shown = home.creel.run(["show", "last"]).expect_code(0);
    let mut settings = Settings::clone_current();
    settings.add_filter(&run, "[run]");
    settings.add_filter(r"\d{4}-\d\d-\d\dT\S+", "[time]");
    settings.bind(|| {
        assert_snapshot!(shown.stdout, @r"
    run        [run]
    name       hello
    phase      failed
    attempt    1
    turns      0
    sandbox    process
    asked for  [time]

    cause      workspace_incomplete: the repository app is not there (step repositories verified)
    to do      Check the repository's address, ref and path in the workflow, and that the sandbox has git; then try again.

    STEP                   STATUS  SECONDS  TRIES  EXPECTED     FOUND
    repositories verified  failed  1.2      3      app at main  nothing is there (exit code 128)
    repositories verified wrote at last: fatal: repository not found

    certificate verified: nothing is left
    ")
    });
    let json = home.creel.run(["show", &run[..run.len() - 2], "--json"]).expect_code(0).json();
    assert_eq!(json["version"], 1);
    assert_eq!((&json["run"], &json["phase"]), (&run.into(), &"failed".into()));
    assert_eq!(json["cause"]["class"], "workspace_incomplete");
    assert_eq!(json["cause"]["step"], "repositories verified");
    assert_eq!(json["cause"]["retryable"], true);
    assert_eq!(json["causes"].as_array().unwrap().len(), 1);
    let first = &json["checklist"][0];
    assert_eq!((&first["status"], &first["tries"]), (&"failed".into(), &3.into()));
    assert_eq!((&first["seconds"], &first["exit_code"]), (&1.25.into(), &128.into()));
    assert_eq!(json["certificate"], serde_json::json!({"verified": true, "left": []}));
    assert_eq!(
        (&json["connection"], &json["capabilities"]),
        (&"none".into(), &serde_json::json!({}))
    );
    let none = record_and_close(&home, alive(), Vec::new());
    let json = home.creel.run(["show", &none, "--json"]).expect_code(0).json();
    assert_eq!((&json["certificate"], &json["cause"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_run_is_found_by_a_unique_prefix_of_its_id() {
    let home = Home::without_engine();
    let first = record_and_close(&home, alive(), Vec::new());
    let second = record_and_close(&home, alive(), Vec::new());
    let named = |name: &str| home.creel.run(["show", name, "--json"]);
    assert_eq!(named("last").expect_code(0).json()["run"], second.as_str());
    let digits = first.trim_start_matches("run_");
    assert_eq!(named(digits).expect_code(0).json()["run"], first.as_str());
    let several = named("run_0").expect_code(2);
    assert_eq!(code_of(&several.stderr), "CR0061", "{several}");
    assert!(several.stderr.contains(&first) && several.stderr.contains(&second), "{several}");
    let none = named("run_ffffffff").expect_code(2);
    assert_eq!(none.json()["error"]["code"], "CR0060");
}

#[test]
fn events_are_lines_of_json_or_text_and_start_at_the_requested_number() {
    let home = Home::without_engine();
    let events = [events_until_failure(), events_until_end()].concat();
    let run = record_and_close(&home, alive(), events);
    let lines = home.creel.run(["events", "last", "--json"]).expect_code(0).stdout;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10);
    for (number, line) in (1..).zip(&lines) {
        assert_eq!((&line["sequence"], &line["run"]), (&number.into(), &run.as_str().into()));
    }
    assert_eq!(lines[0]["event"], "queued");
    assert_eq!(lines[9]["phase"], "failed");
    let rest = home.creel.run(["events", "last", "--from", "9"]).expect_code(0);
    assert_eq!(rest.stdout.lines().count(), 2, "{rest}");
    assert!(rest.stdout.contains("everything was released and verified gone"), "{rest}");
}

#[test]
fn following_shows_new_events_and_ends_with_the_run() {
    let home = Home::without_engine();
    block_on(async {
        let (_ledger, mut journal) = record(&home, alive(), events_until_failure()).await;
        let mut following = home.creel.spawn(["events", "last", "--follow", "--json"]);
        let began = eventually(PATIENCE, || following.stdout().lines().count() == 8);
        assert!(began, "{}", following.stderr());
        assert!(!following.has_ended());
        journal.record_all(events_until_end()).await.unwrap();
        let output = following.wait().expect_code(0);
        assert_eq!(output.stdout.lines().count(), 10, "{output}");
    });
}

#[test]
fn following_ends_when_its_reader_is_gone() {
    let home = Home::without_engine();
    record_and_close(&home, alive(), events_until_failure());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_creel"))
        .args(["events", "last", "--follow"])
        .env("CREEL_HOME", home.creel.state())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = eventually_some(PATIENCE, || child.try_wait().unwrap());
    if ended.is_none() {
        child.kill().unwrap();
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Returns the text of a pending message.
fn text_of(home: &Home, placed: &PlacedCommand) -> String {
    let directory = home.creel.state().join("messages").join(placed.run.to_string());
    std::fs::read_to_string(directory.join(&placed.key)).unwrap()
}

#[test]
fn commands_reach_the_driver_and_their_text_is_stored_nowhere_else() {
    let home = Home::without_engine();
    block_on(async {
        let (ledger, journal) = record(&home, alive(), events_until_failure()).await;
        let inbox = CommandInbox::open(&ledger, &alive().owner).unwrap();
        let mut commands = inbox.of(journal.run());
        let sent = home.creel.run(["cancel", "last", "--json"]).expect_code(0).json();
        assert_eq!((&sent["order"], &sent["poked"]), (&"cancel".into(), &true.into()));
        let sent_message = home.creel.run(["message", "last", "--request", "q1", "do it at dawn"]);
        assert!(!sent_message.expect_code(0).stderr.contains("dawn"));
        assert_eq!(commands.next().await.unwrap().command, RunCommand::Cancel);
        let wanted = commands.next().await.unwrap();
        assert_eq!(wanted.command, RunCommand::Message { request: Some("q1".into()) });
        assert_eq!(text_of(&home, &wanted), "do it at dawn");
    });
    let shown = [home.creel.run(["show", "last"]), home.creel.run(["events", "last"])];
    for output in shown {
        assert!(!output.to_string().contains("dawn") && !output.stdout.contains("nobody may read"));
    }
}

#[test]
fn a_message_may_come_from_standard_input_and_must_not_be_empty() {
    let home = Home::without_engine();
    block_on(async {
        let (ledger, journal) = record(&home, alive(), Vec::new()).await;
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_creel"))
            .args(["message", "last", "-"])
            .env("CREEL_HOME", home.creel.state())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"two\nlines\n").unwrap();
        assert!(child.wait().unwrap().success());
        let open = ledger.open_commands(journal.run()).await.unwrap();
        assert_eq!(open[0].command, RunCommand::Message { request: None });
        assert_eq!(text_of(&home, &open[0]), "two\nlines\n");
    });
    let silent = home.creel.run(["message", "last", " "]).expect_code(2);
    assert_eq!(code_of(&silent.stderr), "CR0002", "{silent}");
}

#[test]
fn a_command_to_a_finished_run_or_a_dead_driver_is_refused() {
    let home = Home::without_engine();
    record_and_close(&home, alive(), [events_until_failure(), events_until_end()].concat());
    let over = home.creel.run(["cancel", "last"]).expect_code(4);
    assert_eq!(code_of(&over.stderr), "CR0062", "{over}");
    record_and_close(&home, dead(), Vec::new());
    let gone = home.creel.run(["message", "last", "hello"]).expect_code(4);
    assert_eq!(code_of(&gone.stderr), "CR0063", "{gone}");
    assert!(gone.stderr.contains("creel reconcile"), "{gone}");
}

#[test]
fn a_run_whose_driver_died_is_closed_by_reconcile_once() {
    let home = Home::without_engine();
    let run = record_and_close(&home, dead(), vec![started(), enter(Phase::Provisioning)]);
    let listed = home.creel.run(["runs"]).expect_code(0);
    assert!(listed.stderr.contains("1 whose driver died"), "{listed}");
    let first = home.creel.run(["reconcile", "--json"]).expect_code(0).json();
    assert_eq!(first["runs_closed"], 1);
    let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
    assert_eq!(
        (&shown["phase"], &shown["cause"]["class"]),
        (&"failed".into(), &"hub_error".into())
    );
    assert_eq!(shown["certificate"]["verified"], true);
    let events = home.creel.run(["events", &run, "--json"]).stdout;
    assert_eq!(home.creel.run(["reconcile", "--json"]).json()["runs_closed"], 0);
    assert_eq!(home.creel.run(["events", &run, "--json"]).stdout, events);
}

#[test]
fn the_next_mutating_command_closes_the_run_of_a_dead_driver() {
    let home = Home::without_engine();
    let run = record_and_close(&home, dead(), Vec::new());
    home.creel.run(["dev", "hold", "--directory", "--for", "1ms"]).expect_code(0);
    let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
    assert_eq!(shown["cause"]["class"], "hub_error");
}

/// Records a run for a process that holds a resource for it.
fn record_for(home: &Home, holding: &Holding, on_owner_death: OnOwnerDeath) -> String {
    let process = ProcessKey::of(holding.running.pid().cast_signed()).unwrap();
    let owner = OwnerRecord { owner: Owner::of_process(process).unwrap(), ..alive() };
    let id: RunId = holding.report["run"].as_str().unwrap().parse().unwrap();
    let run = NewRun { id, on_owner_death, ..a_run_of(owner) };
    block_on(async {
        let ledger = Ledger::open(&home.creel.state()).await.unwrap();
        let mut journal = Journal::begin(&ledger, &run).await.unwrap();
        journal.record_all(vec![started(), enter(Phase::Provisioning)]).await.unwrap();
    });
    id.to_string()
}

#[test]
fn a_watchdog_releases_the_resources_of_a_run_and_closes_it() {
    let home = Home::without_engine();
    let holding = home.hold(&["--directory", "--process"]);
    let run = record_for(&home, &holding, OnOwnerDeath::Release);
    home.creel.run(["reconcile"]).expect_code(0);
    let shown = |name: &str| home.creel.run(["show", &run, "--json"]).json()[name].clone();
    assert_eq!(shown("phase"), "provisioning", "its driver lives");
    holding.running.kill();
    let closed = eventually(PATIENCE, || shown("phase") == "failed");
    assert!(closed, "{}", home.creel.run(["show", &run]));
    assert_eq!(shown("cause")["class"], "hub_error");
    assert_eq!(shown("certificate"), serde_json::json!({"verified": true, "left": []}));
    home.await_quiet();
    assert_eq!(home.on_machine(), [""; 0]);
}

#[test]
fn a_held_run_ends_with_the_lease_of_its_resources() {
    let home = Home::without_engine();
    let flags = ["--directory", "--hold-on-death", "--no-watchdog", "--lease", "3s"];
    let holding = home.hold(&flags);
    let run = record_for(&home, &holding, OnOwnerDeath::Hold);
    holding.running.kill();
    let reconciled = home.creel.run(["reconcile", "--json"]).expect_code(0).json();
    assert_eq!((&reconciled["runs_closed"], &reconciled["runs_waiting"]), (&0.into(), &0.into()));
    let refused = home.creel.run(["cancel", &run]).expect_code(4);
    assert!(refused.stderr.contains("creel resume"), "{refused}");
    let closed =
        eventually(PATIENCE, || home.creel.run(["reconcile", "--json"]).json()["runs_closed"] == 1);
    assert!(closed, "{}", home.creel.run(["show", &run]));
    let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
    assert_eq!(shown["cause"]["class"], "lease_expired");
    assert_eq!(shown["certificate"]["verified"], true);
    home.creel.run(["ledger", "check"]).expect_code(0);
}

#[test]
fn a_reconcile_killed_while_it_closes_a_run_is_finished_by_the_next_one() {
    for point in [Crashpoint::RunClaimedNotWritten, Crashpoint::RunLoggedNotSaved] {
        let home = Home::without_engine();
        let run = record_and_close(&home, dead(), events_until_failure());
        let mark = home.path("mark");
        let armed = home.creel.clone();
        let armed = armed.env("CREEL_CRASHPOINT", point.name()).env("CREEL_CRASHPOINT_MARK", &mark);
        assert_killed(&armed.run(["reconcile"]));
        assert!(mark.exists(), "it did not get to {}", point.name());

        home.creel.run(["reconcile"]).expect_code(0);
        let listed = home.creel.run(["runs", "--json"]).expect_code(0).json();
        let listed_run = &listed["runs"][0];
        assert_eq!(
            (&listed_run["phase"], &listed_run["class"]),
            (&"failed".into(), &"workspace_incomplete".into())
        );
        let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
        assert_eq!(shown["certificate"]["verified"], true, "{}", point.name());
        let events = home.creel.run(["events", &run, "--json"]).stdout;
        let ends = events.lines().filter(|line| line.contains("\"phase\":\"failed\"")).count();
        assert_eq!(ends, 1, "{}: {events}", point.name());
    }
}
