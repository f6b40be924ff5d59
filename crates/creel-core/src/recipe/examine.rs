//! Examines the objects that bear the marks of a recipe.

use creel_model::provider::{Kind, Observed, ProviderError, Providers};
use futures::StreamExt;

use super::Recipe;
use super::session::session_of;

/// How many objects are examined at once.
const CONCURRENCY: usize = 16;

/// Examines everything that bears a mark of the recipe, and the containers of its sessions.
///
/// A list does not report when a container last ran, nor who uses a volume. Objects that have
/// vanished meanwhile are left out; the rest stays as listed.
///
/// # Errors
///
/// Fails when a provider cannot be reached: what was not examined cannot be judged.
pub async fn examine_marked(
    recipe: &Recipe,
    inventory: Vec<Observed>,
    providers: &Providers,
) -> Result<Vec<Observed>, ProviderError> {
    let marked = recipe.marked_among(&inventory);
    let examinations = inventory.into_iter().zip(marked).map(|(seen, marked)| async move {
        let in_session = seen.kind == Kind::Container && session_of(recipe, &seen).is_some();
        if !in_session && !marked {
            return Ok(Some(seen));
        }
        let close = providers.get(seen.provider)?.examine(seen.kind, &seen.id).await?;
        Ok(close.map(|close| keep_uses(seen, close)))
    });
    let examined: Vec<Result<Option<Observed>, ProviderError>> =
        futures::stream::iter(examinations).buffered(CONCURRENCY).collect().await;
    examined.into_iter().filter_map(Result::transpose).collect()
}

/// Adds the uses that only the list reports: it has network ids where an examination has names.
fn keep_uses(listed: Observed, mut close: Observed) -> Observed {
    for used in listed.uses {
        if !close.uses.contains(&used) {
            close.uses.push(used);
        }
    }
    close
}
