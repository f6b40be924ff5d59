//! All sandboxes of a server, by id, by name and by age.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::moment::Moment;
use crate::sandbox::SandboxRecord;
use crate::state::State;

/// The position of a sandbox by creation: milliseconds and sequence number.
pub(crate) type Age = (i64, u64);

/// All sandboxes.
#[derive(Debug, Default)]
pub(crate) struct SandboxRegistry {
    sandboxes: HashMap<Uuid, SandboxRecord>,
    names: HashMap<String, Uuid>,
    by_age: BTreeMap<Age, Uuid>,
    sequence: u64,
}

impl SandboxRegistry {
    /// Returns the next sequence number.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Adds a sandbox. Returns `false` if the name is taken.
    pub(crate) fn add(&mut self, sandbox: SandboxRecord) -> bool {
        if self.names.contains_key(&sandbox.name) {
            return false;
        }
        self.names.insert(sandbox.name.clone(), sandbox.id);
        self.by_age.insert((sandbox.created_at.0, sandbox.sequence), sandbox.id);
        self.sandboxes.insert(sandbox.id, sandbox);
        true
    }

    /// Finds a sandbox by id or name, as the API does.
    pub(crate) fn find(&self, key: &str) -> Option<&SandboxRecord> {
        let by_id = Uuid::try_parse(key).ok().and_then(|id| self.sandboxes.get(&id));
        let found = by_id.or_else(|| self.sandboxes.get(self.names.get(key)?));
        found.filter(|sandbox| sandbox.is_visible())
    }

    /// Returns the id of a sandbox that the API shows.
    pub(crate) fn id_of(&self, key: &str) -> Option<Uuid> {
        self.find(key).map(|sandbox| sandbox.id)
    }

    /// Returns a sandbox, whatever its state.
    pub(crate) fn get(&self, id: &Uuid) -> Option<&SandboxRecord> {
        self.sandboxes.get(id)
    }

    /// Returns a mutable sandbox. Change its name only with [`SandboxRegistry::rename`].
    pub(crate) fn get_mut(&mut self, id: &Uuid) -> Option<&mut SandboxRecord> {
        self.sandboxes.get_mut(id)
    }

    /// Renames a sandbox.
    pub(crate) fn rename(&mut self, id: &Uuid, name: String) {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            self.names.remove(&sandbox.name);
            self.names.insert(name.clone(), *id);
            sandbox.name = name;
        }
    }

    /// Removes a sandbox that is gone, unless the list still has to show it.
    pub(crate) fn forget(&mut self, id: &Uuid) {
        let now = Moment::now();
        let may_go = |sandbox: &SandboxRecord| {
            let shown = sandbox.shadow.as_ref().is_some_and(|shadow| shadow.shown_until > now);
            sandbox.state == State::Destroyed && !shown
        };
        if self.sandboxes.get(id).is_some_and(may_go)
            && let Some(sandbox) = self.sandboxes.remove(id)
        {
            self.names.remove(&sandbox.name);
            self.by_age.remove(&(sandbox.created_at.0, sandbox.sequence));
        }
    }

    /// Returns the sandboxes after an age, oldest first.
    pub(crate) fn after(&self, age: Option<Age>) -> impl Iterator<Item = &SandboxRecord> {
        let from = age.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let ids = self.by_age.range((from, std::ops::Bound::Unbounded));
        ids.filter_map(|(_, id)| self.sandboxes.get(id))
    }

    /// Returns the sandboxes after a millisecond, oldest first. Rows have microseconds, so within
    /// that millisecond only the first row is excluded.
    pub(crate) fn after_millisecond(
        &self,
        from: Option<i64>,
    ) -> impl Iterator<Item = &SandboxRecord> {
        let first = from.and_then(|at| self.by_age.range((at, 0)..).next()).map(|(age, _)| *age);
        match (from, first) {
            (Some(at), Some(first)) if first.0 == at => self.after(Some(first)),
            (Some(at), _) => self.after(Some((at, u64::MAX))),
            (None, _) => self.after(None),
        }
    }

    /// Returns all sandboxes, unsorted.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SandboxRecord> {
        self.sandboxes.values()
    }
}
