//! How a sweep is carried out: the shape, the order, politeness, proof.

use std::fs;
use std::time::Duration;

use creel_testkit::docker::ContainerSpec;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};
use creel_testkit::world::{Kind, World};
use serde_json::{Value, json};

use super::bench::{Bench, keys, read_json, results, text};
use crate::guard::scene::Scene;
use crate::guard::terminal::{INTERRUPT, sit};

const ANSWER_KEYS: [&str; 12] = [
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
fn a_dry_run_tells_everything_and_deletes_nothing() {
    let bench = Bench::new();
    let id = bench.running("-a");
    bench.volume("-b");
    let line = format!("sweep --label {}", bench.label());
    let output = bench.run(&format!("{line} --json")).expect_code(0);
    assert_eq!(output.stdout.lines().count(), 1);
    let json = output.json();
    assert_eq!(keys(&json), ANSWER_KEYS);
    assert_eq!((&json["version"], &json["applied"]), (&1.into(), &false.into()));
    let counts = ["planned", "gone", "spared", "failed"].map(|key| json[key].as_u64().unwrap());
    assert_eq!(counts, [2, 0, 0, 0]);
    let item = &json["items"][0];
    let item_keys = ["id", "kind", "name", "provider", "reason", "result", "rule", "tries"];
    assert_eq!(keys(item), item_keys);
    let told = ["provider", "kind", "id", "result"].map(|key| text(item, key));
    assert_eq!(told, ["docker", "container", &id, "planned"]);
    assert_eq!(text(item, "rule"), format!("label={}", bench.label()));
    assert_eq!((&item["tries"], &item["reason"]), (&0.into(), &Value::Null));

    let talk = bench.run(&line).expect_code(0);
    assert!(talk.stderr.contains("2 would be released, 0 spared; add --apply"), "{talk}");
    assert_eq!(bench.there(), ["c-a", "v-b"]);
    assert!(!bench.state().join("ledger.db").exists(), "a dry run begins no ledger");
}

#[test]
fn an_applied_sweep_counts_what_is_verified_gone() {
    let bench = Bench::new();
    bench.running("-a");
    bench.exited("-b");
    let line = format!("sweep --label {} --apply", bench.label());
    let output = bench.run(&format!("{line} --json")).expect_code(0);
    let json = output.json();
    assert_eq!((&json["applied"], &json["gone"]), (&true.into(), &2.into()));
    let items = json["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["tries"] == 1 && item["result"] == "gone"), "{output}");
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    // Nothing left is no failure.
    let again = bench.run(&line).expect_code(0);
    assert!(again.stderr.contains("0 gone"), "{again}");
}

#[test]
fn containers_go_before_what_they_use_in_one_sweep() {
    let bench = Bench::new();
    bench.network("-net");
    bench.volume("-vol");
    bench.image("-img");
    let user = ContainerSpec::sleeping(&bench.named("-web"))
        .labels(&bench.labels())
        .network(&bench.named("-net"))
        .volume(&bench.named("-vol"), "/data")
        .image(&bench.named("-img"));
    bench.docker().run(&user).unwrap();
    let line = format!("sweep --json --apply --label {}", bench.label());
    let output = bench.run(&line).expect_code(0);
    let json = output.json();
    let kinds: Vec<&str> =
        json["items"].as_array().unwrap().iter().map(|item| text(item, "kind")).collect();
    assert_eq!(kinds, ["container", "network", "volume", "image"]);
    // The engine refuses to remove what is in use, so a first try tells the order.
    for item in json["items"].as_array().unwrap() {
        assert_eq!((text(item, "result"), &item["tries"]), ("gone", &1.into()), "{output}");
    }
    assert_eq!(bench.there(), [""; 0]);
}

#[test]
fn anonymous_volumes_go_with_their_container_and_named_ones_stay() {
    let bench = Bench::new();
    bench.docker().create_volume(&bench.named("-named"), &Default::default()).unwrap();
    let spec = ContainerSpec::exiting(&bench.named("-c"))
        .labels(&bench.labels())
        .volume(&bench.named("-named"), "/named")
        .anonymous_volume("/scratch");
    let id = bench.docker().run_to_exit(&spec).unwrap();
    let details = bench.docker().inspect_container(&id).unwrap().unwrap();
    let mounts = details["Mounts"].as_array().unwrap();
    let scratch = mounts.iter().find(|mount| mount["Destination"] == "/scratch").unwrap();
    let scratch = text(scratch, "Name").to_owned();
    assert!(bench.docker().inspect_volume(&scratch).unwrap().is_some());
    bench.run(&format!("sweep --apply --label {}", bench.label())).expect_code(0);
    assert!(bench.docker().inspect_volume(&scratch).unwrap().is_none());
    assert_eq!(bench.there(), ["v-named"]);
}

/// Makes a container that writes to a volume when it is asked to end.
fn polite(bench: &Bench, suffix: &str) {
    let volume = bench.named("-last-words");
    let script = format!(
        "trap 'echo bye > /data/{suffix}; exit 0' TERM; : > /data/{suffix}.up; \
         while :; do sleep 0.05; done"
    );
    let spec = ContainerSpec::script(&bench.named(suffix), &script)
        .labels(&bench.labels())
        .volume(&volume, "/data");
    bench.docker().run(&spec).unwrap();
    assert!(eventually(Duration::from_secs(10), || said(bench).contains(&format!("{suffix}.up"))));
}

/// Returns the files that polite containers wrote.
fn said(bench: &Bench) -> Vec<String> {
    let volume = bench.docker().inspect_volume(&bench.named("-last-words")).unwrap().unwrap();
    let files = fs::read_dir(text(&volume, "Mountpoint")).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_stop_timeout_lets_a_container_finish_and_without_one_it_is_killed_at_once() {
    let bench = Bench::new();
    bench.docker().create_volume(&bench.named("-last-words"), &Default::default()).unwrap();
    polite(&bench, "-asked");
    let line = format!("sweep --apply --label {}", bench.label());
    bench.run(&format!("{line} --stop-timeout 20s")).expect_code(0);
    assert!(said(&bench).contains(&"-asked".to_owned()), "it heard the signal");
    polite(&bench, "-killed");
    bench.run(&line).expect_code(0);
    assert!(!said(&bench).contains(&"-killed".to_owned()), "it was not asked");

    // One that ignores the signal is killed when the time is over.
    let stubborn = ContainerSpec::stubborn(&bench.named("-deaf")).labels(&bench.labels());
    bench.docker().run(&stubborn).unwrap();
    let output = bench.run(&format!("{line} --stop-timeout 1s")).expect_code(0);
    assert!(output.took >= Duration::from_secs(1), "{output}");
    bench.docker().run(&stubborn).unwrap();
    let output = bench.run(&line).expect_code(0);
    assert!(output.took < Duration::from_secs(5), "no wait of ten seconds: {output}");
    assert_eq!(bench.there(), ["v-last-words"]);
}

#[test]
fn fail_fast_starts_nothing_after_the_first_failure() {
    let bench = Bench::new();
    for suffix in ["-a", "-b", "-c"] {
        bench.exited(suffix);
    }
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let first = bench.named("-a");
    let id = text(&bench.docker().inspect_container(&first).unwrap().unwrap(), "Id").to_owned();
    let broken = Fault::Status { code: 403, message: "not yours".to_owned() };
    let fault = wire.add(Rule::new(&format!("/containers/{id}\\?"), broken).method("DELETE"));
    let creel = bench.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --json --apply --concurrency 1 --label {}", bench.label());
    let output = super::bench::run(&creel, &format!("{line} --fail-fast")).expect_code(3);
    assert_eq!(fault.fired(), 1, "denied for good is not tried again");
    assert_eq!(results(&output, "failed"), [format!("container {first}")]);
    let spared = super::bench::reason(&output, &bench.named("-b"));
    assert_eq!(spared, "not tried: stopped at the first failure");
    assert!(output.stderr.contains("error[CR0040]"), "{output}");
    // Without it one bad item does not keep the others.
    let output = super::bench::run(&creel, &line).expect_code(3);
    assert_eq!((&output.json()["gone"], &output.json()["failed"]), (&2.into(), &1.into()));
    assert_eq!(bench.there(), ["c-a"]);
}

#[test]
fn a_failure_that_passes_is_tried_again_and_told() {
    let bench = Bench::new();
    bench.exited("-a");
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let busy = Fault::Status { code: 500, message: "device or resource busy".to_owned() };
    let fault = wire.add(Rule::new("/containers/", busy).method("DELETE").times(1));
    let creel = bench.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --json --apply --retry-delay 100ms --label {}", bench.label());
    let output = super::bench::run(&creel, &line).expect_code(0);
    assert_eq!(fault.fired(), 1);
    assert_eq!(output.json()["items"][0]["tries"], 2);
    let warning = output.stderr.lines().find(|line| line.contains("WARN")).unwrap_or_default();
    assert!(warning.contains("attempt 1/3 failed: "), "{output}");
    assert!(warning.contains("device or resource busy; retrying in 1"), "{output}");
    assert!(!output.stderr.contains("INFO"), "{output}");
}

#[test]
fn retries_can_be_set_by_class() {
    let bench = Bench::new();
    bench.exited("-a");
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let busy = Fault::Status { code: 500, message: "device or resource busy".to_owned() };
    let fault = wire.add(Rule::new("/containers/", busy).method("DELETE"));
    let creel = bench.creel().env("DOCKER_HOST", wire.host());
    let line = format!("sweep --apply --retry-delay 1ms --label {}", bench.label());
    super::bench::run(&creel, &format!("{line} --retries 1")).expect_code(3);
    assert_eq!(fault.fired(), 2);
    super::bench::run(&creel, &format!("{line} --retry transient=0")).expect_code(3);
    assert_eq!(fault.fired(), 3);
    bench.configure("[retry.class]\ntransient = 1\n");
    super::bench::run(&creel, &line).expect_code(3);
    assert_eq!(fault.fired(), 5);
}

#[test]
fn a_certificate_proves_what_is_gone() {
    let bench = Bench::new();
    let container = bench.running("-a");
    bench.volume("-b");
    let stays = bench.docker().create_volume(&bench.named("-stays"), &Default::default()).unwrap();
    let path = bench.path("certificate.json");
    let line = format!("sweep --apply --label {} --certificate {}", bench.label(), path.display());
    let output = bench.run(&line).expect_code(0);
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
fn a_certificate_that_cannot_be_written_is_an_error_after_the_answer() {
    let bench = Bench::new();
    bench.volume("-a");
    let line =
        format!("sweep --json --apply --label {} --certificate /nowhere/c.json", bench.label());
    let output = bench.run(&line).expect_code(2);
    assert_eq!(output.stdout.lines().count(), 1);
    assert_eq!(output.json()["gone"], 1);
    assert!(output.stderr.starts_with("error[CR0004]: cannot write the certificate"), "{output}");
    assert_eq!(bench.there(), [""; 0]);
}

#[test]
fn what_did_not_go_is_leaking_on_the_certificate() {
    let bench = Bench::new();
    bench.exited("-a");
    let wire = Wire::start(bench.engine(), 1).unwrap();
    let denied = Fault::Status { code: 403, message: "not yours".to_owned() };
    wire.add(Rule::new("/containers/", denied).method("DELETE"));
    let creel = bench.creel().env("DOCKER_HOST", wire.host());
    let path = bench.path("certificate.json");
    let line = format!("sweep --apply --label {} --certificate {}", bench.label(), path.display());
    super::bench::run(&creel, &line).expect_code(3);
    let certificate = read_json(&path);
    assert_eq!(text(&certificate, "verdict"), "leaking");
    assert_eq!(certificate["difference"]["remaining"][0]["name"], bench.named("-a").as_str());
}

#[test]
fn pipes_and_no_color_carry_no_escape_codes() {
    let bench = Bench::new();
    bench.exited("-a");
    let label = bench.label();
    for creel in [bench.creel(), bench.creel().env("NO_COLOR", "1").env("TERM", "xterm-256color")] {
        for line in
            ["ls".to_owned(), format!("sweep --label {label} -v"), "ls --kindd x".to_owned()]
        {
            let output = super::bench::run(&creel, &line);
            let escape = |text: &str| text.contains('\u{1b}');
            assert!(!escape(&output.stdout) && !escape(&output.stderr), "{output:?}");
        }
    }
    let colourful = bench.creel().env("CLICOLOR_FORCE", "1");
    let output = super::bench::run(&colourful, "sweep --kind container");
    assert!(output.stderr.contains("\u{1b}["), "{output:?}");
    let plain = colourful.env("NO_COLOR", "1");
    let output = super::bench::run(&plain, "sweep --kind container");
    assert!(!output.stderr.contains('\u{1b}'), "{output:?}");
}

#[test]
fn two_sweeps_at_once_over_the_same_things_both_end_well() {
    let bench = Bench::new();
    for number in 0..10 {
        bench.exited(&format!("-{number}"));
    }
    let line = format!("sweep --json --apply --label {}", bench.label());
    let both = [(); 2].map(|()| bench.creel().spawn(line.split_whitespace()));
    for running in both {
        let output = running.wait().expect_code(0);
        let json = output.json();
        assert_eq!(json["failed"], 0, "{output}");
    }
    let left = World::snapshot(bench.engine()).unwrap().of_kind(Kind::Container);
    assert!(left.with_label(&bench.key(), &bench.name).is_empty());
}

#[test]
fn everything_goes_only_after_a_yes_at_the_terminal() {
    // An engine of its own: everything is meant.
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
