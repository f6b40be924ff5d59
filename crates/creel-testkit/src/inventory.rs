//! Inventories of the objects on an engine, and their differences.
//!
//! "Nothing is left behind" means: the inventory after, minus the inventory before, is empty.
//! Objects are identified by the engine's own id, so an object that was removed and recreated under
//! the same name shows up.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use serde_json::Value;

use crate::docker::Labels;
use crate::engine::Engine;

/// The kinds of objects on an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A container in any state.
    Container,
    /// A network, except the three predefined ones.
    Network,
    /// A volume, named or anonymous.
    Volume,
    /// An image, tagged or not.
    Image,
}

/// One object as a listing shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    /// The kind of the object.
    pub kind: Kind,
    /// The engine's id. For a volume, it is the name.
    pub id: String,
    /// The name without a leading slash, or an image's first tag.
    pub name: String,
    /// The labels, including inherited ones.
    pub labels: Labels,
    /// A container's state. Empty for other kinds.
    pub state: String,
}

impl fmt::Debug for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.trim_start_matches("sha256:");
        let id = id.get(..12).unwrap_or(id);
        write!(formatter, "{:?} {id} {:?}", self.kind, self.name)?;
        if !self.state.is_empty() {
            write!(formatter, " {}", self.state)?;
        }
        if !self.labels.is_empty() {
            write!(formatter, " {:?}", self.labels)?;
        }
        Ok(())
    }
}

/// All objects on one engine at one moment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    objects: BTreeMap<(Kind, String), Object>,
}

impl fmt::Debug for Inventory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.objects.values()).finish()
    }
}

impl Inventory {
    /// Lists everything on an engine.
    ///
    /// # Errors
    ///
    /// Fails when the engine does not answer.
    pub fn snapshot(engine: &Engine) -> Result<Self> {
        let api = engine.api();
        let mut objects = list(&api.get("/containers/json?all=true")?, container);
        objects.extend(list(&api.get("/networks")?, network));
        objects.extend(list(&api.get("/volumes")?["Volumes"], volume));
        objects.extend(list(&api.get("/images/json?all=true")?, image));
        let keyed = objects.into_iter().map(|object| ((object.kind, object.id.clone()), object));
        Ok(Self { objects: keyed.collect() })
    }

    /// Returns the objects that are not in the baseline.
    #[must_use]
    pub fn minus(&self, baseline: &Self) -> Self {
        self.filter(|object| !baseline.objects.contains_key(&(object.kind, object.id.clone())))
    }

    /// Returns the objects that satisfy the condition.
    #[must_use]
    pub fn filter(&self, condition: impl Fn(&Object) -> bool) -> Self {
        let kept = self.objects.iter().filter(|(_, object)| condition(object));
        Self { objects: kept.map(|(key, object)| (key.clone(), object.clone())).collect() }
    }

    /// Returns the objects that carry the label with this value.
    #[must_use]
    pub fn with_label(&self, key: &str, value: &str) -> Self {
        self.filter(|object| object.labels.get(key).is_some_and(|found| found == value))
    }

    /// Returns the objects of one kind.
    #[must_use]
    pub fn of_kind(&self, kind: Kind) -> Self {
        self.filter(|object| object.kind == kind)
    }

    /// Returns the objects.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// Returns the ids.
    pub fn ids(&self) -> Vec<String> {
        self.objects.values().map(|object| object.id.clone()).collect()
    }

    /// Returns the object of that name and kind.
    pub fn named(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.values().find(|object| object.kind == kind && object.name == name)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

fn list(response: &Value, read: impl Fn(&Value) -> Option<Object>) -> Vec<Object> {
    // An engine without volumes answers null instead of an empty list.
    response.as_array().map(|rows| rows.iter().filter_map(read).collect()).unwrap_or_default()
}

fn container(row: &Value) -> Option<Object> {
    let name = row["Names"][0].as_str().unwrap_or_default().trim_start_matches('/');
    Some(Object { state: text(row, "State"), ..object(Kind::Container, row, "Id", name)? })
}

fn network(row: &Value) -> Option<Object> {
    let name = text(row, "Name");
    // Every engine has these. Podman's default network has Podman's name.
    let predefined = ["bridge", "host", "none", "podman"].contains(&name.as_str());
    if predefined { None } else { object(Kind::Network, row, "Id", &name) }
}

fn volume(row: &Value) -> Option<Object> {
    object(Kind::Volume, row, "Name", &text(row, "Name"))
}

fn image(row: &Value) -> Option<Object> {
    let tag = row["RepoTags"][0].as_str().unwrap_or_default();
    object(Kind::Image, row, "Id", tag)
}

fn object(kind: Kind, row: &Value, id: &str, name: &str) -> Option<Object> {
    let id = row[id].as_str()?.to_owned();
    Some(Object { kind, id, name: name.to_owned(), labels: labels(row), state: String::new() })
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

fn labels(row: &Value) -> Labels {
    let pairs = row["Labels"].as_object().into_iter().flatten();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}
