//! Recipes on a real engine: objects as each harness creates them, beside decoys.
//!
//! A real engine's clock cannot be set, so a test shortens the ages of a recipe: it saves a copy
//! of the built-in one under the same name, as users do. The built-in ages are
//! tested on objects that an engine on another machine reports as old.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use creel_testkit::creel::Output;
use creel_testkit::docker::{ContainerSpec, Docker, Labels};
use creel_testkit::engine::{EngineOptions, PrivateEngine};
use creel_testkit::fake_engine::{FakeEngine, Reply};
use creel_testkit::image;
use creel_testkit::inventory::Inventory;
use creel_testkit::wait::{eventually, eventually_some};
use serde_json::{Value, json};

use super::cloud::{Cloud, stem};
use super::fixture::{CliFixture, reason, results};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const TRIAL: &str = "hello-world__ab3de7f__env";
const TB: &str = "hello-world-1-of-1-2026-11-14__10-20-30";
const SAMPLE: &str = "inspect-ctf_easy-iabc123";
const EVALUATION: &str = "sweb.eval.django__django-11099.gold";
const RUNTIME: &str = "openhands-runtime-4f1d0c7a9e";
const AGENT_SERVER: &str = "agent-server-0f2ce279-55d2-4de5-a2dd-c958ea1c8e28";
const WORKSPACE: &str = "openhands-workspace-oh-agent-server-4Xy7Zq";
const SESSION: &str = "a9bf802f-6800-4205-8ca2-740e969f20c0";
const LIVE_SESSION: &str = "efeba7ba-5fdd-4713-ae0c-38f4a462cf46";

/// A private engine.
pub(super) struct HarnessFixture {
    private: PrivateEngine,
    pub(super) cli: CliFixture,
    /// Replaces the harness's program name, so that a running real harness does not matter.
    pub(super) program: String,
}

impl HarnessFixture {
    pub(super) fn new() -> Self {
        let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let cli = CliFixture::on(private.engine());
        let program = format!("harness-{}", cli.name);
        Self { private, cli, program }
    }

    pub(super) fn docker(&self) -> Docker {
        self.cli.docker()
    }

    /// Saves a copy of a built-in recipe with ages of a second and the test's program name.
    pub(super) fn shorten(&self, recipe: &str) {
        self.keep(recipe, |key| {
            matches!(key, "older_than" | "older_than_remote" | "idle_for").then_some("1s")
        });
    }

    /// Saves a copy of a built-in recipe with the test's program name.
    pub(super) fn rename_program(&self, recipe: &str) {
        self.keep(recipe, |_| None);
    }

    /// Saves a copy of a built-in recipe with other values.
    fn keep(&self, recipe: &str, value: impl Fn(&str) -> Option<&'static str>) {
        let text = self.cli.run(&format!("recipes show {recipe}")).expect_code(0).stdout;
        let changed = text.lines().map(|line| match line.split_once(" = ") {
            Some(("programs", _)) => format!("programs = [\"{}\"]\n", self.program),
            Some((key, _)) => match value(key) {
                Some(value) => format!("{key} = \"{value}\"\n"),
                None => format!("{line}\n"),
            },
            None => format!("{line}\n"),
        });
        let text: String = changed.collect();
        let directory = self.cli.state().join("recipes");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{recipe}.toml")), text).unwrap();
    }

    /// Runs a script with this engine.
    pub(super) fn shell(&self, script: &str) -> std::process::Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).env("DOCKER_HOST", self.cli.engine().host());
        shell.output().unwrap()
    }

    pub(super) fn sweep(&self, flags: &str) -> Output {
        self.cli.run(&format!("sweep --json --recipe {flags}"))
    }

    /// Waits until this many objects are old enough, and returns the dry run.
    pub(super) fn aged(&self, recipe: &str, count: usize) -> Output {
        let aged = || results(&self.sweep(recipe), "planned").len() == count;
        let output = if eventually(PATIENCE, aged) { None } else { Some(self.sweep(recipe)) };
        assert!(output.is_none(), "not {count}: {output:?}");
        self.sweep(recipe).expect_code(0)
    }

    /// Runs a container to its end, or leaves it running.
    fn container(&self, name: &str, labels: &Labels, runs: bool) -> String {
        self.container_of(image::REFERENCE, name, labels, runs)
    }

    fn container_of(&self, image: &str, name: &str, labels: &Labels, runs: bool) -> String {
        let docker = self.docker();
        if runs {
            docker.run(&ContainerSpec::sleeping(name).image(image).labels(labels)).unwrap()
        } else {
            docker.run_to_exit(&ContainerSpec::exiting(name).image(image).labels(labels)).unwrap()
        }
    }

    /// Builds an image with this name and labels, as Compose does.
    pub(super) fn image(&self, name: &str, labels: &Labels) {
        let spec = ContainerSpec::exiting(&format!("source-{}", name.replace(['/', ':'], "-")));
        let source = self.docker().create(&spec.labels(labels)).unwrap();
        self.docker().commit(&source, name, "latest").unwrap();
        self.docker().remove_container(&source).unwrap();
    }

    /// Creates the leftovers of one trial of a harness that uses Compose.
    pub(super) fn project(&self, project: &str, container: &str, service: &str, runs: bool) {
        let docker = self.docker();
        let own = labels(&[
            ("com.docker.compose.project", project),
            ("com.docker.compose.service", service),
            ("com.docker.compose.container-number", "1"),
            ("com.docker.compose.oneoff", "False"),
        ]);
        self.container(container, &own, runs);
        let network =
            [("com.docker.compose.project", project), ("com.docker.compose.network", "default")];
        docker.create_network(&format!("{project}_default"), &labels(&network)).unwrap();
        let volume =
            [("com.docker.compose.project", project), ("com.docker.compose.volume", "data")];
        docker.create_volume(&format!("{project}_data"), &labels(&volume)).unwrap();
    }

    /// Returns everything on the engine, as `kind name`, sorted.
    pub(super) fn there(&self) -> Vec<String> {
        let inventory = Inventory::snapshot(self.cli.engine()).unwrap();
        let mut names: Vec<String> = inventory
            .objects()
            .map(|object| format!("{:?} {}", object.kind, object.name).to_lowercase())
            .collect();
        names.sort();
        names
    }

    pub(super) fn stop(self) {
        drop(self.cli);
        self.private.stop().unwrap();
    }
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A live process of the harness. It ends on drop.
pub(super) struct Harness(pub(super) Child);

impl Harness {
    pub(super) fn start(program: &str) -> Self {
        Self(Command::new("sleep").arg0(program).arg("1000").spawn().unwrap())
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // It may have been ended by the test already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates the leftovers of every harness, one after the other.
fn create_missing(fixture: &HarnessFixture) {
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    fixture.image(&format!("{TRIAL}-main"), &labels(&[("com.docker.compose.project", TRIAL)]));
    fixture.project(TB, TB, "client", true);
    fixture.image("tb__hello-world__client", &Labels::new());
    fixture.project(SAMPLE, &format!("{SAMPLE}-default-1"), "default", false);
    fixture.image(&format!("{SAMPLE}-default"), &labels(&[("com.docker.compose.project", SAMPLE)]));
    fixture.container(EVALUATION, &Labels::new(), true);
    fixture.image("sweb.eval.x86_64.django__django-11099", &Labels::new());
    fixture.container(RUNTIME, &Labels::new(), true);
    fixture.container(AGENT_SERVER, &Labels::new(), false);
    fixture.docker().create_volume(WORKSPACE, &Labels::new()).unwrap();
    let session = labels(&[
        ("org.testcontainers", "true"),
        ("org.testcontainers.lang", "java"),
        ("org.testcontainers.sessionId", SESSION),
    ]);
    fixture.container("gifted_williamson", &session, true);
    fixture.docker().create_network("tc-net", &session).unwrap();
    fixture.image("localhost/testcontainers/abcdefgh12345678", &session);
    fixture.project("shop", "shop-web-1", "web", false);
}

/// The objects that each recipe releases.
const TAKEN: [(&str, &[&str]); 7] = [
    (
        "harbor",
        &[
            "container hello-world__ab3de7f__env-main-1",
            "image hello-world__ab3de7f__env-main:latest",
            "network hello-world__ab3de7f__env_default",
            "volume hello-world__ab3de7f__env_data",
        ],
    ),
    (
        "terminal-bench",
        &[
            "container hello-world-1-of-1-2026-11-14__10-20-30",
            "image tb__hello-world__client:latest",
            "network hello-world-1-of-1-2026-11-14__10-20-30_default",
            "volume hello-world-1-of-1-2026-11-14__10-20-30_data",
        ],
    ),
    (
        "inspect",
        &[
            "container inspect-ctf_easy-iabc123-default-1",
            "image inspect-ctf_easy-iabc123-default:latest",
            "network inspect-ctf_easy-iabc123_default",
            "volume inspect-ctf_easy-iabc123_data",
        ],
    ),
    (
        "swe-bench",
        &[
            "container sweb.eval.django__django-11099.gold",
            "image sweb.eval.x86_64.django__django-11099:latest",
        ],
    ),
    (
        "openhands",
        &[
            "container agent-server-0f2ce279-55d2-4de5-a2dd-c958ea1c8e28",
            "container openhands-runtime-4f1d0c7a9e",
            "volume openhands-workspace-oh-agent-server-4Xy7Zq",
        ],
    ),
    (
        "testcontainers",
        &[
            "container gifted_williamson",
            "image localhost/testcontainers/abcdefgh12345678:latest",
            "network tc-net",
        ],
    ),
    // Its volume stays, as with `docker compose down`.
    ("compose", &["container shop-web-1", "network shop_default"]),
];

/// Creates objects that closely resemble the leftovers.
fn plant_decoys(fixture: &HarnessFixture) {
    fixture.project("hello-world__ab3de7__env", "hello-world__ab3de7__env-main-1", "main", true);
    fixture.project(
        "hello-world__ab3de7f__envs",
        "hello-world__ab3de7f__envs-main-1",
        "main",
        true,
    );
    fixture.project("shard-1-of-4-nightly", "shard-1-of-4-nightly-client-1", "client", true);
    fixture.project("inspect-ctf-abc123", "inspect-ctf-abc123-default-1", "default", true);
    fixture.container("my-sweb.eval.django__django-11099.gold", &Labels::new(), false);
    fixture.container("sweb.eval.dashboard", &Labels::new(), false);
    fixture.container("my-openhands-runtime-1", &Labels::new(), false);
    fixture.container("agent-server-prod", &Labels::new(), true);
    fixture.docker().create_volume("openhands-workspace-mine", &Labels::new()).unwrap();
    fixture.image("swebench/sweb.eval.x86_64.django_1776_django-11099", &Labels::new());
    fixture.image("tb__hello-world__server", &Labels::new());
    fixture.container("bare", &labels(&[("org.testcontainers", "true")]), false);
    plant_containers_with_inherited_labels(fixture);
    // A session that is still active, as its reaper shows.
    let live =
        labels(&[("org.testcontainers", "true"), ("org.testcontainers.session-id", LIVE_SESSION)]);
    fixture.container(&format!("testcontainers-ryuk-{LIVE_SESSION}"), &Labels::new(), true);
    fixture.container("live-db", &live, false);
    // A project that is partly running.
    fixture.project("blog", "blog-web-1", "web", false);
    let db = labels(&[
        ("com.docker.compose.project", "blog"),
        ("com.docker.compose.container-number", "1"),
    ]);
    fixture.container("blog-db-1", &db, true);
}

/// Creates containers of images with a harness's labels, as another user may run them.
fn plant_containers_with_inherited_labels(fixture: &HarnessFixture) {
    let trial = labels(&[
        ("com.docker.compose.project", TRIAL),
        ("com.docker.compose.container-number", "1"),
    ]);
    fixture.image("mine/from-a-trial", &trial);
    fixture.container_of("mine/from-a-trial", "heir-of-a-trial", &Labels::new(), true);
    let session =
        labels(&[("org.testcontainers", "true"), ("org.testcontainers.sessionId", SESSION)]);
    fixture.image("mine/from-a-test", &session);
    fixture.container_of("mine/from-a-test", "heir-of-a-test", &Labels::new(), true);
}

#[test]
fn every_recipe_releases_exactly_the_leftovers_of_its_harness() {
    let fixture = HarnessFixture::new();
    plant_decoys(&fixture);
    let decoys = fixture.there();
    create_missing(&fixture);
    for (recipe, taken) in TAKEN {
        // With the built-in ages, everything is too young.
        let young = fixture.sweep(&format!("{recipe} --apply")).expect_code(0);
        assert_eq!(results(&young, "gone"), [""; 0], "{young}");
        for item in taken {
            let why = reason(&young, item.split_once(' ').unwrap().1);
            assert!(why.contains("less than"), "{recipe} {item}: {why}");
        }
        fixture.shorten(recipe);
        let dry = fixture.aged(recipe, taken.len());
        assert_eq!(results(&dry, "planned"), sorted_by_kind(taken), "{dry}");
        check_evidence(recipe, &dry);
        let gone = fixture.sweep(&format!("{recipe} --apply")).expect_code(0);
        assert_eq!(results(&gone, "gone").len(), taken.len(), "{gone}");
    }
    let mut left = decoys;
    left.push(format!("volume {}", "shop_data"));
    left.sort();
    assert_eq!(fixture.there(), left);
    fixture.stop();
}

/// Returns names in the sequence of a plan.
fn sorted_by_kind(names: &[&str]) -> Vec<String> {
    let kinds = ["container", "network", "volume", "image"];
    let place = |name: &&str| kinds.iter().position(|kind| name.starts_with(kind)).unwrap();
    let mut sorted: Vec<&str> = names.to_vec();
    sorted.sort_by_key(|name| (place(name), *name));
    sorted.into_iter().map(str::to_owned).collect()
}

/// Asserts that every item names the rule that selected it, and the proof that it is finished.
fn check_evidence(recipe: &str, output: &Output) {
    let json = output.json();
    let planned = json["items"].as_array().unwrap().iter().filter(|i| i["result"] == "planned");
    for item in planned {
        assert!(item["rule"].as_str().unwrap().starts_with(&format!("recipe:{recipe}/")), "{item}");
        let evidence = item["evidence"].as_str().unwrap_or_else(|| panic!("no evidence: {item}"));
        let proof = match recipe {
            "compose" => "nothing of shop runs",
            "testcontainers" if item["kind"] == "image" => "tagged ",
            "testcontainers" => "no keeper of session",
            "openhands" => "no process of openhands runs here",
            _ => "is older than it",
        };
        assert!(evidence.contains(proof), "{recipe}: {evidence}");
    }
}

#[test]
fn decoys_are_spared_for_the_decisive_reason() {
    let fixture = HarnessFixture::new();
    plant_decoys(&fixture);
    let before = fixture.there();
    for recipe in ["harbor", "testcontainers", "compose"] {
        fixture.shorten(recipe);
    }
    // Youth is also a reason, and the first one to pass.
    let reason_of = |recipe: &str, name: &str| {
        let grown =
            || Some(reason(&fixture.sweep(recipe), name)).filter(|why| !why.contains("less"));
        eventually_some(PATIENCE, grown).unwrap_or_else(|| panic!("{name} never grew old"))
    };
    assert_eq!(
        reason_of("harbor", "heir-of-a-trial"),
        "its labels may be inherited from its image"
    );
    assert_eq!(
        reason_of("testcontainers", "heir-of-a-test"),
        "its labels may be inherited from its image"
    );
    let alive = reason_of("testcontainers", "live-db");
    assert!(alive.contains("its session may go on"), "{alive}");
    assert_eq!(reason_of("compose", "blog-web-1"), "blog-db-1 of blog is running");
    assert_eq!(reason_of("compose", "blog_default"), "blog-db-1 of blog is running");
    for recipe in ["harbor", "testcontainers"] {
        let swept = fixture.sweep(&format!("{recipe} --apply")).expect_code(0);
        assert_eq!(results(&swept, "gone"), [""; 0], "{swept}");
    }
    assert_eq!(fixture.there(), before);
    fixture.stop();
}

#[test]
fn a_live_process_of_the_harness_spares_what_it_may_use() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    fixture.shorten("openhands");
    let harness = Harness::start(&fixture.program);
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", true);
    fixture.container(RUNTIME, &Labels::new(), true);
    let pid = harness.0.id();
    let held = format!("process {pid} (program {0}: `{0} 1000`) may use it", fixture.program);
    let name = format!("{TRIAL}-main-1");
    let is_spared = || reason(&fixture.sweep("harbor"), &name) == held;
    assert!(eventually(PATIENCE, is_spared), "{}", fixture.sweep("harbor"));
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "spared").len(), 3, "{swept}");
    assert_eq!(reason(&fixture.sweep("openhands"), RUNTIME), held);
    drop(harness);
    fixture.aged("harbor", 3);
    // A later process did not create the trial, but OpenHands continues with existing objects.
    let later = || {
        let _later = Harness::start(&fixture.program);
        results(&fixture.sweep("harbor"), "planned").len() == 3
    };
    assert!(eventually(PATIENCE, later));
    let harness = Harness::start(&fixture.program);
    assert_eq!(results(&fixture.sweep("openhands"), "planned").len(), 0);
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 3, "{swept}");
    drop(harness);
    assert_eq!(results(&fixture.sweep("openhands --apply"), "gone").len(), 1);
    fixture.stop();
}

#[test]
fn other_selectors_caps_and_protection_make_a_recipe_stricter() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    fixture.project(TRIAL, &format!("{TRIAL}-main-1"), "main", false);
    fixture.aged("harbor", 3);
    assert_eq!(results(&fixture.sweep("harbor --older-than 1h"), "planned"), [""; 0]);
    let volumes = fixture.sweep("harbor --kind volume").expect_code(0);
    assert_eq!(results(&volumes, "planned"), [format!("volume {TRIAL}_data")]);
    assert_eq!(results(&fixture.sweep("harbor --label absent"), "planned"), [""; 0]);
    fixture.sweep("harbor --apply --max 2").expect_code(4);
    fixture.sweep("harbor --preset stopped").expect_code(2);
    fixture.sweep("harbor --all").expect_code(2);
    fixture.cli.configure(&format!("[[protect]]\nname = \"{TRIAL}_data\""));
    let swept = fixture.sweep("harbor --apply").expect_code(0);
    assert_eq!(results(&swept, "gone").len(), 2, "{swept}");
    assert!(reason(&swept, &format!("{TRIAL}_data")).contains("protected by the rule"));
    fixture.stop();
}

#[test]
fn objects_that_changed_since_the_proof_are_spared() {
    let fixture = HarnessFixture::new();
    fixture.shorten("harbor");
    let name = format!("{TRIAL}-main-1");
    let own = labels(&[
        ("com.docker.compose.project", TRIAL),
        ("com.docker.compose.container-number", "1"),
    ]);
    let id = fixture.container(&name, &own, false);
    fixture.aged("harbor", 1);
    let plan = fixture.cli.path("plan.json");
    let kept = fixture.sweep(&format!("harbor --plan-out {}", plan.display())).expect_code(0);
    assert_eq!(results(&kept, "planned").len(), 1, "{kept}");
    // Another user runs it once more: it is exited again, but not in the same state.
    fixture.docker().start(&id).unwrap();
    fixture.docker().wait_until_exited(&id).unwrap();
    let applied = fixture.cli.run(&format!("apply --json {}", plan.display())).expect_code(4);
    assert_eq!(results(&applied, "drifted"), [format!("container {name}")], "{applied}");
    fixture.stop();
}

#[test]
fn a_remote_engine_requires_greater_ages() {
    let fake = FakeEngine::start().unwrap();
    let day = 24 * 3_600;
    let trial = |number: u64, name: &str, age: u64| {
        let id = format!("{number:064x}");
        let started = timestamp(age);
        let compose = json!({
            "com.docker.compose.project": TRIAL, "com.docker.compose.container-number": "1",
        });
        let details = json!({
            "Id": id, "Name": format!("/{name}"), "Created": started,
            "Image": format!("sha256:{:064x}", 1),
            "State": { "Status": "running", "StartedAt": started, "FinishedAt": "0001-01-01T00:00:00Z" },
            "Config": { "Labels": compose },
        });
        fake.route("GET", &format!("/containers/{id}/json"), [Reply::Json(200, details)]);
        json!({
            "Id": id, "Names": [format!("/{name}")], "State": "running", "Labels": compose,
            "ImageID": format!("sha256:{:064x}", 1), "Created": unix(age),
        })
    };
    let image = json!({ "Id": format!("sha256:{:064x}", 1), "RepoTags": ["debian:12"] });
    fake.route("GET", r"/images/json(\?|$)", [Reply::Json(200, json!([image]))]);
    fake.list_containers(vec![trial(2, "younger", day), trial(3, "older", 3 * day)]);
    let cli = CliFixture::on(fake.engine());
    let output = cli.run("sweep --json --recipe harbor").expect_code(0);
    assert_eq!(results(&output, "planned"), ["container older"], "{output}");
    assert_eq!(reason(&output, "younger"), "last changed 24h ago, less than 2d");
    let json = output.json();
    let item = json["items"].as_array().unwrap().iter().find(|item| item["name"] == "older");
    let evidence = item.unwrap()["evidence"].as_str().unwrap();
    assert!(evidence.contains("only its age counts: docker is not on this machine"), "{evidence}");
    let table = cli.run("sweep --recipe harbor").expect_code(0).stdout;
    assert!(table.contains("recipe:harbor/abandoned-trial"), "{table}");
}

fn unix(age: u64) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - age
}

fn timestamp(age: u64) -> String {
    let seconds = i64::try_from(unix(age)).unwrap();
    jiff::Timestamp::from_second(seconds).unwrap().to_string()
}

#[test]
fn sandboxes_of_harbor_are_selected_by_label_age_and_activity() {
    let cloud = Cloud::start();
    let home = tempfile::tempdir().unwrap();
    let creel = creel_testkit::creel::Creel::without_docker(super::fixture::BINARY, home.path());
    let creel = cloud.given_to(creel);
    let marks = json!({
        "harbor.managed": "true", "harbor.session_id": "s", "harbor.environment_name": "hello",
    });
    let plant = |name: &str, state: &str, age: u64, idle: u64, labels: &Value| {
        let (age, idle) = (age * 3_600, idle * 3_600);
        let seed = json!({
            "state": state, "age_seconds": age, "idle_seconds": idle, "labels": labels,
        });
        cloud.plant(name, seed);
    };
    // Paused, not started: Daytona itself stops an idle started one here.
    plant("old", "paused", 72, 48, &marks);
    plant("stopped", "stopped", 25, 25, &marks);
    plant("busy", "paused", 72, 1, &marks);
    plant("young", "stopped", 1, 1, &marks);
    plant("foreign", "stopped", 72, 72, &json!({ "harbor.managed": "false" }));
    plant("half", "stopped", 72, 72, &json!({ "harbor.managed": "true" }));
    let args = "sweep --json --recipe harbor --apply".split_whitespace();
    let output = creel.run(args).expect_code(0);
    let mut gone: Vec<String> =
        results(&output, "gone").iter().map(|name| stem(name).to_owned()).collect();
    gone.sort();
    assert_eq!(gone, ["sandbox old", "sandbox stopped"], "{output}");
    let mut left: Vec<String> = cloud.there().iter().map(|name| stem(name).to_owned()).collect();
    left.sort();
    assert_eq!(left, ["busy", "foreign", "half", "young"]);
    assert_eq!(results(&output, "spared").len(), 2, "{output}");
}

#[test]
fn recipes_are_listed_and_shown_and_user_recipes_take_precedence() {
    let cli = CliFixture::new();
    let listed = cli.run("recipes --json").expect_code(0).json();
    assert_eq!(listed["recipes"].as_array().unwrap().len(), TAKEN.len());
    let shown = cli.run("recipes show harbor").expect_code(0);
    assert!(shown.stdout.contains("[[rule]]"), "{shown}");
    assert_eq!(shown.stderr, "");
    let directory = cli.state().join("recipes");
    fs::create_dir_all(&directory).unwrap();
    let mine = "summary = \"mine\"\n[[rule]]\nname = \"r\"\nkinds = [\"volume\"]\n\
                object = \"NAME-.*\"\nolder_than = \"0s\"\n";
    let mine = mine.replace("NAME", &cli.name);
    fs::write(directory.join("harbor.toml"), &mine).unwrap();
    fs::write(directory.join("my-bench.toml"), &mine).unwrap();
    cli.volume("-a");
    for recipe in ["harbor", "my-bench"] {
        let output = cli.run(&format!("sweep --json --recipe {recipe}")).expect_code(0);
        assert_eq!(results(&output, "planned"), [format!("volume {}-a", cli.name)], "{output}");
        let is_noted = output.stderr.contains("not the built-in one");
        assert_eq!(is_noted, recipe == "harbor", "{output}");
    }
    let table = cli.run("recipes").expect_code(0).stdout;
    assert!(table.contains("harbor.toml (instead of the built-in one)"), "{table}");
    let rows = cli.run("ls --recipe my-bench --json").expect_code(0).json();
    assert_eq!(rows["resources"].as_array().unwrap().len(), 1);
    let gone = cli.run("sweep --json --recipe my-bench --apply").expect_code(0);
    assert_eq!(gone.json()["gone"], 1);
}

#[test]
fn an_invalid_or_unknown_recipe_is_refused_with_a_suggestion() {
    let cli = CliFixture::new();
    let unknown = cli.run("sweep --recipe harbour").expect_code(2);
    assert!(unknown.stderr.contains("did you mean `harbor`?"), "{unknown}");
    let directory = cli.state().join("recipes");
    fs::create_dir_all(&directory).unwrap();
    let typo = "summary = \"x\"\n[[rule]]\nname = \"r\"\nkinds = [\"volume\"]\n\
                object = \"x\"\nolder_then = \"1h\"\n";
    fs::write(directory.join("mine.toml"), typo).unwrap();
    for line in ["sweep --recipe mine --apply", "ls --recipe mine", "recipes", "recipes show mine"]
    {
        let wrong = cli.run(line).expect_code(2);
        assert!(wrong.stderr.contains("did you mean `older_than`?"), "{wrong}");
        assert!(wrong.stderr.contains("mine.toml"), "{wrong}");
    }
}
