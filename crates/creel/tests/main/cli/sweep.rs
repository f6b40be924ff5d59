//! How a sweep is carried out: output, sequence, graceful stops, proof.

use std::fs;
use std::time::Duration;

use creel_testkit::docker::ContainerSpec;
use creel_testkit::inventory::{Inventory, Kind};
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use serde_json::{Value, json};

use super::fixture::{CliFixture, keys, read_json, results, text};
use crate::guard::scene::Scene;
use crate::guard::terminal::{INTERRUPT, sit};

const REPORT_KEYS: [&str; 12] = [
    "accepted",
    "applied",
    "drifted",
    "failed",
    "gone",
    "items",
    "planned",
    "quarantined",
    "seconds",
    "spared",
    "unreachable",
    "version",
];

#[test]
fn a_dry_run_reports_everything_and_deletes_nothing() {
    let fixture = CliFixture::new();
    let id = fixture.running("-a");
    fixture.volume("-b");
    let line = format!("sweep --label {}", fixture.label());
    let output = fixture.run(&format!("{line} --json")).expect_code(0);
    assert_eq!(output.stdout.lines().count(), 1);
    let json = output.json();
    assert_eq!(keys(&json), REPORT_KEYS);
    assert_eq!((&json["version"], &json["applied"]), (&1.into(), &false.into()));
    let counts = ["planned", "gone", "spared", "failed"].map(|key| json[key].as_u64().unwrap());
    assert_eq!(counts, [2, 0, 0, 0]);
    let item = &json["items"][0];
    let item_keys = ["id", "kind", "name", "provider", "reason", "result", "rule", "tries"];
    assert_eq!(keys(item), item_keys);
    let shown = ["provider", "kind", "id", "result"].map(|key| text(item, key));
    assert_eq!(shown, ["docker", "container", &id, "planned"]);
    assert_eq!(text(item, "rule"), format!("label={}", fixture.label()));
    assert_eq!((&item["tries"], &item["reason"]), (&0.into(), &Value::Null));

    let talk = fixture.run(&line).expect_code(0);
    assert!(talk.stderr.contains("2 would be released, 0 spared; add --apply"), "{talk}");
    assert_eq!(fixture.there(), ["c-a", "v-b"]);
    assert!(!fixture.state().join("ledger.db").exists(), "a dry run begins no ledger");
}

#[test]
fn an_applied_sweep_counts_verified_releases() {
    let fixture = CliFixture::new();
    fixture.running("-a");
    fixture.exited("-b");
    let line = format!("sweep --label {} --apply", fixture.label());
    let output = fixture.run(&format!("{line} --json")).expect_code(0);
    let json = output.json();
    assert_eq!((&json["applied"], &json["gone"]), (&true.into(), &2.into()));
    let items = json["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["tries"] == 1 && item["result"] == "gone"), "{output}");
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    // An empty sweep is no failure.
    let again = fixture.run(&line).expect_code(0);
    assert!(again.stderr.contains("0 gone"), "{again}");
}

#[test]
fn containers_are_released_before_what_they_use_in_one_sweep() {
    let fixture = CliFixture::new();
    fixture.network("-net");
    fixture.volume("-vol");
    fixture.image("-img");
    let user = ContainerSpec::sleeping(&fixture.named("-web"))
        .labels(&fixture.labels())
        .network(&fixture.named("-net"))
        .volume(&fixture.named("-vol"), "/data")
        .image(&fixture.named("-img"));
    fixture.docker().run(&user).unwrap();
    let line = format!("sweep --json --apply --label {}", fixture.label());
    let output = fixture.run(&line).expect_code(0);
    let json = output.json();
    let kinds: Vec<&str> =
        json["items"].as_array().unwrap().iter().map(|item| text(item, "kind")).collect();
    assert_eq!(kinds, ["container", "network", "volume", "image"]);
    // The engine refuses to remove what is in use, so one attempt each proves the sequence.
    for item in json["items"].as_array().unwrap() {
        assert_eq!((text(item, "result"), &item["tries"]), ("gone", &1.into()), "{output}");
    }
    assert_eq!(fixture.there(), [""; 0]);
}

#[test]
fn anonymous_volumes_are_removed_with_their_container_and_named_ones_stay() {
    let fixture = CliFixture::new();
    fixture.docker().create_volume(&fixture.named("-named"), &Default::default()).unwrap();
    let spec = ContainerSpec::exiting(&fixture.named("-c"))
        .labels(&fixture.labels())
        .volume(&fixture.named("-named"), "/named")
        .anonymous_volume("/scratch");
    let id = fixture.docker().run_to_exit(&spec).unwrap();
    let details = fixture.docker().inspect_container(&id).unwrap().unwrap();
    let mounts = details["Mounts"].as_array().unwrap();
    let scratch = mounts.iter().find(|mount| mount["Destination"] == "/scratch").unwrap();
    let scratch = text(scratch, "Name").to_owned();
    assert!(fixture.docker().inspect_volume(&scratch).unwrap().is_some());
    fixture.run(&format!("sweep --apply --label {}", fixture.label())).expect_code(0);
    assert!(fixture.docker().inspect_volume(&scratch).unwrap().is_none());
    assert_eq!(fixture.there(), ["v-named"]);
}

/// Creates a container that writes to a volume on SIGTERM.
fn create_graceful(fixture: &CliFixture, suffix: &str) {
    let volume = fixture.named("-last-words");
    let script = format!(
        "trap 'echo bye > /data/{suffix}; exit 0' TERM; : > /data/{suffix}.up; \
         while :; do sleep 0.05; done"
    );
    let spec = ContainerSpec::script(&fixture.named(suffix), &script)
        .labels(&fixture.labels())
        .volume(&volume, "/data");
    fixture.docker().run(&spec).unwrap();
    assert!(eventually(Duration::from_secs(10), || files_written(fixture)
        .contains(&format!("{suffix}.up"))));
}

/// Returns the files that such containers wrote.
fn files_written(fixture: &CliFixture) -> Vec<String> {
    let volume = fixture.docker().inspect_volume(&fixture.named("-last-words")).unwrap().unwrap();
    let files = fs::read_dir(text(&volume, "Mountpoint")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_stop_timeout_lets_a_container_finish_and_without_one_it_is_killed_at_once() {
    let fixture = CliFixture::new();
    fixture.docker().create_volume(&fixture.named("-last-words"), &Default::default()).unwrap();
    create_graceful(&fixture, "-asked");
    let line = format!("sweep --apply --label {}", fixture.label());
    fixture.run(&format!("{line} --stop-timeout 20s")).expect_code(0);
    assert!(files_written(&fixture).contains(&"-asked".to_owned()), "it received the signal");
    create_graceful(&fixture, "-killed");
    fixture.run(&line).expect_code(0);
    assert!(!files_written(&fixture).contains(&"-killed".to_owned()), "it received no signal");

    // A container that ignores the signal is killed after the timeout.
    let stubborn = ContainerSpec::stubborn(&fixture.named("-deaf")).labels(&fixture.labels());
    fixture.docker().run(&stubborn).unwrap();
    let output = fixture.run(&format!("{line} --stop-timeout 1s")).expect_code(0);
    assert!(output.took >= Duration::from_secs(1), "{output}");
    fixture.docker().run(&stubborn).unwrap();
    let output = fixture.run(&line).expect_code(0);
    assert!(output.took < Duration::from_secs(5), "no wait of ten seconds: {output}");
    assert_eq!(fixture.there(), ["v-last-words"]);
}

#[test]
fn fail_fast_starts_nothing_after_the_first_failure() {
    let fixture = CliFixture::new();
    for suffix in ["-a", "-b", "-c"] {
        fixture.exited(suffix);
    }
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let first = fixture.named("-a");
    let id = text(&fixture.docker().inspect_container(&first).unwrap().unwrap(), "Id").to_owned();
    let broken = Fault::Status { code: 403, message: "not yours".to_owned() };
    let fault = wire.add(Rule::new(&format!("/containers/{id}\\?"), broken).method("DELETE"));
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --json --apply --concurrency 1 --label {}", fixture.label());
    let output = super::fixture::run(&creel, &format!("{line} --fail-fast")).expect_code(3);
    assert_eq!(fault.fired(), 1, "denied for good is not tried again");
    assert_eq!(results(&output, "failed"), [format!("container {first}")]);
    let spared = super::fixture::reason(&output, &fixture.named("-b"));
    assert_eq!(spared, "not tried: stopped at the first failure");
    assert!(output.stderr.contains("error[CR0040]"), "{output}");
    // Without the flag, one failed item does not stop the others.
    let output = super::fixture::run(&creel, &line).expect_code(3);
    assert_eq!((&output.json()["gone"], &output.json()["failed"]), (&2.into(), &1.into()));
    assert_eq!(fixture.there(), ["c-a"]);
}

#[test]
fn a_transient_failure_is_retried_and_reported() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let busy = Fault::Status { code: 500, message: "device or resource busy".to_owned() };
    let fault = wire.add(Rule::new("/containers/", busy).method("DELETE").times(1));
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --json --apply --retry-delay 100ms --label {}", fixture.label());
    let output = super::fixture::run(&creel, &line).expect_code(0);
    assert_eq!(fault.fired(), 1);
    assert_eq!(output.json()["items"][0]["tries"], 2);
    let warning = output.stderr.lines().find(|line| line.contains("WARN")).unwrap_or_default();
    assert!(warning.contains("attempt 1/3 failed: "), "{output}");
    assert!(warning.contains("device or resource busy; retrying in 1"), "{output}");
    assert!(!output.stderr.contains("INFO"), "{output}");
}

#[test]
fn retries_can_be_set_by_class() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let busy = Fault::Status { code: 500, message: "device or resource busy".to_owned() };
    let fault = wire.add(Rule::new("/containers/", busy).method("DELETE"));
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --apply --retry-delay 1ms --label {}", fixture.label());
    super::fixture::run(&creel, &format!("{line} --retries 1")).expect_code(3);
    assert_eq!(fault.fired(), 2);
    super::fixture::run(&creel, &format!("{line} --retry transient=0")).expect_code(3);
    assert_eq!(fault.fired(), 3);
    fixture.configure("[retry.class]\ntransient = 1\n");
    super::fixture::run(&creel, &line).expect_code(3);
    assert_eq!(fault.fired(), 5);
}

#[test]
fn a_certificate_proves_what_is_gone() {
    let fixture = CliFixture::new();
    let container = fixture.running("-a");
    fixture.volume("-b");
    let stays =
        fixture.docker().create_volume(&fixture.named("-stays"), &Default::default()).unwrap();
    let path = fixture.path("certificate.json");
    let line =
        format!("sweep --apply --label {} --certificate {}", fixture.label(), path.display());
    let output = fixture.run(&line).expect_code(0);
    assert!(output.stderr.contains("certificate: "), "{output}");
    let certificate = read_json(&path);
    assert_eq!((text(&certificate, "verdict"), &certificate["version"]), ("clean", &1.into()));
    let holds = |part: &str, id: &str| {
        let rows = certificate.pointer(part).unwrap().as_array().unwrap();
        rows.iter().any(|row| row["id"] == id)
    };
    assert!(holds("/baseline", &container) && holds("/baseline", &stays));
    assert!(!holds("/inventory", &container) && holds("/inventory", &stays));
    assert!(holds("/difference/released", &container));
    assert_eq!(certificate["difference"]["remaining"], Value::Array(Vec::new()));
    let actions = certificate["actions"].as_array().unwrap();
    assert!(actions.iter().all(|action| action["result"] == "gone"), "{certificate}");
    assert_eq!(actions.len(), 2);
    assert!(text(&certificate, "started_at") < text(&certificate, "finished_at"));
    assert_eq!(certificate["worlds"][0]["provider"], "docker");
}

#[test]
fn a_certificate_that_cannot_be_written_is_an_error_after_the_report() {
    let fixture = CliFixture::new();
    fixture.volume("-a");
    let line =
        format!("sweep --json --apply --label {} --certificate /nowhere/c.json", fixture.label());
    let output = fixture.run(&line).expect_code(2);
    assert_eq!(output.stdout.lines().count(), 1);
    assert_eq!(output.json()["gone"], 1);
    assert!(output.stderr.starts_with("error[CR0004]: cannot write the certificate"), "{output}");
    assert_eq!(fixture.there(), [""; 0]);
}

#[test]
fn failed_releases_are_leaks_on_the_certificate() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let wire = Wire::start(fixture.engine(), 1).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/containers/", denied).method("DELETE"));
    let creel = fixture.creel().env("DOCKER_HOST", wire.host());
    let path = fixture.path("certificate.json");
    let line =
        format!("sweep --apply --label {} --certificate {}", fixture.label(), path.display());
    super::fixture::run(&creel, &line).expect_code(3);
    let certificate = read_json(&path);
    assert_eq!(text(&certificate, "verdict"), "leaking");
    assert_eq!(certificate["difference"]["remaining"][0]["name"], fixture.named("-a").as_str());
}

#[test]
fn pipes_and_no_color_carry_no_escape_codes() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let label = fixture.label();
    for creel in
        [fixture.creel(), fixture.creel().env("NO_COLOR", "1").env("TERM", "xterm-256color")]
    {
        for line in
            ["ls".to_owned(), format!("sweep --label {label} -v"), "ls --kindd x".to_owned()]
        {
            let output = super::fixture::run(&creel, &line);
            let escape = |text: &str| text.contains('\u{1b}');
            assert!(!escape(&output.stdout) && !escape(&output.stderr), "{output:?}");
        }
    }
    let colourful = fixture.creel().env("CLICOLOR_FORCE", "1");
    let output = super::fixture::run(&colourful, "sweep --kind container");
    assert!(output.stderr.contains("\u{1b}["), "{output:?}");
    let plain = colourful.env("NO_COLOR", "1");
    let output = super::fixture::run(&plain, "sweep --kind container");
    assert!(!output.stderr.contains('\u{1b}'), "{output:?}");
}

#[test]
fn two_concurrent_sweeps_of_the_same_objects_both_succeed() {
    let fixture = CliFixture::new();
    for number in 0..10 {
        fixture.exited(&format!("-{number}"));
    }
    let line = format!("sweep --json --apply --label {}", fixture.label());
    let both = [(); 2].map(|()| fixture.creel().spawn(line.split_whitespace()));
    for running in both {
        let output = running.wait().expect_code(0);
        let json = output.json();
        assert_eq!(json["failed"], 0, "{output}");
    }
    let left = Inventory::snapshot(fixture.engine()).unwrap().of_kind(Kind::Container);
    assert!(left.with_label(&fixture.key(), &fixture.name).is_empty());
}

#[test]
fn everything_is_released_only_after_confirmation_at_the_terminal() {
    // A private engine, because everything is selected.
    let scene = Scene::set_up();
    let container = scene.outside("docker create creel-test");
    let line = format!(
        "{} sweep --all --provider docker --kind container --apply",
        env!("CARGO_BIN_EXE_creel")
    );
    let command: Vec<&str> = line.split_whitespace().collect();
    let answer = |keys: &str| {
        let steps = json!([["expect", "Type yes to go on:"], ["send", keys]]);
        sit(&scene, &steps, &command)
    };
    for keys in ["no\n", "\n", INTERRUPT] {
        answer(keys).expect_code(4);
        assert_eq!(scene.outside("docker ps -aq --no-trunc"), container, "{keys:?}");
    }
    answer("yes\n").expect_code(0);
    scene.assert_nothing_left();
}
