//! Finds the resources that the user names one by one, for `stop` and `rm`.

use creel_core::pipeline::Survey;
use creel_core::plan::{Binding, PlanItem};
use creel_core::select::{Ownership, protection};
use creel_ledger::{Ledger, Record};
use creel_model::failure::Code;
use creel_model::id::ResourceId;
use creel_model::owner::Liveness;
use creel_model::provider::{IdentityCheck, Kind, Observed, Providers};
use jiff::Timestamp;

use crate::app::{App, refusal};
use crate::output::{Exit, Failure};

/// What a name resolves to.
enum NamedTarget {
    /// This object.
    Object(Box<PlanItem>),
    /// One of our records whose object is gone already.
    AlreadyGone(ResourceId),
}

/// What kind of name the user gave.
#[derive(Debug, Clone, Copy)]
enum NameKind {
    /// The name of an object: the user selects that object.
    Object,
    /// The id of a record: only its own object is selected.
    Record,
}

/// Finds named resources in the inventory.
pub(crate) struct Finder<'a> {
    pub(crate) app: &'a App,
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) survey: &'a Survey,
    /// The providers, for what a list does not show.
    pub(crate) providers: &'a Providers,
    /// Whether to take also what a live owner holds.
    pub(crate) force: bool,
}

impl Finder<'_> {
    /// Finds all of them before the first action, and refuses what must not be touched.
    pub(crate) async fn find_all(&self, names: &[String]) -> Result<Vec<PlanItem>, Failure> {
        let mut items: Vec<PlanItem> = Vec::new();
        for name in names {
            match self.find(name).await? {
                NamedTarget::Object(item) if items.iter().any(|known| is_same(known, &item)) => {}
                NamedTarget::Object(item) => items.push(*item),
                NamedTarget::AlreadyGone(resource) => {
                    self.app.printer.say(&format!("{resource} is gone already"));
                }
            }
        }
        Ok(items)
    }

    async fn find(&self, name: &str) -> Result<NamedTarget, Failure> {
        if let Ok(resource) = name.parse::<ResourceId>() {
            return self.find_resource(resource).await;
        }
        match self.find_object(name) {
            Ok(seen) => {
                let seen = self.only_the_name(seen, name).await?;
                self.admit(seen).map(|item| NamedTarget::Object(Box::new(item)))
            }
            Err(failure) if failure.code == Code::NoSuch => match self.find_record(name) {
                Some(record) => self.inspect_record(record, NameKind::Object).await,
                None => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Returns the reference alone, if an image with several names is given by one of them.
    ///
    /// The other names stay.
    async fn only_the_name(&self, seen: &Observed, name: &str) -> Result<Observed, Failure> {
        let (_, wanted) = kind_and_name(name);
        if seen.tags.len() < 2 || seen.tags.iter().all(|tag| tag != wanted) {
            return Ok(seen.clone());
        }
        let provider = self.providers.get(seen.provider)?;
        let reference = provider.inspect(Kind::Image, wanted).await?;
        reference.ok_or_else(|| self.no_such(name))
    }

    async fn find_resource(&self, resource: ResourceId) -> Result<NamedTarget, Failure> {
        let record = match self.ledger {
            Some(ledger) => ledger.record(resource).await?,
            None => None,
        };
        let Some(record) = record else { return Err(self.no_such(&resource.to_string())) };
        let is_it = |seen: &&Observed| {
            seen.provider == record.provider
                && seen.kind == record.kind
                && record.state.object().map_or(seen.name == record.name, |id| seen.id == id)
        };
        match self.survey.listing.inventory.iter().find(is_it) {
            // Compared with the record, not with its name: a replacement stays.
            Some(seen) => {
                let liveness = record.owner_liveness();
                let item = self.admit_as(seen.clone(), liveness, Some(resource))?;
                Ok(NamedTarget::Object(Box::new(item)))
            }
            None if !record.state.name().is_open() => Ok(NamedTarget::AlreadyGone(resource)),
            None => self.inspect_record(&record, NameKind::Record).await,
        }
    }

    /// Finds an open record by the name or the id of its object, or the start of that id.
    fn find_record(&self, name: &str) -> Option<&Record> {
        let (kind, wanted) = kind_and_name(name);
        let fits = |record: &&Record| {
            let object = record.state.object().map(bare);
            let is_prefix = |id: &str| wanted.len() >= 4 && id.starts_with(bare(wanted));
            kind.is_none_or(|kind| kind == record.kind)
                && (record.name == wanted || object.is_some_and(is_prefix))
        };
        let mut fitting = self.survey.record_index.records().filter(fits);
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// Requests the object of a record that no list shows from its provider.
    ///
    /// An absent object is released as well, because that closes its record.
    async fn inspect_record(
        &self,
        record: &Record,
        name_kind: NameKind,
    ) -> Result<NamedTarget, Failure> {
        if let Some(failure) = refusal(&self.survey.listing.unreachable) {
            return Err(failure);
        }
        let provider = self.providers.get(record.provider)?;
        let seen = match record.state.object() {
            Some(object) => provider.inspect(record.kind, object).await?,
            None => provider.find(&record.marks()).await?.into_iter().next(),
        };
        match (seen, record.state.object()) {
            (Some(seen), _) => {
                let resource = match name_kind {
                    NameKind::Object if is_unproven(record, &seen) => None,
                    NameKind::Object | NameKind::Record => Some(record.id),
                };
                let item = self.admit_as(seen, record.owner_liveness(), resource)?;
                Ok(NamedTarget::Object(Box::new(item)))
            }
            (None, Some(object)) => {
                let gone = Observed::known_by_id(record.provider, record.kind, object);
                let seen = Observed { name: record.name.clone(), ..gone };
                self.refuse_held(&seen, record.owner_liveness())?;
                let (rule, resource) = ("named".to_owned(), Some(record.id));
                let binding = Binding::Identity;
                let item = PlanItem { seen, rule, resource, binding, evidence: None };
                Ok(NamedTarget::Object(Box::new(item)))
            }
            (None, None) => {
                let message = format!("nothing came of the create of {} yet", record.id);
                Err(Failure::new(Code::NoSuch, Exit::Usage, message)
                    .hint("creel reconcile shows until when it is searched for"))
            }
        }
    }

    /// Finds by kind/name, by whole name or id, or by the start of an id.
    fn find_object(&self, name: &str) -> Result<&Observed, Failure> {
        let (kind, wanted) = kind_and_name(name);
        let of_kind = |seen: &&Observed| kind.is_none_or(|kind: Kind| kind == seen.kind);
        let all = || self.survey.listing.inventory.iter().filter(of_kind);
        let whole: Vec<&Observed> = all()
            .filter(|seen| is_called(seen, wanted) || bare(&seen.id) == bare(wanted))
            .collect();
        let is_prefix = |seen: &&Observed| {
            // A shorter prefix is more likely a typo than an id.
            wanted.len() >= 4 && bare(&seen.id).starts_with(bare(wanted))
        };
        let found = if whole.is_empty() { all().filter(is_prefix).collect() } else { whole };
        match found.as_slice() {
            [one] => Ok(one),
            [] => Err(self.no_such(name)),
            several => {
                let shown: Vec<String> =
                    several.iter().map(|seen| format!("{}/{}", seen.kind, seen.name)).collect();
                let message = format!("`{name}` may mean {}", shown.join(", "));
                Err(Failure::new(Code::Ambiguous, Exit::Usage, message)
                    .hint("give more of the id, or the kind: container/NAME"))
            }
        }
    }

    fn no_such(&self, name: &str) -> Failure {
        if let Some(failure) = refusal(&self.survey.listing.unreachable) {
            return failure;
        }
        Failure::new(Code::NoSuch, Exit::Usage, format!("there is no resource `{name}`"))
            .hint("creel ls lists what is there")
    }

    /// Refuses what is held by an owner that is, or may be, alive.
    fn refuse_held(&self, seen: &Observed, liveness: Liveness) -> Result<(), Failure> {
        if liveness == Liveness::Dead || self.force {
            return Ok(());
        }
        let message = format!("{} {} is held by an owner that is {liveness}", seen.kind, seen.name);
        Err(Failure::new(Code::Held, Exit::Refused, message)
            .hint("end that process, or release it anyway with --force"))
    }

    /// Refuses what is protected or held by an owner that may be alive.
    fn admit(&self, seen: Observed) -> Result<PlanItem, Failure> {
        let ownership = self.survey.record_index.ownership(&seen);
        let liveness = match &ownership {
            Ownership::Foreign => Liveness::Dead,
            Ownership::Ours { liveness, .. }
            | Ownership::Unrecorded { liveness, .. }
            | Ownership::Labelled { liveness }
            | Ownership::OtherLedger { liveness, .. } => *liveness,
        };
        // A user who names the object itself selects it, even if nothing proves that it is the one
        // on record. Naming the record selects only what is proven.
        let known = ownership.record().filter(|record| !is_unproven(record, &seen));
        let resource = known.map(|record| record.id);
        self.admit_as(seen, liveness, resource)
    }

    fn admit_as(
        &self,
        seen: Observed,
        liveness: Liveness,
        resource: Option<ResourceId>,
    ) -> Result<PlanItem, Failure> {
        if let Some(reason) = protection(&self.app.config.protect, &seen, Timestamp::now()) {
            let message = format!("{} {} is left alone: it is {reason}", seen.kind, seen.name);
            return Err(Failure::new(Code::Protected, Exit::Refused, message)
                .hint("no flag overrides protection: creel explain CR0033"));
        }
        self.refuse_held(&seen, liveness)?;
        let rule = "named".to_owned();
        Ok(PlanItem { seen, rule, resource, binding: Binding::Identity, evidence: None })
    }
}

/// Returns whether an object has this name.
fn is_called(seen: &Observed, name: &str) -> bool {
    seen.names().any(|one| one == name)
}

/// Splits off the kind, if the name has one.
fn kind_and_name(name: &str) -> (Option<Kind>, &str) {
    match name.split_once('/') {
        Some((kind, rest)) if kind.parse::<Kind>().is_ok() => (kind.parse().ok(), rest),
        _ => (None, name),
    }
}

/// Returns whether it is unproven that an object is, or is not, the one on record.
fn is_unproven(record: &Record, seen: &Observed) -> bool {
    matches!(record.check(seen), IdentityCheck::Unproven { .. })
}

fn is_same(a: &PlanItem, b: &PlanItem) -> bool {
    (a.seen.provider, a.seen.kind, &a.seen.id) == (b.seen.provider, b.seen.kind, &b.seen.id)
}

fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}
