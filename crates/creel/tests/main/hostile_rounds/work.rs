//! What creel is asked to do in a round, and how it is killed.

use std::fs;
use std::thread;
use std::time::Duration;

use creel_testkit::creel::{Creel, Running};

use super::arena::Place;
use crate::support::kill;

/// The variable that carries the planted secret.
const TOKEN: &str = "HOSTILE_TOKEN";

/// What creel is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A command behind a guard that makes one of everything by names that others know.
    Guard,
    /// A run in a process tree whose agent prints the secret.
    ProcessRun,
    /// A run in a process tree whose agent fills the disk.
    GreedyRun,
    /// A run in a container.
    ContainerRun,
    /// The library's own supervised resources.
    Hold,
    /// A run in a sandbox of Daytona.
    SandboxRun,
    /// Supervised sandboxes of Daytona.
    SandboxHold,
}

impl Work {
    pub(super) const ALL: [Self; 7] = [
        Self::Guard,
        Self::ProcessRun,
        Self::GreedyRun,
        Self::ContainerRun,
        Self::Hold,
        Self::SandboxRun,
        Self::SandboxHold,
    ];

    /// Returns whether it has sandboxes of Daytona.
    pub(super) fn is_remote(self) -> bool {
        matches!(self, Self::SandboxRun | Self::SandboxHold)
    }

    /// Starts it.
    pub(super) fn start(self, place: &Place, creel: &Creel, names: &Names) -> Running {
        let creel = creel.clone().env(TOKEN, &names.secret);
        match self {
            Self::Guard => {
                let script = guarded_script(names);
                creel.spawn(["guard", "--", "sh", "-c", &script])
            }
            Self::ProcessRun => run(place, &creel, "process", PRINTING),
            Self::GreedyRun => run(place, &creel, "process", GREEDY),
            Self::ContainerRun => run(place, &creel, "docker", PRINTING),
            Self::Hold => {
                let image = ["--container", "creel-test", "--network", "--volume"];
                let local = ["--directory", "--process", "--for", "20s"];
                creel.spawn([&["dev", "hold"][..], &image, &local].concat())
            }
            Self::SandboxRun => run(place, &creel, "daytona", PRINTING),
            Self::SandboxHold => {
                creel.spawn(["dev", "hold", "--sandbox", "--count", "3", "--for", "20s"])
            }
        }
    }
}

/// The names and the secret of a round, which nothing else uses.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) volume: String,
    pub(super) network: String,
    pub(super) container: String,
    pub(super) tag: String,
    pub(super) secret: String,
}

impl Names {
    pub(super) fn of(seed: u64, random: &mut fastrand::Rng) -> Self {
        let letters = std::iter::repeat_with(|| random.alphanumeric()).take(32);
        let name = |kind: &str| format!("{kind}-{seed}-{}", std::process::id());
        Self {
            volume: name("data"),
            network: name("net"),
            container: name("box"),
            tag: format!("{}:1", name("app")),
            secret: letters.collect(),
        }
    }
}

/// An agent that prints the secret in more than one form and waits.
const PRINTING: &str = r#"echo "token is $HOSTILE_TOKEN"; printf '%s' "$HOSTILE_TOKEN" | base64; \
echo "token is $HOSTILE_TOKEN" > notes.txt; sleep 15; echo done"#;
/// An agent that writes until nothing more fits.
const GREEDY: &str =
    r#"echo "token is $HOSTILE_TOKEN"; cat /dev/zero > greed; echo full; sleep 10"#;

fn run(place: &Place, creel: &Creel, provider: &str, agent: &str) -> Running {
    let image = match provider {
        "docker" => "image = \"creel-test\"\nnetwork = \"none\"\n",
        _ => "",
    };
    let workflow = format!(
        "name = \"hostile\"\n[sandbox]\nprovider = \"{provider}\"\nlease = \"10m\"\n{image}\
         env = {{ {TOKEN} = \"${{env:{TOKEN}}}\" }}\n\
         [runtime]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", '''{agent}''']\n\
         [task]\nprompt = \"go\"\n[limits]\nwall = \"60s\"\n"
    );
    let path = place.home.path("hostile.toml");
    fs::write(&path, workflow).unwrap();
    creel.spawn(["run".as_ref(), "--json".as_ref(), path.as_os_str()])
}

/// Makes one of everything, then waits.
fn guarded_script(names: &Names) -> String {
    let Names { volume, network, container, tag, .. } = names;
    format!(
        "exec >/dev/null 2>&1
         docker volume create {volume}; docker network create {network}
         docker run -d --init --name {container} --network {network} -v {volume}:/a -v /b \
             creel-test sleep 100000
         printf 'FROM creel-test\\nRUN echo {volume} >/1\\nRUN sleep 0.2\\nRUN echo 2 >/2\\n' \
             | DOCKER_BUILDKIT=0 docker build -t {tag} -
         docker commit {container} {container}:snapshot
         sleep 20"
    )
}

/// Who is killed with -9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victims {
    /// Only the process that was started: its watchdog recovers.
    Driver,
    /// It and its watchdog: only the next command recovers.
    DriverAndWatchdog,
}

impl Victims {
    /// Kills them; returns how many there were.
    pub(super) fn kill(self, running: &Running) -> usize {
        let driver = i32::try_from(running.pid()).unwrap();
        let watchdog = match self {
            Self::Driver => None,
            Self::DriverAndWatchdog => watchdog_of(driver),
        };
        let victims: Vec<i32> = watchdog.into_iter().chain([driver]).collect();
        victims.iter().copied().for_each(kill);
        victims.len()
    }
}

/// Returns the watchdog that a process has started, if it has come that far.
fn watchdog_of(driver: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{driver}/task/{driver}/children")).ok()?;
    let pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    let is_watchdog = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"watchdog")
    };
    pids.into_iter().find(is_watchdog)
}

/// Waits until an instant that the round drew.
pub(super) fn wait(instant: Duration) {
    thread::sleep(instant);
}
