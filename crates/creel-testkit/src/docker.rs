//! Creates and inspects objects on an engine, through its API or the docker CLI.
//!
//! The API is for speed: hundreds of objects, several at a time. The CLI is for what a user would
//! type, and for the methods that creel is measured against.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::api::{Api, escape};
use crate::image;
use crate::wait::eventually;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The time limit for a container to exit.
const EXIT_DEADLINE: Duration = Duration::from_secs(30);

/// Creates and inspects objects on one engine.
#[derive(Debug, Clone)]
pub struct Docker {
    api: Api,
}

/// A container to create.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// The name. The engine generates one if it is `None`.
    pub name: Option<String>,
    /// The image's reference.
    pub image: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The labels of the container itself.
    pub labels: Labels,
    /// The network; `none` is the fastest.
    pub network: String,
    /// Bind or named-volume mounts, in the format of the CLI's `-v`.
    pub binds: Vec<String>,
    /// Paths that get an anonymous volume.
    pub anonymous_volumes: Vec<String>,
    /// Whether an init runs as PID 1.
    pub init: bool,
}

impl ContainerSpec {
    /// Returns a container that runs a shell script without network.
    pub fn script(name: &str, script: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            image: image::REFERENCE.to_owned(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            labels: Labels::new(),
            network: "none".to_owned(),
            binds: Vec::new(),
            anonymous_volumes: Vec::new(),
            init: false,
        }
    }

    /// Returns a container that runs until it is stopped.
    pub fn sleeping(name: &str) -> Self {
        Self { init: true, ..Self::script(name, "exec sleep 100000") }
    }

    /// Returns a container whose PID 1 ignores SIGTERM.
    pub fn stubborn(name: &str) -> Self {
        Self::script(name, "trap '' TERM; while :; do sleep 1000; done")
    }

    /// Returns a container that exits at once.
    pub fn exiting(name: &str) -> Self {
        Self::script(name, "exit 0")
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds labels.
    #[must_use]
    pub fn labels(mut self, labels: &Labels) -> Self {
        self.labels.extend(labels.clone());
        self
    }

    /// Attaches the container to a network.
    #[must_use]
    pub fn network(mut self, network: &str) -> Self {
        self.network = network.to_owned();
        self
    }

    /// Mounts a named volume.
    #[must_use]
    pub fn volume(mut self, volume: &str, place: &str) -> Self {
        self.binds.push(format!("{volume}:{place}"));
        self
    }

    /// Mounts an anonymous volume.
    #[must_use]
    pub fn anonymous_volume(mut self, place: &str) -> Self {
        self.anonymous_volumes.push(place.to_owned());
        self
    }

    /// Uses another image.
    #[must_use]
    pub fn image(mut self, reference: &str) -> Self {
        self.image = reference.to_owned();
        self
    }

    fn to_json(&self) -> Value {
        let volumes: BTreeMap<&str, Value> =
            self.anonymous_volumes.iter().map(|place| (place.as_str(), json!({}))).collect();
        json!({
            "Image": self.image,
            "Cmd": self.command,
            "Labels": self.labels,
            "Volumes": volumes,
            "HostConfig": {
                "NetworkMode": self.network,
                "Binds": self.binds,
                "Init": self.init,
            },
        })
    }
}

impl Docker {
    pub(crate) fn new(api: Api) -> Self {
        Self { api }
    }

    /// Returns the raw API.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Creates a container and returns its id.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let query = spec.name.as_deref().map(|name| format!("?name={}", escape(name)));
        let path = format!("/containers/create{}", query.unwrap_or_default());
        id_in(&self.api.post(&path, &spec.to_json())?.json()?, "Id")
    }

    /// Starts a container.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn start(&self, id: &str) -> Result<()> {
        self.api.post(&format!("/containers/{id}/start"), &Value::Null).map(drop)
    }

    /// Creates and starts a container and returns its id.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn run(&self, spec: &ContainerSpec) -> Result<String> {
        let id = self.create(spec)?;
        self.start(&id)?;
        Ok(id)
    }

    /// Runs a container to its end and returns its id.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses or the container does not exit.
    pub fn run_to_exit(&self, spec: &ContainerSpec) -> Result<String> {
        let id = self.run(spec)?;
        self.wait_until_exited(&id)?;
        Ok(id)
    }

    /// Waits until a container has exited.
    ///
    /// # Errors
    ///
    /// Fails when it does not.
    pub fn wait_until_exited(&self, id: &str) -> Result<()> {
        let exited = eventually(EXIT_DEADLINE, || {
            self.inspect_container(id).is_ok_and(|found| {
                found.is_some_and(|container| container["State"]["Status"] == "exited")
            })
        });
        if !exited {
            bail!("container {id} did not exit");
        }
        Ok(())
    }

    /// Creates a network and returns its id.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn create_network(&self, name: &str, labels: &Labels) -> Result<String> {
        let body = json!({ "Name": name, "CheckDuplicate": true, "Labels": labels });
        id_in(&self.api.post("/networks/create", &body)?.json()?, "Id")
    }

    /// Creates a volume and returns its name.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn create_volume(&self, name: &str, labels: &Labels) -> Result<String> {
        let body = json!({ "Name": name, "Labels": labels });
        id_in(&self.api.post("/volumes/create", &body)?.json()?, "Name")
    }

    /// Commits a container to an image, which inherits its labels, and returns the image's id.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses.
    pub fn commit(&self, container: &str, repository: &str, tag: &str) -> Result<String> {
        let path = format!(
            "/commit?container={container}&repo={}&tag={}&pause=false",
            escape(repository),
            escape(tag)
        );
        id_in(&self.api.post(&path, &json!({}))?.json()?, "Id")
    }

    /// Returns the inspect result of a container, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails when the engine answers neither 200 nor 404.
    pub fn inspect_container(&self, id: &str) -> Result<Option<Value>> {
        self.inspect(&format!("/containers/{id}/json"))
    }

    /// Returns the inspect result of a network, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails when the engine answers neither 200 nor 404.
    pub fn inspect_network(&self, id: &str) -> Result<Option<Value>> {
        self.inspect(&format!("/networks/{id}"))
    }

    /// Returns the inspect result of a volume, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails when the engine answers neither 200 nor 404.
    pub fn inspect_volume(&self, name: &str) -> Result<Option<Value>> {
        self.inspect(&format!("/volumes/{name}"))
    }

    /// Returns the inspect result of an image, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails when the engine answers neither 200 nor 404.
    pub fn inspect_image(&self, reference: &str) -> Result<Option<Value>> {
        self.inspect(&format!("/images/{reference}/json"))
    }

    /// Removes a container with its anonymous volumes, running or not.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses. A missing container is not an error.
    pub fn remove_container(&self, id: &str) -> Result<()> {
        self.api.delete(&format!("/containers/{id}?force=true&v=true"))
    }

    /// Removes a network.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses. A missing network is not an error.
    pub fn remove_network(&self, id: &str) -> Result<()> {
        self.api.delete(&format!("/networks/{id}"))
    }

    /// Removes a volume.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses. A missing volume is not an error.
    pub fn remove_volume(&self, name: &str) -> Result<()> {
        self.api.delete(&format!("/volumes/{name}"))
    }

    /// Removes an image.
    ///
    /// # Errors
    ///
    /// Fails when the engine refuses. A missing image is not an error.
    pub fn remove_image(&self, reference: &str) -> Result<()> {
        self.api.delete(&format!("/images/{reference}?force=true"))
    }

    /// Runs the docker CLI against this engine, and returns its output.
    ///
    /// # Errors
    ///
    /// Fails when the CLI cannot be run. Its own exit code is in the output.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        Command::new("docker")
            .args(arguments)
            .env("DOCKER_HOST", self.api.host())
            .env_remove("DOCKER_CONTEXT")
            .output()
            .context("cannot run docker (package docker.io)")
    }

    fn inspect(&self, path: &str) -> Result<Option<Value>> {
        let response = self.api.request("GET", path, None)?;
        match response.status {
            200 => response.json().map(Some),
            404 => Ok(None),
            status => bail!("{path} answered {status}: {}", response.text()),
        }
    }
}

fn id_in(response: &Value, key: &str) -> Result<String> {
    let id = response[key].as_str().with_context(|| format!("no {key} in {response}"))?;
    Ok(id.to_owned())
}

/// Applies a fallible function to every item, several at a time. The results keep the sequence of
/// the items.
///
/// # Errors
///
/// Fails with the first error after all calls have ended.
pub fn concurrently<T: Sync, R: Send>(
    items: &[T],
    concurrency: usize,
    act: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(items.iter().enumerate());
    let results = Mutex::new(Vec::with_capacity(items.len()));
    let take = || queue.lock().ok()?.next();
    thread::scope(|scope| {
        for _ in 0..concurrency.max(1) {
            scope.spawn(|| {
                while let Some((index, item)) = take() {
                    let result = act(item);
                    results.lock().expect("no act panicked").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no act panicked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
