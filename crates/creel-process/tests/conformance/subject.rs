//! The process provider passes the suite of all providers.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use creel_model::id::ResourceId;
use creel_model::labels::Labels;
use creel_model::os;
use creel_model::provider::{
    CreateRequest, Kind, Limits, ProcessSpec, Provider, ReleaseMode, Result, Spec,
};
use creel_model::sandbox::{SandboxOptions, SandboxProvider};
use creel_process::{ProcessBackend, ProcessSandboxes, RESOURCE_VARIABLE};
use creel_testkit::conformance::{
    Abilities, Failure, LimitSupport, Purpose, SandboxAbilities, Subject,
};
use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::fixture::{HELPER, ProcessFixture, die_during_create, odd_seconds};
use crate::requests::provider_at;

/// The kinds that the suite tries.
const KINDS: &[Kind] = &[Kind::Process, Kind::Directory];

/// A provider with a root of its own.
pub(crate) struct ProcessSubject {
    fixture: ProcessFixture,
    /// Processes that belong to no tree, though they resemble one.
    decoys: Mutex<Vec<Child>>,
}

impl ProcessSubject {
    fn decoys(&self) -> MutexGuard<'_, Vec<Child>> {
        self.decoys.lock().expect("no holder of this lock panics")
    }

    /// Starts a process with a marker that resembles the one of a tree.
    fn plant_process(&self, name: &str) -> String {
        let child = Command::new("sleep")
            .arg(odd_seconds())
            .env(RESOURCE_VARIABLE, name.replace("creel-", "res_"))
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep is installed");
        let id = child.id().to_string();
        self.decoys().push(child);
        id
    }

    fn end_decoys(&self, which: impl Fn(&Child) -> bool) {
        for decoy in self.decoys().iter_mut().filter(|decoy| which(decoy)) {
            let _ = decoy.kill();
            let _ = decoy.wait();
        }
    }
}

/// Returns whether a process with the marker of a tree runs.
fn has_member(id: &str) -> bool {
    let Some(resource) = ResourceId::of_object(id) else { return false };
    let pids = os::all_pids().expect("procfs is mounted");
    pids.into_iter().any(|pid| is_member(pid, &resource))
}

fn is_member(pid: i32, resource: &ResourceId) -> bool {
    let marker = format!("{RESOURCE_VARIABLE}={resource}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == marker.as_bytes())
}

/// Returns a duplicate of each descriptor of this program.
fn own_descriptors() -> Vec<OwnedFd> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process exists");
    let names = fs::read_dir("/proc/self/fd").expect("procfs is mounted").flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(|number| pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).ok()).collect()
}

#[async_trait]
impl Subject for ProcessSubject {
    fn abilities() -> Abilities {
        Abilities {
            backend: &ProcessBackend,
            kinds: KINDS,
            planted: KINDS,
            namesakes: &[Kind::Directory],
            compares: KINDS,
            spares_running: &[Kind::Process],
            limited: &[Kind::Process],
            failures: &[Failure::UnreadableStore],
            sandboxes: Some(SandboxAbilities {
                refused_keys: &["image", "network", "snapshot"],
                limits: LimitSupport::Enforced,
                short_lease: Some(Duration::from_secs(2)),
            }),
        }
    }

    async fn start(_: Purpose) -> Self {
        Self { fixture: ProcessFixture::new(), decoys: Mutex::default() }
    }

    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.fixture.provider.clone())
    }

    fn another(&self) -> Arc<dyn Provider> {
        Arc::new(self.fixture.successor())
    }

    fn spec(&self, kind: Kind, limits: Limits) -> Spec {
        match kind {
            Kind::Process => {
                let command = vec!["sleep".to_owned(), odd_seconds()];
                Spec::Process(ProcessSpec { command, limits, ..ProcessSpec::default() })
            }
            _ => Spec::Directory,
        }
    }

    async fn plant(&self, kind: Kind, name: &str, _: &Labels) -> String {
        if kind == Kind::Process {
            return self.plant_process(name);
        }
        let path = self.fixture.root().join(name);
        let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.expect("the root is ours");
        name.to_owned()
    }

    async fn exists(&self, kind: Kind, id: &str) -> bool {
        if kind == Kind::Directory {
            return self.fixture.root().join(id).is_dir();
        }
        let is_decoy = |child: &mut Child| child.id().to_string() == id;
        let decoy =
            self.decoys().iter_mut().find_map(|child| is_decoy(child).then(|| child.try_wait()));
        match decoy {
            Some(ending) => matches!(ending, Ok(None)),
            None => has_member(id),
        }
    }

    /// Releases the object as another supervisor would, or ends a decoy.
    async fn remove(&self, kind: Kind, id: &str) {
        if ResourceId::of_object(id).is_some() {
            let _ = self.another().release(kind, id, ReleaseMode::AT_ONCE).await;
        }
        self.end_decoys(|decoy| decoy.id().to_string() == id);
        if kind == Kind::Directory {
            let _ = fs::remove_dir_all(self.fixture.root().join(id));
        }
    }

    /// The supervisor is killed after the create, before it could record the answer.
    async fn lose_answer(&self, request: &CreateRequest) -> Option<Result<String>> {
        tokio::task::block_in_place(|| die_during_create(&self.fixture, request, "after-create"));
        None
    }

    /// Returns a provider whose root is not a directory.
    async fn failing(&self, _: Failure) -> Arc<dyn Provider> {
        let file = self.fixture.outside();
        fs::write(&file, "not a directory").expect("the directory is ours");
        Arc::new(provider_at(&file, None, HELPER))
    }

    fn sandboxes(&self) -> Option<(Arc<dyn SandboxProvider>, SandboxOptions)> {
        let options = SandboxOptions {
            image: None,
            snapshot: None,
            env: BTreeMap::new(),
            limits: Limits::default(),
            disk: None,
            network: None,
            lease: Duration::from_secs(600),
        };
        Some((Arc::new(ProcessSandboxes::new(self.fixture.provider.clone())), options))
    }

    /// Shuts down this program's own ends of the connections to the holder in the tree.
    async fn cut_streams(&self, sandbox: &str) -> usize {
        let resource = ResourceId::of_object(sandbox).expect("the id of a tree");
        let leads_there = |socket: &OwnedFd| {
            let peer = sockopt::socket_peercred(socket);
            peer.is_ok_and(|peer| is_member(peer.pid.as_raw_pid(), &resource))
        };
        let sockets = own_descriptors().into_iter().filter(leads_there);
        sockets.filter(|socket| shutdown(socket, Shutdown::Both).is_ok()).count()
    }

    async fn end(&self) {
        self.end_decoys(|_| true);
    }
}
