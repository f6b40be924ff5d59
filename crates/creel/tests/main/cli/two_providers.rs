//! Docker and Daytona at once: one table, one plan, and one of them unreachable.

use creel_testkit::creel::Creel;
use creel_testkit::decoys::Decoys;
use serde_json::{Value, json};

use super::cloud::{Cloud, stem};
use super::fixture::{CliFixture, read_json, results, run, text};

/// An engine and a cloud with objects of one label in both.
struct TwoProviders {
    cli: CliFixture,
    cloud: Cloud,
    decoy: (String, Value),
    engine_decoys: Decoys,
}

impl TwoProviders {
    fn new() -> Self {
        let (cli, cloud) = (CliFixture::new(), Cloud::start());
        let near = json!({ "labels": { (cli.key()): format!("{}2", cli.name) } });
        let decoy = cloud.plant(&cli.named("-box"), near);
        let decoy = (decoy.clone(), cloud.sandbox(&decoy));
        let engine_decoys = Decoys::plant(cli.engine(), &cli.lookalike()).unwrap();
        let fixture = Self { cli, cloud, decoy, engine_decoys };
        fixture.create_missing();
        fixture
    }

    /// Creates a running container, an exited one, and two sandboxes.
    fn create_missing(&self) {
        self.cli.running(".web");
        self.cli.exited(".done");
        for (name, state) in [(".box", "started"), (".old", "stopped")] {
            let labels = json!({ (self.cli.key()): self.cli.name });
            self.cloud.plant(&self.cli.named(name), json!({ "state": state, "labels": labels }));
        }
    }

    fn creel(&self) -> Creel {
        self.cloud.given_to(self.cli.creel())
    }

    fn without_cloud(&self) -> Creel {
        self.creel().env("DAYTONA_API_URL", "http://127.0.0.1:9/api")
    }

    fn without_engine(&self) -> Creel {
        self.creel().env("DOCKER_HOST", "unix:///nowhere/docker.sock")
    }

    /// Returns the selectors of the test. A label alone would also select decoys that inherited it.
    fn flags(&self) -> String {
        format!("--label {} --name {}.*", self.cli.label(), self.cli.name)
    }

    /// Returns the selected objects that exist, without the test's prefix, sorted.
    fn there(&self) -> Vec<String> {
        let mut all = self.cli.there();
        let sandboxes = self.cloud.there().into_iter();
        let mine =
            sandboxes.filter_map(|name| Some(format!("s{}", name.strip_prefix(&self.cli.name)?)));
        all.extend(mine);
        all.retain(|name| ALL.contains(&name.as_str()));
        all.sort();
        all
    }

    /// Returns the short names of a report's items with a result.
    fn named(&self, output: &creel_testkit::creel::Output, result: &str) -> Vec<String> {
        let names = results(output, result);
        let mut short: Vec<String> = names
            .iter()
            .map(|line| {
                let (kind, name) = line.split_once(' ').unwrap();
                let name = if kind == "sandbox" { stem(name) } else { name.to_owned() };
                format!("{}{}", &kind[..1], name.replace(&self.cli.name, ""))
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
fn one_table_shows_both_providers() {
    let fixture = TwoProviders::new();
    let output = run(&fixture.creel(), &format!("ls {}", fixture.flags())).expect_code(0);
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(lines[0].starts_with("KIND"), "{output}");
    let kinds: Vec<&str> =
        lines[1..].iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(kinds, ["sandbox", "sandbox", "container", "container"], "{output}");
    for (provider, kind) in [("daytona", "sandbox"), ("docker", "container")] {
        let line = format!("ls --json --provider {provider} {}", fixture.flags());
        let json = run(&fixture.creel(), &line).expect_code(0).json();
        let rows = json["resources"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| text(row, "kind") == kind), "{json}");
    }
}

#[test]
fn one_plan_releases_from_both_and_one_certificate_proves_it() {
    let fixture = TwoProviders::new();
    let (creel, flags) = (fixture.creel(), fixture.flags());
    let plan = fixture.cli.path("plan.json");
    run(&creel, &format!("sweep {flags} --plan-out {}", plan.display())).expect_code(0);
    assert_eq!(fixture.there(), ALL);
    let kept = read_json(&plan);
    let providers_of_plan: Vec<&str> =
        kept["worlds"].as_array().unwrap().iter().map(|entry| text(entry, "provider")).collect();
    assert_eq!(providers_of_plan, ["docker", "daytona"]);
    let output = run(&creel, &format!("apply {} --json", plan.display())).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), ALL);
    assert_eq!(fixture.there(), [""; 0]);

    fixture.create_missing();
    let certificate = fixture.cli.path("certificate.json");
    let line = format!("sweep {flags} --apply --json --certificate {}", certificate.display());
    let output = run(&creel, &line).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), ALL);
    let certificate = read_json(&certificate);
    assert_eq!(certificate["verdict"], "clean");
    assert_eq!(certificate["worlds"].as_array().unwrap().len(), 3, "processes are a provider too");
    fixture.assert_decoys_untouched();
}

#[test]
fn an_unreachable_provider_does_not_hide_the_other() {
    let fixture = TwoProviders::new();
    let flags = fixture.flags();
    for (creel, lost, seen) in [
        (fixture.without_cloud(), "daytona", OF_ENGINE),
        (fixture.without_engine(), "docker", OF_CLOUD),
    ] {
        let output = run(&creel, &format!("ls {flags}")).expect_code(7);
        assert_eq!(output.stdout.lines().count(), 3, "a header and two rows\n{output}");
        assert!(output.stderr.contains(&format!("error[CR0020]: {lost} could not")), "{output}");
        let json = run(&creel, &format!("ls --json {flags}")).expect_code(7).json();
        assert_eq!(json["resources"].as_array().unwrap().len(), 2);
        assert_eq!(text(&json["unreachable"][0], "provider"), lost);
        let output = run(&creel, &format!("sweep --json {flags}")).expect_code(7);
        assert_eq!(fixture.named(&output, "planned"), seen);
    }
    // Reachable objects are still released.
    let output = run(&fixture.without_cloud(), &format!("sweep --apply --json {flags}"));
    assert_eq!(fixture.named(&output.expect_code(7), "gone"), OF_ENGINE);
    assert_eq!(fixture.there(), OF_CLOUD);
    let output = run(&fixture.without_engine(), &format!("sweep --apply --json {flags}"));
    assert_eq!(fixture.named(&output.expect_code(7), "gone"), OF_CLOUD);
    assert_eq!(fixture.there(), [""; 0]);
    fixture.assert_decoys_untouched();
}

#[test]
fn a_plan_is_saved_and_applied_as_far_as_the_providers_respond() {
    let fixture = TwoProviders::new();
    let flags = fixture.flags();
    let (part, whole) = (fixture.cli.path("part.json"), fixture.cli.path("whole.json"));
    run(&fixture.without_engine(), &format!("sweep {flags} --plan-out {}", part.display()))
        .expect_code(7);
    run(&fixture.creel(), &format!("sweep {flags} --plan-out {}", whole.display())).expect_code(0);

    // A plan without objects of the engine does not need it.
    let line = format!("apply {} --json", part.display());
    let output = run(&fixture.without_engine(), &line).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), OF_CLOUD);
    assert_eq!(fixture.there(), OF_ENGINE);

    let line = format!("apply {} --json", whole.display());
    let output = run(&fixture.without_engine(), &line).expect_code(7);
    assert_eq!(fixture.named(&output, "gone"), OF_CLOUD, "they were gone already");
    assert_eq!(fixture.named(&output, "failed"), OF_ENGINE);
    assert_eq!(text(&output.json()["unreachable"][0], "provider"), "docker");
    let output = run(&fixture.creel(), &line).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), ALL);
    assert_eq!(fixture.there(), [""; 0]);
    fixture.assert_decoys_untouched();
}

#[test]
fn an_unselected_provider_need_not_respond() {
    let fixture = TwoProviders::new();
    let flags = fixture.flags();
    let line = format!("sweep --provider docker --apply --json {flags}");
    let output = run(&fixture.without_cloud(), &line).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), OF_ENGINE);
    let line = format!("sweep --provider daytona --apply --json {flags}");
    let output = run(&fixture.without_engine(), &line).expect_code(0);
    assert_eq!(fixture.named(&output, "gone"), OF_CLOUD);
    assert_eq!(fixture.there(), [""; 0]);
    fixture.assert_decoys_untouched();
}
