//! The methods to release a population, and the population itself.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use creel_testkit::creel::Creel;
use creel_testkit::docker::{ContainerSpec, Docker, Labels, concurrently};
use creel_testkit::engine::Engine;
use creel_testkit::inventory::Inventory;

/// The label by which creel selects a population.
const LABEL: &str = "dev.creel.bench";
/// The number of objects created at a time; not measured.
const MAKING: usize = 16;

/// The objects to release.
#[derive(Debug, Clone, Copy)]
pub(super) struct PopulationSpec {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Containers whose PID 1 ignores SIGTERM.
    pub(super) running: usize,
    pub(super) exited: usize,
    /// Containers that were never started.
    pub(super) created: usize,
    /// Networks, each with one of the running containers in it.
    pub(super) networks: usize,
    /// Volumes, each mounted by one of the created containers.
    pub(super) volumes: usize,
}

/// A method to release a population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseMethod {
    /// `creel sweep --apply`, planning and verification included.
    Creel,
    /// One CLI call with all ids.
    OneCall,
    /// One CLI call per id, sixteen at a time.
    SixteenCalls,
    /// One API request per id, this many at a time.
    RawApi(usize),
}

impl ReleaseMethod {
    /// Every method, creel first.
    pub(super) const ALL: [Self; 9] = [
        Self::Creel,
        Self::OneCall,
        Self::SixteenCalls,
        Self::RawApi(1),
        Self::RawApi(2),
        Self::RawApi(4),
        Self::RawApi(8),
        Self::RawApi(16),
        Self::RawApi(32),
    ];

    /// Returns whether one round is enough. A method with so little concurrency is never the limit.
    pub(super) fn is_measured_once(self) -> bool {
        matches!(self, Self::RawApi(1..=4))
    }

    /// Returns whether a user could type it.
    pub(super) fn is_cli(self) -> bool {
        matches!(self, Self::OneCall | Self::SixteenCalls)
    }

    /// Returns whether it shows the best that the engine can do.
    pub(super) fn is_raw(self) -> bool {
        matches!(self, Self::RawApi(_))
    }
}

impl fmt::Display for ReleaseMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creel => formatter.write_str("`creel sweep --apply`"),
            Self::OneCall => formatter.write_str("one `docker rm -fv` of all ids"),
            Self::SixteenCalls => formatter.write_str("16 parallel `docker rm -fv`"),
            Self::RawApi(count) => write!(formatter, "raw API, {count} at a time"),
        }
    }
}

/// Objects that exist to be released.
pub(super) struct Population<'a> {
    docker: &'a Docker,
    label: String,
    containers: Vec<String>,
    networks: Vec<String>,
    volumes: Vec<String>,
}

impl<'a> Population<'a> {
    /// Creates the objects of the scenario.
    pub(super) fn make(
        docker: &'a Docker,
        scenario: &PopulationSpec,
        number: usize,
    ) -> Result<Self> {
        let label = format!("{}-{number}", scenario.name);
        let labels = Labels::from([(LABEL.to_owned(), label.clone())]);
        let names = |kind: &str, count: usize| -> Vec<String> {
            (0..count).map(|index| format!("{label}-{kind}-{index}")).collect()
        };
        let networks = concurrently(&names("network", scenario.networks), MAKING, |name| {
            docker.create_network(name, &labels)
        })?;
        let volumes = concurrently(&names("volume", scenario.volumes), MAKING, |name| {
            docker.create_volume(name, &labels)
        })?;
        let running = names("running", scenario.running).into_iter().enumerate();
        let running = running.map(|(index, name)| {
            let network = networks.get(index).map_or("none", String::as_str);
            ContainerSpec::stubborn(&name).labels(&labels).network(network)
        });
        let running: Vec<ContainerSpec> = running.collect();
        let exited = names("exited", scenario.exited);
        let created = names("created", scenario.created).into_iter().enumerate();
        let created = created.map(|(index, name)| {
            let spec = ContainerSpec::sleeping(&name).labels(&labels);
            volumes.get(index).map_or(spec.clone(), |volume| spec.volume(volume, "/data"))
        });
        let created: Vec<ContainerSpec> = created.collect();
        let mut containers = concurrently(&exited, MAKING, |name| {
            docker.run(&ContainerSpec::exiting(name).labels(&labels))
        })?;
        // They exit while the others are created.
        let exiting = containers.clone();
        containers.extend(concurrently(&running, MAKING, |spec| docker.run(spec))?);
        containers.extend(concurrently(&created, MAKING, |spec| docker.create(spec))?);
        concurrently(&exiting, MAKING, |id| docker.wait_until_exited(id))?;
        Ok(Self { docker, label, containers, networks, volumes })
    }

    /// Releases everything, and returns how long it took. Fails if an object is left.
    pub(super) fn release(self, method: ReleaseMethod, creel: &Creel) -> Result<Duration> {
        let started_at = Instant::now();
        match method {
            ReleaseMethod::Creel => self.by_creel(creel)?,
            ReleaseMethod::OneCall => self.by_one_call()?,
            ReleaseMethod::SixteenCalls => self.by_calls(16)?,
            ReleaseMethod::RawApi(count) => self.by_api(count)?,
        }
        let took = started_at.elapsed();
        let engine = Engine::at(self.docker.api().socket());
        let left = Inventory::snapshot(&engine)?.with_label(LABEL, &self.label);
        if !left.is_empty() {
            let first = left.objects().next();
            bail!("{method} left {} objects, the first is {first:?}", left.len());
        }
        Ok(took)
    }

    fn by_creel(&self, creel: &Creel) -> Result<()> {
        let label = format!("{LABEL}={}", self.label);
        let arguments = ["sweep", "--provider", "docker", "--label", &label, "--apply", "--json"];
        let output = creel.run(arguments);
        if output.code() != Some(0) {
            bail!("{output}");
        }
        Ok(())
    }

    fn by_one_call(&self) -> Result<()> {
        self.call(&["rm", "-fv"], &self.containers)?;
        self.call(&["network", "rm"], &self.networks)?;
        self.call(&["volume", "rm"], &self.volumes)
    }

    fn by_calls(&self, count: usize) -> Result<()> {
        let one = |command: &[&str], id: &String| self.call(command, std::slice::from_ref(id));
        concurrently(&self.containers, count, |id| one(&["rm", "-fv"], id))?;
        concurrently(&self.networks, count, |id| one(&["network", "rm"], id))?;
        concurrently(&self.volumes, count, |id| one(&["volume", "rm"], id)).map(drop)
    }

    fn by_api(&self, count: usize) -> Result<()> {
        concurrently(&self.containers, count, |id| self.docker.remove_container(id))?;
        concurrently(&self.networks, count, |id| self.docker.remove_network(id))?;
        concurrently(&self.volumes, count, |name| self.docker.remove_volume(name)).map(drop)
    }

    fn call(&self, command: &[&str], ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let arguments: Vec<&str> =
            command.iter().copied().chain(ids.iter().map(String::as_str)).collect();
        let output = self.docker.cli(&arguments)?;
        if !output.status.success() {
            bail!("docker {command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

/// Measures the sequential stop-then-remove on a few containers, and returns the time for one.
pub(super) fn sequential_each(docker: &Docker, sample: usize) -> Result<Duration> {
    let names: Vec<String> = (0..sample).map(|index| format!("sequential-{index}")).collect();
    let ids = concurrently(&names, MAKING, |name| docker.run(&ContainerSpec::stubborn(name)))?;
    let started_at = Instant::now();
    for id in &ids {
        for arguments in [&["stop", "-t", "10", id][..], &["rm", id][..]] {
            if !docker.cli(arguments)?.status.success() {
                bail!("docker {arguments:?} failed");
            }
        }
    }
    Ok(started_at.elapsed() / u32::try_from(sample.max(1))?)
}
