//! The life of a sandbox: leases, stops, ends, and the way back in.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use creel_ledger::RecordFilter;
use creel_model::id::ResourceId;
use creel_model::provider::{ErrorClass, Kind, Provider, ProviderName, ReleaseMode};
use creel_run::sandbox::{Command, CreatedSandbox, SandboxPlan};
use creel_testkit::engine::Engine;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::PATIENCE;

use super::bench::{Bench, Desk, SECRET, plan, run};
use super::{in_every_world, proofs};

/// A lease that a test can wait for.
const SHORT: Duration = Duration::from_secs(3);
/// How many sandboxes are many on two processors.
const MANY: usize = 40;

in_every_world!(
    a_sandbox_tells_where_it_is,
    a_sandbox_that_is_stopped_is_out_of_reach_until_it_is_started,
    a_sandbox_that_was_given_back_is_gone,
    a_sandbox_that_was_ended_by_others_is_told_so,
    the_way_back_in_is_the_same,
    what_it_uses_is_told,
);

proofs! {
    Process in process_tree: what_gets_away_from_its_command_ends_with_the_sandbox;
}

async fn a_sandbox_tells_where_it_is(bench: &Bench) {
    let sandbox = &bench.sandbox;
    assert_eq!(sandbox.provider(), bench.world);
    sandbox.probe().await.unwrap();
    let creel = sandbox.creel_directory();
    for path in [creel, sandbox.workspace_root(), sandbox.bridge_path()] {
        assert!(path.starts_with('/'), "{path}");
    }
    assert!(sandbox.bridge_path().starts_with(creel));
    assert_eq!(bench.output(&format!("stat -c %a '{creel}'")).await, "700\n");
    bench.output(&format!("touch '{}/x' '{creel}/x'", sandbox.workspace_root())).await;
    sandbox.renew().await.unwrap();
}

async fn a_sandbox_that_is_stopped_is_out_of_reach_until_it_is_started(bench: &Bench) {
    bench.sandbox.upload("kept", Bytes::from_static(b"kept"), 0o644).await.unwrap();
    bench.sandbox.stop(Duration::from_secs(5)).await.unwrap();
    let error = bench.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
    assert!(error.message.contains("does not run"), "{error}");
    for _ in 0..2 {
        bench.sandbox.start().await.unwrap();
        bench.sandbox.probe().await.unwrap();
    }
    assert_eq!(bench.sandbox.download("kept").await.unwrap(), "kept");
    assert_eq!(bench.output(&format!("printf %s \"${}\"", SECRET.0)).await, SECRET.1);
}

async fn a_sandbox_that_was_given_back_is_gone(bench: &Bench) {
    bench.release().await;
    let error = bench.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Gone, "{error}");
    let error = bench.sandbox.download("x").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Gone, "{error}");
}

/// Somebody else ends the sandbox while a command runs in it.
async fn a_sandbox_that_was_ended_by_others_is_told_so(bench: &Bench) {
    let command = Command::shell("echo x >> x; sleep 600", PATIENCE * 10);
    let mut listener = |_: creel_bridge::event::Stream, _: &[u8]| {};
    let running = bench.sandbox.exec(&command, &mut listener);
    let ending = async {
        bench.begins_to_grow("x").await;
        end_from_outside(bench).await;
    };
    let (ran, ()) = tokio::join!(running, ending);
    let expected = match bench.world {
        // The record of a tree stays until it is given back.
        ProviderName::Process => ErrorClass::Unreachable,
        ProviderName::Docker | ProviderName::Daytona => ErrorClass::Gone,
    };
    let error = ran.unwrap_err();
    assert_eq!(error.class, expected, "{error}");
    let error = bench.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, expected, "{error}");
}

#[expect(clippy::disallowed_methods, reason = "others release without our reaper")]
async fn end_from_outside(bench: &Bench) {
    let id = bench.sandbox.id().to_owned();
    match bench.world {
        ProviderName::Docker => {
            let docker = Engine::from_env().docker();
            tokio::task::block_in_place(|| docker.remove_container(&id)).unwrap();
        }
        ProviderName::Daytona => {
            let provider = bench.cloud.as_ref().unwrap().provider();
            let _ = provider.release(Kind::Sandbox, &id, ReleaseMode::AT_ONCE).await.unwrap();
            while provider.inspect(Kind::Sandbox, &id).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        ProviderName::Process => kill_marked(&ResourceId::of_object(&id).unwrap().to_string()),
    }
}

async fn the_way_back_in_is_the_same(bench: &Bench) {
    bench.sandbox.upload("note", Bytes::from_static(b"before"), 0o644).await.unwrap();
    let records = bench.ledger.records(&RecordFilter::open()).await.unwrap();
    let env = BTreeMap::from([("LATER".to_owned(), "told".into())]);
    let again = bench.sandboxes.open(&records, env).await.unwrap();
    for (before, now) in [
        (bench.sandbox.id(), again.id()),
        (bench.sandbox.creel_directory(), again.creel_directory()),
        (bench.sandbox.workspace_root(), again.workspace_root()),
        (bench.sandbox.bridge_path(), again.bridge_path()),
    ] {
        assert_eq!(before, now);
    }
    again.probe().await.unwrap();
    assert_eq!(again.download("note").await.unwrap(), "before");
    let command = Command::shell("echo $LATER", PATIENCE);
    assert_eq!(run(&*again, &command).await.1, "told\n");
    let none = bench.sandboxes.open(&[], BTreeMap::new()).await.unwrap_err();
    assert_eq!(none.class, ErrorClass::Invalid, "{none}");
}

async fn what_it_uses_is_told(bench: &Bench) {
    let usage = bench.sandbox.usage().await.unwrap();
    assert!(usage.memory.is_some_and(|bytes| bytes > 0), "{usage:?}");
    if bench.world != ProviderName::Daytona {
        assert!(usage.processes.is_some_and(|count| count > 0), "{usage:?}");
        assert!(usage.cpu_seconds.is_some(), "{usage:?}");
    }
}

/// A daemon outlives the command that started it, by design, and nothing outlives the sandbox.
async fn what_gets_away_from_its_command_ends_with_the_sandbox(bench: &Bench) {
    let mark = format!("creel-test-daemon-{}", std::process::id());
    let daemon = "(setsid sh -c '(while :; do echo d >> daemon; sleep 0.1; done) &' \
                  >/dev/null 2>&1 </dev/null &); until test -s daemon; do sleep 0.1; done";
    bench.output(&format!("MARK={mark}; export MARK; {daemon}")).await;
    bench.begins_to_grow("daemon").await;
    let file = format!("{}/daemon", bench.sandbox.workspace_root());
    let size = || std::fs::metadata(&file).map_or(0, |found| found.len());
    let before = size();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(size() > before, "it lives on after its command");
    assert!(!marked(&mark).is_empty());
    bench.release().await;
    assert_eq!(marked(&mark), [0; 0], "it outlived the sandbox");
}

/// Returns the processes of this machine that have this in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_marked = |path: &std::path::Path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(mark)
    };
    let marked = processes.map(|one| one.path()).filter(|path| is_marked(path));
    marked.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// Kills all processes of a tree at once, as nobody ever does politely.
fn kill_marked(mark: &str) {
    for pid in marked(mark) {
        let pid = Pid::from_raw(pid).unwrap();
        // One that died with another is as dead as it should be.
        let _ = kill_process(pid, Signal::KILL);
    }
}

async fn lease_decides(world: ProviderName) {
    let short = SandboxPlan { lease: SHORT, ..plan(world) };
    let bench = Bench::enter_with(world, short).await;
    // Renewed, it outlives its lease by far.
    let keep = bench.supervisor.keep_alive(Duration::from_millis(500));
    tokio::time::sleep(SHORT * 2).await;
    bench.sandbox.probe().await.unwrap();
    // Not renewed, it ends by itself; nobody has released anything.
    keep.abort();
    let ends = async {
        while bench.sandbox.probe().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ends).await.expect("it ends without a renewal");
    let error = bench.sandbox.probe().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
    bench.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_sandbox_lives_as_long_as_its_lease_is_renewed() {
    lease_decides(ProviderName::Process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_lives_as_long_as_its_lease_is_renewed() {
    lease_decides(ProviderName::Docker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_sandbox_that_cannot_be_furnished_is_given_back() {
    let desk = Desk::new(ProviderName::Daytona).await;
    let cloud = desk.cloud.as_ref().unwrap();
    tokio::task::block_in_place(|| {
        cloud.arm(&json!({"at": "exec", "fault": "status", "status": 400, "message": "no"}));
    });
    let plan = plan(ProviderName::Daytona);
    let refused = desk.sandboxes.create(&desk.supervisor, &plan).await.unwrap_err();
    assert!(refused.to_string().contains("no"), "{refused}");
    let open = desk.ledger.records(&RecordFilter::open()).await.unwrap();
    assert!(open.is_empty(), "still on record: {open:#?}");
    assert!(tokio::task::block_in_place(|| cloud.names()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_world_does_not_have_is_refused_before_anything_is_made() {
    let desk = Desk::new(ProviderName::Process).await;
    let network = Some("none".to_owned());
    let impossible = SandboxPlan { network, ..plan(ProviderName::Process) };
    let elsewhere = plan(ProviderName::Daytona);
    for (plan, words) in [(impossible, "network"), (elsewhere, "not configured")] {
        let refused: Result<CreatedSandbox, _> =
            desk.sandboxes.create(&desk.supervisor, &plan).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let all = desk.ledger.records(&RecordFilter::default()).await.unwrap();
    assert!(all.is_empty(), "{all:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sandboxes_come_and_go_at_once() {
    let desk = Desk::new(ProviderName::Process).await;
    let one = |number: usize| {
        let desk = &desk;
        async move {
            let plan = plan(ProviderName::Process);
            let CreatedSandbox { sandbox, held } =
                desk.sandboxes.create(&desk.supervisor, &plan).await.unwrap();
            let command = Command::shell(&format!("echo {number}"), PATIENCE * 4);
            assert_eq!(run(&*sandbox, &command).await.1, format!("{number}\n"));
            for held in held {
                desk.supervisor.release(held).await.unwrap();
            }
        }
    };
    join_all((0..MANY).map(one)).await;
    let open = desk.ledger.records(&RecordFilter::open()).await.unwrap();
    assert!(open.is_empty(), "still on record: {open:#?}");
}
