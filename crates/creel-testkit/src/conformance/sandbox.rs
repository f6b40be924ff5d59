//! One subject during a case about sandboxes: makes them, and runs commands in them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use creel_bridge::event::Stream;
use creel_bridge::exec::ExecEnding;
use creel_model::id::ResourceId;
use creel_model::labels::{self, Labels};
use creel_model::provider::{CreateRequest, Kind, Provider, ProviderError, ReleaseMode, Released};
use creel_model::sandbox::{
    Command, Finished, PartMaker, PartNotMade, Sandbox, SandboxError, SandboxOptions, SandboxPart,
    SandboxParts, program_name,
};

use super::bridge::bridge_program;
use super::context::release;
use super::subject::{Abilities, SandboxAbilities, Subject};

/// The time limit of a short command on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// One subject during a case about sandboxes.
pub(super) struct SandboxCaseContext {
    subject: Box<dyn Subject>,
    abilities: Abilities,
    parts: Mutex<Vec<(Kind, String)>>,
}

/// Makes the parts of a sandbox as the run engine does, without a ledger.
pub(super) struct RecordingMaker {
    provider: Arc<dyn Provider>,
    lease: Duration,
    pub(super) made: Vec<(Kind, String)>,
    /// How many parts may be made.
    pub(super) left: usize,
    pub(super) error: Option<ProviderError>,
}

#[async_trait]
impl PartMaker for RecordingMaker {
    async fn make(&mut self, part: SandboxPart) -> Result<String, PartNotMade> {
        self.left = self.left.checked_sub(1).ok_or(PartNotMade)?;
        let resource = ResourceId::new();
        let mut all = Labels::from([(labels::RESOURCE, resource.to_string())]);
        if let Some(file) = &part.lease_file {
            all.insert(labels::LEASE_FILE, file);
        }
        let kind = part.spec.kind();
        let request = CreateRequest {
            resource,
            name: resource.object_name(),
            labels: all,
            lease: self.lease,
            spec: part.spec,
        };
        match self.provider.create(&request).await {
            Ok(id) => {
                self.made.push((kind, id.clone()));
                Ok(id)
            }
            Err(error) => {
                self.error = Some(error);
                Err(PartNotMade)
            }
        }
    }
}

impl SandboxCaseContext {
    pub(super) fn new(subject: Box<dyn Subject>, abilities: Abilities) -> Self {
        Self { subject, abilities, parts: Mutex::default() }
    }

    pub(super) fn subject(&self) -> &dyn Subject {
        &*self.subject
    }

    pub(super) fn abilities(&self) -> &SandboxAbilities {
        self.abilities.sandboxes.as_ref().expect("these cases run only with sandboxes")
    }

    /// Returns the options of an ordinary sandbox.
    pub(super) fn options(&self) -> SandboxOptions {
        self.subject.sandboxes().unwrap().1
    }

    /// Returns a maker of parts that stops after some.
    pub(super) fn maker(&self, lease: Duration, left: usize) -> RecordingMaker {
        let provider = self.subject.provider();
        RecordingMaker { provider, lease, made: Vec::new(), left, error: None }
    }

    /// Creates an ordinary sandbox.
    pub(super) async fn enter(&self) -> Arc<dyn Sandbox> {
        self.enter_with(self.options()).await
    }

    /// Creates a sandbox with these options.
    pub(super) async fn enter_with(&self, options: SandboxOptions) -> Arc<dyn Sandbox> {
        match self.try_enter(options, usize::MAX).await {
            (Ok(sandbox), _) => sandbox,
            (Err(error), part) => panic!("no sandbox: {error:?} {part:?}"),
        }
    }

    /// Creates a sandbox of at most some parts; returns the error of the part that failed, too.
    pub(super) async fn try_enter(
        &self,
        options: SandboxOptions,
        most: usize,
    ) -> (Result<Arc<dyn Sandbox>, SandboxError>, Option<ProviderError>) {
        let (provider, _) = self.subject.sandboxes().unwrap();
        let mut maker = self.maker(options.lease, most);
        let created = provider.create(&options, &bridge_program(), &mut maker).await;
        self.lock().extend(maker.made);
        (created, maker.error)
    }

    /// Returns how many parts were made.
    pub(super) fn part_count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the parts of a sandbox, as the ledger would have them.
    pub(super) fn parts_of(&self, sandbox: &dyn Sandbox) -> SandboxParts {
        let directory = self.lock().iter().find(|(kind, _)| *kind == Kind::Directory).cloned();
        SandboxParts {
            provider: sandbox.provider(),
            object: sandbox.id().to_owned(),
            directory: directory.map(|(_, id)| id),
            program: program_name(&bridge_program()),
        }
    }

    /// Connects to a sandbox again, as another process would.
    pub(super) async fn open(
        &self,
        parts: &SandboxParts,
    ) -> Result<Arc<dyn Sandbox>, ProviderError> {
        let (provider, options) = self.subject.sandboxes().unwrap();
        provider.open(parts.clone(), &bridge_program(), options.env).await
    }

    /// Releases all parts in reverse order, and waits until they are gone.
    pub(super) async fn release(&self) {
        let provider = self.subject.provider();
        let parts = std::mem::take(&mut *self.lock());
        for (kind, id) in parts.into_iter().rev() {
            let released =
                release(Arc::clone(&provider), kind, &id, ReleaseMode::AT_ONCE).await.unwrap();
            assert!(!matches!(released, Released::Kept(_)), "{released:?}");
            let gone = async || provider.verify(kind, &id).await.unwrap().is_none();
            eventually(&format!("{kind} {id} is gone"), gone).await;
        }
    }

    /// Removes what a failed case left.
    pub(super) async fn clear(&self) {
        let parts = std::mem::take(&mut *self.lock());
        for (kind, id) in parts.into_iter().rev() {
            self.subject.remove(kind, &id).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Kind, String)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output of a command on both streams.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) output: Vec<u8>,
    pub(super) error: Vec<u8>,
}

impl Output {
    /// Takes output as it arrives.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Output => self.output.extend_from_slice(bytes),
            Stream::Error => self.error.extend_from_slice(bytes),
        }
    }
}

/// Runs a command to its end.
pub(super) async fn run(sandbox: &dyn Sandbox, command: &Command) -> (Finished, Output) {
    let mut output = Output::default();
    let mut listener = |stream: Stream, bytes: &[u8]| output.take(stream, bytes);
    let finished = sandbox.exec(command, &mut listener).await.unwrap();
    (finished, output)
}

/// Runs a script that must succeed, and returns its output.
pub(super) async fn output_of(sandbox: &dyn Sandbox, script: &str) -> String {
    let (finished, output) = run(sandbox, &Command::shell(script, LIMIT)).await;
    assert_eq!(finished, ended(0), "{script}: {}", String::from_utf8_lossy(&output.error));
    String::from_utf8(output.output).unwrap()
}

/// Returns the result of a command that exited with this code.
pub(super) fn ended(code: i32) -> Finished {
    Finished::Ended(ExecEnding::Code { code })
}

/// Waits until a condition holds.
pub(super) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition().await {
        assert!(Instant::now() < deadline, "in {} s not: {what}", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the process of a recorded pid no longer runs in the sandbox.
pub(super) async fn until_ended(sandbox: &dyn Sandbox, pid_file: &str) {
    // A zombie has no command line any more.
    let script = format!("test -s /proc/$(cat {pid_file})/cmdline");
    let is_over = async || run(sandbox, &Command::shell(&script, LIMIT)).await.0 != ended(0);
    eventually("the command is killed", is_over).await;
}
