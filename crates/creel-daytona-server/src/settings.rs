//! The settings of a server.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use creel_core::scope::Supervisor;
use creel_process::ProcessProvider;
use serde::Deserialize;

use crate::fault::FaultSpec;
use crate::state::State;

/// The default snapshot of a sandbox.
pub(crate) const DEFAULT_SNAPSHOT: &str = "daytonaio/sandbox:0.6.0";
/// The default region of a sandbox.
pub(crate) const DEFAULT_REGION: &str = "us";

/// The responses to give where versions of the service differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApiVersion {
    /// Exactly as v0.190.0, the last open release. Newer SDKs refuse its answers.
    V0_190,
    /// As v0.190.0, with the fields that newer SDKs require.
    #[default]
    Compatible,
    /// As [`ApiVersion::Compatible`], with times to live.
    V0_226,
}

impl ApiVersion {
    /// Returns whether answers contain the fields that SDKs newer than 0.190 require.
    pub(crate) fn has_newer_fields(self) -> bool {
        self != Self::V0_190
    }

    /// Returns whether sandboxes can have a time to live.
    pub(crate) fn has_time_to_live(self) -> bool {
        self == Self::V0_226
    }
}

impl std::str::FromStr for ApiVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0.190" => Ok(Self::V0_190),
            "compatible" => Ok(Self::Compatible),
            "0.226" => Ok(Self::V0_226),
            _ => Err("known are 0.190, compatible and 0.226".to_owned()),
        }
    }
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address it listens on. Only loopback addresses are accepted.
    pub listen: SocketAddr,
    /// The backend of the sandboxes.
    pub backend: SandboxHost,
    /// The rate limits.
    pub rate_limits: RateLimits,
    /// The delays of operations.
    pub delays: Delays,
    /// The permissions of the API key.
    pub permissions: Vec<String>,
    /// The faults and sandboxes it starts with.
    pub scenario: Scenario,
    /// The API version whose responses it gives.
    pub api: ApiVersion,
    /// The snapshots that a create may name.
    pub snapshots: Vec<String>,
    /// The regions that a create may name.
    pub regions: Vec<String>,
}

impl Settings {
    /// Returns settings for a server on a free port, with realistic delays and no limits.
    pub fn new(backend: SandboxHost) -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            backend,
            rate_limits: RateLimits::default(),
            delays: Delays::realistic(),
            permissions: ["write:sandboxes", "delete:sandboxes"].map(str::to_owned).to_vec(),
            scenario: Scenario::default(),
            api: ApiVersion::default(),
            snapshots: vec![DEFAULT_SNAPSHOT.to_owned()],
            regions: [DEFAULT_REGION, "eu"].map(str::to_owned).to_vec(),
        }
    }

    /// Returns settings for tests: hollow sandboxes and short delays.
    pub fn hollow() -> Self {
        Self { delays: Delays::fast(), ..Self::new(SandboxHost::Hollow) }
    }
}

/// The backend of the sandboxes.
#[derive(Debug, Clone)]
pub enum SandboxHost {
    /// No backend: sandboxes are records. The toolbox answers as with a dead daemon.
    Hollow,
    /// A directory and a process tree on this machine, on the supervisor's ledger.
    Process {
        /// Creates and releases the directory and the tree.
        supervisor: Supervisor,
        /// The same provider that the supervisor uses.
        provider: ProcessProvider,
    },
    /// A container, on the supervisor's ledger. Commands run through the `docker` program.
    Docker {
        /// Creates and releases the container.
        supervisor: Supervisor,
        /// The engine's address, as `DOCKER_HOST` names it.
        host: String,
        /// The image of every sandbox. `None` uses the snapshot's name.
        image: Option<String>,
    },
}

/// The number of requests per window, by throttler. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimits {
    /// All requests except those below.
    pub authenticated: Option<u32>,
    /// Creates.
    pub sandbox_create: Option<u32>,
    /// Start, stop, delete and the like.
    pub sandbox_lifecycle: Option<u32>,
    /// Wrong keys. Beyond the limit, valid keys from the same address are locked out too.
    pub failed_auth: Option<u32>,
    /// The length of the window.
    #[serde(with = "seconds")]
    pub window: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            authenticated: None,
            sandbox_create: None,
            sandbox_lifecycle: None,
            failed_auth: None,
            window: Duration::from_secs(60),
        }
    }
}

impl RateLimits {
    /// Returns the limits that Daytona documents for its first paid tier.
    pub fn documented() -> Self {
        Self {
            authenticated: Some(10_000),
            sandbox_create: Some(300),
            sandbox_lifecycle: Some(10_000),
            failed_auth: Some(100),
            ..Self::default()
        }
    }
}

/// The delays of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// From `creating` to `started`.
    pub create: Duration,
    /// From `starting` to `started`.
    pub start: Duration,
    /// From `stopping` to `stopped`.
    pub stop: Duration,
    /// From `archiving` to `archived`, and from `restoring` to `started`.
    pub archive: Duration,
    /// From `destroying` until the sandbox is gone.
    pub destroy: Duration,
    /// From an accepted stop or delete until the runner takes it up. The state stays until then.
    pub pending: Duration,
    /// How long a create or start waits before it answers with the current state.
    pub answer: Duration,
    /// The interval at which auto-stop, auto-delete and TTL are checked.
    pub timer_period: Duration,
    /// The length of a minute in these intervals.
    pub minute: Duration,
}

impl Delays {
    /// Returns the delays of the real service.
    pub fn realistic() -> Self {
        Self {
            create: Duration::from_millis(900),
            start: Duration::from_millis(600),
            stop: Duration::from_millis(800),
            archive: Duration::from_secs(2),
            destroy: Duration::from_millis(1300),
            pending: Duration::from_millis(200),
            answer: Duration::from_secs(30),
            timer_period: Duration::from_secs(10),
            minute: Duration::from_secs(60),
        }
    }

    /// Returns delays for tests, long enough that every state can be observed.
    pub fn fast() -> Self {
        let moment = Duration::from_millis(20);
        Self {
            create: moment,
            start: moment,
            stop: moment,
            archive: moment,
            destroy: moment,
            pending: moment / 4,
            timer_period: Duration::from_millis(200),
            ..Self::realistic()
        }
    }
}

/// The initial state of a server, read from a TOML file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The permissions of the API key. `None` keeps the server's setting.
    pub permissions: Option<Vec<String>>,
    /// The rate limits. `None` keeps the server's setting.
    pub rate_limits: Option<RateLimits>,
    /// Faults, in the format of `POST {admin_url}/faults`.
    pub faults: Vec<FaultSpec>,
    /// Sandboxes without a process, in the format of `POST {admin_url}/seed`.
    pub seeds: Vec<Seed>,
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("the scenario {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a valid scenario.
    #[error("the scenario {} is not understood", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: toml::de::Error,
    },
}

impl Scenario {
    /// Reads a scenario from a TOML file.
    ///
    /// # Errors
    ///
    /// Fails when the file cannot be read, or names something that does not exist.
    pub fn read(path: &std::path::Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Unreadable { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| ScenarioError::Invalid { path: path.to_owned(), source })
    }
}

/// Sandboxes without a process behind them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seed {
    /// The number of sandboxes.
    pub count: usize,
    /// The labels of each.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The state of each. A state in transition stays.
    #[serde(default = "started")]
    pub state: State,
    /// The name of the first. Names are unique, so it applies to only one.
    #[serde(default)]
    pub name: Option<String>,
    /// The prefix of their names, followed by a number. Without it, the id is the name.
    #[serde(default)]
    pub name_prefix: Option<String>,
    /// The age of the newest, in seconds. The others are a millisecond apart.
    #[serde(default)]
    pub age_seconds: u64,
    /// Whether all are created within one millisecond instead.
    #[serde(default)]
    pub same_millisecond: bool,
    /// The reason of their error, if their state is one.
    #[serde(default)]
    pub error_reason: Option<String>,
    /// Whether an error can be recovered from.
    #[serde(default)]
    pub recoverable: bool,
    /// The seconds since their last activity. `None` means at their creation.
    #[serde(default)]
    pub idle_seconds: Option<u64>,
}

fn started() -> State {
    State::Started
}

mod seconds {
    //! Durations as a number of seconds.

    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}
