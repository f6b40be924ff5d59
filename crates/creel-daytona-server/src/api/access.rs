//! Access to a sandbox, and what the service says about itself.
//!
//! Nothing listens behind the preview and SSH addresses. The responses have the right shape, which
//! is all that a client of the API can see of them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State as Extract};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{ApiError, Result};
use crate::lock::lock;
use crate::moment::Moment;
use crate::percent;
use crate::shared::ServerState;

type SharedState = Extract<Arc<ServerState>>;

fn id_of(shared: &ServerState, key: &str) -> Result<Uuid> {
    shared.registry().id_of(key).ok_or_else(|| ApiError::no_sandbox(key))
}

fn token() -> String {
    Uuid::new_v4().simple().to_string()
}

fn number(query: Option<&str>, name: &str, usual: u64) -> u64 {
    let pairs = percent::pairs(query.unwrap_or_default());
    let found = pairs.into_iter().find(|(key, _)| key == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(usual)
}

pub(super) async fn preview(
    Extract(shared): SharedState,
    Path((key, port)): Path<(String, u16)>,
) -> Result<Response> {
    let id = id_of(&shared, &key)?;
    let url = format!("http://{port}-{id}.proxy.localhost");
    super::json(StatusCode::OK, &json!({ "sandboxId": id, "url": url, "token": token() }))
}

pub(super) async fn signed_preview(
    Extract(shared): SharedState,
    Path((key, port)): Path<(String, u16)>,
) -> Result<Response> {
    let (id, token) = (id_of(&shared, &key)?, token());
    let url = format!("http://{port}-{token}.proxy.localhost");
    let body = json!({ "sandboxId": id, "port": port, "token": token, "url": url });
    super::json(StatusCode::OK, &body)
}

pub(super) async fn ssh(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let (id, token, now) = (id_of(&shared, &key)?, token(), Moment::now());
    let minutes = number(query.as_deref(), "expiresInMinutes", 60);
    let body = json!({
        "id": Uuid::new_v4(),
        "sandboxId": id,
        "token": token,
        "expiresAt": now.plus(Duration::from_secs(minutes.saturating_mul(60))),
        "createdAt": now,
        "updatedAt": now,
        "sshCommand": format!("ssh -p 2222 {token}@localhost"),
    });
    super::json(StatusCode::OK, &body)
}

pub(super) async fn revoke_ssh(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    let id = id_of(&shared, &key)?;
    super::respond(&shared, StatusCode::OK, &id)
}

pub(super) async fn toolbox_url(
    Extract(shared): SharedState,
    Path(key): Path<String>,
) -> Result<Response> {
    id_of(&shared, &key)?;
    super::json(StatusCode::OK, &json!({ "url": shared.origin.toolbox_url }))
}

pub(super) async fn config(Extract(shared): SharedState) -> Result<Response> {
    let limits = *shared.limiter().limits();
    let entry = |limit: Option<u32>| match limit {
        Some(limit) => json!({ "ttl": limits.window.as_secs(), "limit": limit }),
        None => Value::Null,
    };
    let all = [
        ("failedAuth", limits.failed_auth),
        ("authenticated", limits.authenticated),
        ("sandboxCreate", limits.sandbox_create),
        ("sandboxLifecycle", limits.sandbox_lifecycle),
    ];
    let rate_limit: serde_json::Map<String, Value> = all
        .into_iter()
        .filter(|(_, limit)| limit.is_some())
        .map(|(name, limit)| (name.to_owned(), entry(limit)))
        .collect();
    let body = json!({
        "version": crate::VERSION,
        "oidc": { "issuer": "http://localhost/oidc", "clientId": "daytona", "audience": "daytona" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "proxyTemplateUrl": "http://{{PORT}}-{{sandboxId}}.proxy.localhost",
        "proxyToolboxUrl": shared.origin.toolbox_url,
        "defaultSnapshot": "daytonaio/sandbox:0.6.0",
        "dashboardUrl": "http://localhost/dashboard",
        "maxAutoArchiveInterval": 43200,
        "maintananceMode": false,
        "environment": "local",
        "rateLimit": rate_limit,
    });
    super::json(StatusCode::OK, &body)
}

pub(super) async fn current_key(Extract(shared): SharedState) -> Result<Response> {
    let permissions = lock(&shared.access.permissions).clone();
    let body = json!({
        "name": "local",
        "value": "dtn_********************",
        "createdAt": Moment::now(),
        "permissions": permissions,
        "lastUsedAt": Moment::now(),
        "expiresAt": null,
        "userId": "local",
    });
    super::json(StatusCode::OK, &body)
}
