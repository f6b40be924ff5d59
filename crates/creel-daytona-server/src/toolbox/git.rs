//! `POST /git/clone`, with the git in the sandbox.

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::execute::finish;
use super::{SharedState, parse, resolve};
use crate::backend::{Program, SandboxBody, ShellInput, quoted};
use crate::error::{ApiError, Result};
use crate::sandbox::Pairs;

#[derive(Debug, Deserialize)]
struct CloneRequest {
    url: String,
    path: String,
    branch: Option<String>,
    commit_id: Option<String>,
    depth: Option<u32>,
    username: Option<String>,
    password: Option<String>,
}

/// Clones a repository.
pub(super) async fn clone(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let request: CloneRequest = parse(&body)?;
    let program = Program {
        script: ShellInput::Fed(request.script(&sandbox)),
        cwd: None,
        env: request.env(),
        merged: true,
    };
    match finish(&sandbox, program, None).await? {
        (0, _) => Ok(StatusCode::OK.into_response()),
        (_, output) => Err(refusal(String::from_utf8_lossy(&output).trim())),
    }
}

impl CloneRequest {
    fn script(&self, sandbox: &SandboxBody) -> String {
        let path = quoted(&sandbox.inside(&self.path));
        let mut command = String::from("git");
        if self.password.is_some() {
            // Passed in the environment, so that no process list shows it.
            let helper =
                "!f() { echo \"username=$CLONE_USER\"; echo \"password=$CLONE_WORD\"; }; f";
            command.push_str(&format!(" -c credential.helper={}", quoted(helper)));
        }
        command.push_str(" clone");
        if let Some(branch) = &self.branch {
            command.push_str(&format!(" --branch {}", quoted(branch)));
        }
        if let Some(depth) = self.depth.filter(|depth| *depth > 0) {
            command.push_str(&format!(" --depth {depth}"));
        }
        command.push_str(&format!(" -- {} {path} </dev/null", quoted(&self.url)));
        if let Some(commit) = &self.commit_id {
            let commit = quoted(commit);
            command.push_str(&format!(" && git -C {path} checkout --detach {commit} </dev/null"));
        }
        command + "\n"
    }

    fn env(&self) -> Pairs {
        let mut env = Pairs::from([("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned())]);
        if let Some(password) = &self.password {
            env.insert("CLONE_USER".to_owned(), self.username.clone().unwrap_or_default());
            env.insert("CLONE_WORD".to_owned(), password.clone());
        }
        env
    }
}

fn refusal(output: &str) -> ApiError {
    let says = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
    let (status, code) = if says(&["Authentication failed", "could not read Username"]) {
        (StatusCode::UNAUTHORIZED, "GIT_AUTH_FAILED")
    } else if says(&["Remote branch"]) {
        (StatusCode::NOT_FOUND, "GIT_BRANCH_NOT_FOUND")
    } else if says(&["not found", "does not exist", "does not appear to be a git repository"]) {
        (StatusCode::NOT_FOUND, "GIT_REPO_NOT_FOUND")
    } else {
        (StatusCode::BAD_REQUEST, "BAD_REQUEST")
    };
    ApiError::new(status, output).with_code(code)
}
