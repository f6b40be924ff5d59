//! Records of runs as a user meets them: listed, shown, followed, ordered, and closed after the
//! death of whoever drove them.

use std::io::Write;
use std::process::Stdio;

use creel_ledger::event_log::Journal;
use creel_ledger::{Ledger, NewRun, OnOwnerDeath, OwnerRecord, PlacedCommand, WorkflowRecord};
use creel_model::crashpoint::Crashpoint;
use creel_model::id::RunId;
use creel_model::os::ProcessKey;
use creel_model::owner::Owner;
use creel_model::provider::ProviderName;
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

/// Returns this process as an owner: it lives as long as the test.
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
        provider: ProviderName::Process,
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

/// What happens to a run whose repository is missing, up to its release.
fn way_to_failure() -> Vec<RunEvent> {
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

fn way_to_the_end() -> Vec<RunEvent> {
    let certificate = Certified { verified: true, left: Vec::new() };
    vec![RunEvent::Released { certificate }, enter(Phase::Failed)]
}

/// Puts a run on record in a home.
async fn put(home: &Home, owner: OwnerRecord, events: Vec<RunEvent>) -> (Ledger, Journal) {
    let ledger = Ledger::open(&home.creel.state()).await.unwrap();
    let mut journal = Journal::begin(&ledger, &a_run_of(owner)).await.unwrap();
    if !events.is_empty() {
        journal.record_all(events).await.unwrap();
    }
    (ledger, journal)
}

fn put_and_leave(home: &Home, owner: OwnerRecord, events: Vec<RunEvent>) -> String {
    block_on(async { put(home, owner, events).await.1.run().to_string() })
}

fn code_of(stderr: &str) -> &str {
    stderr.trim_start_matches("error[").split(']').next().unwrap_or_default()
}

#[test]
fn where_no_run_ever_was_the_list_is_empty_and_no_ledger_is_made() {
    let home = Home::without_engine();
    let listed = home.creel.run(["runs", "--json"]).expect_code(0).json();
    assert_eq!(listed["runs"], Value::Array(Vec::new()));
    for words in [["show", "last"], ["events", "last"], ["cancel", "last"]] {
        let output = home.creel.run(words).expect_code(2);
        assert_eq!(code_of(&output.stderr), "CR0060", "{output}");
    }
    assert!(!home.creel.state().join("ledger.db").exists());
}

#[test]
fn runs_are_listed_by_phase_class_and_age() {
    let home = Home::without_engine();
    let failed = put_and_leave(&home, alive(), [way_to_failure(), way_to_the_end()].concat());
    let under_way = put_and_leave(&home, alive(), vec![started(), enter(Phase::Provisioning)]);
    let found = |words: &[&str]| -> String {
        let all = [&["runs", "--json"], words].concat();
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
    let run = put_and_leave(&home, alive(), [way_to_failure(), way_to_the_end()].concat());
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
    let none = put_and_leave(&home, alive(), Vec::new());
    let json = home.creel.run(["show", &none, "--json"]).expect_code(0).json();
    assert_eq!((&json["certificate"], &json["cause"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_run_is_named_by_the_beginning_of_its_id_if_that_is_enough() {
    let home = Home::without_engine();
    let first = put_and_leave(&home, alive(), Vec::new());
    let second = put_and_leave(&home, alive(), Vec::new());
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
fn events_are_lines_of_json_or_words_and_begin_where_they_are_asked_to() {
    let home = Home::without_engine();
    let events = [way_to_failure(), way_to_the_end()].concat();
    let run = put_and_leave(&home, alive(), events);
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
fn following_shows_what_happens_and_ends_with_the_run() {
    let home = Home::without_engine();
    block_on(async {
        let (_ledger, mut journal) = put(&home, alive(), way_to_failure()).await;
        let mut following = home.creel.spawn(["events", "last", "--follow", "--json"]);
        let began = eventually(PATIENCE, || following.stdout().lines().count() == 8);
        assert!(began, "{}", following.stderr());
        assert!(!following.has_ended());
        journal.record_all(way_to_the_end()).await.unwrap();
        let output = following.wait().expect_code(0);
        assert_eq!(output.stdout.lines().count(), 10, "{output}");
    });
}

#[test]
fn following_ends_when_nobody_reads_any_more() {
    let home = Home::without_engine();
    put_and_leave(&home, alive(), way_to_failure());
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

/// Returns the text of a message that waits.
fn text_of(home: &Home, placed: &PlacedCommand) -> String {
    let directory = home.creel.state().join("messages").join(placed.run.to_string());
    std::fs::read_to_string(directory.join(&placed.key)).unwrap()
}

#[test]
fn orders_reach_the_driver_and_their_text_no_other_place() {
    let home = Home::without_engine();
    block_on(async {
        let (ledger, journal) = put(&home, alive(), way_to_failure()).await;
        let orders = CommandInbox::open(&ledger, &alive().owner).unwrap();
        let mut orders = orders.of(journal.run());
        let sent = home.creel.run(["cancel", "last", "--json"]).expect_code(0).json();
        assert_eq!((&sent["order"], &sent["poked"]), (&"cancel".into(), &true.into()));
        let said = home.creel.run(["message", "last", "--request", "q1", "do it at dawn"]);
        assert!(!said.expect_code(0).stderr.contains("dawn"));
        assert_eq!(orders.next().await.unwrap().command, RunCommand::Cancel);
        let wanted = orders.next().await.unwrap();
        assert_eq!(wanted.command, RunCommand::Message { request: Some("q1".into()) });
        assert_eq!(text_of(&home, &wanted), "do it at dawn");
    });
    let shown = [home.creel.run(["show", "last"]), home.creel.run(["events", "last"])];
    for output in shown {
        assert!(!output.to_string().contains("dawn") && !output.stdout.contains("nobody may read"));
    }
}

#[test]
fn a_message_may_come_from_standard_input_and_must_say_something() {
    let home = Home::without_engine();
    block_on(async {
        let (ledger, journal) = put(&home, alive(), Vec::new()).await;
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
fn an_order_for_a_run_that_is_over_or_whose_driver_died_is_refused() {
    let home = Home::without_engine();
    put_and_leave(&home, alive(), [way_to_failure(), way_to_the_end()].concat());
    let over = home.creel.run(["cancel", "last"]).expect_code(4);
    assert_eq!(code_of(&over.stderr), "CR0062", "{over}");
    put_and_leave(&home, dead(), Vec::new());
    let gone = home.creel.run(["message", "last", "hello"]).expect_code(4);
    assert_eq!(code_of(&gone.stderr), "CR0063", "{gone}");
    assert!(gone.stderr.contains("creel reconcile"), "{gone}");
}

#[test]
fn a_run_whose_driver_died_is_closed_by_reconcile_once() {
    let home = Home::without_engine();
    let run = put_and_leave(&home, dead(), vec![started(), enter(Phase::Provisioning)]);
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
    let told = home.creel.run(["events", &run, "--json"]).stdout;
    assert_eq!(home.creel.run(["reconcile", "--json"]).json()["runs_closed"], 0);
    assert_eq!(home.creel.run(["events", &run, "--json"]).stdout, told);
}

#[test]
fn the_next_mutating_command_closes_it_too() {
    let home = Home::without_engine();
    let run = put_and_leave(&home, dead(), Vec::new());
    home.creel.run(["dev", "hold", "--directory", "--for", "1ms"]).expect_code(0);
    let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
    assert_eq!(shown["cause"]["class"], "hub_error");
}

/// Puts a run on record as that of a process that holds something for it.
fn put_for(home: &Home, holding: &Holding, on_owner_death: OnOwnerDeath) -> String {
    let process = ProcessKey::of(holding.running.pid().cast_signed()).unwrap();
    let owner = OwnerRecord { owner: Owner::of_process(process).unwrap(), ..alive() };
    let id: RunId = holding.told["run"].as_str().unwrap().parse().unwrap();
    let run = NewRun { id, on_owner_death, ..a_run_of(owner) };
    block_on(async {
        let ledger = Ledger::open(&home.creel.state()).await.unwrap();
        let mut journal = Journal::begin(&ledger, &run).await.unwrap();
        journal.record_all(vec![started(), enter(Phase::Provisioning)]).await.unwrap();
    });
    id.to_string()
}

#[test]
fn a_watchdog_gives_back_what_a_run_held_and_closes_it() {
    let home = Home::without_engine();
    let holding = home.hold(&["--directory", "--process"]);
    let run = put_for(&home, &holding, OnOwnerDeath::Release);
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
fn a_run_that_is_held_ends_with_the_lease_of_what_it_holds() {
    let home = Home::without_engine();
    let flags = ["--directory", "--hold-on-death", "--no-watchdog", "--lease", "3s"];
    let holding = home.hold(&flags);
    let run = put_for(&home, &holding, OnOwnerDeath::Hold);
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
fn killed_while_it_closes_a_run_the_next_reconcile_finishes_that() {
    for point in [Crashpoint::RunClaimedNotWritten, Crashpoint::RunLoggedNotSaved] {
        let home = Home::without_engine();
        let run = put_and_leave(&home, dead(), way_to_failure());
        let mark = home.path("mark");
        let armed = home.creel.clone();
        let armed = armed.env("CREEL_CRASHPOINT", point.name()).env("CREEL_CRASHPOINT_MARK", &mark);
        assert_killed(&armed.run(["reconcile"]));
        assert!(mark.exists(), "it did not get to {}", point.name());

        home.creel.run(["reconcile"]).expect_code(0);
        let listed = home.creel.run(["runs", "--json"]).expect_code(0).json();
        let told = &listed["runs"][0];
        assert_eq!(
            (&told["phase"], &told["class"]),
            (&"failed".into(), &"workspace_incomplete".into())
        );
        let shown = home.creel.run(["show", &run, "--json"]).expect_code(0).json();
        assert_eq!(shown["certificate"]["verified"], true, "{}", point.name());
        let events = home.creel.run(["events", &run, "--json"]).stdout;
        let ends = events.lines().filter(|line| line.contains("\"phase\":\"failed\"")).count();
        assert_eq!(ends, 1, "{}: {events}", point.name());
    }
}
