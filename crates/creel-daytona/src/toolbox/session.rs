//! Sessions: shells that persist between commands.

use creel_model::provider::{ErrorClass, ProviderError};
use reqwest::Method;
use serde_json::{Value, json};

use super::super::api::DaytonaResult;
use super::super::classify::DaytonaError;
use super::super::http::ApiRequest;
use super::Toolbox;

/// A command in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCommand {
    /// Its session.
    pub session: String,
    /// Its id in that session.
    pub id: String,
}

/// The output of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLogs {
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub error: String,
}

impl Toolbox {
    /// Creates a session with a name that the caller chooses.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox refuses it.
    pub async fn create_session(&self, session: &str) -> Result<(), ProviderError> {
        let request = ApiRequest::to_toolbox(Method::POST, self.url(&["process", "session"]))
            .with_body(json!({ "sessionId": session }));
        let result = self.http.send(request).await;
        result.map(drop).map_err(|refusal| self.during(refusal, "begin a session"))
    }

    /// Starts a command in a session without waiting for its end.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox refuses it.
    pub async fn start_command(
        &self,
        session: &str,
        command: &str,
    ) -> Result<SessionCommand, ProviderError> {
        let url = self.url(&["process", "session", session, "exec"]);
        let request = ApiRequest::to_toolbox(Method::POST, url)
            .with_body(json!({ "command": command, "runAsync": true }));
        let started = async {
            let response = self.read(request).await?;
            let id = response.get("cmdId").and_then(Value::as_str);
            id.map(str::to_owned).ok_or_else(|| {
                DaytonaError::new(ErrorClass::Transient, "its toolbox did not name the command")
            })
        };
        let id = started.await.map_err(|refusal| self.during(refusal, "start a command"))?;
        Ok(SessionCommand { session: session.to_owned(), id })
    }

    /// Returns the exit code of a command; `None` while it runs.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not know it.
    pub async fn exit_code(&self, command: &SessionCommand) -> Result<Option<i64>, ProviderError> {
        let exit_code = self.poll_exit_code(command).await;
        exit_code.map_err(|refusal| self.during(refusal, "inspect a command"))
    }

    pub(super) async fn poll_exit_code(
        &self,
        command: &SessionCommand,
    ) -> DaytonaResult<Option<i64>> {
        let url = self.url(&["process", "session", &command.session, "command", &command.id]);
        let response = self.read(ApiRequest::to_toolbox(Method::GET, url)).await?;
        Ok(response.get("exitCode").and_then(Value::as_i64))
    }

    /// Returns the output of a command so far.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not know it.
    pub async fn logs(&self, command: &SessionCommand) -> Result<CommandLogs, ProviderError> {
        let read = self.read_logs(command).await;
        read.map_err(|refusal| self.during(refusal, "read the log of a command"))
    }

    pub(super) async fn read_logs(&self, command: &SessionCommand) -> DaytonaResult<CommandLogs> {
        let request = ApiRequest::to_toolbox(Method::GET, self.logs_url(command));
        let body = self.http.send(request).await?;
        let Ok(response) = serde_json::from_slice::<Value>(&body) else {
            // Older toolboxes answer with plain text, both streams mixed.
            let output = String::from_utf8_lossy(&body).into_owned();
            return Ok(CommandLogs { output, error: String::new() });
        };
        let field =
            |name| response.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(CommandLogs { output: field("stdout"), error: field("stderr") })
    }

    /// Ends a session and everything that runs in it; succeeds if it is already gone.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not respond.
    pub async fn delete_session(&self, session: &str) -> Result<(), ProviderError> {
        let url = self.url(&["process", "session", session]);
        match self.http.send(ApiRequest::to_toolbox(Method::DELETE, url)).await {
            Err(refusal) if !refusal.is_absence() => Err(self.during(refusal, "end a session")),
            _ => Ok(()),
        }
    }

    pub(super) fn logs_url(&self, command: &SessionCommand) -> reqwest::Url {
        self.url(&["process", "session", &command.session, "command", &command.id, "logs"])
    }
}
