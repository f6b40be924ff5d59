//! Decoys: objects that resemble a test's own and must survive.
//!
//! A sweep that matches by substring, ignores case, trusts an inherited label or follows a name
//! prefix removes one of them. Each decoy differs from the real object in one small detail.
//! [`Decoys::assert_untouched`] proves that none was removed, recreated, stopped or restarted.

use anyhow::Result;
use serde_json::Value;

use crate::docker::{ContainerSpec, Docker, Labels, concurrently};
use crate::engine::Engine;
use crate::inventory::Kind;

/// The number of decoys that are planted or removed at a time.
const CONCURRENCY: usize = 6;

/// The objects that a test will release, and that the decoys resemble.
#[derive(Debug, Clone)]
pub struct Lookalike {
    /// The name, or name prefix, of the test's own objects.
    pub name: String,
    /// The key of the label by which they are selected.
    pub label_key: String,
    /// The value of that label.
    pub label_value: String,
}

/// Planted decoys. They are removed on drop.
#[derive(Debug)]
pub struct Decoys {
    docker: Docker,
    planted: Vec<Planted>,
    /// The repository of the image with an inherited label.
    image: String,
}

#[derive(Debug)]
struct Planted {
    kind: Kind,
    id: String,
    name: String,
    /// The properties that change if the object is touched.
    print: Vec<(&'static str, String)>,
}

impl Decoys {
    /// Plants decoys of every kind around a test's own objects.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn plant(engine: &Engine, original: &Lookalike) -> Result<Self> {
        let docker = engine.docker();
        let image = format!("{}-decoy", original.name.to_lowercase());
        let mut decoys = Self { docker, planted: Vec::new(), image };
        let planted = concurrently(&variants(original), CONCURRENCY, |(name, labels)| {
            Ok(plant_each_kind(&decoys.docker, name, labels))
        });
        for planted in planted?.into_iter().flatten() {
            decoys.planted.push(planted?);
        }
        decoys.plant_inheriting(original)?;
        Ok(decoys)
    }

    /// Plants only objects with exactly these labels; see [`Decoys::plant_copies`].
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn copies(engine: &Engine, name: &str, labels: &Labels) -> Result<Self> {
        let image = String::new();
        let mut decoys = Self { docker: engine.docker(), planted: Vec::new(), image };
        decoys.plant_copies(name, labels)?;
        Ok(decoys)
    }

    /// Plants objects of every kind with exactly these labels, as if a user copied them: under
    /// their own names, and under names that the engine generates.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn plant_copies(&mut self, name: &str, labels: &Labels) -> Result<()> {
        for planted in plant_each_kind(&self.docker, name, labels) {
            self.planted.push(planted?);
        }
        let volume = self.docker.create_volume("", labels)?;
        self.planted.push(planted(&self.docker, Kind::Volume, "a generated name", volume)?);
        let container = self.docker.run(&ContainerSpec::sleeping("").labels(labels))?;
        self.planted.push(planted(&self.docker, Kind::Container, "a generated name", container)?);
        self.plant_labelled_images(name, labels)
    }

    /// Plants two images with exactly these labels: one with a name, and one without.
    fn plant_labelled_images(&mut self, name: &str, labels: &Labels) -> Result<()> {
        let source = self.docker.create(&ContainerSpec::exiting("").labels(labels))?;
        let named = self.docker.commit(&source, &name.to_lowercase(), "copied")?;
        let nameless = self.docker.commit(&source, "", "")?;
        self.docker.remove_container(&source)?;
        self.planted.push(planted(&self.docker, Kind::Image, name, named)?);
        self.planted.push(planted(&self.docker, Kind::Image, "no name", nameless)?);
        Ok(())
    }

    /// Checks that every decoy is the same object in the same state as when it was planted.
    ///
    /// # Panics
    ///
    /// Panics with all differences when one was touched.
    pub fn assert_untouched(&self) {
        let touched = self.touched();
        assert!(touched.is_empty(), "decoys were touched:\n{}", touched.join("\n"));
    }

    /// Returns a line for each decoy that has changed.
    pub fn touched(&self) -> Vec<String> {
        self.planted.iter().filter_map(|planted| self.difference(planted)).collect()
    }

    /// Returns the ids of all decoys.
    pub fn ids(&self) -> Vec<&str> {
        self.planted.iter().map(|planted| planted.id.as_str()).collect()
    }

    /// Plants an image committed from a labelled container, and a container of that image. Both
    /// carry the test's label without being the test's own.
    fn plant_inheriting(&mut self, original: &Lookalike) -> Result<()> {
        let source = ContainerSpec::exiting(&format!("{}-source", original.name))
            .label(&original.label_key, &original.label_value);
        let source = self.docker.create(&source)?;
        let id = self.docker.commit(&source, &self.image, "latest")?;
        self.docker.remove_container(&source)?;
        self.planted.push(planted(&self.docker, Kind::Image, "inherited label", id)?);
        let name = format!("{}-inherited", original.name);
        let id = self.docker.run(&ContainerSpec::sleeping(&name).image(&self.image))?;
        self.planted.push(planted(&self.docker, Kind::Container, &name, id)?);
        Ok(())
    }

    fn difference(&self, planted: &Planted) -> Option<String> {
        let what = format!("{:?} {:?} ({})", planted.kind, planted.name, planted.id);
        match inspect(&self.docker, planted.kind, &planted.id) {
            Err(error) => Some(format!("{what}: cannot inspect: {error:#}")),
            Ok(None) => Some(format!("{what}: gone")),
            Ok(Some(found)) => {
                let now = fingerprint(planted.kind, &found);
                (now != planted.print)
                    .then(|| format!("{what}: was {:?}, is {now:?}", planted.print))
            }
        }
    }

    fn remove(&self) {
        // Containers first, because they use the others.
        for kind in [Kind::Container, Kind::Network, Kind::Volume, Kind::Image] {
            let ids = self.planted.iter().filter(|planted| planted.kind == kind);
            let ids: Vec<&str> = ids.map(|planted| planted.id.as_str()).collect();
            // The engine is discarded after the suite, so a failed removal only costs space.
            let _ = concurrently(&ids, CONCURRENCY, |id| match kind {
                Kind::Container => self.docker.remove_container(id),
                Kind::Network => self.docker.remove_network(id),
                Kind::Volume => self.docker.remove_volume(id),
                Kind::Image => self.docker.remove_image(id),
            });
        }
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Plants a running and an exited container, a network and a volume of one variant.
fn plant_each_kind(docker: &Docker, name: &str, labels: &Labels) -> Vec<Result<Planted>> {
    let running = ContainerSpec::sleeping(name).labels(labels);
    let exited_name = format!("{name}.out");
    let exited = ContainerSpec::exiting(&exited_name).labels(labels);
    let remember = |kind, name: &str, id: Result<String>| planted(docker, kind, name, id?);
    vec![
        remember(Kind::Container, name, docker.run(&running)),
        remember(Kind::Container, &exited_name, docker.run_to_exit(&exited)),
        remember(Kind::Network, name, docker.create_network(name, labels)),
        remember(Kind::Volume, name, docker.create_volume(name, labels)),
    ]
}

fn planted(docker: &Docker, kind: Kind, name: &str, id: String) -> Result<Planted> {
    let found = inspect(docker, kind, &id)?.unwrap_or_default();
    let print = fingerprint(kind, &found);
    Ok(Planted { kind, id, name: name.to_owned(), print })
}

/// Returns names and labels that differ slightly from the original's.
fn variants(original: &Lookalike) -> Vec<(String, Labels)> {
    let Lookalike { name, label_key: key, label_value: value } = original;
    let label = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
    vec![
        (format!("{name}x"), label(key, &format!("{value}x"))),
        (format!("x{name}"), label(key, &format!("x{value}"))),
        (format!("{name}-2"), label(&key.to_uppercase(), value)),
        (format!("{name}_"), label(&format!("{key}.x"), value)),
        (format!("{name}.key"), label(key, "")),
        (format!("{name}.none"), Labels::new()),
    ]
}

fn inspect(docker: &Docker, kind: Kind, id: &str) -> Result<Option<Value>> {
    match kind {
        Kind::Container => docker.inspect_container(id),
        Kind::Network => docker.inspect_network(id),
        Kind::Volume => docker.inspect_volume(id),
        Kind::Image => docker.inspect_image(id),
    }
}

/// Returns the properties that change when the object is removed, recreated, stopped or restarted.
fn fingerprint(kind: Kind, found: &Value) -> Vec<(&'static str, String)> {
    let paths: &[&'static str] = match kind {
        Kind::Container => &[
            "/Id",
            "/Name",
            "/State/Status",
            "/State/StartedAt",
            "/State/FinishedAt",
            "/RestartCount",
            "/Config/Labels",
        ],
        Kind::Network => &["/Id", "/Name", "/Created", "/Containers", "/Labels"],
        Kind::Volume => &["/Name", "/CreatedAt", "/Labels"],
        Kind::Image => &["/Id", "/RepoTags", "/Created", "/Config/Labels"],
    };
    let print = paths
        .iter()
        .map(|path| (*path, found.pointer(path).map(Value::to_string).unwrap_or_default()));
    print.collect()
}
