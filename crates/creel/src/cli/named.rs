//! Resources that the user names one by one: `stop` and `rm`.

use creel_core::failure::Code;
use creel_core::id::ResourceId;
use creel_core::ledger::{Ledger, Record};
use creel_core::owner::Liveness;
use creel_core::plan::{Binding, PlanItem};
use creel_core::provider::{IdentityCheck, Kind, Observed, Providers};
use creel_core::select::{Ownership, Roll, protection};
use jiff::Timestamp;

use crate::app::{App, Listing};
use crate::output::{Exit, Failure};

/// What a name turned out to mean.
enum Meant {
    /// This object.
    Object(Box<PlanItem>),
    /// A record of ours whose object is gone already.
    AlreadyGone(ResourceId),
}

/// What a name on the command line is the name of.
#[derive(Debug, Clone, Copy)]
enum Named {
    /// An object, which whoever names it means.
    Object,
    /// A record: only its own object is meant.
    Record,
}

/// Finds named resources among what is there.
pub(crate) struct Finder<'a> {
    pub(crate) app: &'a App,
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) listing: &'a Listing,
    pub(crate) roll: &'a Roll,
    /// Where what a list does not show is asked for.
    pub(crate) providers: &'a Providers,
    /// Take also what a live owner holds.
    pub(crate) force: bool,
}

impl Finder<'_> {
    /// Finds all of them before anything is done, and refuses what may not be touched.
    pub(crate) async fn find_all(&self, names: &[String]) -> Result<Vec<PlanItem>, Failure> {
        let mut items: Vec<PlanItem> = Vec::new();
        for name in names {
            match self.find(name).await? {
                Meant::Object(item) if items.iter().any(|known| is_same(known, &item)) => {}
                Meant::Object(item) => items.push(*item),
                Meant::AlreadyGone(resource) => {
                    self.app.printer.say(&format!("{resource} is gone already"));
                }
            }
        }
        Ok(items)
    }

    async fn find(&self, name: &str) -> Result<Meant, Failure> {
        if let Ok(resource) = name.parse::<ResourceId>() {
            return self.find_resource(resource).await;
        }
        match self.find_object(name) {
            Ok(seen) => {
                let seen = self.only_the_name(seen, name).await?;
                self.admit(seen).map(|item| Meant::Object(Box::new(item)))
            }
            Err(failure) if failure.code == Code::NoSuch => match self.find_record(name) {
                Some(record) => self.look_up(record, Named::Object).await,
                None => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Returns the reference alone, where an image of several names is called by one of them: the
    /// others stay.
    async fn only_the_name(&self, seen: &Observed, name: &str) -> Result<Observed, Failure> {
        let (_, wanted) = kind_and_name(name);
        if seen.tags().nth(1).is_none() || seen.tags().all(|tag| tag != wanted) {
            return Ok(seen.clone());
        }
        let provider = self.providers.get(seen.provider)?;
        let reference = provider.inspect(Kind::Image, wanted).await?;
        reference.ok_or_else(|| self.no_such(name))
    }

    async fn find_resource(&self, resource: ResourceId) -> Result<Meant, Failure> {
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
        match self.listing.inventory.iter().find(is_it) {
            // Compared with the record, not with its name: a replacement stays.
            Some(seen) => {
                let liveness = record.owner_liveness();
                let item = self.admit_as(seen.clone(), liveness, Some(resource))?;
                Ok(Meant::Object(Box::new(item)))
            }
            None if !record.state.name().is_open() => Ok(Meant::AlreadyGone(resource)),
            None => self.look_up(&record, Named::Record).await,
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
        let mut fitting = self.roll.records().filter(fits);
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// Asks the provider for the object of a record that no list shows. One that is absent is
    /// released all the same: that closes its record.
    async fn look_up(&self, record: &Record, named: Named) -> Result<Meant, Failure> {
        if let Some(failure) = self.listing.refusal() {
            return Err(failure);
        }
        let provider = self.providers.get(record.provider)?;
        let seen = match record.state.object() {
            Some(object) => provider.inspect(record.kind, object).await?,
            None => provider.find(&record.marks()).await?.into_iter().next(),
        };
        match (seen, record.state.object()) {
            (Some(seen), _) => {
                let resource = match named {
                    Named::Object if is_unproven(record, &seen) => None,
                    Named::Object | Named::Record => Some(record.id),
                };
                let item = self.admit_as(seen, record.owner_liveness(), resource)?;
                Ok(Meant::Object(Box::new(item)))
            }
            (None, Some(object)) => {
                let gone = Observed::known_by_id(record.provider, record.kind, object);
                let seen = Observed { name: record.name.clone(), ..gone };
                self.refuse_held(&seen, record.owner_liveness())?;
                let (rule, resource) = ("named".to_owned(), Some(record.id));
                let binding = Binding::Identity;
                let item = PlanItem { seen, rule, resource, binding, evidence: None };
                Ok(Meant::Object(Box::new(item)))
            }
            (None, None) => {
                let message = format!("nothing came of the create of {} yet", record.id);
                Err(Failure::new(Code::NoSuch, Exit::Usage, message)
                    .hint("creel reconcile tells until when it is searched for"))
            }
        }
    }

    /// Finds by kind/name, by whole name or id, or by the start of an id.
    fn find_object(&self, name: &str) -> Result<&Observed, Failure> {
        let (kind, wanted) = kind_and_name(name);
        let of_kind = |seen: &&Observed| kind.is_none_or(|kind: Kind| kind == seen.kind);
        let all = || self.listing.inventory.iter().filter(of_kind);
        let whole: Vec<&Observed> = all()
            .filter(|seen| is_called(seen, wanted) || bare(&seen.id) == bare(wanted))
            .collect();
        let is_prefix = |seen: &&Observed| {
            // Shorter starts are more likely a typo than an id.
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
        if let Some(failure) = self.listing.refusal() {
            return failure;
        }
        Failure::new(Code::NoSuch, Exit::Usage, format!("there is no resource `{name}`"))
            .hint("creel ls lists what is there")
    }

    /// Refuses what an owner holds that lives, or may live.
    fn refuse_held(&self, seen: &Observed, liveness: Liveness) -> Result<(), Failure> {
        if liveness == Liveness::Dead || self.force {
            return Ok(());
        }
        let message = format!("{} {} is held by an owner that is {liveness}", seen.kind, seen.name);
        Err(Failure::new(Code::Held, Exit::Refused, message)
            .hint("end that process, or take it away with --force"))
    }

    /// Refuses what is protected or held by somebody who lives.
    fn admit(&self, seen: Observed) -> Result<PlanItem, Failure> {
        let ownership = self.roll.ownership(&seen);
        let liveness = match &ownership {
            Ownership::Foreign => Liveness::Dead,
            Ownership::Ours { liveness, .. }
            | Ownership::Unrecorded { liveness, .. }
            | Ownership::Labelled { liveness }
            | Ownership::OtherLedger { liveness, .. } => *liveness,
        };
        // Whoever names the object itself means it, also where nothing proves that it is the one
        // on record; naming the record means only what is proven.
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

/// Returns whether an object has a name.
fn is_called(seen: &Observed, name: &str) -> bool {
    seen.names().any(|one| one == name)
}

/// Splits a kind off a name, where one is given.
fn kind_and_name(name: &str) -> (Option<Kind>, &str) {
    match name.split_once('/') {
        Some((kind, rest)) if kind.parse::<Kind>().is_ok() => (kind.parse().ok(), rest),
        _ => (None, name),
    }
}

/// Returns whether nothing proves that an object is the one on record, or another.
fn is_unproven(record: &Record, seen: &Observed) -> bool {
    matches!(record.check(seen), IdentityCheck::Unproven { .. })
}

fn is_same(a: &PlanItem, b: &PlanItem) -> bool {
    (a.seen.provider, a.seen.kind, &a.seen.id) == (b.seen.provider, b.seen.kind, &b.seen.id)
}

fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}
