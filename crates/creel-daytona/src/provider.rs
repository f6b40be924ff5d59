//! The Daytona implementation of [`Provider`].

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use creel_model::labels;
use creel_model::provider::{
    CreateRequest, Deadline, ErrorClass, Kind, Marks, Observed, Outlook, Permit, PresetRule,
    Provider, ProviderError, ProviderName, ReleaseMode, Released, Result, Spec,
};
use tokio::sync::OnceCell;
use tracing::debug;

use super::absence::Absences;
use super::access::{DaytonaEnvironment, DaytonaSettings, InvalidAccess};
use super::api::ListQuery;
use super::classify::DaytonaError;
use super::create::{self, Maker};
use super::destroys::Destroys;
use super::http::Http;
use super::model::{DaytonaSandbox, KeyRights};
use super::observe::observed;
use super::read_retry::steadily;
use super::rest::DaytonaApi;
use super::state::PRESET_RULES;
use super::toolbox::Toolbox;
use super::{listing, read, release, state};

const KINDS: &[Kind] = &[Kind::Sandbox];
/// The pauses after the first check of a sandbox that is being deleted; requests are rate-limited.
const CHECK_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(10);
/// Maximum number of concurrent releases. Most of them wait between two checks, and requests have
/// limits of their own.
const MAX_CONCURRENT_RELEASES: usize = 2048;
/// How long a hidden record is watched; it does not change by itself.
const HIDDEN_PATIENCE: Duration = Duration::from_secs(5);
/// How long an accepted request may wait for the runner.
const PENDING_PATIENCE: Duration = Duration::from_secs(60);
/// How long a create may take: builds are slow, and each state has its own limit.
const CREATE_DEADLINE: Duration = Duration::from_secs(900);

/// How the lease of a sandbox is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// Whether to report activity. False where the sandbox's creator manages idleness itself.
    pub activity: bool,
    /// The minutes to live after a renewal; `None` where we set no time to live.
    pub minutes: Option<u64>,
}

/// The sandboxes of one Daytona organisation.
#[derive(Debug)]
pub struct DaytonaProvider {
    api: DaytonaApi,
    http: Http,
    absences: Absences,
    shared: Arc<SharedState>,
}

/// What all operations on the organisation share.
#[derive(Debug)]
struct SharedState {
    destroys: Destroys,
    settings: DaytonaSettings,
    /// The region where new sandboxes are created.
    target: Option<String>,
    /// The permissions of our key, requested once.
    rights: OnceCell<KeyRights>,
    no_time_to_live: AtomicBool,
    /// Failed sandboxes that can be recovered, as of their last inspect.
    recoverable: Mutex<HashSet<String>>,
    /// How each of our sandboxes is renewed.
    renewals: Mutex<HashMap<String, Renewal>>,
}

impl DaytonaProvider {
    /// Prepares the connection; nothing is sent before the first call.
    ///
    /// # Errors
    ///
    /// Fails when there is no key, or when the address is invalid.
    pub fn connect(
        environment: &DaytonaEnvironment,
        settings: DaytonaSettings,
    ) -> std::result::Result<Self, InvalidAccess> {
        let http = Http::new(environment)?;
        let api = DaytonaApi::new(http.clone());
        let shared = Arc::new(SharedState {
            destroys: Destroys::default(),
            settings,
            target: environment.target.clone(),
            rights: OnceCell::new(),
            no_time_to_live: AtomicBool::new(false),
            recoverable: Mutex::default(),
            renewals: Mutex::default(),
        });
        Ok(Self { absences: Absences::new(api.clone()), api, http, shared })
    }

    /// Returns the API client, for calls that [`Provider`] does not cover.
    pub fn api(&self) -> &DaytonaApi {
        &self.api
    }

    /// Returns the permissions of our key. A token has the permissions of its user, which are not
    /// requested.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the key.
    pub async fn key_rights(&self) -> Result<&KeyRights> {
        let fetch = || async {
            if !self.http.access().is_key() {
                return Ok(KeyRights::default());
            }
            match steadily(|| self.api.key_rights()).await {
                // An older server does not report them.
                Err(refusal) if refusal.is_absence() => Ok(KeyRights::default()),
                result => result,
            }
        };
        let rights = self.shared.rights.get_or_try_init(fetch).await;
        rights.map_err(|refusal| refusal.during("ask what its key may do"))
    }

    /// Sends a small request, to prove that the API is reachable and accepts our key.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the key.
    pub async fn probe(&self) -> Result<()> {
        // No sandbox has this id, so the response is small.
        let query = ListQuery { id: Some("0-no-such-sandbox".to_owned()), ..ListQuery::default() };
        let result = self.api.list(&query, None).await;
        result.map(drop).map_err(|refusal| refusal.during("answer"))
    }

    /// Sends a request to the address of the toolboxes, and returns that address.
    ///
    /// Returns `None` where neither the service nor a sandbox names one.
    ///
    /// # Errors
    ///
    /// Fails when nothing responds there, or when the address cannot be used.
    pub async fn probe_toolbox(&self) -> Result<Option<String>> {
        let probe = async {
            let Some(address) = self.toolbox_address().await? else { return Ok(None) };
            Toolbox::probe(&self.http, &address).await?;
            Ok::<_, DaytonaError>(Some(address))
        };
        probe.await.map_err(|refusal| refusal.during("reach its toolboxes"))
    }

    async fn toolbox_address(&self) -> std::result::Result<Option<String>, DaytonaError> {
        match steadily(|| self.api.toolbox_url()).await {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {}
            Err(refusal) if refusal.class == ErrorClass::Denied => return Err(refusal),
            // An older service does not publish its configuration.
            Err(refusal) => debug!(%refusal, "the service does not say where its toolboxes are"),
        }
        let any = ListQuery::default();
        let page = steadily(|| self.api.list(&any, None)).await?;
        Ok(page.items.into_iter().find_map(|sandbox| sandbox.toolbox_proxy_url))
    }

    /// Starts a stopped sandbox and waits until it runs; a running one is left as it is.
    ///
    /// # Errors
    ///
    /// Fails when there is no such sandbox, or when it does not start.
    pub async fn start(&self, id: &str) -> Result<()> {
        let operation = Self::check("start", Kind::Sandbox, id)?;
        let start = async {
            let mut sandbox = steadily(|| self.api.get(id)).await?;
            if sandbox.state != state::SandboxState::Started {
                self.api.start(id).await?;
                sandbox.state = state::SandboxState::Other("starting".to_owned());
            }
            self.maker().until_started(sandbox).await.map(drop)
        };
        start.await.map_err(|refusal: DaytonaError| refusal.during(operation))
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            api: &self.api,
            target: self.shared.target.as_deref(),
            longest_wait: self.shared.settings.longest_wait,
            no_time_to_live: &self.shared.no_time_to_live,
        }
    }

    /// Opens the toolbox of a running sandbox.
    ///
    /// # Errors
    ///
    /// Fails when there is no such sandbox.
    pub async fn toolbox(&self, id: &str) -> Result<Toolbox> {
        let operation = Self::check("open the toolbox of", Kind::Sandbox, id)?;
        let sandbox = steadily(|| self.api.get(id)).await;
        let sandbox = sandbox.map_err(|refusal| refusal.during(operation.clone()))?;
        Toolbox::of(&self.http, &sandbox).map_err(|refusal| refusal.during(operation))
    }

    /// Rejects other kinds, and text that cannot be an id, before it gets into a path.
    fn check(verb: &str, kind: Kind, id: &str) -> Result<String> {
        let operation = format!("{verb} {kind} {id}");
        let refused =
            |message: String| DaytonaError::new(ErrorClass::Invalid, message).during(&operation);
        if kind != Kind::Sandbox {
            return Err(refused(format!("Daytona has no objects of the kind {kind}")));
        }
        if !can_be_id(id) {
            return Err(refused(format!("`{id}` is not the id or name of one")));
        }
        Ok(operation)
    }

    /// Rejects a create whose sandbox could never be deleted.
    pub async fn check_rights(&self, operation: &str) -> Result<()> {
        let missing = self.key_rights().await?.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the key lacks {}: what it creates could not be deleted; make a key with these scopes",
            missing.join(" and ")
        );
        Err(DaytonaError::new(ErrorClass::Denied, message).during(operation))
    }

    /// Sets how a sandbox that another client requested is renewed.
    pub fn renew_as(&self, id: &str, renewal: Renewal) {
        self.renewals().insert(id.to_owned(), renewal);
    }

    /// Changes how a sandbox is renewed, where that is known.
    pub fn change_renewal(&self, id: &str, change: impl FnOnce(&mut Renewal)) {
        self.renewals().get_mut(id).map(change);
    }

    /// Returns how a sandbox is renewed.
    async fn renewal(&self, id: &str) -> std::result::Result<Renewal, DaytonaError> {
        if let Some(known) = self.renewals().get(id) {
            return Ok(*known);
        }
        // Another process created it: its own settings show how it was meant.
        let sandbox = self.api.get(id).await?;
        let renewal = Renewal { activity: true, minutes: lifetime_of(&sandbox) };
        self.renew_as(id, renewal);
        Ok(renewal)
    }

    /// Records whether a recover helps before a delete. A release always follows an inspect.
    fn note_recoverable(&self, id: &str, found: Option<&DaytonaSandbox>) {
        let helps = |found: &DaytonaSandbox| {
            found.recoverable && found.state.has_failed() && !found.is_errored_deleted()
        };
        if found.is_some_and(helps) {
            self.recoverable().insert(id.to_owned());
        } else {
            self.recoverable().remove(id);
        }
    }

    fn recoverable(&self) -> MutexGuard<'_, HashSet<String>> {
        self.shared.recoverable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewals(&self) -> MutexGuard<'_, HashMap<String, Renewal>> {
        self.shared.renewals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether this is safe in a path. Names that other users chose may contain anything.
fn can_be_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    id.starts_with(|first: char| first.is_ascii_alphanumeric()) && id.bytes().all(allowed)
}

/// Returns how long a sandbox that creel created was meant to live without a renewal.
fn lifetime_of(sandbox: &DaytonaSandbox) -> Option<u64> {
    labels::claimed_resource(&sandbox.labels)?;
    sandbox.auto_destroy_at?;
    sandbox.auto_stop_minutes.and_then(|minutes| u64::try_from(minutes).ok()).filter(|&m| m > 0)
}

#[async_trait]
impl Provider for DaytonaProvider {
    fn name(&self) -> ProviderName {
        crate::NAME
    }

    fn address(&self) -> String {
        self.api.address()
    }

    fn other_account_hint(&self) -> &'static str {
        "set DAYTONA_API_URL and a key of that organisation"
    }

    fn preset_rules(&self) -> &'static [PresetRule] {
        PRESET_RULES
    }

    fn access_hint(&self, _kind: Kind, id: &str) -> Option<String> {
        Some(format!("enter it: it is sandbox {id} at Daytona"))
    }

    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn first_check_delay(&self) -> Duration {
        self.shared.destroys.first_check_delay()
    }

    fn check_interval(&self) -> RangeInclusive<Duration> {
        CHECK_INTERVAL
    }

    fn concurrency(&self) -> Option<usize> {
        Some(MAX_CONCURRENT_RELEASES)
    }

    async fn permit(&self) -> Permit {
        self.http.permit().await
    }

    fn within(self: Arc<Self>, permit: Permit, deadline: Deadline) -> Arc<dyn Provider> {
        let http = self.http.within(permit, deadline.clone());
        let api = DaytonaApi::new(http.clone());
        let absences = self.absences.within(api.clone(), deadline);
        Arc::new(Self { api, http, absences, shared: Arc::clone(&self.shared) })
    }

    fn create_deadline(&self) -> Duration {
        CREATE_DEADLINE
    }

    fn outlook(&self, seen: &Observed) -> Outlook {
        if seen.retained.is_some() {
            return Outlook::Retained(HIDDEN_PATIENCE);
        }
        let longest = self.shared.settings.longest_wait;
        match (seen.state.as_str(), seen.desired.as_deref()) {
            // A destroy that does not end is stuck, and no request can help it.
            ("destroying" | "destroyed", _) | (_, Some("destroyed")) => {
                Outlook::Leaving(Some(longest))
            }
            (name, desired) => match state::patience(name) {
                Some(patience) => Outlook::Changing(patience.min(longest)),
                None if desired.is_some() => Outlook::Changing(PENDING_PATIENCE.min(longest)),
                None => Outlook::Stable,
            },
        }
    }

    /// Returns the organisation where the environment names it, otherwise the key's user and name.
    ///
    /// They stay the same while the key is kept, and reveal nothing about the secret.
    async fn identity(&self) -> Result<String> {
        let address = self.api.address();
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
        // Includes those whose delete was accepted without effect: they run, and cost money.
        let query = ListQuery { errored_deleted: true, ..ListQuery::default() };
        let found = listing::all(&self.api, &query).await;
        let found = found.map_err(|refusal| refusal.during("list its sandboxes"))?;
        let there = found.into_iter().filter(|row| row.state != state::SandboxState::Destroyed);
        Ok(there.map(observed).collect())
    }

    async fn inspect(&self, kind: Kind, id: &str) -> Result<Option<Observed>> {
        let operation = Self::check("inspect", kind, id)?;
        let result = read::inspect(&self.api, &self.absences, id).await;
        if let Ok(found) = &result {
            self.note_recoverable(id, found.as_ref());
            let is_there = found.as_ref().is_some_and(|found| !found.is_errored_deleted());
            self.shared.destroys.record_check(id, is_there);
        }
        result.map(|found| found.map(observed)).map_err(|refusal| refusal.during(operation))
    }

    async fn find(&self, marks: &Marks) -> Result<Vec<Observed>> {
        let operation = Self::check("find", marks.kind, &marks.resource.object_name())?;
        let found = read::find(&self.api, marks, can_be_id(&marks.name)).await;
        let found = found.map_err(|refusal| refusal.during(operation))?;
        Ok(found.into_iter().map(observed).collect())
    }

    async fn create(&self, request: &CreateRequest) -> Result<String> {
        let operation = Self::check("create", request.spec.kind(), &request.name)?;
        let Spec::Sandbox(spec) = &request.spec else {
            let message = "only sandboxes are made here";
            return Err(DaytonaError::new(ErrorClass::Invalid, message).during(operation));
        };
        self.check_rights(&operation).await?;
        let id =
            self.maker().make(request, spec).await.map_err(|refusal| refusal.during(operation))?;
        let limited = !self.shared.no_time_to_live.load(std::sync::atomic::Ordering::Relaxed);
        let minutes = limited.then(|| create::minutes_of(request.lease));
        self.renew_as(&id, Renewal { activity: true, minutes });
        Ok(id)
    }

    async fn stop(&self, kind: Kind, id: &str, timeout: Duration) -> Result<()> {
        let operation = Self::check("stop", kind, id)?;
        let result = release::stop(&self.api, id, timeout).await;
        result.map_err(|refusal| refusal.during(operation))
    }

    async fn renew(&self, kind: Kind, id: &str) -> Result<()> {
        let operation = Self::check("renew", kind, id)?;
        let renew = async {
            let renewal = self.renewal(id).await?;
            if renewal.activity {
                self.api.touch(id).await?;
            }
            if let Some(minutes) = renewal.minutes {
                match self.api.set_time_to_live(id, minutes).await {
                    // The server accepted the limit with the create but cannot move it, or never
                    // had it. Activity then keeps the sandbox alive.
                    Err(refusal) if refusal.is_absence() => {
                        debug!(id, "the server cannot move a time to live");
                        self.renew_as(id, Renewal { minutes: None, ..renewal });
                    }
                    result => result?,
                }
            }
            Ok::<_, DaytonaError>(())
        };
        renew.await.map_err(|refusal| refusal.during(operation))
    }

    async fn release(&self, kind: Kind, id: &str, mode: ReleaseMode) -> Result<Released> {
        let operation = Self::check("delete", kind, id)?;
        if let Some(other) = mode.other_id(id) {
            return Ok(Released::Kept(other));
        }
        let recoverable = self.recoverable().remove(id);
        if recoverable {
            release::recover(&self.api, id).await;
        }
        let result = release::sandbox(&self.api, &self.absences, id, mode).await;
        let released = result
            .map_err(|refusal: DaytonaError| -> ProviderError { refusal.during(operation) })?;
        if released == Released::Accepted {
            self.shared.destroys.record_accepted(id);
        }
        self.renewals().remove(id);
        Ok(released)
    }
}
