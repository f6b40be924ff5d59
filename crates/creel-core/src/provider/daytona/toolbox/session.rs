//! Sessions: shells that live on between commands.

use reqwest::Method;
use serde_json::{Value, json};

use crate::provider::{ErrorClass, ProviderError};

use super::super::classify::Refusal;
use super::super::http::Request;
use super::super::wire::Answered;
use super::Toolbox;

/// A command that runs in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCommand {
    /// Its session.
    pub session: String,
    /// Its id in that session.
    pub id: String,
}

/// What a command wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLogs {
    /// To its standard output.
    pub output: String,
    /// To its standard error.
    pub error: String,
}

impl Toolbox {
    /// Begins a session under a name of the caller's choice.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox refuses it.
    pub async fn create_session(&self, session: &str) -> Result<(), ProviderError> {
        let request = Request::to_toolbox(Method::POST, self.url(&["process", "session"]))
            .with_body(json!({ "sessionId": session }));
        let answer = self.http.send(request).await;
        answer.map(drop).map_err(|refusal| self.during(refusal, "begin a session"))
    }

    /// Starts a command in a session, without waiting for its end.
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
        let request = Request::to_toolbox(Method::POST, url)
            .with_body(json!({ "command": command, "runAsync": true }));
        let started = async {
            let answer = self.read(request).await?;
            let id = answer.get("cmdId").and_then(Value::as_str);
            id.map(str::to_owned).ok_or_else(|| {
                Refusal::new(ErrorClass::Transient, "its toolbox did not name the command")
            })
        };
        let id = started.await.map_err(|refusal| self.during(refusal, "start a command"))?;
        Ok(SessionCommand { session: session.to_owned(), id })
    }

    /// Returns how a command ended; `None` while it runs.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not know it.
    pub async fn exit_code(&self, command: &SessionCommand) -> Result<Option<i64>, ProviderError> {
        let asked = self.ask_exit_code(command).await;
        asked.map_err(|refusal| self.during(refusal, "look at a command"))
    }

    pub(super) async fn ask_exit_code(&self, command: &SessionCommand) -> Answered<Option<i64>> {
        let url = self.url(&["process", "session", &command.session, "command", &command.id]);
        let answer = self.read(Request::to_toolbox(Method::GET, url)).await?;
        Ok(answer.get("exitCode").and_then(Value::as_i64))
    }

    /// Returns what a command wrote so far.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not know it.
    pub async fn logs(&self, command: &SessionCommand) -> Result<CommandLogs, ProviderError> {
        let read = self.read_logs(command).await;
        read.map_err(|refusal| self.during(refusal, "read the log of a command"))
    }

    pub(super) async fn read_logs(&self, command: &SessionCommand) -> Answered<CommandLogs> {
        let request = Request::to_toolbox(Method::GET, self.logs_url(command));
        let body = self.http.send(request).await?;
        let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
            // Older toolboxes answer with plain text, both streams mixed.
            let output = String::from_utf8_lossy(&body).into_owned();
            return Ok(CommandLogs { output, error: String::new() });
        };
        let field = |name| answer.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(CommandLogs { output: field("stdout"), error: field("stderr") })
    }

    /// Ends a session and what runs in it.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not answer; one that is gone already is fine.
    pub async fn delete_session(&self, session: &str) -> Result<(), ProviderError> {
        let url = self.url(&["process", "session", session]);
        match self.http.send(Request::to_toolbox(Method::DELETE, url)).await {
            Err(refusal) if !refusal.is_absence() => Err(self.during(refusal, "end a session")),
            _ => Ok(()),
        }
    }

    pub(super) fn logs_url(&self, command: &SessionCommand) -> reqwest::Url {
        self.url(&["process", "session", &command.session, "command", &command.id, "logs"])
    }
}
