//! The first stage: list everything that exists.

use std::time::Instant;

use creel_model::provider::{Kind, Observed, ProviderError, ProviderName, Providers};
use futures::future::join_all;

use crate::plan::ProviderIdentity;
use crate::reap::UnreadInventory;

/// The objects that were listed in all providers.
#[derive(Debug)]
pub struct Listing {
    /// Everything that was listed.
    pub inventory: Vec<Observed>,
    /// The errors of the providers that could not be listed.
    pub unreachable: Vec<ProviderError>,
    /// When the listing began.
    pub began_at: Instant,
}

impl Listing {
    /// Lists these kinds in all providers concurrently; an empty slice means all kinds.
    pub async fn read(providers: &Providers, kinds: &[Kind]) -> Self {
        let began_at = Instant::now();
        let lists = providers.iter().map(|provider| async move {
            let all = provider.kinds();
            let wanted: Vec<Kind> =
                all.iter().copied().filter(|k| kinds.is_empty() || kinds.contains(k)).collect();
            if wanted.is_empty() { Ok(Vec::new()) } else { provider.list(&wanted).await }
        });
        let mut listing = Self { inventory: Vec::new(), unreachable: Vec::new(), began_at };
        for listed in join_all(lists).await {
            match listed {
                Ok(mut seen) => listing.inventory.append(&mut seen),
                Err(error) => listing.unreachable.push(error),
            }
        }
        listing
    }

    /// Returns the providers that could not be read, for a certificate.
    pub fn unread(&self) -> Vec<UnreadInventory> {
        self.unreachable.iter().map(UnreadInventory::from).collect()
    }

    /// Returns whether a provider could be listed.
    pub fn is_reachable(&self, provider: ProviderName) -> bool {
        self.unreachable.iter().all(|error| error.provider != provider)
    }
}

/// Requests the identities of these providers.
pub(super) async fn identities(
    providers: &Providers,
    wanted: impl Fn(ProviderName) -> bool,
) -> Result<Vec<ProviderIdentity>, ProviderError> {
    let wanted = providers.iter().filter(|provider| wanted(provider.name()));
    let requests = wanted.map(|provider| async move {
        let (provider, identity) = (provider, provider.identity().await?);
        let (name, address) = (provider.name(), provider.address());
        Ok(ProviderIdentity { provider: name, identity, address })
    });
    join_all(requests).await.into_iter().collect()
}
