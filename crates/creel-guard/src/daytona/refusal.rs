//! Refusals in the service's own format.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use super::forward::ProxyBody;

/// The message that clients receive when an intent could not be recorded.
pub(super) const NOT_RECORDED: &str = "nothing was created, because the ledger could not record it";

/// Responds in place of the service.
pub(super) fn refuse(status: StatusCode, path: &str, reason: &str) -> Response<ProxyBody> {
    let body = json!({
        "path": path,
        "timestamp": format!("{:.3}", Timestamp::now()),
        "statusCode": status.as_u16(),
        "error": status.canonical_reason().unwrap_or("Error"),
        "message": format!("creel guard: {reason}"),
    });
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
