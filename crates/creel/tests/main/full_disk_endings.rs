//! A disk that is full when a run or a guard ends, and no reserve left: both say what could not be
//! recorded, and what is left finishes by itself when space returns.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use creel_testkit::creel::{Output, Running};
use creel_testkit::engine::Engine;
use creel_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::full_disk::{Scene, assert_disk_full, left_on, report_in};
use crate::support::PATIENCE;

/// A foreign file that takes all space that becomes free, until room is made.
struct Filler {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Uses up the whole disk, including the reserve.
    fn start(scene: &Scene) -> Self {
        fs::remove_file(scene.ballast()).unwrap();
        let path = scene.disk.fill();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut file = File::options().append(true).open(&path).unwrap();
            while !ends.load(Ordering::Relaxed) {
                if file.write_all(&[b'x'; 512]).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            fs::remove_file(&path).unwrap();
        });
        Self { is_over, thread: Some(thread) }
    }

    /// Makes room.
    fn stop(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn sandboxes(scene: &Scene) -> Vec<PathBuf> {
    let entries = fs::read_dir(scene.home.creel.state().join("sandboxes")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Starts a guard around a script that reports its start, and ends on request.
fn start_guard(scene: &Scene, flags: &[&str], script: &str) -> Running {
    let script = format!(
        "{script}; touch {}; until [ -e {} ]; do sleep 0.05; done; exit 7",
        scene.home.path("began").display(),
        scene.home.path("go").display()
    );
    let guard = scene.home.creel.spawn([&["guard"], flags, &["--", "sh", "-c", &script]].concat());
    assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", guard.stderr());
    guard
}

/// Lets the command of a guard end.
fn end_guard(scene: &Scene, guard: Running) -> Output {
    fs::write(scene.home.path("go"), "").unwrap();
    guard.wait()
}

fn read(certificate: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(certificate).unwrap()).unwrap()
}

/// Waits until the heir of an ended process has the ledger open, makes room, and waits until it has
/// finished without any command.
#[track_caller]
fn assert_finishes(scene: &Scene, filler: Filler, output: &Output) {
    let ledger = scene.home.creel.state().join("ledger.db");
    let has_ledger = |pid: &i32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.flat_map(|file| fs::read_link(file.path())).any(|file| file == ledger)
    };
    let has_heir = || scene.home.processes().iter().any(has_ledger);
    assert!(eventually(PATIENCE, has_heir), "nothing is left to finish it: {output}");
    filler.stop();
    scene.home.await_quiet();
    scene.assert_clean(output);
    assert!(scene.ballast().exists(), "the reserve was not made again: {output}");
}

#[test]
fn a_run_without_any_reserve_says_that_its_audit_is_incomplete() {
    for is_json in [true, false] {
        let scene = Scene::tmpfs();
        let run = scene.start_as(is_json, "sleep 600");
        assert!(eventually(PATIENCE, || scene.home.path("began").exists()), "{}", run.stderr());
        let filler = Filler::start(&scene);
        let output = run.wait().expect_code(3);
        assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
        assert_eq!(sandboxes(&scene), Vec::<PathBuf>::new(), "{output}");
        if is_json {
            let report = report_in(&output);
            assert_disk_full(&report, &output);
            assert!(report["audit_incomplete"].as_u64().unwrap() > 0, "{output}");
        }
        assert_finishes(&scene, filler, &output);
        assert_disk_full(&scene.show_last(), &output);
        assert_eq!(scene.show_last()["audit_incomplete"], Value::Null, "{output}");
    }
}

#[test]
fn a_guard_without_any_reserve_says_that_its_audit_is_incomplete() {
    for flags in [&[][..], &["--keep"]] {
        let scene = Scene::tmpfs();
        let certificate = scene.home.path("certificate.json");
        let flags = [flags, &["--certificate", certificate.to_str().unwrap()]].concat();
        let guard = start_guard(&scene, &flags, "echo mine > $TMPDIR/mine");
        let filler = Filler::start(&scene);
        let output = end_guard(&scene, guard).expect_code(125);
        assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
        assert_eq!(sandboxes(&scene), Vec::<PathBuf>::new(), "{output}");
        let certificate = read(&certificate);
        assert!(certificate["audit_incomplete"].as_u64().unwrap() > 0, "{certificate:#}");
        assert_eq!(certificate["verdict"], "clean", "{certificate:#}\n{output}");
        assert_finishes(&scene, filler, &output);
    }
}

#[test]
fn a_guard_whose_engine_objects_stay_says_both() {
    let engine = Engine::from_env();
    let scene = Scene::with_engine(&engine);
    let certificate = scene.home.path("certificate.json");
    let flags = ["--certificate", certificate.to_str().unwrap()];
    let guard = start_guard(&scene, &flags, "docker volume create >/dev/null");
    let filler = Filler::start(&scene);
    let output = end_guard(&scene, guard).expect_code(125);
    assert!(output.stderr.contains("1 not verified gone"), "{output}");
    assert!(output.stderr.contains("audit incomplete: "), "{output}");
    assert_eq!(sandboxes(&scene), Vec::<PathBuf>::new(), "{output}");
    let certificate = read(&certificate);
    assert_eq!(certificate["verdict"], "leaking", "{certificate:#}\n{output}");
    let remaining = certificate["difference"]["remaining"].as_array().unwrap();
    assert_eq!(remaining.len(), 1, "{certificate:#}");
    assert_eq!(remaining[0]["kind"], json!("volume"), "{certificate:#}");
    assert!(certificate["audit_incomplete"].as_u64().unwrap() > 0, "{certificate:#}");
    assert_finishes(&scene, filler, &output);
    assert!(left_on(&engine, &scene.home.ledger_id()).is_empty(), "{output}");
}

#[test]
fn a_sweep_without_any_reserve_says_so_in_its_certificate() {
    let scene = Scene::tmpfs();
    scene.home.hold(&["--directory", "--no-watchdog"]).running.kill();
    let filler = Filler::start(&scene);
    let certificate = scene.home.path("certificate.json");
    let path = certificate.to_str().unwrap();
    let output = scene.home.creel.run(["sweep", "--apply", "--owned", "--certificate", path]);
    let output = output.expect_code(3);
    assert!(output.stderr.contains("error[CR0006]: audit incomplete: "), "{output}");
    let certificate = read(&certificate);
    assert!(certificate["audit_incomplete"].as_u64().unwrap() > 0, "{certificate:#}");
    filler.stop();
    let output = scene.home.creel.run(["reconcile"]).expect_code(0);
    scene.assert_clean(&output);
}
