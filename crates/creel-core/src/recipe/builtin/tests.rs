//! Runs every recipe over a sample inventory: it takes what it should, spares similar objects, and
//! spares what may be alive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use creel_model::provider::InUse;
use creel_model::provider::{Kind, Observed};
use jiff::Timestamp;

use crate::recipe::{
    Clocks, Connections, Handles, LocalEvidence, Processes, ProgramName, Reading, Recipe,
    RecipeContext, RecipeVerdict, RunAs, RunningProcess,
};

use super::BUILT_IN;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
const IMAGE: &str = "sha256:plain";

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn ago(seconds: u64) -> Timestamp {
    now() - Duration::from_secs(seconds)
}

/// Returns a sample object, as an examination reports it.
fn object(kind: Kind, name: &str, state: &str, age: u64) -> Observed {
    let provider = if kind == Kind::Sandbox { creel_daytona::NAME } else { creel_docker::NAME };
    let mut seen = Observed {
        name: name.to_owned(),
        state: state.to_owned(),
        created_at: Some(ago(age)),
        ..Observed::known_by_id(provider, kind, format!("id-{name}"))
    };
    match kind {
        Kind::Container => {
            seen.uses = vec![(Kind::Image, IMAGE.to_owned())];
            seen.last_active_at = (state != "created").then(|| ago(age));
        }
        Kind::Image => {
            seen.tags = vec![name.to_owned()];
            seen.tagged_at = Some(ago(age));
            // A build takes this time from the base or from the cache: it must not count.
            seen.created_at = Some(ago(500 * DAY));
        }
        _ => {}
    }
    seen
}

fn labelled(mut seen: Observed, labels: &[(&str, &str)]) -> Observed {
    for (key, value) in labels {
        seen.labels.insert(*key, *value);
        if *key == "com.docker.compose.project" {
            seen.project = Some((*value).to_owned());
        }
    }
    seen
}

/// Returns a container as Compose makes it.
fn service(project: &str, name: &str, state: &str, age: u64) -> Observed {
    let labels = [
        ("com.docker.compose.project", project),
        ("com.docker.compose.service", "main"),
        ("com.docker.compose.container-number", "1"),
    ];
    labelled(object(Kind::Container, name, state, age), &labels)
}

/// Returns a network as Compose makes it.
fn network(project: &str, age: u64) -> Observed {
    let labels =
        [("com.docker.compose.project", project), ("com.docker.compose.network", "default")];
    labelled(object(Kind::Network, &format!("{project}_default"), "present", age), &labels)
}

/// Returns a volume as Compose makes it.
fn volume(project: &str, age: u64) -> Observed {
    let labels = [("com.docker.compose.project", project), ("com.docker.compose.volume", "data")];
    labelled(object(Kind::Volume, &format!("{project}_data"), "named", age), &labels)
}

fn image(name: &str, age: u64) -> Observed {
    object(Kind::Image, name, "tagged", age)
}

/// The uptime of this machine in seconds.
const UPTIME: u64 = 1_000 * DAY;

fn running(program: &str, age: u64) -> RunningProcess {
    let run = |how, name: &str| ProgramName { how, name: name.to_owned() };
    RunningProcess {
        pid: 7,
        parent: 1,
        runs: vec![run(RunAs::Program, "python3"), run(RunAs::Script, program)],
        command: format!("python3 {program}"),
        started: Duration::from_secs(UPTIME - age),
        container: None,
        handles: Some(Handles::default()),
    }
}

/// One recipe, and the context of the samples.
struct RecipeScenario {
    name: &'static str,
    recipe: Recipe,
    evidence: LocalEvidence,
    ended: bool,
}

impl RecipeScenario {
    /// Returns a scenario with an engine on this machine, and no processes.
    fn of(name: &'static str) -> Self {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name).unwrap();
        let recipe = Recipe::parse(text, &crate::recipe::provider_states()).unwrap();
        let present = Reading { wall: now(), boot: Duration::from_secs(UPTIME) };
        let boot = Reading { wall: ago(UPTIME), boot: Duration::ZERO };
        let mut clocks = Clocks::new(present);
        clocks.add(boot);
        let here = BTreeMap::from([(creel_docker::NAME, Connections::Seen(HashSet::new()))]);
        let processes = Processes::Seen(Vec::new());
        let evidence = LocalEvidence { here, processes, in_use: HashMap::new(), clocks };
        Self { name, recipe, evidence, ended: false }
    }

    fn with(mut self, process: RunningProcess) -> Self {
        self.evidence.processes = Processes::Seen(vec![process]);
        self
    }

    /// Adds a process that is connected to the engine.
    fn connected(mut self, process: RunningProcess) -> Self {
        let seen = Connections::Seen(HashSet::from([process.pid]));
        self.evidence.here.insert(creel_docker::NAME, seen);
        self.with(process)
    }

    fn ended(mut self) -> Self {
        self.ended = true;
        self
    }

    fn remote(mut self) -> Self {
        self.evidence.here.clear();
        self
    }

    /// Returns a line for every object that bears a mark: `+` with the rule, or `-` with the
    /// reason.
    fn lines(&self, mut inventory: Vec<Observed>) -> Vec<String> {
        inventory.push(Observed {
            id: IMAGE.to_owned(),
            ..object(Kind::Image, "debian:12", "tagged", DAY)
        });
        let (evidence, ended) = (&self.evidence, self.ended);
        let around = RecipeContext { inventory: &inventory, evidence, ended };
        let findings = self.recipe.judge(self.name, &around);
        let line = |seen: &Observed| {
            let finding = findings.of(seen)?;
            let rule = finding.rule.split('/').nth(1).unwrap_or_default();
            Some(match &finding.verdict {
                RecipeVerdict::Finished(proof) => {
                    let evidence = &proof.evidence;
                    assert!(evidence.starts_with(&seen.state) && evidence.contains("; "));
                    format!("+ {} {rule}", seen.name)
                }
                RecipeVerdict::MayLive(reason) => format!("- {}: {reason}", seen.name),
            })
        };
        inventory.iter().filter_map(line).collect()
    }

    /// Returns the names of the objects that would be released.
    fn released(&self, inventory: Vec<Observed>) -> Vec<String> {
        let lines = self.lines(inventory);
        lines.iter().filter_map(|line| Some(line.strip_prefix("+ ")?.to_owned())).collect()
    }

    /// Returns the line for one object.
    fn line_of(&self, seen: Observed) -> String {
        self.lines(vec![seen]).pop().unwrap_or_default()
    }
}

const TRIAL: &str = "hello-world__ab3de7f__env";

#[test]
fn harbor_releases_its_trials_and_spares_look_alikes() {
    let scenario = RecipeScenario::of("harbor");
    let inventory = vec![
        service(TRIAL, &format!("{TRIAL}-main-1"), "running", 7 * HOUR),
        service(TRIAL, &format!("{TRIAL}-db-1"), "exited", 2 * HOUR),
        network(TRIAL, 7 * HOUR),
        volume(TRIAL, 7 * HOUR),
        image(&format!("{TRIAL}-main:latest"), 7 * HOUR),
        // Each differs slightly from a trial.
        service("hello-world__ab3de7__env", "short-random", "exited", DAY),
        service("hello-world__ab3de7f__environment", "other-end", "exited", DAY),
        service("hello-world__ab3de7f", "no-end", "exited", DAY),
        object(Kind::Container, &format!("{TRIAL}-main-2"), "exited", DAY),
        object(Kind::Network, &format!("{TRIAL}_other"), "present", DAY),
        image("hello-world__ab3de7f__env-main:v1", DAY),
    ];
    let expected = [
        format!("{TRIAL}-main-1 abandoned-trial"),
        format!("{TRIAL}-db-1 ended-trial"),
        format!("{TRIAL}_default trial-network"),
        format!("{TRIAL}_data trial-volume"),
        format!("{TRIAL}-main:latest trial-image"),
    ];
    assert_eq!(scenario.released(inventory.clone()), expected);
    assert_eq!(scenario.lines(inventory).len(), expected.len(), "look-alikes bear no mark");
}

#[test]
fn harbor_spares_what_may_be_alive() {
    let trial = |state: &str, age| service(TRIAL, "trial", state, age);
    let scenario = RecipeScenario::of("harbor");
    assert_eq!(
        scenario.line_of(trial("running", HOUR)),
        "- trial: last changed 1h ago, less than 6h"
    );
    assert_eq!(scenario.line_of(trial("exited", 60)), "- trial: last changed 1m ago, less than 1h");
    assert_eq!(
        scenario.line_of(trial("removing", DAY)),
        "- trial: it is removing, which no rule takes"
    );
    let restarted = Observed { last_active_at: Some(ago(60)), ..trial("running", 9 * DAY) };
    assert_eq!(scenario.line_of(restarted), "- trial: last changed 1m ago, less than 6h");
    let unknown = Observed { last_active_at: None, ..trial("exited", DAY) };
    assert_eq!(scenario.line_of(unknown), "- trial: its age is unknown");
    let unborn = Observed { created_at: None, ..trial("exited", DAY) };
    assert_eq!(scenario.line_of(unborn), "- trial: its age is unknown");
    let future =
        Observed { created_at: Some(now() + Duration::from_secs(60)), ..trial("exited", 0) };
    assert_eq!(scenario.line_of(future), "- trial: its age is in the future");
}

#[test]
fn an_image_without_a_time_of_its_tag_is_spared_however_old_it_seems() {
    let scenario = RecipeScenario::of("harbor");
    let name = format!("{TRIAL}-main:latest");
    let built_now = Observed { tagged_at: Some(ago(2)), ..image(&name, 0) };
    assert_eq!(scenario.line_of(built_now), format!("- {name}: tagged 2s ago, less than 1h"));
    let untold = Observed { tagged_at: None, ..image(&name, 0) };
    let lines = scenario.line_of(untold);
    assert!(
        lines.ends_with("the engine does not report when it was tagged, so its age is unknown")
    );
}

#[test]
fn a_process_of_the_harness_spares_what_it_may_have_created() {
    let trial = || service(TRIAL, "trial", "running", 7 * HOUR);
    let older = RecipeScenario::of("harbor").with(running("harbor", 8 * HOUR));
    let held = "- trial: process 7 (script harbor: `python3 harbor`) may use it";
    assert_eq!(older.line_of(trial()), held);
    // It began after the trial was made, so the trial belongs to another process.
    let younger = RecipeScenario::of("harbor").with(running("harbor", 6 * HOUR));
    assert_eq!(younger.released(vec![trial()]), ["trial abandoned-trial"]);
    let other = RecipeScenario::of("harbor").with(running("harbormaster", 8 * HOUR));
    assert_eq!(other.released(vec![trial()]), ["trial abandoned-trial"]);
    let mut hidden = RecipeScenario::of("harbor");
    hidden.evidence.processes = Processes::Hidden("processes are hidden here".to_owned());
    assert_eq!(hidden.line_of(trial()), "- trial: last changed 7h ago, less than 2d");
}

#[test]
fn on_a_remote_engine_only_a_greater_age_counts() {
    let trial = |age| service(TRIAL, "trial", "running", age);
    let scenario = RecipeScenario::of("harbor").remote();
    assert_eq!(scenario.line_of(trial(DAY)), "- trial: last changed 24h ago, less than 2d");
    assert_eq!(scenario.released(vec![trial(2 * DAY)]), ["trial abandoned-trial"]);
    // A process here proves nothing about trials on another machine.
    let scenario = RecipeScenario::of("harbor").with(running("harbor", 9 * DAY)).remote();
    assert_eq!(scenario.released(vec![trial(2 * DAY)]), ["trial abandoned-trial"]);
    let image = image("tb__hello__client:latest", 90 * DAY);
    let lines = RecipeScenario::of("terminal-bench").remote().line_of(image);
    assert!(lines.contains("it is unknown whether terminal-bench still runs"), "{lines}");
}

#[test]
fn harbor_releases_sandboxes_that_are_idle_for_long() {
    let labels = [
        ("harbor.managed", "true"),
        ("harbor.session_id", "s"),
        ("harbor.environment_name", "hello"),
    ];
    let sandbox = |name: &str, state: &str, age, idle| Observed {
        last_active_at: Some(ago(idle)),
        ..labelled(object(Kind::Sandbox, name, state, age), &labels)
    };
    let mut foreign = object(Kind::Sandbox, "foreign", "started", 9 * DAY);
    foreign.labels.insert("harbor.managed", "false");
    let mut half = object(Kind::Sandbox, "half", "started", 9 * DAY);
    half.labels.insert("harbor.managed", "true");
    let lines = RecipeScenario::of("harbor").lines(vec![
        sandbox("old", "started", 3 * DAY, 2 * DAY),
        sandbox("stopped", "stopped", 25 * HOUR, 0),
        sandbox("busy", "started", 9 * DAY, HOUR),
        sandbox("young", "started", DAY, DAY),
        Observed { last_active_at: None, ..sandbox("untold", "started", 9 * DAY, 0) },
        foreign,
        half,
    ]);
    let expected = [
        "+ old abandoned-sandbox",
        "+ stopped ended-sandbox",
        "- busy: active 1h ago, less than 1d",
        "- young: made 24h ago, less than 2d",
        "- untold: its last activity is unknown",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn inherited_labels_are_no_mark_of_the_harness() {
    let scenario = RecipeScenario::of("harbor");
    let own = service(TRIAL, "own", "exited", DAY);
    // Committed from a trial's container, and run by another user.
    let committed = Observed {
        id: "sha256:committed".to_owned(),
        labels: own.labels.clone(),
        ..image("mine:1", DAY)
    };
    let heir = Observed {
        name: "heir".to_owned(),
        id: "heir".to_owned(),
        uses: vec![(Kind::Image, committed.id.clone())],
        ..own.clone()
    };
    let homeless = Observed {
        name: "homeless".to_owned(),
        id: "homeless".to_owned(),
        uses: vec![(Kind::Image, "sha256:gone".to_owned())],
        ..own.clone()
    };
    let expected = [
        "+ own ended-trial",
        "- heir: its labels may be inherited from its image",
        "- homeless: its image is gone, so its labels may be inherited",
    ];
    assert_eq!(scenario.lines(vec![own, heir, homeless, committed]), expected);
}

#[test]
fn terminal_bench_releases_containers_named_like_their_project() {
    let scenario = RecipeScenario::of("terminal-bench");
    let trial = "hello-world-1-of-1-2026-11-14__10-20-30";
    let client = |project: &str, name: &str, state: &str, age| {
        labelled(service(project, name, state, age), &[("com.docker.compose.service", "client")])
    };
    let inventory = vec![
        client(trial, trial, "running", 7 * HOUR),
        client("fix-2-of-5-mine", "fix-2-of-5-mine", "exited", 2 * HOUR),
        network(trial, 2 * HOUR),
        volume(trial, 2 * HOUR),
        image("tb__hello-world__client:latest", 8 * DAY),
        // A job of another user that numbers its parts.
        client("shard-1-of-4-nightly", "shard-1-of-4-nightly-client-1", "exited", DAY),
        service("shard-1-of-4-nightly", "shard-1-of-4-nightly", "exited", DAY),
        network("shard-1-of-4-nightly", DAY),
        image("tb__hello-world__server:latest", 8 * DAY),
    ];
    let expected = [
        format!("{trial} abandoned-trial"),
        "fix-2-of-5-mine ended-trial".to_owned(),
        format!("{trial}_default trial-network"),
        format!("{trial}_data trial-volume"),
        "tb__hello-world__client:latest task-image".to_owned(),
    ];
    assert_eq!(scenario.released(inventory.clone()), expected);
    assert_eq!(scenario.lines(inventory).len(), expected.len());
    let alive = RecipeScenario::of("terminal-bench").with(running("tb", 8 * HOUR));
    let lines = alive.line_of(client(trial, trial, "running", 7 * HOUR));
    assert!(lines.ends_with("process 7 (script tb: `python3 tb`) may use it"), "{lines}");
    let young = scenario.line_of(image("tb__a__client:latest", DAY));
    assert!(young.ends_with("tagged 24h ago, less than 7d"), "{young}");
}

#[test]
fn compose_releases_projects_that_rest_as_a_whole() {
    let scenario = RecipeScenario::of("compose");
    let inventory = vec![
        service("ended", "ended-web-1", "exited", 8 * DAY),
        service("ended", "ended-db-1", "created", 8 * DAY),
        network("ended", 30 * DAY),
        volume("ended", 30 * DAY),
        service("half", "half-web-1", "exited", 30 * DAY),
        service("half", "half-db-1", "running", 30 * DAY),
        network("half", 30 * DAY),
        service("recent", "recent-web-1", "exited", 30 * DAY),
        service("recent", "recent-db-1", "exited", DAY),
        network("recent", 30 * DAY),
        network("empty", 30 * DAY),
    ];
    let expected = [
        "+ ended-web-1 ended-service",
        "+ ended-db-1 ended-service",
        "+ ended_default unused-network",
        "- half-web-1: half-db-1 of half is running",
        "- half-db-1: it is running, which only --ended takes",
        "- half_default: half-db-1 of half is running",
        "- recent-web-1: recent-db-1 ran 24h ago, less than 7d",
        "- recent-db-1: last changed 24h ago, less than 7d",
        "- recent_default: recent-db-1 ran 24h ago, less than 7d",
        "+ empty_default unused-network",
    ];
    assert_eq!(scenario.lines(inventory), expected);
    // From an image that Compose built: it has the project, but no number.
    let heir = labelled(
        object(Kind::Container, "heir", "exited", 30 * DAY),
        &[("com.docker.compose.project", "ended")],
    );
    assert_eq!(scenario.line_of(heir), "");
}

#[test]
fn testcontainers_releases_sessions_whose_reaper_is_gone() {
    let scenario = RecipeScenario::of("testcontainers");
    let of = |kind, name: &str, state: &str, age, key: &str, session: &str| {
        let labels = [("org.testcontainers", "true"), (key, session)];
        labelled(object(kind, name, state, age), &labels)
    };
    let (java, python) = ("org.testcontainers.sessionId", "org.testcontainers.session-id");
    let container = |name: &str, state: &str, age, key: &str, session: &str| {
        of(Kind::Container, name, state, age, key, session)
    };
    let reused = labelled(
        container("reused", "running", 9 * DAY, java, "dead"),
        &[("org.testcontainers.hash", "h")],
    );
    let inventory = vec![
        container("db", "exited", 2 * HOUR, java, "dead"),
        container("kafka", "running", 25 * HOUR, python, "dead"),
        container("fresh", "running", 2 * HOUR, java, "dead"),
        of(Kind::Network, "net", "present", 25 * HOUR, java, "dead"),
        of(Kind::Volume, "vol", "named", 2 * HOUR, python, "quiet"),
        // Two sessions that are still active, one of them with the reaper name that Go uses.
        object(Kind::Container, "testcontainers-ryuk-live", "running", 25 * HOUR),
        container("live-db", "running", 25 * HOUR, python, "live"),
        of(Kind::Network, "live-net", "present", 25 * HOUR, python, "live"),
        object(Kind::Container, "reaper_going", "running", 25 * HOUR),
        container("going-db", "exited", 25 * HOUR, java, "going"),
        // The session is unknown.
        labelled(
            object(Kind::Container, "bare", "exited", 9 * DAY),
            &[("org.testcontainers", "true")],
        ),
        reused,
        image("localhost/testcontainers/abcdefgh12345678:latest", 25 * HOUR),
        image("localhost/testcontainers-mine:latest", 25 * HOUR),
    ];
    let expected = [
        "+ db ended-container",
        "+ kafka abandoned-container",
        "- fresh: last changed 2h ago, less than 1d",
        "+ net abandoned-session",
        "+ vol quiet-session",
        "- live-db: testcontainers-ryuk-live is running: its session may go on",
        "- live-net: testcontainers-ryuk-live is running: its session may go on",
        "- going-db: reaper_going is running: its session may go on",
        "+ localhost/testcontainers/abcdefgh12345678:latest built-image",
    ];
    assert_eq!(scenario.lines(inventory), expected);
}

#[test]
fn a_keeper_is_also_known_by_its_label() {
    let scenario = RecipeScenario::of("testcontainers");
    let labels = [("org.testcontainers", "true"), ("org.testcontainers.sessionId", "s")];
    let keeper = labelled(
        labelled(object(Kind::Container, "any-name", "running", DAY), &labels),
        &[("org.testcontainers.ryuk", "true")],
    );
    let db = labelled(object(Kind::Container, "db", "exited", DAY), &labels);
    assert_eq!(scenario.released(vec![keeper.clone(), db.clone()]), [""; 0]);
    let ended = Observed { state: "exited".to_owned(), ..keeper };
    assert_eq!(scenario.released(vec![ended, db]).len(), 2);
}

#[test]
fn swe_bench_releases_evaluations_and_images_built_here() {
    let scenario = RecipeScenario::of("swe-bench");
    let container = |name: &str, state: &str, age| object(Kind::Container, name, state, age);
    let inventory = vec![
        container("sweb.eval.django__django-11099.gold", "running", 7 * HOUR),
        container("sweb.eval.astropy__astropy-12907.my.run", "exited", 2 * HOUR),
        image("sweb.eval.x86_64.django__django-11099:latest", 8 * DAY),
        image("sweb.eval.arm64.astropy_1776_astropy-12907:latest", 8 * DAY),
        // From a registry; named by a user; without a run; not an instance; also kept by name.
        image("swebench/sweb.eval.x86_64.django_1776_django-11099:latest", 8 * DAY),
        container("my-sweb.eval.django__django-11099.gold", "exited", DAY),
        container("sweb.eval.django__django-11099", "exited", DAY),
        container("sweb.eval.dashboard", "exited", DAY),
        Observed {
            tags: vec!["sweb.eval.x86_64.a__a-1:latest".to_owned(), "mine:keep".to_owned()],
            ..image("sweb.eval.x86_64.a__a-1:latest", 8 * DAY)
        },
    ];
    let expected = [
        "sweb.eval.django__django-11099.gold abandoned-evaluation",
        "sweb.eval.astropy__astropy-12907.my.run ended-evaluation",
        "sweb.eval.x86_64.django__django-11099:latest instance-image",
        "sweb.eval.arm64.astropy_1776_astropy-12907:latest instance-image",
    ];
    assert_eq!(scenario.released(inventory.clone()), expected);
    assert_eq!(scenario.lines(inventory).len(), expected.len());
    let alive =
        RecipeScenario::of("swe-bench").with(running("swebench.harness.run_evaluation", 8 * HOUR));
    assert_eq!(alive.released(vec![container("sweb.eval.a__a-1.r", "running", 7 * HOUR)]), [""; 0]);
}

#[test]
fn inspect_releases_its_samples_and_spares_look_alikes() {
    let scenario = RecipeScenario::of("inspect");
    let project = "inspect-ctf_easy-iabc123";
    let inventory = vec![
        service(project, &format!("{project}-default-1"), "running", 25 * HOUR),
        service(project, &format!("{project}-victim-1"), "exited", 7 * HOUR),
        network(project, 7 * HOUR),
        volume(project, 7 * HOUR),
        image(&format!("{project}-default:latest"), 25 * HOUR),
        service("inspect-ctf-abc123", "other-random", "exited", 9 * DAY),
        service("my-inspect-ctf-iabc123", "prefixed", "exited", 9 * DAY),
        service("inspect-ctf-iabc12", "short", "exited", 9 * DAY),
        network("inspector-x-iabc123", 9 * DAY),
        image("inspect-computer-tool:latest", 90 * DAY),
    ];
    let expected = [
        format!("{project}-default-1 abandoned-sample"),
        format!("{project}-victim-1 ended-sample"),
        format!("{project}_default sample-network"),
        format!("{project}_data sample-volume"),
        format!("{project}-default:latest sample-image"),
    ];
    assert_eq!(scenario.released(inventory.clone()), expected);
    assert_eq!(scenario.lines(inventory).len(), expected.len());
    let alive = RecipeScenario::of("inspect").with(running("inspect", 26 * HOUR));
    assert_eq!(alive.released(vec![service(project, "c", "running", 25 * HOUR)]), [""; 0]);
}

#[test]
fn openhands_spares_everything_while_any_openhands_runs() {
    let uuid = "agent-server-0f2ce279-55d2-4de5-a2dd-c958ea1c8e28";
    let runtime = |name: &str, state: &str, age| object(Kind::Container, name, state, age);
    let inventory = || {
        vec![
            runtime("openhands-runtime-4f1d", "running", 25 * HOUR),
            runtime("oh-agent-server-4Xy7Zq", "paused", 8 * DAY),
            runtime(uuid, "exited", 8 * DAY),
            object(Kind::Volume, "openhands-workspace-oh-agent-server-4Xy7Zq", "named", 8 * DAY),
            runtime("openhands-app", "exited", 30 * DAY),
            runtime("agent-server-prod", "running", 30 * DAY),
            runtime("my-openhands-runtime-1", "exited", 30 * DAY),
            object(Kind::Volume, "openhands-workspace-mine", "named", 30 * DAY),
        ]
    };
    let expected = [
        "openhands-runtime-4f1d abandoned-runtime",
        "oh-agent-server-4Xy7Zq resting-runtime",
        &format!("{uuid} resting-runtime"),
        "openhands-workspace-oh-agent-server-4Xy7Zq workspace",
    ];
    let scenario = RecipeScenario::of("openhands");
    assert_eq!(scenario.released(inventory()), expected);
    assert_eq!(scenario.lines(inventory()).len(), expected.len());
    let rests = scenario.line_of(runtime("openhands-runtime-1", "exited", 6 * DAY));
    assert!(rests.ends_with("last changed 6d ago, less than 7d"), "{rests}");
    // A server that began a moment ago continues with all of them.
    let server = || running("openhands.server.listen:app", 1);
    assert_eq!(RecipeScenario::of("openhands").with(server()).released(inventory()), [""; 0]);
    // A process inside a runtime is not its owner.
    let inside =
        RunningProcess { container: Some("id-openhands-runtime-4f1d".to_owned()), ..server() };
    assert_eq!(
        RecipeScenario::of("openhands").with(inside).released(inventory()).len(),
        expected.len()
    );
}

#[test]
fn a_clock_that_is_set_forward_finishes_no_live_trial() {
    // The harness has run for two hours and its trial for one when the clock is set forward by a
    // day.
    let step = Duration::from_secs(DAY);
    let trial = |state: &str| {
        let created = ago(DAY + HOUR);
        let seen = service(TRIAL, "trial", state, 0);
        Observed { created_at: Some(created), last_active_at: Some(created), ..seen }
    };
    let scenario = |age: u64| {
        let mut scenario = RecipeScenario::of("harbor").with(running("harbor", age));
        let present = Reading { wall: now(), boot: Duration::from_secs(UPTIME) };
        scenario.evidence.clocks = Clocks::new(present);
        let boot = Reading { wall: ago(UPTIME) - step, boot: Duration::ZERO };
        scenario.evidence.clocks.add(boot);
        scenario
    };
    let lines = scenario(2 * HOUR).line_of(trial("running"));
    assert!(lines.contains("may use it"), "{lines}");
    let lines = scenario(0).line_of(trial("running"));
    let young = "- trial: last changed 1h ago by the time since boot, for the clock was set \
                 forward, less than 6h";
    assert_eq!(lines, young);
    // If nothing shows the step and the engine began after it, the age is unknown.
    let mut blind = scenario(2 * HOUR);
    blind.evidence.clocks = Clocks::new(Reading { wall: now(), boot: Duration::from_secs(UPTIME) });
    let lines = blind.line_of(trial("running"));
    assert!(lines.contains("may use it"), "{lines}");
}

#[test]
fn a_script_that_runs_the_harness_as_a_library_spares_what_it_may_have_created() {
    let trial = || service(TRIAL, "trial", "running", 7 * HOUR);
    let script = || running("bench", 8 * HOUR);
    assert_eq!(
        RecipeScenario::of("harbor").with(script()).released(vec![trial()]),
        ["trial abandoned-trial"]
    );
    let lines = RecipeScenario::of("harbor").connected(script()).line_of(trial());
    let held = "- trial: process 7 (program python3: `python3 bench`) is connected to the engine \
                and may use it";
    assert_eq!(lines, held);
    let younger = RecipeScenario::of("harbor").connected(running("bench", 6 * HOUR));
    assert_eq!(younger.released(vec![trial()]), ["trial abandoned-trial"]);
    let mut other = script();
    other.runs = vec![ProgramName { how: RunAs::Program, name: "portainer".to_owned() }];
    assert_eq!(RecipeScenario::of("harbor").connected(other).released(vec![trial()]).len(), 1);
}

#[test]
fn a_process_in_the_directory_of_a_trial_spares_it() {
    let trial = service(TRIAL, "trial", "running", 7 * HOUR);
    let using = |file: &str| {
        let mut script = running("bench", 8 * HOUR);
        script.handles = Some(Handles { files: vec![PathBuf::from(file)], ..Handles::default() });
        let mut scenario = RecipeScenario::of("harbor").with(script);
        let directories = vec![PathBuf::from("/jobs/one/verifier")];
        let in_use = InUse { directories, ..InUse::default() };
        scenario.evidence.in_use.insert(trial.id.clone(), in_use);
        scenario.line_of(trial.clone())
    };
    let lines = using("/jobs/one/verifier/reward.txt");
    assert!(
        lines.ends_with("uses /jobs/one/verifier/reward.txt, which is its directory"),
        "{lines}"
    );
    assert!(using("/jobs/two/log").starts_with("+ "));
}

#[test]
fn a_command_inside_counts_only_if_a_client_may_wait_for_it() {
    let trial = service(TRIAL, "trial", "running", 7 * HOUR);
    let inside = |mut scenario: RecipeScenario| {
        let in_use = InUse { sessions: 1, ..InUse::default() };
        scenario.evidence.in_use.insert(trial.id.clone(), in_use);
        scenario.line_of(trial.clone())
    };
    let lines = inside(RecipeScenario::of("harbor").connected(running("anything", 60)));
    assert!(lines.contains("a command runs inside, and process 7"), "{lines}");
    assert!(inside(RecipeScenario::of("harbor")).starts_with("+ "));
}

#[test]
fn what_cannot_be_seen_requires_a_greater_age_and_is_reported() {
    let trial = |age| service(TRIAL, "trial", "running", age);
    let mut other = running("bench", 9 * DAY);
    other.handles = None;
    let scenario = RecipeScenario::of("harbor").with(other);
    let lines = scenario.line_of(trial(DAY));
    assert_eq!(lines, "- trial: last changed 24h ago, less than 2d");
    assert_eq!(scenario.released(vec![trial(3 * DAY)]), ["trial abandoned-trial"]);
    let inventory = [trial(3 * DAY), {
        let id = IMAGE.to_owned();
        Observed { id, ..object(Kind::Image, "debian:12", "tagged", DAY) }
    }];
    let around =
        RecipeContext { inventory: &inventory, evidence: &scenario.evidence, ended: false };
    let findings = scenario.recipe.judge("harbor", &around);
    let RecipeVerdict::Finished(proof) = &findings.of(&inventory[0]).unwrap().verdict else {
        panic!()
    };
    let unchecked =
        ["processes that may use it: what a process of another user does cannot be seen"];
    assert_eq!(proof.not_checked, unchecked);
    assert!(proof.to_string().contains("; not checked: processes that may use it"), "{proof}");
}

#[test]
fn a_user_who_vouches_needs_no_other_proof_but_marks_still_count() {
    let scenario = RecipeScenario::of("harbor").with(running("harbor", 8 * HOUR)).ended();
    let inventory = vec![
        service(TRIAL, "trial", "running", 5),
        network(TRIAL, 5),
        image(&format!("{TRIAL}-main:latest"), 5),
        service("hello-world__ab3de7__env", "look-alike", "running", 9 * DAY),
    ];
    let released = scenario.released(inventory.clone());
    assert_eq!(released.len(), 3, "{released:?}");
    let around = RecipeContext { inventory: &inventory, evidence: &scenario.evidence, ended: true };
    let findings = scenario.recipe.judge("harbor", &around);
    assert_eq!(findings.still_running, ["process 7 (script harbor: `python3 harbor`)"]);
    // A cloud organisation is shared: no user can vouch for all of its sandboxes.
    let managed = [("harbor.managed", "true"), ("harbor.session_id", "s")];
    let sandbox = labelled(object(Kind::Sandbox, "theirs", "started", 5), &managed);
    assert_eq!(scenario.released(vec![sandbox]), [""; 0]);
    // A running reaper proves that a client is alive.
    let scenario = RecipeScenario::of("testcontainers").ended();
    let labels = [("org.testcontainers", "true"), ("org.testcontainers.sessionId", "s")];
    let db = labelled(object(Kind::Container, "db", "running", 5), &labels);
    let ryuk = object(Kind::Container, "testcontainers-ryuk-s", "running", 5);
    assert_eq!(scenario.released(vec![db.clone(), ryuk]), [""; 0]);
    assert_eq!(scenario.released(vec![db]), ["db abandoned-container"]);
}

#[test]
fn a_project_that_was_killed_goes_when_the_user_vouches_for_it() {
    let inventory =
        vec![service("job", "job-web-1", "running", 5), network("job", 5), volume("job", 5)];
    let ended = RecipeScenario::of("compose").ended();
    let expected = ["job-web-1 vouched-service", "job_default unused-network"];
    assert_eq!(ended.released(inventory), expected);
}

#[test]
fn an_image_without_a_name_is_known_by_the_labels_of_its_project() {
    let untagged = |project: &str, age: u64| {
        let labels =
            [("com.docker.compose.project", project), ("com.docker.compose.service", "main")];
        let seen = labelled(object(Kind::Image, "untagged", "dangling", age), &labels);
        Observed { tags: Vec::new(), ..seen }
    };
    let scenario = RecipeScenario::of("harbor");
    assert_eq!(scenario.released(vec![untagged(TRIAL, 2 * HOUR)]), ["untagged untagged-image"]);
    assert_eq!(scenario.released(vec![untagged("mine", 9 * DAY)]), [""; 0]);
    let named = Observed { state: "tagged".to_owned(), ..untagged(TRIAL, 9 * DAY) };
    assert_eq!(scenario.released(vec![named]), [""; 0]);
}

#[test]
fn a_run_with_a_custom_name_is_recognised_by_the_image_of_its_task() {
    let scenario = RecipeScenario::of("terminal-bench");
    let project = "hello-world-1-of-1-mine";
    let left = || {
        let side = service(project, "side", "running", 7 * HOUR);
        vec![network(project, 2 * HOUR), volume(project, 2 * HOUR), side]
    };
    assert_eq!(scenario.released(left()), [""; 0]);
    let with_image = [left(), vec![image("tb__hello-world__client:latest", 2 * HOUR)]].concat();
    let expected = [
        format!("{project}_default named-run"),
        format!("{project}_data named-run"),
        "side abandoned-service".to_owned(),
    ];
    assert_eq!(scenario.released(with_image), expected);
    let others = [left(), vec![image("tb__hello__client:latest", 2 * HOUR)]].concat();
    assert_eq!(scenario.released(others), [""; 0]);
}
