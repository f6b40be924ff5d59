//! Docker and Daytona at once: one table, one plan, and one of them out of reach.

use creel_testkit::creel::Creel;
use creel_testkit::decoys::Decoys;
use serde_json::{Value, json};

use super::bench::{Bench, read_json, results, run, text};
use super::cloud::{Cloud, stem};

/// An engine and a cloud with things of one label in both.
struct Worlds {
    bench: Bench,
    cloud: Cloud,
    decoy: (String, Value),
    engine_decoys: Decoys,
}

impl Worlds {
    fn new() -> Self {
        let (bench, cloud) = (Bench::new(), Cloud::start());
        let near = json!({ "labels": { (bench.key()): format!("{}2", bench.name) } });
        let decoy = cloud.plant(&bench.named("-box"), near);
        let decoy = (decoy.clone(), cloud.sandbox(&decoy));
        let engine_decoys = Decoys::plant(bench.engine(), &bench.lookalike()).unwrap();
        let worlds = Self { bench, cloud, decoy, engine_decoys };
        worlds.furnish();
        worlds
    }

    /// Makes a container that runs, one that has exited, and two sandboxes.
    fn furnish(&self) {
        self.bench.running(".web");
        self.bench.exited(".done");
        for (name, state) in [(".box", "started"), (".old", "stopped")] {
            let labels = json!({ (self.bench.key()): self.bench.name });
            self.cloud.plant(&self.bench.named(name), json!({ "state": state, "labels": labels }));
        }
    }

    fn creel(&self) -> Creel {
        self.cloud.given_to(self.bench.creel())
    }

    fn without_cloud(&self) -> Creel {
        self.creel().env("DAYTONA_API_URL", "http://127.0.0.1:9/api")
    }

    fn without_engine(&self) -> Creel {
        self.creel().env("DOCKER_HOST", "unix:///nowhere/docker.sock")
    }

    /// Names what the test means. A label alone would mean the decoys that inherited it.
    fn flags(&self) -> String {
        format!("--label {} --name {}.*", self.bench.label(), self.bench.name)
    }

    /// Returns what is there of what the test means, without its prefix, sorted.
    fn there(&self) -> Vec<String> {
        let mut all = self.bench.there();
        let sandboxes = self.cloud.there().into_iter();
        let mine =
            sandboxes.filter_map(|name| Some(format!("s{}", name.strip_prefix(&self.bench.name)?)));
        all.extend(mine);
        all.retain(|name| ALL.contains(&name.as_str()));
        all.sort();
        all
    }

    /// Returns the short names of an answer's items with a result.
    fn named(&self, output: &creel_testkit::creel::Output, result: &str) -> Vec<String> {
        let names = results(output, result);
        let mut short: Vec<String> = names
            .iter()
            .map(|line| {
                let (kind, name) = line.split_once(' ').unwrap();
                let name = if kind == "sandbox" { stem(name) } else { name.to_owned() };
                format!("{}{}", &kind[..1], name.replace(&self.bench.name, ""))
            })
            .collect();
        short.sort();
        short
    }

    fn assert_decoys_untouched(&self) {
        assert_eq!(self.cloud.sandbox(&self.decoy.0), self.decoy.1);
        self.engine_decoys.assert_untouched();
    }
}

const ALL: [&str; 4] = ["c.done", "c.web", "s.box", "s.old"];
const OF_ENGINE: [&str; 2] = ["c.done", "c.web"];
const OF_CLOUD: [&str; 2] = ["s.box", "s.old"];

#[test]
fn one_table_shows_both() {
    let worlds = Worlds::new();
    let output = run(&worlds.creel(), &format!("ls {}", worlds.flags())).expect_code(0);
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(lines[0].starts_with("KIND"), "{output}");
    let kinds: Vec<&str> =
        lines[1..].iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(kinds, ["sandbox", "sandbox", "container", "container"], "{output}");
    for (provider, kind) in [("daytona", "sandbox"), ("docker", "container")] {
        let line = format!("ls --json --provider {provider} {}", worlds.flags());
        let json = run(&worlds.creel(), &line).expect_code(0).json();
        let rows = json["resources"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| text(row, "kind") == kind), "{json}");
    }
}

#[test]
fn one_plan_releases_from_both_and_one_certificate_proves_it() {
    let worlds = Worlds::new();
    let (creel, flags) = (worlds.creel(), worlds.flags());
    let plan = worlds.bench.path("plan.json");
    run(&creel, &format!("sweep {flags} --plan-out {}", plan.display())).expect_code(0);
    assert_eq!(worlds.there(), ALL);
    let kept = read_json(&plan);
    let worlds_of_plan: Vec<&str> =
        kept["worlds"].as_array().unwrap().iter().map(|world| text(world, "provider")).collect();
    assert_eq!(worlds_of_plan, ["docker", "daytona"]);
    let output = run(&creel, &format!("apply {} --json", plan.display())).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), ALL);
    assert_eq!(worlds.there(), [""; 0]);

    worlds.furnish();
    let certificate = worlds.bench.path("certificate.json");
    let line = format!("sweep {flags} --apply --json --certificate {}", certificate.display());
    let output = run(&creel, &line).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), ALL);
    let certificate = read_json(&certificate);
    assert_eq!(certificate["verdict"], "clean");
    assert_eq!(certificate["worlds"].as_array().unwrap().len(), 3, "processes are a world too");
    worlds.assert_decoys_untouched();
}

#[test]
fn one_that_is_out_of_reach_hides_nothing_of_the_other() {
    let worlds = Worlds::new();
    let flags = worlds.flags();
    for (creel, lost, seen) in [
        (worlds.without_cloud(), "daytona", OF_ENGINE),
        (worlds.without_engine(), "docker", OF_CLOUD),
    ] {
        let output = run(&creel, &format!("ls {flags}")).expect_code(7);
        assert_eq!(output.stdout.lines().count(), 3, "a header and two rows\n{output}");
        assert!(output.stderr.contains(&format!("error[CR0020]: {lost} could not")), "{output}");
        let json = run(&creel, &format!("ls --json {flags}")).expect_code(7).json();
        assert_eq!(json["resources"].as_array().unwrap().len(), 2);
        assert_eq!(text(&json["unreachable"][0], "provider"), lost);
        let output = run(&creel, &format!("sweep --json {flags}")).expect_code(7);
        assert_eq!(worlds.named(&output, "planned"), seen);
    }
    // What can be reached is released all the same.
    let output = run(&worlds.without_cloud(), &format!("sweep --apply --json {flags}"));
    assert_eq!(worlds.named(&output.expect_code(7), "gone"), OF_ENGINE);
    assert_eq!(worlds.there(), OF_CLOUD);
    let output = run(&worlds.without_engine(), &format!("sweep --apply --json {flags}"));
    assert_eq!(worlds.named(&output.expect_code(7), "gone"), OF_CLOUD);
    assert_eq!(worlds.there(), [""; 0]);
    worlds.assert_decoys_untouched();
}

#[test]
fn a_plan_is_kept_and_carried_out_as_far_as_the_worlds_answer() {
    let worlds = Worlds::new();
    let flags = worlds.flags();
    let (part, whole) = (worlds.bench.path("part.json"), worlds.bench.path("whole.json"));
    run(&worlds.without_engine(), &format!("sweep {flags} --plan-out {}", part.display()))
        .expect_code(7);
    run(&worlds.creel(), &format!("sweep {flags} --plan-out {}", whole.display())).expect_code(0);

    // A plan that takes nothing from the engine does not need it.
    let line = format!("apply {} --json", part.display());
    let output = run(&worlds.without_engine(), &line).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), OF_CLOUD);
    assert_eq!(worlds.there(), OF_ENGINE);

    let line = format!("apply {} --json", whole.display());
    let output = run(&worlds.without_engine(), &line).expect_code(7);
    assert_eq!(worlds.named(&output, "gone"), OF_CLOUD, "they were gone already");
    assert_eq!(worlds.named(&output, "failed"), OF_ENGINE);
    assert_eq!(text(&output.json()["unreachable"][0], "provider"), "docker");
    let output = run(&worlds.creel(), &line).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), ALL);
    assert_eq!(worlds.there(), [""; 0]);
    worlds.assert_decoys_untouched();
}

#[test]
fn one_that_is_not_asked_for_need_not_answer() {
    let worlds = Worlds::new();
    let flags = worlds.flags();
    let line = format!("sweep --provider docker --apply --json {flags}");
    let output = run(&worlds.without_cloud(), &line).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), OF_ENGINE);
    let line = format!("sweep --provider daytona --apply --json {flags}");
    let output = run(&worlds.without_engine(), &line).expect_code(0);
    assert_eq!(worlds.named(&output, "gone"), OF_CLOUD);
    assert_eq!(worlds.there(), [""; 0]);
    worlds.assert_decoys_untouched();
}
