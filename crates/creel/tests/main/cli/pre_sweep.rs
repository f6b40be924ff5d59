//! `creel guard --pre-sweep`: what earlier runs left goes before the command starts.

use creel_testkit::creel::Output;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};

use super::bench::Bench;

/// An engine of the test's own: the preset means what anybody left.
struct Site {
    private: PrivateEngine,
    bench: Bench,
}

impl Site {
    fn new() -> Self {
        let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let bench = Bench::on(private.engine());
        Self { private, bench }
    }

    /// Runs a guard whose command lists the containers it finds, then ends with 3.
    fn guard(&self, flags: &str) -> Output {
        let listing = "docker ps -a --format '{{.Names}}' | sort; exit 3";
        let words = ["guard"].into_iter().chain(flags.split_whitespace());
        let words = words.chain(["--", "sh", "-c", listing]);
        let path = std::env::var("PATH").unwrap();
        self.bench.creel().env("PATH", path).run(words)
    }

    fn stop(self) {
        drop(self.bench);
        self.private.stop().unwrap();
    }
}

#[test]
fn what_earlier_runs_left_is_gone_when_the_command_starts() {
    let site = Site::new();
    site.bench.exited("-out");
    site.bench.running("-run");
    site.bench.created("-new");
    let output = site.guard("--pre-sweep").expect_code(3);
    let stays = [site.bench.named("-new"), site.bench.named("-run")];
    assert_eq!(output.stdout.lines().collect::<Vec<_>>(), stays, "{output}");
    assert!(output.stderr.contains("preset:default/stopped"), "{output}");
    assert!(output.stderr.contains("before the command: 1 gone"), "{output}");
    assert_eq!(site.bench.there(), ["c-new", "c-run"]);
    site.stop();
}

#[test]
fn without_the_flag_nothing_is_swept_and_its_options_need_it() {
    let site = Site::new();
    site.bench.exited("-out");
    let output = site.guard("").expect_code(3);
    assert_eq!(output.stdout.trim(), site.bench.named("-out"), "{output}");
    for flags in ["--older-than 1d", "--recipe harbor"] {
        let output = site.guard(flags).expect_code(2);
        assert!(output.stderr.contains("--pre-sweep"), "{output}");
        assert_eq!(output.stdout, "");
    }
    assert_eq!(site.bench.there(), ["c-out"]);
    site.stop();
}

#[test]
fn an_age_spares_what_is_younger_and_a_recipe_has_its_own_rules() {
    let site = Site::new();
    site.bench.exited("-out");
    let output = site.guard("--pre-sweep --older-than 1d").expect_code(3);
    assert_eq!(output.stdout.trim(), site.bench.named("-out"), "{output}");
    assert!(output.stderr.contains("before the command: 0 gone"), "{output}");
    let recipes = site.bench.state().join("recipes");
    std::fs::create_dir_all(&recipes).unwrap();
    let mine = format!(
        "summary = \"mine\"\n[[rule]]\nname = \"left\"\nkinds = [\"container\"]\n\
         object = '{}-run'\nstates = [\"running\"]\nolder_than = \"0s\"\n",
        site.bench.name
    );
    std::fs::write(recipes.join("mine.toml"), mine).unwrap();
    site.bench.running("-run");
    let young = site.guard("--pre-sweep --recipe mine --older-than 1d").expect_code(3);
    assert_eq!(young.stdout.lines().count(), 2, "{young}");
    let output = site.guard("--pre-sweep --recipe mine").expect_code(3);
    assert_eq!(output.stdout.trim(), site.bench.named("-out"), "{output}");
    assert!(output.stderr.contains("recipe:mine/left"), "{output}");
    let unknown = site.guard("--pre-sweep --recipe absent").expect_code(125);
    assert!(unknown.stderr.contains("unknown recipe `absent`"), "{unknown}");
    assert_eq!(unknown.stdout, "");
    site.stop();
}

#[test]
fn what_must_not_go_is_said_and_the_command_runs_all_the_same() {
    let site = Site::new();
    site.bench.exited("-keep");
    site.bench.exited("-out");
    let protect = format!("[[protect]]\nname = \"{}-keep\"\n", site.bench.name);
    site.bench.configure(&protect);
    let output = site.guard("--pre-sweep").expect_code(3);
    assert_eq!(output.stdout.trim(), site.bench.named("-keep"), "{output}");
    assert!(output.stderr.contains("protected by the rule"), "{output}");
    assert!(output.stderr.contains("before the command: 1 gone, 1 spared"), "{output}");

    site.bench.configure("[release]\nmax = 1\n");
    site.bench.exited("-more");
    let output = site.guard("--pre-sweep").expect_code(3);
    assert!(output.stderr.contains("more than the cap of 1"), "{output}");
    assert_eq!(output.stdout.lines().count(), 2, "{output}");
    site.stop();
}

#[test]
fn a_provider_that_does_not_answer_keeps_the_command_from_starting() {
    let nowhere = tempfile::tempdir().unwrap();
    let bench = Bench::on(Engine::at(nowhere.path().join("absent.sock")));
    let mark = bench.path("mark");
    let output = bench.creel().run(["guard", "--pre-sweep", "--", "touch", mark.to_str().unwrap()]);
    output.clone().expect_code(125);
    assert!(output.stderr.contains("error[CR0020]"), "{output}");
    assert!(!mark.exists(), "{output}");
}
