//! Searches in many files: find a text, find names, replace a text.

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use globset::GlobBuilder;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::files::failed;
use super::{SharedState, ToolboxRequest, parse, resolve};
use crate::backend::{Only, SandboxBody, joined};
use crate::error::{ApiError, Result};

/// How much of a file is checked to decide whether it is text.
const HEAD: usize = 512;

/// A line that contains a text.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Found {
    file: String,
    line: usize,
    content: String,
}

/// Finds a text in files: literally, line by line, not in binary files.
pub(super) async fn find(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let (path, text) = (query.need("path")?, query.need("pattern")?);
    let candidates = sandbox.candidates(path, text).await.map_err(|error| failed(path, &error))?;
    let mut found = Vec::new();
    for relative in candidates {
        let file = joined(path, &relative);
        // A file that was removed, or may not be read, is skipped.
        let Ok(content) = sandbox.read(&file).await else { continue };
        found.extend(lines_with(&file, &content, text));
    }
    Ok(axum::Json(found).into_response())
}

fn lines_with(file: &str, content: &[u8], text: &str) -> Vec<Found> {
    if content.iter().take(HEAD).any(|byte| *byte == 0) {
        return Vec::new();
    }
    let content = String::from_utf8_lossy(content);
    let lines = content.lines().enumerate().filter(|(_, line)| line.contains(text));
    let found = |(place, line): (usize, &str)| Found {
        file: file.to_owned(),
        line: place + 1,
        content: line.to_owned(),
    };
    lines.map(found).collect()
}

/// Finds files whose path below a directory matches a glob.
pub(super) async fn search(ToolboxRequest { sandbox, query }: ToolboxRequest) -> Result<Response> {
    let (path, pattern) = (query.need("path")?, query.need("pattern")?);
    let invalid =
        |_| ApiError::invalid(format!("invalid glob pattern: {pattern}")).with_code("BAD_REQUEST");
    let glob = GlobBuilder::new(pattern).literal_separator(true).build().map_err(invalid)?;
    let matcher = glob.compile_matcher();
    let below = sandbox.below(path, Only::NoDirectories).await;
    let below = below.map_err(|error| failed(path, &error))?;
    let fitting = below.iter().filter(|relative| matcher.is_match(relative));
    let files: Vec<String> = fitting.map(|relative| joined(path, relative)).collect();
    Ok(axum::Json(json!({ "files": files })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Replace {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

/// The result for one file.
#[derive(Debug, Serialize)]
struct Replaced {
    file: String,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Replaces a text in files, each one independently.
pub(super) async fn replace(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let request: Replace = parse(&body)?;
    let mut results = Vec::new();
    for file in &request.files {
        let replaced = replace_in(&sandbox, file, &request).await;
        let error = replaced.err().map(|error| error.message);
        results.push(Replaced { file: file.clone(), success: error.is_none(), error });
    }
    Ok(axum::Json(results).into_response())
}

async fn replace_in(sandbox: &SandboxBody, file: &str, request: &Replace) -> Result<()> {
    let wrong = |error: std::io::Error| failed(file, &error);
    let content = sandbox.read(file).await.map_err(wrong)?;
    let changed = replaced(&content, request.pattern.as_bytes(), request.new_value.as_bytes());
    sandbox.write(file, changed.into()).await.map_err(wrong)
}

/// Replaces every occurrence. Files need not be text.
fn replaced(content: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    if old.is_empty() {
        return content.to_vec();
    }
    let mut changed = Vec::with_capacity(content.len());
    let mut rest = content;
    while !rest.is_empty() {
        match rest.strip_prefix(old) {
            Some(after) => {
                changed.extend_from_slice(new);
                rest = after;
            }
            None => {
                changed.push(rest[0]);
                rest = &rest[1..];
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_with_their_numbers_and_binary_files_are_skipped() {
        let found = lines_with("f", b"one\ntwo two\n\ntwo", "two");
        let lines: Vec<(usize, &str)> =
            found.iter().map(|line| (line.line, line.content.as_str())).collect();
        assert_eq!(lines, [(2, "two two"), (4, "two")]);
        assert_eq!(lines_with("f", b"two\0two", "two"), []);
    }

    #[test]
    fn every_occurrence_is_replaced_and_other_bytes_stay() {
        assert_eq!(replaced(b"\xffaa-a\0aa", b"aa", b"b"), b"\xffb-a\0b");
        assert_eq!(replaced(b"abc", b"", b"x"), b"abc");
        assert_eq!(replaced(b"aaa", b"aa", b""), b"a");
    }

    #[test]
    fn paths_keep_the_form_of_the_request() {
        assert_eq!(joined("/tmp/", "a/b"), "/tmp/a/b");
        assert_eq!(joined("here", ""), "here");
    }
}
