//! `POST /process/execute`.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::{SharedState, parse, resolve};
use crate::backend::{ExecutionEvent, Program, SandboxBody, ShellInput};
use crate::error::{ApiError, Result};
use crate::sandbox::Pairs;

#[derive(Debug, Deserialize)]
struct Execute {
    command: String,
    cwd: Option<String>,
    envs: Option<Pairs>,
    timeout: Option<u64>,
}

/// Runs a command to its end or its timeout.
pub(super) async fn execute(
    Extract(shared): SharedState,
    Path(key): Path<String>,
    body: Bytes,
) -> Result<Response> {
    let sandbox = resolve(&shared, &key)?;
    let request: Execute = parse(&body)?;
    let program = Program {
        script: ShellInput::Fed(request.command),
        cwd: request.cwd.filter(|cwd| !cwd.is_empty()),
        env: request.envs.unwrap_or_default(),
        merged: true,
    };
    let limit = request.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let (code, output) = finish(&sandbox, program, limit).await?;
    let result = String::from_utf8_lossy(&output);
    Ok(axum::Json(json!({ "exitCode": code, "result": result })).into_response())
}

/// Runs a program to its end, and returns its code and all output.
pub(super) async fn finish(
    sandbox: &SandboxBody,
    program: Program,
    limit: Option<Duration>,
) -> Result<(i32, Vec<u8>)> {
    let mut execution = sandbox.run(program).await.map_err(|_| ApiError::no_daemon())?;
    let killer = execution.killer();
    let reading = async {
        let mut output = Vec::new();
        while let Some(event) = execution.events.recv().await {
            match event {
                ExecutionEvent::Output(_, chunk) => output.extend_from_slice(&chunk),
                ExecutionEvent::Ended(code) => return Ok((code, output)),
            }
        }
        Err(ApiError::no_daemon())
    };
    let Some(limit) = limit else { return reading.await };
    match tokio::time::timeout(limit, reading).await {
        Ok(finished) => finished,
        Err(_) => {
            killer.kill();
            let message = "command execution timeout";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
                .with_code("PROCESS_EXECUTION_TIMEOUT"))
        }
    }
}
