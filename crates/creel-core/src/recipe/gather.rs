//! Gathers evidence on this machine about processes that may still use objects of a recipe.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use creel_model::os;
use creel_model::provider::{
    InUse, Kind, LocalServer, Observed, ProviderError, ProviderName, Providers,
};
use futures::StreamExt;
use jiff::Timestamp;

use super::{Clocks, Connections, Processes, Reading, Recipe};

/// How many containers are queried at once.
const CONCURRENCY: usize = 16;

/// Evidence on this machine about processes that may still use objects.
#[derive(Debug)]
pub struct LocalEvidence {
    /// The providers with a server on this machine, each with its connections.
    pub here: BTreeMap<ProviderName, Connections>,
    /// The processes of this machine.
    pub processes: Processes,
    /// What running containers report about their use, by id.
    pub in_use: HashMap<String, InUse>,
    /// The clocks of this machine.
    pub clocks: Clocks,
}

impl LocalEvidence {
    /// Gathers the evidence for everything that bears a mark of the recipe.
    ///
    /// # Errors
    ///
    /// Fails when a provider cannot be reached: what cannot be seen must not be judged.
    pub async fn gather(
        recipe: &Recipe,
        inventory: &[Observed],
        providers: &Providers,
    ) -> Result<Self, ProviderError> {
        let mut servers: BTreeMap<ProviderName, LocalServer> = BTreeMap::new();
        for provider in providers.iter() {
            let server = provider.local_server().await;
            servers.extend(server.map(|server| (provider.name(), server)));
        }
        let marked = recipe.marked_among(inventory);
        let containers: Vec<&Observed> = inventory
            .iter()
            .zip(marked)
            .filter(|(seen, marked)| *marked && seen.kind == Kind::Container)
            .map(|(seen, _)| seen)
            .filter(|seen| seen.is_running() && servers.contains_key(&seen.provider))
            .collect();
        let in_use = query_use(&containers, providers).await?;
        let mut readings: Vec<Reading> = servers.values().filter_map(started).collect();
        readings.extend(containers.iter().filter_map(|seen| began(seen, in_use.get(&seen.id)?)));
        // Listed after the objects, so that a process that began meanwhile counts.
        let processes = Processes::seen_here();
        let here = servers
            .into_iter()
            .map(|(name, server)| (name, Connections::to(&server.socket, &processes)))
            .collect();
        let mut clocks = Clocks::new(Reading::now());
        readings.into_iter().for_each(|reading| clocks.add(reading));
        Ok(Self { here, processes, in_use, clocks })
    }
}

/// Queries the use of containers.
async fn query_use(
    containers: &[&Observed],
    providers: &Providers,
) -> Result<HashMap<String, InUse>, ProviderError> {
    let queries = containers.iter().map(|seen| async move {
        let in_use = providers.get(seen.provider)?.in_use(seen.kind, &seen.id).await?;
        Ok((seen.id.clone(), in_use))
    });
    let queries: Vec<_> = queries.collect();
    let results: Vec<Result<(String, InUse), ProviderError>> =
        futures::stream::iter(queries).buffer_unordered(CONCURRENCY).collect().await;
    results.into_iter().collect()
}

/// Returns a reading for the start of a server, whose socket is made right after it starts.
fn started(server: &LocalServer) -> Option<Reading> {
    let boot = os::since_boot(os::process_stat(server.pid).ok()?.started_ticks);
    let file = fs::metadata(&server.socket).ok()?;
    let created = file.created().or_else(|_| file.modified()).ok()?;
    Some(Reading { wall: Timestamp::try_from(created).ok()?, boot })
}

/// Returns a reading for the start of a container.
fn began(seen: &Observed, in_use: &InUse) -> Option<Reading> {
    let stat = os::process_stat(in_use.first_process?).ok()?;
    Some(Reading { wall: seen.last_active_at?, boot: os::since_boot(stat.started_ticks) })
}
