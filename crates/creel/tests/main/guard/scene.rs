//! Where a guard is tried: an engine that nobody else uses, and a home.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use creel_testkit::creel::{Creel, Output, Running};
use creel_testkit::docker::{Docker, concurrently};
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::wait::{eventually, eventually_some};
use creel_testkit::world::{Inventory, Kind, World};
use serde_json::Value;

use crate::support::{Home, PATIENCE, text_of};

/// What a guard says on standard error besides what its command says.
const OWN_WORDS: [&str; 3] = ["released ", "asked the command to end", "also released "];

/// How long one script may take on a loaded machine.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(60);

/// Sends one request to the engine as it is given.
const API: &str = r#"
import http.client, os, socket, sys
connection = http.client.HTTPConnection("docker")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(os.environ["DOCKER_HOST"][len("unix://"):])
connection.request("POST", sys.argv[1], sys.argv[2], {"Content-Type": "application/json"})
print(connection.getresponse().status)
"#;

/// An engine, a home, and what was there before.
pub(crate) struct Scene {
    pub(crate) home: Home,
    baseline: Inventory,
    // The last field: the engine must outlive what is removed from it.
    pub(crate) engine: PrivateEngine,
}

impl Scene {
    pub(crate) fn set_up() -> Self {
        Self::with(EngineOptions::default())
    }

    /// Starts an engine that differs from the usual one.
    pub(crate) fn with(options: EngineOptions) -> Self {
        let engine = PrivateEngine::start_temporary(options).unwrap();
        let mut home = Home::on(&engine.engine());
        home.creel = home.creel.clone().deadline(SCRIPT_PATIENCE);
        let baseline = World::snapshot(&engine.engine()).unwrap();
        Self { home, baseline, engine }
    }

    pub(crate) fn engine(&self) -> Engine {
        self.engine.engine()
    }

    pub(crate) fn docker(&self) -> Docker {
        self.engine().docker()
    }

    /// Takes what is there now as given.
    pub(crate) fn remember(&mut self) {
        self.baseline = World::snapshot(&self.engine()).unwrap();
    }

    /// Returns a shell with the same environment, and no guard.
    pub(crate) fn shell(&self) -> Creel {
        let directory = self.home.path("");
        let shell = Creel::new("/bin/sh", directory, self.engine().host());
        shell.deadline(SCRIPT_PATIENCE)
    }

    /// Runs a script without a guard.
    #[track_caller]
    pub(crate) fn direct(&self, script: &str) -> Output {
        self.shell().run(["-c", &at_home(script)])
    }

    /// Runs a script without a guard, which must succeed, and returns what it printed.
    #[track_caller]
    pub(crate) fn outside(&self, script: &str) -> String {
        self.direct(&format!("set -e\n{script}")).expect_code(0).stdout.trim().to_owned()
    }

    /// Runs a script behind a guard.
    #[track_caller]
    pub(crate) fn guarded(&self, script: &str) -> Output {
        self.guarded_with(&[], script)
    }

    /// Runs a script behind a guard that has flags of its own.
    #[track_caller]
    pub(crate) fn guarded_with(&self, flags: &[&str], script: &str) -> Output {
        self.start(flags, script).wait()
    }

    /// Starts a guard.
    pub(crate) fn start(&self, flags: &[&str], script: &str) -> Running {
        let script = at_home(script);
        let words = [&["guard"], flags, &["--", "sh", "-c", &script]].concat();
        self.home.creel.spawn(words)
    }

    /// Returns where a script of this test writes something.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    /// Gives the docker CLI of this home Compose and Buildx.
    pub(crate) fn add_plugins(&self) {
        let configuration = part("CREEL_TEST_DOCKER_CONFIG");
        fs::create_dir(self.path(".docker")).unwrap();
        symlink(configuration.join("cli-plugins"), self.path(".docker/cli-plugins")).unwrap();
    }

    /// Puts a program into the home that sends one request as it is given, where the CLI would
    /// say it in another way: `python3 api.py PATH BODY` prints the status.
    pub(crate) fn write_api(&self) {
        fs::write(self.path("api.py"), API).unwrap();
    }

    /// Waits for the text that a script writes to a file when it has come that far.
    #[track_caller]
    pub(crate) fn await_word(&self, name: &str) -> String {
        let path = self.path(name);
        let word = eventually_some(PATIENCE, || {
            Some(text_of(&path).trim().to_owned()).filter(|text| !text.is_empty())
        });
        word.unwrap_or_else(|| panic!("the script did not come to {name}"))
    }

    /// Waits until a file that a script writes to contains this text.
    #[track_caller]
    pub(crate) fn await_text(&self, name: &str, text: &str) {
        let path = self.path(name);
        let is_there = eventually(PATIENCE, || text_of(&path).contains(text));
        assert!(is_there, "{text:?} is not in {name}: {}", text_of(&path));
    }

    /// Returns the lines that a guard wrote with `--events`.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns everything that is there and was not before, one line for each thing.
    pub(crate) fn left(&self) -> Vec<String> {
        let world = World::snapshot(&self.engine()).unwrap().minus(&self.baseline);
        let mut left: Vec<String> = world.objects().map(|one| format!("{one:?}")).collect();
        left.extend(self.home.on_machine());
        left
    }

    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
        let open = self.home.open_records();
        assert!(open.is_empty(), "still open: {open:#?}");
    }

    /// Removes what scripts left on the engine.
    pub(crate) fn clear(&self) {
        let docker = self.docker();
        // Twice for images: what others are built on goes only after them.
        for kind in [Kind::Container, Kind::Network, Kind::Volume, Kind::Image, Kind::Image] {
            let left = World::snapshot(&self.engine()).unwrap().minus(&self.baseline);
            let ids = left.of_kind(kind).ids();
            let removed = concurrently(&ids, 4, |id| match kind {
                Kind::Container => docker.remove_container(id),
                Kind::Network => docker.remove_network(id),
                Kind::Volume => docker.remove_volume(id),
                Kind::Image => docker.remove_image(id).or(Ok(())),
            });
            removed.unwrap();
        }
        self.outside("docker builder prune --all --force");
        let left = World::snapshot(&self.engine()).unwrap().minus(&self.baseline);
        assert!(left.is_empty(), "cannot be cleared: {left:?}");
    }

    /// Checks that a script says and does the same with a guard as without, and that nothing of
    /// it is left after the guard. Returns what it said and did without.
    #[track_caller]
    pub(crate) fn assert_same(&self, script: &str) -> Output {
        let direct = self.direct(script);
        self.clear();
        let guarded = self.guarded(script);
        assert_eq!(
            (&told(&guarded.stdout), told(&own_words_out(&guarded.stderr)), guarded.code()),
            (&told(&direct.stdout), told(&direct.stderr), direct.code()),
            "\nthe script:\n{script}\n"
        );
        self.assert_nothing_left();
        direct
    }
}

/// Returns where a part of the suite is; one that is missing is never skipped.
pub(crate) fn part(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from).unwrap_or_default();
    assert!(
        path.exists(),
        "{variable} names nothing: run the tests with `cargo xtask test`, or install the parts with \
         `cargo xtask parts` and type the export lines it prints"
    );
    path
}

/// Returns a script that leaves its files in the home.
fn at_home(script: &str) -> String {
    format!("cd\n{script}")
}

/// Returns what a command said itself.
fn own_words_out(stderr: &str) -> String {
    let is_own = |line: &&str| OWN_WORDS.iter().any(|words| line.starts_with(words));
    stderr.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n")).collect()
}

/// Returns a text in which ids and times are all alike.
pub(crate) fn told(text: &str) -> String {
    let mut told = String::new();
    for word in text.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric()) {
        let end = word.len() - usize::from(!word.ends_with(|l: char| l.is_ascii_alphanumeric()));
        let (word, after) = word.split_at(end);
        let is_id = word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        told.push_str(if is_id { "ID" } else { word });
        told.push_str(after);
    }
    told
}
