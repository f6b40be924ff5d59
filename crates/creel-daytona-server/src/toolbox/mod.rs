//! The toolbox.

use std::sync::Arc;

use axum::Router;

use crate::shared::Shared;

#[derive(Debug, Default)]
pub(crate) struct Sessions;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
}
