//! `creel guard --pre-sweep`: leftovers of earlier runs are released before the command starts.

use creel_testkit::creel::Output;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};

use super::fixture::CliFixture;

/// A private engine, because the preset selects leftovers of any user.
struct PreSweepFixture {
    private: PrivateEngine,
    cli: CliFixture,
}

impl PreSweepFixture {
    fn new() -> Self {
        let private = PrivateEngine::start_temporary(EngineOptions::default()).unwrap();
        let cli = CliFixture::on(private.engine());
        Self { private, cli }
    }

    /// Runs a guard whose command lists the containers it finds, then exits with 3.
    fn guard(&self, flags: &str) -> Output {
        let listing = "docker ps -a --format '{{.Names}}' | sort; exit 3";
        let args = ["guard"].into_iter().chain(flags.split_whitespace());
        let args = args.chain(["--", "sh", "-c", listing]);
        let path = std::env::var("PATH").unwrap();
        self.cli.creel().env("PATH", path).run(args)
    }

    fn stop(self) {
        drop(self.cli);
        self.private.stop().unwrap();
    }
}

#[test]
fn leftovers_of_earlier_runs_are_gone_when_the_command_starts() {
    let fixture = PreSweepFixture::new();
    fixture.cli.exited("-out");
    fixture.cli.running("-run");
    fixture.cli.created("-new");
    let output = fixture.guard("--pre-sweep").expect_code(3);
    let stays = [fixture.cli.named("-new"), fixture.cli.named("-run")];
    assert_eq!(output.stdout.lines().collect::<Vec<_>>(), stays, "{output}");
    assert!(output.stderr.contains("preset:default/stopped"), "{output}");
    assert!(output.stderr.contains("before the command: 1 gone"), "{output}");
    assert_eq!(fixture.cli.there(), ["c-new", "c-run"]);
    fixture.stop();
}

#[test]
fn without_the_flag_nothing_is_swept_and_its_options_need_it() {
    let fixture = PreSweepFixture::new();
    fixture.cli.exited("-out");
    let output = fixture.guard("").expect_code(3);
    assert_eq!(output.stdout.trim(), fixture.cli.named("-out"), "{output}");
    for flags in ["--older-than 1d", "--recipe harbor"] {
        let output = fixture.guard(flags).expect_code(2);
        assert!(output.stderr.contains("--pre-sweep"), "{output}");
        assert_eq!(output.stdout, "");
    }
    assert_eq!(fixture.cli.there(), ["c-out"]);
    fixture.stop();
}

#[test]
fn an_age_spares_younger_objects_and_a_recipe_has_its_own_rules() {
    let fixture = PreSweepFixture::new();
    fixture.cli.exited("-out");
    let output = fixture.guard("--pre-sweep --older-than 1d").expect_code(3);
    assert_eq!(output.stdout.trim(), fixture.cli.named("-out"), "{output}");
    assert!(output.stderr.contains("before the command: 0 gone"), "{output}");
    let recipes = fixture.cli.state().join("recipes");
    std::fs::create_dir_all(&recipes).unwrap();
    let mine = format!(
        "summary = \"mine\"\n[[rule]]\nname = \"left\"\nkinds = [\"container\"]\n\
         object = '{}-run'\nstates = [\"running\"]\nolder_than = \"0s\"\n",
        fixture.cli.name
    );
    std::fs::write(recipes.join("mine.toml"), mine).unwrap();
    fixture.cli.running("-run");
    let young = fixture.guard("--pre-sweep --recipe mine --older-than 1d").expect_code(3);
    assert_eq!(young.stdout.lines().count(), 2, "{young}");
    let output = fixture.guard("--pre-sweep --recipe mine").expect_code(3);
    assert_eq!(output.stdout.trim(), fixture.cli.named("-out"), "{output}");
    assert!(output.stderr.contains("recipe:mine/left"), "{output}");
    let unknown = fixture.guard("--pre-sweep --recipe absent").expect_code(125);
    assert!(unknown.stderr.contains("unknown recipe `absent`"), "{unknown}");
    assert_eq!(unknown.stdout, "");
    fixture.stop();
}

#[test]
fn spared_objects_are_reported_and_the_command_still_runs() {
    let fixture = PreSweepFixture::new();
    fixture.cli.exited("-keep");
    fixture.cli.exited("-out");
    let protect = format!("[[protect]]\nname = \"{}-keep\"\n", fixture.cli.name);
    fixture.cli.configure(&protect);
    let output = fixture.guard("--pre-sweep").expect_code(3);
    assert_eq!(output.stdout.trim(), fixture.cli.named("-keep"), "{output}");
    assert!(output.stderr.contains("protected by the rule"), "{output}");
    assert!(output.stderr.contains("before the command: 1 gone, 1 spared"), "{output}");

    fixture.cli.configure("[release]\nmax = 1\n");
    fixture.cli.exited("-more");
    let output = fixture.guard("--pre-sweep").expect_code(3);
    assert!(output.stderr.contains("more than the cap of 1"), "{output}");
    assert_eq!(output.stdout.lines().count(), 2, "{output}");
    fixture.stop();
}

#[test]
fn an_unresponsive_provider_prevents_the_command_from_starting() {
    let nowhere = tempfile::tempdir().unwrap();
    let cli = CliFixture::on(Engine::at(nowhere.path().join("absent.sock")));
    let mark = cli.path("mark");
    let output = cli.creel().run(["guard", "--pre-sweep", "--", "touch", mark.to_str().unwrap()]);
    output.clone().expect_code(125);
    assert!(output.stderr.contains("error[CR0020]"), "{output}");
    assert!(!mark.exists(), "{output}");
}
