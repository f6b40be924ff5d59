//! Looking into many files: find a text, find names, replace a text.

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse, Response};
use globset::GlobBuilder;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::files::failed;
use super::{App, Asked, parse, resolve};
use crate::backend::{Body, Only, joined};
use crate::error::{ApiError, Result};

/// How much of a file is looked at to tell whether it is text.
const HEAD: usize = 512;

/// A line that holds a text.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Found {
    file: String,
    line: usize,
    content: String,
}

/// Finds a text in files: literally, line by line, not in binary files.
pub(super) async fn find(Asked { sandbox, query }: Asked) -> Result<Response> {
    let (path, text) = (query.need("path")?, query.need("pattern")?);
    let candidates = sandbox.candidates(path, text).await.map_err(|error| failed(path, &error))?;
    let mut found = Vec::new();
    for relative in candidates {
        let file = joined(path, &relative);
        // One that went away, or may not be read, holds nothing for us.
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

/// Finds files whose path below a directory fits a glob.
pub(super) async fn search(Asked { sandbox, query }: Asked) -> Result<Response> {
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

/// What came of one file.
#[derive(Debug, Serialize)]
struct Replaced {
    file: String,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Replaces a text in files, each for itself.
pub(super) async fn replace(
    Extract(shared): App,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let order: Replace = parse(&body)?;
    let mut results = Vec::new();
    for file in &order.files {
        let replaced = replace_in(&sandbox, file, &order).await;
        let error = replaced.err().map(|error| error.message);
        results.push(Replaced { file: file.clone(), success: error.is_none(), error });
    }
    Ok(axum::Json(results).into_response())
}

async fn replace_in(sandbox: &Body, file: &str, order: &Replace) -> Result<()> {
    let wrong = |error: std::io::Error| failed(file, &error);
    let content = sandbox.read(file).await.map_err(wrong)?;
    let changed = replaced(&content, order.pattern.as_bytes(), order.new_value.as_bytes());
    sandbox.write(file, changed.into()).await.map_err(wrong)
}

/// Replaces every occurrence; files need not be text.
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
    fn lines_are_found_with_their_numbers_and_binary_files_are_not_looked_into() {
        let found = lines_with("f", b"one\ntwo two\n\ntwo", "two");
        let told: Vec<(usize, &str)> =
            found.iter().map(|line| (line.line, line.content.as_str())).collect();
        assert_eq!(told, [(2, "two two"), (4, "two")]);
        assert_eq!(lines_with("f", b"two\0two", "two"), []);
    }

    #[test]
    fn every_occurrence_is_replaced_and_other_bytes_stay() {
        assert_eq!(replaced(b"\xffaa-a\0aa", b"aa", b"b"), b"\xffb-a\0b");
        assert_eq!(replaced(b"abc", b"", b"x"), b"abc");
        assert_eq!(replaced(b"aaa", b"aa", b""), b"a");
    }

    #[test]
    fn paths_are_told_as_they_were_asked_for() {
        assert_eq!(joined("/tmp/", "a/b"), "/tmp/a/b");
        assert_eq!(joined("here", ""), "here");
    }
}
