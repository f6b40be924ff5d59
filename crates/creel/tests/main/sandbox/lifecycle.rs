//! The lifecycle of a sandbox: leases, stops, ends, and reconnecting.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use creel_ledger::RecordFilter;
use creel_model::id::ResourceId;
use creel_model::provider::{ErrorClass, Kind, Provider, ProviderName, ReleaseMode};
use creel_run::sandbox::{Command, CreatedSandbox};
use creel_testkit::engine::Engine;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::PATIENCE;

use super::fixture::{ProviderFixture, SECRET, SandboxFixture, plan, run};
use super::{for_every_provider, provider_tests};

/// A lease that a test can wait for.
const SHORT: Duration = Duration::from_secs(3);
/// The number of concurrent sandboxes, which is a lot for two processors.
const MANY: usize = 40;

for_every_provider!(
    a_sandbox_reports_its_location,
    a_stopped_sandbox_is_unreachable_until_it_is_started,
    a_released_sandbox_is_gone,
    a_sandbox_ended_from_outside_is_reported,
    reconnecting_reaches_the_same_sandbox,
    resource_usage_is_reported,
);

provider_tests! {
    creel_process in process_tree: a_daemon_of_a_command_ends_with_the_sandbox;
}

async fn a_sandbox_reports_its_location(fixture: &SandboxFixture) {
    let sandbox = &fixture.sandbox;
    assert_eq!(sandbox.provider(), fixture.provider);
    sandbox.probe().await.unwrap();
    let creel = sandbox.creel_directory();
    for path in [creel, sandbox.workspace_root(), sandbox.bridge_path()] {
        assert!(path.starts_with('/'), "{path}");
    }
    assert!(sandbox.bridge_path().starts_with(creel));
    assert_eq!(fixture.output(&format!("stat -c %a '{creel}'")).await, "700\n");
    fixture.output(&format!("touch '{}/x' '{creel}/x'", sandbox.workspace_root())).await;
    sandbox.renew().await.unwrap();
}

async fn a_stopped_sandbox_is_unreachable_until_it_is_started(fixture: &SandboxFixture) {
    fixture.sandbox.upload("kept", Bytes::from_static(b"kept"), 0o644).await.unwrap();
    fixture.sandbox.stop(Duration::from_secs(5)).await.unwrap();
    let error = fixture.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
    assert!(error.message.contains("does not run"), "{error}");
    for _ in 0..2 {
        fixture.sandbox.start().await.unwrap();
        fixture.sandbox.probe().await.unwrap();
    }
    assert_eq!(fixture.sandbox.download("kept").await.unwrap(), "kept");
    assert_eq!(fixture.output(&format!("printf %s \"${}\"", SECRET.0)).await, SECRET.1);
}

async fn a_released_sandbox_is_gone(fixture: &SandboxFixture) {
    fixture.release().await;
    let error = fixture.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Gone, "{error}");
    let error = fixture.sandbox.download("x").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Gone, "{error}");
}

/// Another process ends the sandbox while a command runs in it.
async fn a_sandbox_ended_from_outside_is_reported(fixture: &SandboxFixture) {
    let command = Command::shell("echo x >> x; sleep 600", PATIENCE * 10);
    let mut listener = |_: creel_bridge::event::Stream, _: &[u8]| {};
    let running = fixture.sandbox.exec(&command, &mut listener);
    let ending = async {
        fixture.begins_to_grow("x").await;
        end_from_outside(fixture).await;
    };
    let (ran, ()) = tokio::join!(running, ending);
    let expected = match fixture.provider {
        // The record of a tree stays until it is released.
        creel_process::NAME => ErrorClass::Unreachable,
        _ => ErrorClass::Gone,
    };
    let error = ran.unwrap_err();
    assert_eq!(error.class, expected, "{error}");
    let error = fixture.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, expected, "{error}");
}

#[expect(clippy::disallowed_methods, reason = "others release without our reaper")]
async fn end_from_outside(fixture: &SandboxFixture) {
    let id = fixture.sandbox.id().to_owned();
    match fixture.provider {
        creel_docker::NAME => {
            let docker = Engine::from_env().docker();
            tokio::task::block_in_place(|| docker.remove_container(&id)).unwrap();
        }
        creel_daytona::NAME => {
            let provider = fixture.cloud.as_ref().unwrap().provider();
            let _ = provider.release(Kind::Sandbox, &id, ReleaseMode::AT_ONCE).await.unwrap();
            while provider.inspect(Kind::Sandbox, &id).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        _ => kill_marked(&ResourceId::of_object(&id).unwrap().to_string()),
    }
}

async fn reconnecting_reaches_the_same_sandbox(fixture: &SandboxFixture) {
    fixture.sandbox.upload("note", Bytes::from_static(b"before"), 0o644).await.unwrap();
    let records = fixture.ledger.records(&RecordFilter::open()).await.unwrap();
    let env = BTreeMap::from([("LATER".to_owned(), "seen".into())]);
    let again = fixture.sandboxes.open(&records, env).await.unwrap();
    for (before, now) in [
        (fixture.sandbox.id(), again.id()),
        (fixture.sandbox.creel_directory(), again.creel_directory()),
        (fixture.sandbox.workspace_root(), again.workspace_root()),
        (fixture.sandbox.bridge_path(), again.bridge_path()),
    ] {
        assert_eq!(before, now);
    }
    again.probe().await.unwrap();
    assert_eq!(again.download("note").await.unwrap(), "before");
    let command = Command::shell("echo $LATER", PATIENCE);
    assert_eq!(run(&*again, &command).await.1, "seen\n");
    let none = fixture.sandboxes.open(&[], BTreeMap::new()).await.unwrap_err();
    assert_eq!(none.class, ErrorClass::Invalid, "{none}");
}

async fn resource_usage_is_reported(fixture: &SandboxFixture) {
    let usage = fixture.sandbox.usage().await.unwrap();
    assert!(usage.memory.is_some_and(|bytes| bytes > 0), "{usage:?}");
    if fixture.provider != creel_daytona::NAME {
        assert!(usage.processes.is_some_and(|count| count > 0), "{usage:?}");
        assert!(usage.cpu_seconds.is_some(), "{usage:?}");
    }
}

/// A daemon outlives the command that started it, by design. Nothing outlives the sandbox.
async fn a_daemon_of_a_command_ends_with_the_sandbox(fixture: &SandboxFixture) {
    let mark = format!("creel-test-daemon-{}", std::process::id());
    let daemon = "(setsid sh -c '(while :; do echo d >> daemon; sleep 0.1; done) &' \
                  >/dev/null 2>&1 </dev/null &); until test -s daemon; do sleep 0.1; done";
    fixture.output(&format!("MARK={mark}; export MARK; {daemon}")).await;
    fixture.begins_to_grow("daemon").await;
    let file = format!("{}/daemon", fixture.sandbox.workspace_root());
    let size = || std::fs::metadata(&file).map_or(0, |found| found.len());
    let before = size();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(size() > before, "it lives on after its command");
    assert!(!marked(&mark).is_empty());
    fixture.release().await;
    assert_eq!(marked(&mark), [0; 0], "it outlived the sandbox");
}

/// Returns the processes of this machine with this mark in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_marked = |path: &std::path::Path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(mark)
    };
    let marked = processes.map(|one| one.path()).filter(|path| is_marked(path));
    marked.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// Kills all processes of a tree at once, without SIGTERM.
fn kill_marked(mark: &str) {
    for pid in marked(mark) {
        let pid = Pid::from_raw(pid).unwrap();
        // It may have died together with another one.
        let _ = kill_process(pid, Signal::KILL);
    }
}

async fn check_lease(provider: ProviderName) {
    let mut short = plan(provider);
    short.options.lease = SHORT;
    let fixture = SandboxFixture::enter_with(provider, short).await;
    // With renewals, it outlives its lease by far.
    let keep = fixture.supervisor.keep_alive(Duration::from_millis(500));
    tokio::time::sleep(SHORT * 2).await;
    fixture.sandbox.probe().await.unwrap();
    // Without a renewal, it ends by itself; no process has released it.
    keep.abort();
    let ends = async {
        while fixture.sandbox.probe().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ends).await.expect("it ends without a renewal");
    let error = fixture.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
    fixture.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_sandbox_lives_as_long_as_its_lease_is_renewed() {
    check_lease(creel_process::NAME).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_lives_as_long_as_its_lease_is_renewed() {
    check_lease(creel_docker::NAME).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_sandbox_whose_setup_fails_is_released() {
    let provider_fixture = ProviderFixture::new(creel_daytona::NAME).await;
    let cloud = provider_fixture.cloud.as_ref().unwrap();
    tokio::task::block_in_place(|| {
        cloud.arm(&json!({"at": "exec", "fault": "status", "status": 400, "message": "no"}));
    });
    let plan = plan(creel_daytona::NAME);
    let refused =
        provider_fixture.sandboxes.create(&provider_fixture.supervisor, &plan).await.unwrap_err();
    assert!(refused.to_string().contains("no"), "{refused}");
    let open = provider_fixture.ledger.records(&RecordFilter::open()).await.unwrap();
    assert!(open.is_empty(), "still on record: {open:#?}");
    assert!(tokio::task::block_in_place(|| cloud.names()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_plan_is_refused_before_anything_is_created() {
    let provider_fixture = ProviderFixture::new(creel_process::NAME).await;
    let network = Some("none".to_owned());
    let mut impossible = plan(creel_process::NAME);
    impossible.options.network = network;
    let elsewhere = plan(creel_daytona::NAME);
    for (plan, message) in [(impossible, "network"), (elsewhere, "not configured")] {
        let refused: Result<CreatedSandbox, _> =
            provider_fixture.sandboxes.create(&provider_fixture.supervisor, &plan).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
    let all = provider_fixture.ledger.records(&RecordFilter::default()).await.unwrap();
    assert!(all.is_empty(), "{all:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sandboxes_are_created_and_released_concurrently() {
    let provider_fixture = ProviderFixture::new(creel_process::NAME).await;
    let one = |number: usize| {
        let provider_fixture = &provider_fixture;
        async move {
            let plan = plan(creel_process::NAME);
            let CreatedSandbox { sandbox, held } = provider_fixture
                .sandboxes
                .create(&provider_fixture.supervisor, &plan)
                .await
                .unwrap();
            let command = Command::shell(&format!("echo {number}"), PATIENCE * 4);
            assert_eq!(run(&*sandbox, &command).await.1, format!("{number}\n"));
            for held in held {
                provider_fixture.supervisor.release(held).await.unwrap();
            }
        }
    };
    join_all((0..MANY).map(one)).await;
    let open = provider_fixture.ledger.records(&RecordFilter::open()).await.unwrap();
    assert!(open.is_empty(), "still on record: {open:#?}");
}
