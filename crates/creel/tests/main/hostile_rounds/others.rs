//! What others do to the names of our objects, and how their own things must look afterwards.

use std::fs;
use std::path::PathBuf;

use creel_testkit::docker::Docker;
use creel_testkit::wait::eventually;
use serde_json::Value;

use super::arena::{Arena, FOREIGN_IMAGE, Place};
use super::work::{Names, Work};
use crate::cli::cloud::Cloud;
use crate::support::PATIENCE;

/// What a foreign file holds.
const PRECIOUS: &str = "precious";
/// The label that marks what one create made.
const MARK: &str = "dev.creel.resource";

/// One act of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// The volume is removed, made again under its name, and filled.
    ReplaceVolume,
    /// The container is removed and made again under its name with copied labels.
    ReplaceContainer,
    /// The network is removed and made again under its name with copied labels.
    ReplaceNetwork,
    /// The tag is moved to an image of others.
    MoveTag,
    /// The image of the tag gets one more tag, by a user who wants to keep it.
    KeepImage,
    /// New objects of every kind carry the labels of ours.
    CopyLabels,
    /// Directories of sandboxes are removed, made again under their names, and filled.
    ReplaceDirectories,
    /// New sandboxes carry the labels of ours.
    CopySandboxLabels,
    /// Sandboxes are deleted and made again under their names with copied labels.
    ReplaceSandboxes,
}

impl Act {
    /// The acts on an engine and on this machine.
    const LOCAL: [Self; 7] = [
        Self::ReplaceVolume,
        Self::ReplaceContainer,
        Self::ReplaceNetwork,
        Self::MoveTag,
        Self::KeepImage,
        Self::CopyLabels,
        Self::ReplaceDirectories,
    ];

    /// Draws what others do to the objects of some work.
    pub(super) fn draw(work: Work, random: &mut fastrand::Rng) -> Vec<Self> {
        if work.is_remote() {
            let mut acts = vec![Self::CopySandboxLabels];
            acts.extend(random.bool().then_some(Self::ReplaceSandboxes));
            random.shuffle(&mut acts);
            return acts;
        }
        let mut acts = Self::LOCAL.to_vec();
        random.shuffle(&mut acts);
        acts.truncate(random.usize(0..4));
        acts
    }
}

/// Something that belongs to others, with what must still be true of it in the end.
#[derive(Debug)]
pub(super) enum Foreign {
    Container {
        id: String,
    },
    Network {
        id: String,
    },
    /// A volume with the file that others put into it.
    Volume {
        name: String,
    },
    /// A tag and the image it leads to.
    Tag {
        reference: String,
        image: String,
    },
    /// A directory with the file that others put into it.
    Directory {
        path: PathBuf,
    },
    /// A sandbox, as the service showed it when it was made.
    Sandbox {
        id: String,
        made: Value,
    },
}

impl Foreign {
    /// Says how it was touched, if it was.
    pub(super) fn damage(&self, docker: &Docker, place: &Place) -> Option<String> {
        let holds = match self {
            Self::Container { id } => docker.inspect_container(id).unwrap().is_some(),
            Self::Network { id } => docker.inspect_network(id).unwrap().is_some(),
            Self::Volume { name } => content(docker, name).as_deref() == Some(PRECIOUS),
            Self::Tag { reference, image } => image_of(docker, reference).as_ref() == Some(image),
            Self::Directory { path } => {
                fs::read_to_string(path.join(PRECIOUS)).is_ok_and(|text| text == PRECIOUS)
            }
            Self::Sandbox { made, .. } => sandboxes(place).contains(made),
        };
        (!holds).then(|| format!("{self:?}"))
    }

    /// Returns the id under which an inventory lists it.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Container { id } | Self::Network { id } | Self::Sandbox { id, .. } => id,
            Self::Volume { name } => name,
            Self::Tag { image, .. } => image,
            Self::Directory { path } => path.to_str().unwrap_or_default(),
        }
    }

    /// Removes it, so that the next round begins as this one did.
    pub(super) fn remove(&self, docker: &Docker) {
        // The engine is thrown away after the last round; a failed removal shows in the next one.
        let _ = match self {
            Self::Container { id } => docker.remove_container(id),
            Self::Network { id } => docker.remove_network(id),
            Self::Volume { name } => docker.remove_volume(name),
            Self::Tag { reference, .. } => docker.remove_image(reference),
            Self::Directory { path } => fs::remove_dir_all(path).map_err(Into::into),
            // Its service ends with the round.
            Self::Sandbox { .. } => Ok(()),
        };
    }
}

/// Others at work; nothing of what they do goes through the wire.
pub(super) struct Others<'a> {
    pub(super) arena: &'a Arena,
    pub(super) place: &'a Place,
    pub(super) names: &'a Names,
    /// What is theirs by now.
    pub(super) theirs: Vec<Foreign>,
}

impl Others<'_> {
    /// Does one act, as far as there is something to do it to; returns whether there was.
    pub(super) fn act(&mut self, act: Act) -> bool {
        let before = self.theirs.len();
        match act {
            Act::ReplaceVolume => self.replace_volume(),
            Act::ReplaceContainer => self.replace_container(),
            Act::ReplaceNetwork => self.replace_network(),
            Act::MoveTag => self.move_tag(),
            Act::KeepImage => self.keep_image(),
            Act::CopyLabels => self.copy_labels(),
            Act::ReplaceDirectories => self.replace_directories(),
            Act::CopySandboxLabels => self.copy_sandbox_labels(),
            Act::ReplaceSandboxes => self.replace_sandboxes(),
        }
        self.theirs.len() > before
    }

    fn docker(&self) -> Docker {
        self.arena.docker()
    }

    /// Returns the names of the volumes that the round's work made.
    fn our_volumes(&self) -> Vec<String> {
        let added = self.arena.added();
        let volumes = added.objects().filter(|one| one.kind == creel_testkit::world::Kind::Volume);
        let named = volumes.filter(|one| !is_anonymous(&one.name));
        let known = |name: &String| !self.theirs.iter().any(|one| one.id() == name);
        named.map(|one| one.name.clone()).filter(known).collect()
    }

    fn replace_volume(&mut self) {
        let docker = self.docker();
        for name in self.our_volumes() {
            self.remove_users_of_volume(&name);
            let labels = labels_of(&docker.inspect_volume(&name).unwrap(), "/Labels");
            // The mark of a create, copied to the same name, is a forgery that nothing can show.
            let labels = without_mark(labels);
            if docker.remove_volume(&name).is_err() || !fill_volume(&docker, &name, &labels) {
                continue;
            }
            self.theirs.push(Foreign::Volume { name });
        }
    }

    fn remove_users_of_volume(&self, name: &str) {
        let filter = format!("volume={name}");
        let listed = self.docker().cli(&["ps", "-aq", "--no-trunc", "--filter", &filter]).unwrap();
        for id in String::from_utf8_lossy(&listed.stdout).lines() {
            let theirs = self.theirs.iter().any(|one| one.id() == id);
            if !theirs {
                let _ = self.docker().remove_container(id);
            }
        }
    }

    fn replace_container(&mut self) {
        let docker = self.docker();
        let name = &self.names.container;
        let Some(ours) = docker.inspect_container(name).unwrap() else { return };
        let labels = self.copied(name, labels_of(&Some(ours), "/Config/Labels"));
        if docker.remove_container(name).is_err() {
            return;
        }
        let made = make(&docker, &["create", "--name", name], &labels, &["creel-test", "true"]);
        self.theirs.extend(made.map(|id| Foreign::Container { id }));
    }

    fn replace_network(&mut self) {
        let docker = self.docker();
        let name = &self.names.network;
        let Some(ours) = docker.inspect_network(name).unwrap() else { return };
        let labels = self.copied(name, labels_of(&Some(ours), "/Labels"));
        self.remove_our_container();
        if docker.remove_network(name).is_err() {
            return;
        }
        let made = make(&docker, &["network", "create"], &labels, &[name]);
        self.theirs.extend(made.map(|id| Foreign::Network { id }));
    }

    /// Removes the container of the work, which uses its network; not the one that replaced it.
    fn remove_our_container(&self) {
        let docker = self.docker();
        let Some(found) = docker.inspect_container(&self.names.container).unwrap() else { return };
        let id = found["Id"].as_str().unwrap_or_default();
        if !self.theirs.iter().any(|one| one.id() == id) {
            // It may go by itself meanwhile.
            let _ = docker.remove_container(id);
        }
    }

    /// Returns the labels that a replacement of the same name copies: all of them where the id
    /// of the original is on record, all but the mark of the create where it is not.
    fn copied(&self, name: &str, labels: Vec<String>) -> Vec<String> {
        if self.is_on_record(name) { labels } else { without_mark(labels) }
    }

    /// Returns whether the id of an object with this name is on record.
    fn is_on_record(&self, name: &str) -> bool {
        let listed = self.place.home.creel.run(["ledger", "--all", "--json"]);
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let records = listed["records"].as_array().into_iter().flatten();
        records.into_iter().any(|one| one["name"] == name && one["id"].is_string())
    }

    fn move_tag(&mut self) {
        let docker = self.docker();
        let reference = self.names.tag.clone();
        if image_of(&docker, &reference).is_none() {
            return;
        }
        let tagged = docker.cli(&["tag", FOREIGN_IMAGE, &reference]).unwrap();
        let image = image_of(&docker, FOREIGN_IMAGE).expect("the arena made it");
        if tagged.status.success() {
            self.theirs.push(Foreign::Tag { reference, image });
        }
    }

    fn keep_image(&mut self) {
        let docker = self.docker();
        let Some(image) = image_of(&docker, &self.names.tag) else { return };
        let reference = format!("kept-{}", self.names.tag);
        let tagged = docker.cli(&["tag", &image, &reference]).unwrap();
        if tagged.status.success() {
            self.theirs.push(Foreign::Tag { reference, image });
        }
    }

    fn copy_labels(&mut self) {
        let docker = self.docker();
        let added = self.arena.added();
        let Some(ours) = added.objects().find(|one| one.labels.contains_key("dev.creel.resource"))
        else {
            return;
        };
        let labels: Vec<String> =
            ours.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let name = format!("copied-{}", self.names.container);
        let container =
            make(&docker, &["create", "--name", &name], &labels, &["creel-test", "true"]);
        let network = make(&docker, &["network", "create"], &labels, &[&name]);
        let filled = fill_volume(&docker, &name, &labels);
        // A committed image inherits the labels of its container.
        let reference = format!("{name}:copied").to_lowercase();
        let image = container
            .as_ref()
            .and_then(|container| make(&docker, &["commit", container], &[], &[&reference]));
        self.theirs.extend(image.map(|image| Foreign::Tag { reference, image }));
        self.theirs.extend(container.map(|id| Foreign::Container { id }));
        self.theirs.extend(network.map(|id| Foreign::Network { id }));
        self.theirs.extend(filled.then_some(Foreign::Volume { name }));
    }

    fn replace_directories(&mut self) {
        let sandboxes = self.place.state().join("sandboxes");
        let Ok(entries) = fs::read_dir(sandboxes) else { return };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
            // A full disk or a busy mount keeps others from it, too.
            if fs::remove_dir_all(&path).is_err() || fs::create_dir(&path).is_err() {
                continue;
            }
            if fs::write(path.join(PRECIOUS), PRECIOUS).is_ok() {
                self.theirs.push(Foreign::Directory { path });
            } else {
                fs::remove_dir_all(&path).unwrap();
            }
        }
    }

    /// Returns the sandboxes that the round's work made.
    fn our_sandboxes(&self) -> Vec<Value> {
        let is_theirs = |row: &Value| self.theirs.iter().any(|one| row["id"] == one.id());
        let all = sandboxes(self.place).into_iter();
        all.filter(|row| !is_theirs(row)).collect()
    }

    fn copy_sandbox_labels(&mut self) {
        for (number, row) in self.our_sandboxes().iter().enumerate() {
            self.make_sandbox(&format!("copied-{number}"), &row["labels"]);
        }
    }

    fn replace_sandboxes(&mut self) {
        let Some(cloud) = &self.place.cloud else { return };
        for row in self.our_sandboxes() {
            let of = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
            let (id, name) = (of("id"), of("name"));
            let mut labels = row["labels"].clone();
            if !self.is_on_record(&name)
                && let Some(labels) = labels.as_object_mut()
            {
                labels.remove(MARK);
            }
            // It may be on its way out already, and faults of the service strike others, too.
            cloud.ask("DELETE", &format!("sandbox/{id}?force=true"), &Value::Null);
            let gone =
                eventually(PATIENCE, || !sandboxes(self.place).iter().any(|one| one["id"] == id));
            if gone {
                self.make_sandbox(&name, &labels);
            }
        }
    }

    fn make_sandbox(&mut self, name: &str, labels: &Value) {
        let Some(cloud) = &self.place.cloud else { return };
        let Some(id) = cloud.plant_named(name, labels) else { return };
        let made = cloud.sandboxes().into_iter().find(|row| row["id"] == id.as_str());
        self.theirs.extend(made.map(|made| Foreign::Sandbox { id, made }));
    }
}

/// Returns every sandbox of the round's service.
pub(super) fn sandboxes(place: &Place) -> Vec<Value> {
    place.cloud.as_ref().map(Cloud::sandboxes).unwrap_or_default()
}

fn is_anonymous(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the labels of an object in the form of the CLI's flags.
fn labels_of(object: &Option<Value>, pointer: &str) -> Vec<String> {
    let labels = object.as_ref().and_then(|one| one.pointer(pointer)?.as_object());
    let pairs = labels.into_iter().flatten();
    pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect()
}

fn without_mark(mut labels: Vec<String>) -> Vec<String> {
    labels.retain(|label| label.split('=').next() != Some(MARK));
    labels
}

/// Makes an object with labels; returns its id.
fn make(docker: &Docker, verb: &[&str], labels: &[String], rest: &[&str]) -> Option<String> {
    let flags: Vec<&str> = labels.iter().flat_map(|label| ["--label", label.as_str()]).collect();
    let made = docker.cli(&[verb, &flags, rest].concat()).unwrap();
    let id = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    made.status.success().then_some(id)
}

/// Makes a volume and puts a file into it.
fn fill_volume(docker: &Docker, name: &str, labels: &[String]) -> bool {
    let made = make(docker, &["volume", "create"], labels, &[name]);
    let mount = format!("{name}:/data");
    let script = format!("printf {PRECIOUS} >/data/{PRECIOUS}");
    let wrote = docker.cli(&["run", "--rm", "-v", &mount, "creel-test", "sh", "-c", &script]);
    made.is_some() && wrote.unwrap().status.success()
}

fn content(docker: &Docker, volume: &str) -> Option<String> {
    docker.inspect_volume(volume).unwrap()?;
    let (mount, path) = (format!("{volume}:/data"), format!("/data/{PRECIOUS}"));
    let read = docker.cli(&["run", "--rm", "-v", &mount, "creel-test", "cat", &path]).unwrap();
    read.status.success().then(|| String::from_utf8_lossy(&read.stdout).into_owned())
}

pub(super) fn image_of(docker: &Docker, reference: &str) -> Option<String> {
    docker.inspect_image(reference).unwrap()?["Id"].as_str().map(str::to_owned)
}
