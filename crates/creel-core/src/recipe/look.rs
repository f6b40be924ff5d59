//! A closer look at what bears the marks of a recipe.

use futures::StreamExt;

use crate::provider::{Kind, Observed, ProviderError, Providers};

use super::Recipe;
use super::session::session_of;

/// How many objects are looked at at once.
const CONCURRENCY: usize = 16;

/// Looks closely at everything that bears a mark of the recipe, and at the containers of its
/// sessions: a list does not tell when a container last ran, nor who uses a volume.
///
/// What has vanished meanwhile is left out; the rest is as it was listed.
///
/// # Errors
///
/// Fails when a provider cannot be asked: what was not looked at cannot be judged.
pub async fn look_closer(
    recipe: &Recipe,
    inventory: Vec<Observed>,
    providers: &Providers,
) -> Result<Vec<Observed>, ProviderError> {
    let marked = recipe.marked_among(&inventory);
    let looks = inventory.into_iter().zip(marked).map(|(seen, marked)| async move {
        let in_session = seen.kind == Kind::Container && session_of(recipe, &seen).is_some();
        if !in_session && !marked {
            return Ok(Some(seen));
        }
        let close = providers.get(seen.provider)?.examine(seen.kind, &seen.id).await?;
        Ok(close.map(|close| keep_uses(seen, close)))
    });
    let looked: Vec<Result<Option<Observed>, ProviderError>> =
        futures::stream::iter(looks).buffered(CONCURRENCY).collect().await;
    looked.into_iter().filter_map(Result::transpose).collect()
}

/// Adds what only the list told about use: it knows networks by id where a look has the name.
fn keep_uses(listed: Observed, mut close: Observed) -> Observed {
    for used in listed.uses {
        if !close.uses.contains(&used) {
            close.uses.push(used);
        }
    }
    close
}
