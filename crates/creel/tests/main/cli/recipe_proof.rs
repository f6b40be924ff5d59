//! What proves that a harness has ended, and what does not: clocks, images, processes with other
//! names, live guards, and a user who vouches for the end.

use std::fs;
use std::process::{Command, Stdio};

use creel_testkit::docker::Labels;
use creel_testkit::image;
use creel_testkit::wait::{eventually, eventually_some};
use serde_json::Value;

use crate::support::Ending;

use super::fixture::{reason, results};
use super::recipes::{Harness, HarnessFixture, PATIENCE, TRIAL, labels};

/// Connects to the engine and stays connected, like a script that uses a harness as a library.
const LIBRARY: &str = "import os, socket, sys, time
engine = socket.socket(socket.AF_UNIX)
engine.connect(sys.argv[1])
print('connected', flush=True)
time.sleep(1000)
";

/// Creates an image that claims to be years old and was just tagged, like a build from a cache.
fn image_with_an_old_date(fixture: &HarnessFixture, reference: &str) {
    let script = format!(
        "set -e; cd {dir}; docker save {from} -o a.tar; mkdir a; tar -C a -xf a.tar; cd a\n\
         python3 - <<'END'\n\
         import glob, hashlib, json, os\n\
         manifest = json.load(open('manifest.json'))\n\
         config = json.load(open(manifest[0]['Config']))\n\
         config['created'] = '2024-01-01T00:00:00Z'\n\
         text = json.dumps(config).encode()\n\
         name = hashlib.sha256(text).hexdigest() + '.json'\n\
         open(name, 'wb').write(text)\n\
         manifest = [{{'Config': name, 'RepoTags': ['old-base:1'], 'Layers': manifest[0]['Layers']}}]\n\
         json.dump(manifest, open('manifest.json', 'w'))\n\
         if os.path.exists('repositories'): os.remove('repositories')\n\
         END\n\
         tar -cf ../b.tar .; docker load -i ../b.tar >/dev/null\n\
         docker tag old-base:1 {reference}; docker rmi old-base:1 >/dev/null",
        dir = fixture.cli.path("").display(),
        from = image::REFERENCE,
    );
    let output = fixture.shell(&script);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_age_of_an_image_counts_from_its_tag_whatever_its_date() {
    let fixture = HarnessFixture::new();
    let name = format!("{TRIAL}-main:latest");
    image_with_an_old_date(&fixture, &name);
    let details = fixture.docker().inspect_image(&name).unwrap().unwrap();
    assert!(details["Created"].as_str().unwrap().starts_with("2024"), "{details}");

    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert!(reason(&swept, &name).contains("less than 1h"), "{swept}");
    let before = fixture.there();
    for flags in ["--kind image --older-than 30d", "--name *__env-main:latest --older-than 1h"] {
        let swept = fixture.cli.run(&format!("sweep --json --apply {flags}")).expect_code(0);
        assert_eq!(swept.json()["gone"], 0, "{swept}");
    }
    let listed = fixture.cli.run("ls --json --kind image --older-than 30d").expect_code(0);
    assert_eq!(listed.json()["resources"].as_array().unwrap().len(), 0, "{listed}");
    // A rule that protects young objects protects it too.
    fixture.cli.configure("[[protect]]\nyounger_than = \"1h\"\n");
    let swept = fixture.sweep("harbor --ended --apply").expect_code(0);
    assert!(reason(&swept, &name).contains("protected by the rule"), "{swept}");
    assert_eq!(fixture.there(), before);
    fixture.cli.configure("");
    fixture.shorten("harbor");
    let aged = || results(&fixture.sweep("harbor"), "planned").len() == 1;
    assert!(eventually(PATIENCE, aged), "{}", fixture.sweep("harbor"));
    fixture.stop();
}

#[test]
fn an_image_without_a_time_from_the_engine_has_no_age() {
    let fixture = HarnessFixture::new();
    let name = format!("{TRIAL}-main:latest");
    image_with_an_old_date(&fixture, &name);
    // Saved and loaded: a load sets a tag without a time.
    let script = format!(
        "cd {}; docker save {name} -o c.tar && docker rmi {name} && docker load -i c.tar",
        fixture.cli.path("").display()
    );
    assert!(fixture.shell(&script).status.success());
    let details = fixture.docker().inspect_image(&name).unwrap().unwrap();
    assert!(details["Metadata"]["LastTagTime"].as_str().unwrap().starts_with("0001"), "{details}");
    fixture.shorten("harbor");
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert!(reason(&swept, &name).contains("does not report when it was tagged"), "{swept}");
    let swept = fixture.cli.run("sweep --json --apply --kind image --older-than 1s").expect_code(0);
    assert!(!results(&swept, "gone").contains(&format!("image {name}")), "{swept}");
    // The user may know better.
    let swept = fixture.sweep("harbor --ended --apply").expect_code(0);
    assert_eq!(results(&swept, "gone"), [format!("image {name}")], "{swept}");
    fixture.stop();
}

#[test]
fn an_image_that_a_live_guard_holds_is_spared_and_has_an_owner() {
    let fixture = HarnessFixture::new();
    let (name, decoy) = (format!("{TRIAL}-main:latest"), "held__ab3de7f__env-main:latest");
    let script = format!(
        "docker create --name source {} sh && docker commit source {name} && docker rm source && \
         echo made >{} && sleep 1000",
        image::REFERENCE,
        fixture.cli.path("made").display()
    );
    let path = std::env::var("PATH").unwrap();
    let guard = fixture.cli.creel().env("PATH", path).spawn(["guard", "--", "sh", "-c", &script]);
    assert!(eventually(PATIENCE, || fixture.cli.path("made").exists()), "{}", guard.stderr());
    fixture.image("held__ab3de7f__env-main", &Labels::new());

    let listed = fixture.cli.run("ls --json --kind image").expect_code(0).json();
    let owner = |name: &str| -> Value {
        let rows = listed["resources"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["owner"].clone()
    };
    assert_eq!(owner(&name)["state"], "alive", "{listed:#}");
    assert_eq!(owner(decoy), Value::Null, "{listed:#}");
    let swept = fixture.sweep("harbor --ended --apply").expect_code(0);
    assert!(reason(&swept, &name).contains("held by a live owner"), "{swept}");
    assert_eq!(results(&swept, "gone"), [format!("image {decoy}")], "{swept}");
    let swept = fixture.cli.run(&format!("sweep --json --apply --name {name}")).expect_code(0);
    assert!(reason(&swept, &name).contains("held by a live owner"), "{swept}");
    assert!(fixture.docker().inspect_image(&name).unwrap().is_some());
    guard.signal("TERM");
    guard.wait();
    assert!(fixture.docker().inspect_image(&name).unwrap().is_none());
    fixture.stop();
}

/// The library that shows a program a different time of day.
fn fake_time() -> String {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let path = format!("/usr/lib/{triple}/faketime/libfaketime.so.1");
    assert!(fs::exists(&path).unwrap(), "{path} is missing: apt-get install libfaketime");
    path
}

#[test]
fn a_clock_set_forward_does_not_finish_a_live_trial() {
    let fixture = HarnessFixture::new();
    fixture.rename_program("harbor");
    let harness = Harness::start(&fixture.program);
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    fixture.image(&format!("{TRIAL}-main"), &Labels::new());
    let before = fixture.there();
    let ahead = |flags: &str| {
        let creel = fixture.cli.creel().env("LD_PRELOAD", fake_time()).env("FAKETIME", "+3d");
        let creel = creel.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        let creel = creel.env("NO_FAKE_STAT", "1");
        let line = format!("sweep --json --recipe harbor {flags}");
        creel.run(line.split_whitespace()).expect_code(0)
    };
    let swept = ahead("--apply");
    assert_eq!(results(&swept, "gone"), [""; 0], "{swept}");
    let why = reason(&swept, &format!("{TRIAL}-main-1"));
    assert!(why.contains(&format!("process {}", harness.0.id())), "{why}");
    // Nor without a process of that name: the clock alone says that it is three days old.
    drop(harness);
    let swept = ahead("--apply");
    assert_eq!(results(&swept, "gone"), [""; 0], "{swept}");
    let why = reason(&swept, &format!("{TRIAL}-main-1"));
    assert!(why.contains("by the time since boot, for the clock was set forward"), "{why}");
    assert_eq!(fixture.there(), before);
    fixture.stop();
}

#[test]
fn a_script_connected_to_the_engine_spares_what_it_may_have_created() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    let path = fixture.cli.path("bench.py");
    fs::write(&path, LIBRARY).unwrap();
    let socket = fixture.cli.engine().socket().to_owned();
    let mut script = Command::new("python3")
        .arg(&path)
        .arg(&socket)
        .args(["--api-key", &format!("ghp_{}", "a1B2".repeat(9))])
        .stdout(Stdio::piped())
        .spawn()
        .map(Ending)
        .unwrap();
    let mut line = String::new();
    let stdout = script.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert_eq!(line, "connected\n");
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    let name = format!("{TRIAL}-main-1");
    let why = eventually_some(PATIENCE, || {
        Some(reason(&fixture.sweep("harbor"), &name)).filter(|why| !why.contains("less than"))
    })
    .unwrap();
    let pid = script.0.id();
    assert!(why.contains(&format!("process {pid} (program python")), "{why}");
    assert!(why.contains("is connected to the engine and may use it"), "{why}");
    assert!(why.contains("bench.py") && !why.contains("a1B2a1B2"), "{why}");
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone"), [""; 0], "{swept}");
    drop(script);
    fixture.aged("harbor", 3);
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 3, "{swept}");
    fixture.stop();
}

#[test]
fn a_process_that_reads_a_log_of_the_harness_is_not_the_harness() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    let log = fixture.cli.path(&fixture.program);
    fs::write(&log, "").unwrap();
    let tail = ["-f".as_ref(), log.as_os_str()];
    let _reader = Ending(Command::new("tail").args(tail).spawn().unwrap());
    // The shell itself waits, because its child would outlive the test.
    let argument = ["read word".to_owned(), fixture.program.clone()];
    let mut other = Command::new("sh");
    let _other = Ending(other.arg("-c").args(argument).stdin(Stdio::piped()).spawn().unwrap());
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    fixture.aged("harbor", 3);
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 3, "{swept}");
    fixture.stop();
}

#[test]
fn a_user_who_vouches_for_the_end_narrows_it_to_a_project() {
    let fixture = HarnessFixture::new();
    let other = "other__zz3de7f__env";
    for project in [TRIAL, other] {
        fixture.project(project, &format!("{project}-main-1"), "main", true);
        let built = labels(&[
            ("com.docker.compose.project", project),
            ("com.docker.compose.service", "main"),
        ]);
        fixture.image(&format!("{project}-main"), &built);
    }
    fixture.project("hello-world__ab3de7f__envs", "decoy-1", "main", true);
    let young = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&young, "gone"), [""; 0], "{young}");
    fixture.cli.run("sweep --ended --apply").expect_code(2);
    let swept = fixture.sweep(&format!("harbor --ended --project {TRIAL} --apply")).expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 4, "{swept}");
    let evidence = &swept.json()["items"][0]["evidence"];
    assert!(evidence.as_str().unwrap().contains("the user says that harbor has ended"), "{swept}");
    let swept = fixture.sweep("harbor --ended --apply").expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 4, "{swept}");
    let left = fixture.there();
    assert_eq!(
        left.iter().filter(|name| name.contains("decoy") || name.contains("envs")).count(),
        3
    );
    fixture.stop();
}

#[test]
fn a_recipe_can_be_shown_into_the_file_that_overrides_it() {
    let fixture = HarnessFixture::new();
    let directory = fixture.cli.state().join("recipes");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("harbor.toml");
    let creel = super::fixture::BINARY;
    let state = fixture.cli.state();
    for _ in 0..2 {
        let script = format!(
            "CREEL_HOME={} {creel} recipes show harbor > {}",
            state.display(),
            file.display()
        );
        let output = fixture.shell(&script);
        assert!(output.status.success(), "{output:?}");
        let shown = fixture.cli.run("recipes show harbor").expect_code(0);
        assert_eq!(fs::read_to_string(&file).unwrap(), shown.stdout);
        assert!(shown.stdout.contains("[[rule]]"), "{shown}");
    }
    let swept = fixture.sweep("harbor").expect_code(0);
    assert!(swept.stderr.contains("not the built-in one"), "{swept}");
    fixture.stop();
}

#[test]
fn a_pre_sweep_reports_what_it_spared_and_has_a_dry_run() {
    let fixture = HarnessFixture::new();
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    let path = std::env::var("PATH").unwrap();
    let guard = |flags: &[&str]| {
        let args = [&["guard", "--pre-sweep"], flags, &["--", "true"]].concat();
        fixture.cli.creel().env("PATH", &path).run(args).expect_code(0)
    };
    let output = guard(&["--recipe", "harbor"]);
    assert!(output.stderr.contains("less than 6h"), "{output}");
    assert!(output.stderr.contains(&format!("{TRIAL}-main-1")), "{output}");
    assert!(output.stderr.contains("before the command: 0 gone, 3 spared"), "{output}");
    let prefix = "before the command, as: creel ";
    let sweep = output.stderr.lines().find_map(|line| line.strip_prefix(prefix)).unwrap();
    let dry_run = fixture.cli.run(&format!("{} --json", sweep.trim_end_matches(" --apply")));
    assert_eq!(results(&dry_run, "spared").len(), 3, "{dry_run}");
    let output = guard(&["--recipe", "harbor", "--ended", "--project", TRIAL]);
    assert!(output.stderr.contains("before the command: 3 gone"), "{output}");
    fixture.stop();
}
