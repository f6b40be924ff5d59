//! One sandbox of one provider with its own ledger, and observations from outside.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use creel_bridge::event::Stream;
use creel_bridge::exec::ExecEnding;
use creel_core::scope::{Held, Supervisor};
use creel_daytona::DaytonaSandboxes;
use creel_docker::DockerSandboxes;
use creel_docker::{DockerProvider, Endpoint};
use creel_ledger::{Ledger, OnOwnerDeath, RecordFilter};
use creel_model::id::RunId;
use creel_model::provider::{Limits, Provider, ProviderName, Providers};
use creel_model::sandbox::SandboxProvider;
use creel_process::ProcessSandboxes;
use creel_process::{HolderProgram, ProcessProvider, ProcessSettings};
use creel_run::sandbox::{
    BridgeProgram, Command, CreatedSandbox, Finished, Sandbox, SandboxOptions, SandboxPlan,
    Sandboxes,
};
use creel_testkit::engine::Engine;
use creel_testkit::image;
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::cli::cloud::Cloud;
use crate::support::PATIENCE;

/// The bridge program, as it is embedded in the binary.
pub(super) const PROGRAM: BridgeProgram = BridgeProgram {
    bytes: include_bytes!(env!("CREEL_BRIDGE_PROGRAM")),
    digest: env!("CREEL_BRIDGE_DIGEST"),
};

/// A variable of every command, and its secret value.
pub(super) const SECRET: (&str, &str) = ("CREEL_TEST_SECRET", "hush-5f0c1e7a-not-for-others");

/// The time limit of a short command on a loaded machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// One sandbox of one provider.
pub(super) struct SandboxFixture {
    pub(super) provider: ProviderName,
    pub(super) sandbox: Arc<dyn Sandbox>,
    pub(super) sandboxes: Sandboxes,
    pub(super) supervisor: Supervisor,
    pub(super) ledger: Ledger,
    pub(super) cloud: Option<Cloud>,
    held: Mutex<Vec<Held>>,
    _home: TempDir,
}

impl SandboxFixture {
    /// Acquires a sandbox of a provider.
    pub(super) async fn enter(provider: ProviderName) -> Self {
        Self::enter_with(provider, plan(provider)).await
    }

    /// Acquires a sandbox by a plan.
    pub(super) async fn enter_with(provider: ProviderName, plan: SandboxPlan) -> Self {
        let provider_fixture = ProviderFixture::new(provider).await;
        let CreatedSandbox { sandbox, held } =
            provider_fixture.sandboxes.create(&provider_fixture.supervisor, &plan).await.unwrap();
        let ProviderFixture { sandboxes, supervisor, ledger, cloud, home } = provider_fixture;
        let held = Mutex::new(held);
        Self { provider, sandbox, sandboxes, supervisor, ledger, cloud, held, _home: home }
    }

    /// Releases the sandbox, and asserts that no record is open.
    pub(super) async fn leave(self) {
        self.release().await;
        let open = self.ledger.records(&RecordFilter::open()).await.unwrap();
        assert!(open.is_empty(), "still on record: {open:#?}");
        if let Some(cloud) = self.cloud {
            tokio::task::block_in_place(|| cloud.end());
        }
    }

    /// Releases the sandbox.
    pub(super) async fn release(&self) {
        for held in self.held.lock().await.drain(..) {
            self.supervisor.release(held).await.unwrap();
        }
    }

    /// Runs a script. Returns how it ended and its output on both streams.
    pub(super) async fn script(&self, script: &str) -> (Finished, String, String) {
        run(&*self.sandbox, &Command::shell(script, LIMIT)).await
    }

    /// Runs a script that must succeed, and returns its output.
    pub(super) async fn output(&self, script: &str) -> String {
        let (finished, output, error) = self.script(script).await;
        assert_eq!(finished, ended(0), "{script}\n{output}\n{error}");
        output
    }

    /// Waits until a file that a process in the sandbox writes to does not grow any
    /// more. It must have begun to grow.
    pub(super) async fn stops_growing(&self, path: &str, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut size = self.size(path).await;
        loop {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let now = self.size(path).await;
            if now == size && now > 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{path} still grows: {size} to {now} bytes");
            size = now;
        }
    }

    /// Waits until a file is not empty.
    pub(super) async fn begins_to_grow(&self, path: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.size(path).await == 0 {
            assert!(Instant::now() < deadline, "{path} is empty");
        }
    }

    async fn size(&self, path: &str) -> usize {
        self.sandbox.download(path).await.map_or(0, |content| content.len())
    }
}

/// A ledger, a supervisor and the backends of one provider.
pub(super) struct ProviderFixture {
    pub(super) sandboxes: Sandboxes,
    pub(super) supervisor: Supervisor,
    pub(super) ledger: Ledger,
    pub(super) cloud: Option<Cloud>,
    home: TempDir,
}

impl ProviderFixture {
    /// Prepares everything but a sandbox.
    pub(super) async fn new(provider: ProviderName) -> Self {
        match provider {
            creel_docker::NAME => Self::on(provider, &Engine::from_env()).await,
            // It receives no request.
            _ => Self::on(provider, &Engine::at("/nowhere")).await,
        }
    }

    /// Prepares everything but a sandbox, with this engine for containers.
    pub(super) async fn on(provider: ProviderName, engine: &Engine) -> Self {
        let home = tempfile::tempdir().unwrap();
        let process = processes_in(&home.path().join("sandboxes"));
        let docker = (provider == creel_docker::NAME).then(|| {
            let endpoint = Endpoint::explicit(&engine.host()).unwrap();
            Arc::new(DockerProvider::connect(endpoint).unwrap())
        });
        let cloud = (provider == creel_daytona::NAME)
            .then(|| tokio::task::block_in_place(|| Cloud::with(&["--fast"])));
        let daytona = cloud.as_ref().map(Cloud::provider);
        let mut all: Vec<Arc<dyn Provider>> = vec![Arc::new(process.clone())];
        all.extend(docker.clone().map(|one| one as Arc<dyn Provider>));
        all.extend(daytona.clone().map(|one| one as Arc<dyn Provider>));
        let ledger = Ledger::open(home.path()).await.unwrap();
        let supervisor = Supervisor::new(ledger.clone(), Providers::new(all), "test").unwrap();
        let mut with_sandboxes: Vec<Arc<dyn SandboxProvider>> =
            vec![Arc::new(ProcessSandboxes::new(process))];
        with_sandboxes.extend(docker.map(|one| Arc::new(DockerSandboxes::new(one)) as _));
        with_sandboxes.extend(daytona.map(|one| Arc::new(DaytonaSandboxes::new(one)) as _));
        let sandboxes = Sandboxes::new(PROGRAM, with_sandboxes);
        Self { sandboxes, supervisor, ledger, cloud, home }
    }

    /// Acquires a sandbox by a plan.
    pub(super) async fn enter(self, plan: SandboxPlan) -> SandboxFixture {
        let taken = self.sandboxes.create(&self.supervisor, &plan).await;
        let CreatedSandbox { sandbox, held } = taken.unwrap();
        let Self { sandboxes, supervisor, ledger, cloud, home } = self;
        let (provider, held) = (plan.provider, Mutex::new(held));
        SandboxFixture {
            provider,
            sandbox,
            sandboxes,
            supervisor,
            ledger,
            cloud,
            held,
            _home: home,
        }
    }
}

fn processes_in(root: &Path) -> ProcessProvider {
    ProcessProvider::new(ProcessSettings {
        root: root.to_owned(),
        holder: HolderProgram {
            program: env!("CARGO_BIN_EXE_creel").into(),
            args: vec!["holder".to_owned()],
        },
        containment: None,
    })
}

/// Returns a plan for a provider, with a secret in its environment.
pub(super) fn plan(provider: ProviderName) -> SandboxPlan {
    SandboxPlan {
        run: RunId::new(),
        provider,
        options: SandboxOptions {
            image: (provider == creel_docker::NAME).then(|| image::REFERENCE.to_owned()),
            snapshot: None,
            env: BTreeMap::from([(SECRET.0.to_owned(), SECRET.1.into())]),
            limits: Limits::default(),
            disk: None,
            network: (provider == creel_docker::NAME).then(|| "none".to_owned()),
            lease: Duration::from_secs(600),
        },
        on_owner_death: OnOwnerDeath::Release,
    }
}

/// Runs a command. Returns how it ended and its output on both streams.
pub(super) async fn run(sandbox: &dyn Sandbox, command: &Command) -> (Finished, String, String) {
    let (finished, [output, error]) = run_bytes(sandbox, command).await;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (finished, text(output), text(error))
}

/// Like [`run`], with the raw bytes of the output.
pub(super) async fn run_bytes(
    sandbox: &dyn Sandbox,
    command: &Command,
) -> (Finished, [Vec<u8>; 2]) {
    let mut written = [Vec::new(), Vec::new()];
    let mut listener = |stream: Stream, bytes: &[u8]| {
        let place = match stream {
            Stream::Output => 0,
            Stream::Error => 1,
        };
        written[place].extend_from_slice(bytes);
    };
    let finished = sandbox.exec(command, &mut listener).await.unwrap();
    (finished, written)
}

/// Returns the result of a command that exited with this code.
pub(super) fn ended(code: i32) -> Finished {
    Finished::Ended(ExecEnding::Code { code })
}

/// Returns every byte value, repeated up to this length.
pub(super) fn binary(length: usize) -> Bytes {
    (0..=255).cycle().take(length).collect::<Vec<u8>>().into()
}
