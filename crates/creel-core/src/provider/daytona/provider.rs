//! The Daytona provider: what the rest of creel sees.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tracing::debug;

use crate::labels;
use crate::provider::{
    CreateOrder, ErrorClass, Kind, Marks, Observed, Outlook, Provider, ProviderError, ProviderName,
    ReleaseMode, Released, Result, Spec, Turn,
};

use super::absence::Absences;
use super::access::{DaytonaEnvironment, DaytonaSettings, InvalidAccess};
use super::classify::Refusal;
use super::create::{self, Maker};
use super::destroys::Destroys;
use super::http::Http;
use super::model::{KeyRights, Sandbox};
use super::observe::observed;
use super::rest::RestV1;
use super::toolbox::Toolbox;
use super::wire::{ListQuery, Wire};
use super::{read, release, state};

const KINDS: &[Kind] = &[Kind::Sandbox];
/// The pauses after the first look at a sandbox that is on its way out: requests are counted.
const LOOK_PAUSE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(10);
/// How many releases may be under way; most of them wait between two looks, and requests have
/// limits of their own.
const MOST_UNDER_WAY: usize = 2048;
/// How long a hidden record is watched: nothing happens to it by itself.
const HIDDEN_PATIENCE: Duration = Duration::from_secs(5);
/// How long an accepted order may wait for the runner.
const PENDING_PATIENCE: Duration = Duration::from_secs(60);
/// How long a create may take: builds are slow, and each state has its own limit.
const CREATE_DEADLINE: Duration = Duration::from_secs(900);

/// How a sandbox learns that its owner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// Whether it counts as activity: not where idleness is its maker's own business.
    pub(crate) activity: bool,
    /// The minutes it is to live from then on; `None` where it has no time to live of ours.
    pub(crate) minutes: Option<u64>,
}

/// The sandboxes of one Daytona organisation.
#[derive(Debug)]
pub struct DaytonaProvider {
    wire: Arc<dyn Wire>,
    http: Http,
    absences: Absences,
    destroys: Destroys,
    settings: DaytonaSettings,
    /// The region new sandboxes are made in.
    target: Option<String>,
    /// What our key may do, asked once.
    rights: OnceCell<KeyRights>,
    no_time_to_live: AtomicBool,
    /// Failed sandboxes that can be recovered, as they were last inspected.
    recoverable: Mutex<HashSet<String>>,
    /// How each sandbox of ours is renewed.
    renewals: Mutex<HashMap<String, Renewal>>,
}

impl DaytonaProvider {
    /// Prepares the connection; nothing is sent before the first call.
    ///
    /// # Errors
    ///
    /// Fails when there is no key, or an address that is none.
    pub fn connect(
        environment: &DaytonaEnvironment,
        settings: DaytonaSettings,
    ) -> std::result::Result<Self, InvalidAccess> {
        let http = Http::new(environment)?;
        let wire: Arc<dyn Wire> = Arc::new(RestV1::new(http.clone()));
        Ok(Self {
            absences: Absences::new(Arc::clone(&wire)),
            destroys: Destroys::default(),
            wire,
            http,
            settings,
            target: environment.target.clone(),
            rights: OnceCell::new(),
            no_time_to_live: AtomicBool::new(false),
            recoverable: Mutex::default(),
            renewals: Mutex::default(),
        })
    }

    /// Returns the wire, for calls that the rest of creel has no word for.
    pub fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    /// Asks what our key may do; a token has the rights of its user, which are not asked for.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be asked, or refuses the key.
    pub async fn key_rights(&self) -> Result<&KeyRights> {
        let ask = || async {
            if !self.http.access().is_key() {
                return Ok(KeyRights::default());
            }
            match read::steadily(|| self.wire.key_rights()).await {
                // An older server does not tell.
                Err(refusal) if refusal.is_absence() => Ok(KeyRights::default()),
                answer => answer,
            }
        };
        let asked = self.rights.get_or_try_init(ask).await;
        asked.map_err(|refusal| refusal.during("ask what its key may do"))
    }

    /// Asks the API for one sandbox, whichever: proves that it is there and takes our key.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be asked, or refuses the key.
    pub async fn probe(&self) -> Result<()> {
        // No sandbox has this id, so the answer is small.
        let query = ListQuery { id: Some("0-no-such-sandbox".to_owned()), ..ListQuery::default() };
        let answer = self.wire.list(&query, None).await;
        answer.map(drop).map_err(|refusal| refusal.during("answer"))
    }

    /// Asks the address of the toolboxes for an answer, and returns it; `None` where neither the
    /// service nor a sandbox names one.
    ///
    /// # Errors
    ///
    /// Fails when nothing answers there, or when the address cannot be used.
    pub async fn probe_toolbox(&self) -> Result<Option<String>> {
        let probe = async {
            let Some(address) = self.toolbox_address().await? else { return Ok(None) };
            Toolbox::probe(&self.http, &address).await?;
            Ok::<_, Refusal>(Some(address))
        };
        probe.await.map_err(|refusal| refusal.during("reach its toolboxes"))
    }

    async fn toolbox_address(&self) -> std::result::Result<Option<String>, Refusal> {
        match read::steadily(|| self.wire.toolbox_url()).await {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {}
            Err(refusal) if refusal.class == ErrorClass::Denied => return Err(refusal),
            // An older service publishes nothing of itself.
            Err(refusal) => debug!(%refusal, "the service does not say where its toolboxes are"),
        }
        let any = ListQuery::default();
        let page = read::steadily(|| self.wire.list(&any, None)).await?;
        Ok(page.items.into_iter().find_map(|sandbox| sandbox.toolbox_proxy_url))
    }

    /// Starts a sandbox that was stopped, and waits until it runs; one that runs is fine.
    ///
    /// # Errors
    ///
    /// Fails when there is no such sandbox, or when it does not start.
    pub async fn start(&self, id: &str) -> Result<()> {
        let words = Self::check("start", Kind::Sandbox, id)?;
        let start = async {
            let mut sandbox = read::steadily(|| self.wire.get(id)).await?;
            if sandbox.state != state::SandboxState::Started {
                self.wire.start(id).await?;
                sandbox.state = state::SandboxState::Other("starting".to_owned());
            }
            self.maker().until_started(sandbox).await.map(drop)
        };
        start.await.map_err(|refusal: Refusal| refusal.during(words))
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            wire: &*self.wire,
            target: self.target.as_deref(),
            longest_wait: self.settings.longest_wait,
            no_time_to_live: &self.no_time_to_live,
        }
    }

    /// Opens the toolbox of a sandbox that runs.
    ///
    /// # Errors
    ///
    /// Fails when there is no such sandbox.
    pub async fn toolbox(&self, id: &str) -> Result<Toolbox> {
        let words = Self::check("open the toolbox of", Kind::Sandbox, id)?;
        let sandbox = read::steadily(|| self.wire.get(id)).await;
        let sandbox = sandbox.map_err(|refusal| refusal.during(words.clone()))?;
        Toolbox::of(&self.http, &sandbox).map_err(|refusal| refusal.during(words))
    }

    /// Refuses what is no sandbox, and what cannot be an id, before it gets into a path.
    fn check(verb: &str, kind: Kind, id: &str) -> Result<String> {
        let words = format!("{verb} {kind} {id}");
        let refused = |message: String| Refusal::new(ErrorClass::Invalid, message).during(&words);
        if kind != Kind::Sandbox {
            return Err(refused(format!("Daytona has no objects of the kind {kind}")));
        }
        if !can_be_id(id) {
            return Err(refused(format!("`{id}` is not the id or name of one")));
        }
        Ok(words)
    }

    /// Refuses a create whose sandbox could never be deleted again.
    pub(crate) async fn check_rights(&self, words: &str) -> Result<()> {
        let missing = self.key_rights().await?.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the key lacks {}: what it makes could not be given back; make a key with these scopes",
            missing.join(" and ")
        );
        Err(Refusal::new(ErrorClass::Denied, message).during(words))
    }

    /// Says how a sandbox is renewed that somebody else asked for.
    pub(crate) fn renew_as(&self, id: &str, renewal: Renewal) {
        self.renewals().insert(id.to_owned(), renewal);
    }

    /// Changes how a sandbox is renewed, where that is known.
    pub(crate) fn change_renewal(&self, id: &str, change: impl FnOnce(&mut Renewal)) {
        self.renewals().get_mut(id).map(change);
    }

    /// Returns how a sandbox is renewed.
    async fn renewal(&self, id: &str) -> std::result::Result<Renewal, Refusal> {
        if let Some(known) = self.renewals().get(id) {
            return Ok(*known);
        }
        // Another process made it: its own switches say how it was meant.
        let sandbox = self.wire.get(id).await?;
        let renewal = Renewal { activity: true, minutes: lifetime_of(&sandbox) };
        self.renew_as(id, renewal);
        Ok(renewal)
    }

    /// Notes whether a recover helps before a delete: only a sandbox that is looked at is released.
    fn note_recoverable(&self, id: &str, found: Option<&Sandbox>) {
        let helps = |found: &Sandbox| {
            found.recoverable && found.state.has_failed() && !found.is_errored_deleted()
        };
        if found.is_some_and(helps) {
            self.recoverable().insert(id.to_owned());
        } else {
            self.recoverable().remove(id);
        }
    }

    fn recoverable(&self) -> MutexGuard<'_, HashSet<String>> {
        self.recoverable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewals(&self) -> MutexGuard<'_, HashMap<String, Renewal>> {
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether this can be put into a path. Names that somebody else chose may hold anything.
fn can_be_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    id.starts_with(|first: char| first.is_ascii_alphanumeric()) && id.bytes().all(allowed)
}

/// Returns how long a sandbox that creel made was meant to live without a renewal.
fn lifetime_of(sandbox: &Sandbox) -> Option<u64> {
    labels::claimed_resource(&sandbox.labels)?;
    sandbox.auto_destroy_at?;
    sandbox.auto_stop_minutes.and_then(|minutes| u64::try_from(minutes).ok()).filter(|&m| m > 0)
}

#[async_trait]
impl Provider for DaytonaProvider {
    fn name(&self) -> ProviderName {
        ProviderName::Daytona
    }

    fn address(&self) -> String {
        self.wire.address()
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn first_look(&self) -> Duration {
        self.destroys.first_look()
    }

    fn look_pause(&self) -> RangeInclusive<Duration> {
        LOOK_PAUSE
    }

    fn concurrency(&self) -> Option<usize> {
        Some(MOST_UNDER_WAY)
    }

    async fn turn(&self) -> Turn {
        self.http.turn().await
    }

    fn create_deadline(&self) -> Duration {
        CREATE_DEADLINE
    }

    fn outlook(&self, seen: &Observed) -> Outlook {
        if seen.retained.is_some() {
            return Outlook::Retained(HIDDEN_PATIENCE);
        }
        let longest = self.settings.longest_wait;
        match (seen.state.as_str(), seen.desired.as_deref()) {
            // A destroy that does not end is stuck, and nothing that is sent can help it.
            ("destroying" | "destroyed", _) | (_, Some("destroyed")) => {
                Outlook::Leaving(Some(longest))
            }
            (word, desired) => match state::patience(word) {
                Some(patience) => Outlook::Changing(patience.min(longest)),
                None if desired.is_some() => Outlook::Changing(PENDING_PATIENCE.min(longest)),
                None => Outlook::Settled,
            },
        }
    }

    /// The organisation where the environment names it, else the key's user and name: they stay
    /// the same when the secret is kept, and tell nothing of it.
    async fn identity(&self) -> Result<String> {
        let address = self.wire.address();
        if let Some(organization) = &self.http.access().organization {
            return Ok(format!("{address} organization {organization}"));
        }
        let rights = self.key_rights().await?;
        Ok(match (&rights.user, &rights.name) {
            (Some(user), Some(key)) => format!("{address} user {user} key {key}"),
            _ => address,
        })
    }

    async fn list(&self, kinds: &[Kind]) -> Result<Vec<Observed>> {
        if !kinds.contains(&Kind::Sandbox) {
            return Ok(Vec::new());
        }
        // With those whose delete was accepted in vain: they run, and cost money.
        let query = ListQuery { errored_deleted: true, ..ListQuery::default() };
        let found = read::all(&*self.wire, &query).await;
        let found = found.map_err(|refusal| refusal.during("list its sandboxes"))?;
        let there = found.into_iter().filter(|row| row.state != state::SandboxState::Destroyed);
        Ok(there.map(observed).collect())
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let words = Self::check("inspect", kind, id)?;
        let answer = read::inspect(&*self.wire, &self.absences, id).await;
        if let Ok(found) = &answer {
            self.note_recoverable(id, found.as_ref());
            let is_there = found.as_ref().is_some_and(|found| !found.is_errored_deleted());
            self.destroys.looked(id, is_there);
        }
        answer.map(|found| found.map(observed)).map_err(|refusal| refusal.during(words))
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        let words = Self::check("find", marks.kind, &marks.resource.object_name())?;
        let found = read::find(&*self.wire, marks, can_be_id(&marks.name)).await;
        let found = found.map_err(|refusal| refusal.during(words))?;
        Ok(found.into_iter().map(observed).collect())
    }

    async fn create(&self, order: &CreateOrder) -> Result<String> {
        let words = Self::check("create", order.spec.kind(), &order.name)?;
        let Spec::Sandbox(spec) = &order.spec else {
            let message = "only sandboxes are made here";
            return Err(Refusal::new(ErrorClass::Invalid, message).during(words));
        };
        self.check_rights(&words).await?;
        let id = self.maker().make(order, spec).await.map_err(|refusal| refusal.during(words))?;
        let limited = !self.no_time_to_live.load(std::sync::atomic::Ordering::Relaxed);
        let minutes = limited.then(|| create::minutes_of(order.lease));
        self.renew_as(&id, Renewal { activity: true, minutes });
        Ok(id)
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let words = Self::check("stop", kind, id)?;
        let answer = release::stop(&*self.wire, id, timeout).await;
        answer.map_err(|refusal| refusal.during(words))
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        let words = Self::check("renew", kind, id)?;
        let renew = async {
            let renewal = self.renewal(id).await?;
            if renewal.activity {
                self.wire.touch(id).await?;
            }
            if let Some(minutes) = renewal.minutes {
                match self.wire.set_time_to_live(id, minutes).await {
                    // The server took the limit with the create but has no way to move it, or
                    // never had it: activity is what keeps the sandbox then.
                    Err(refusal) if refusal.is_absence() => {
                        debug!(id, "the server cannot move a time to live");
                        self.renew_as(id, Renewal { minutes: None, ..renewal });
                    }
                    answer => answer?,
                }
            }
            Ok::<_, Refusal>(())
        };
        renew.await.map_err(|refusal| refusal.during(words))
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let words = Self::check("delete", kind, id)?;
        let recoverable = self.recoverable().remove(id);
        if recoverable {
            release::recover(&*self.wire, id).await;
        }
        let answer = release::sandbox(&*self.wire, &self.absences, id, mode).await;
        let released =
            answer.map_err(|refusal: Refusal| -> ProviderError { refusal.during(words) })?;
        if released == Released::Accepted {
            self.destroys.ordered(id);
        }
        self.renewals().remove(id);
        Ok(released)
    }
}
