//! Files in a sandbox: upload, download and listing.

use std::collections::BTreeMap;
use std::io;

use axum::body::{Body as ResponseBody, Bytes};
use axum::extract::{Multipart, Path, State as Extract};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{SharedState, ToolboxRequest, parse, resolve};
use crate::backend::SandboxBody;
use crate::error::{ApiError, Result};

pub(super) fn failed(path: &str, error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let message = format!("file not found: {path}");
            ApiError::new(StatusCode::NOT_FOUND, message).with_code("FILE_NOT_FOUND")
        }
        io::ErrorKind::PermissionDenied => {
            let message = format!("access denied: {path}");
            ApiError::new(StatusCode::FORBIDDEN, message).with_code("FILE_ACCESS_DENIED")
        }
        io::ErrorKind::NotConnected => ApiError::no_daemon(),
        _ => ApiError::invalid(format!("{path}: {error}")).with_code("BAD_REQUEST"),
    }
}

pub(super) async fn list(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let path = query.need("path").unwrap_or(".");
    let depth = match query.need("depth") {
        Ok(depth) => depth.parse().ok().filter(|depth| *depth > 0).ok_or_else(|| {
            ApiError::invalid("depth must be a positive number").with_code("BAD_REQUEST")
        })?,
        Err(_) => 1,
    };
    let entries = sandbox.list(path, depth).await.map_err(|error| failed(path, &error))?;
    Ok(axum::Json(entries).into_response())
}

pub(super) async fn info(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let path = query.need("path")?;
    let entry = sandbox.describe(path).await.map_err(|error| failed(path, &error))?;
    Ok(axum::Json(entry).into_response())
}

pub(super) async fn folder(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let path = query.need("path")?;
    let mode = match query.need("mode") {
        Ok(mode) => Some(octal(mode)?),
        Err(_) => None,
    };
    sandbox.make_directory(path, mode).await.map_err(|error| failed(path, &error))?;
    Ok(StatusCode::CREATED.into_response())
}

fn octal(mode: &str) -> Result<u32> {
    let invalid = |_| ApiError::invalid("invalid mode format").with_code("BAD_REQUEST");
    u32::from_str_radix(mode, 8).map_err(invalid)
}

/// Renames a file or directory. The new path must be free, and its parent directory must exist.
pub(super) async fn rename(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let (source, destination) = (query.need("source")?, query.need("destination")?);
    sandbox.describe(source).await.map_err(|error| failed(source, &error))?;
    let parent = match destination.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/",
        Some((parent, _)) => parent,
        None => ".",
    };
    sandbox.describe(parent).await.map_err(|error| failed(parent, &error))?;
    if sandbox.describe(destination).await.is_ok() {
        let conflict = ApiError::new(StatusCode::CONFLICT, "destination already exists");
        return Err(conflict.with_code("CONFLICT"));
    }
    let moved = sandbox.rename(source, destination).await;
    moved.map_err(|error| failed(source, &error))?;
    Ok(StatusCode::OK.into_response())
}

/// Sets mode, owner and group, as far as each is given.
pub(super) async fn permissions(
    ToolboxRequest { sandbox, query }: ToolboxRequest,
) -> Result<Response> {
    let path = query.need("path")?;
    let wrong = |error: io::Error| failed(path, &error);
    sandbox.describe(path).await.map_err(wrong)?;
    if let Ok(mode) = query.need("mode") {
        sandbox.set_mode(path, octal(mode)?).await.map_err(wrong)?;
    }
    let (owner, group) = (query.need("owner"), query.need("group"));
    if owner.is_ok() || group.is_ok() {
        let (owner, group) = (owner.unwrap_or_default(), group.unwrap_or_default());
        sandbox.set_owner(path, owner, group).await.map_err(wrong)?;
    }
    Ok(StatusCode::OK.into_response())
}

pub(super) async fn remove(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let path = query.need("path")?;
    let removed = sandbox.remove(path, query.is_true("recursive")).await;
    removed.map_err(|error| failed(path, &error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn download(
    ToolboxRequest { sandbox, query }: ToolboxRequest,
) -> Result<Response> {
    let path = query.need("path")?;
    let content = sandbox.read(path).await.map_err(|error| failed(path, &error))?;
    let name = path.rsplit('/').next().unwrap_or(path).replace('"', "");
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((headers, content).into_response())
}

pub(super) async fn upload(
    ToolboxRequest { sandbox, query }: ToolboxRequest,
    mut form: Multipart,
) -> Result<Response> {
    let path = query.need("path")?;
    while let Some(field) = form.next_field().await.map_err(|error| malformed(&error))? {
        if field.name() == Some("file") {
            let content = field.bytes().await.map_err(|error| malformed(&error))?;
            sandbox.write(path, content).await.map_err(|error| failed(path, &error))?;
            let name = path.rsplit('/').next().unwrap_or(path);
            let body = json!({ "name": name, "path": path, "type": "file" });
            return Ok(axum::Json(body).into_response());
        }
    }
    Err(ApiError::invalid("file is required").with_code("BAD_REQUEST"))
}

fn malformed(error: &dyn std::error::Error) -> ApiError {
    ApiError::invalid(format!("invalid multipart form: {error}")).with_code("BAD_REQUEST")
}

/// Accepts parts in pairs, `files[n].path` and then `files[n].file`.
pub(super) async fn bulk_upload(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    mut form: Multipart,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    while let Some(field) = form.next_field().await.map_err(|error| malformed(&error))? {
        let name = field.name().unwrap_or_default().to_owned();
        if let Some(which) = name.strip_suffix(".path") {
            let path = field.text().await.map_err(|error| malformed(&error))?;
            paths.insert(which.to_owned(), path);
        } else if let Some(which) = name.strip_suffix(".file") {
            let missing = || ApiError::invalid(format!("{which}.path is missing"));
            let path = paths.get(which).ok_or_else(missing)?.clone();
            let content = field.bytes().await.map_err(|error| malformed(&error))?;
            sandbox.write(&path, content).await.map_err(|error| failed(&path, &error))?;
        }
    }
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Deserialize)]
struct BulkDownload {
    paths: Vec<String>,
}

/// Answers with one part for each path: the file, or its error.
pub(super) async fn bulk_download(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let request: BulkDownload = parse(&body)?;
    if request.paths.is_empty() {
        let message = "request body must be {\"paths\": [ ... ]} and non-empty";
        return Err(ApiError::invalid(message).with_code("BAD_REQUEST"));
    }
    let boundary = Uuid::new_v4().simple().to_string();
    let mut body = Vec::new();
    for path in &request.paths {
        add_part(&mut body, &boundary, &sandbox, path).await;
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let kind = [(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))];
    Ok((kind, ResponseBody::from(body)).into_response())
}

async fn add_part(body: &mut Vec<u8>, boundary: &str, sandbox: &SandboxBody, path: &str) {
    let (name, kind, content) = match sandbox.read(path).await {
        Ok(content) => ("file", "application/octet-stream", content),
        Err(error) => {
            let error = failed(path, &error);
            let body = json!({
                "message": error.message,
                "statusCode": error.status.as_u16(),
                "code": error.code,
            });
            ("error", "application/json", body.to_string().into_bytes())
        }
    };
    let file_name = path.replace('\\', "\\\\").replace('"', "\\\"");
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; \
         filename=\"{file_name}\"\r\nContent-Type: {kind}\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&content);
    body.extend_from_slice(b"\r\n");
}
