//! Follows the log of a command while it is written.
//!
//! The log arrives over a WebSocket that starts from the beginning of the log each time.
//! Connections break (ping timeouts close them with 1011). The next connection then skips the part
//! that was already forwarded. When no connection holds, the log is polled. Nothing is forwarded
//! twice, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use creel_model::provider::{ErrorClass, ProviderError};
use futures::StreamExt;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tracing::debug;

use super::super::api::DaytonaResult;
use super::super::bounds;
use super::super::classify::DaytonaError;
use super::demux::{Demux, Stream};
use super::progress::StreamProgress;
use super::{SessionCommand, Toolbox};

/// How often the stream is tried before the log is polled.
const CONNECTIONS: u32 = 3;
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two polls.
const POLL_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of consecutive poll failures.
const MOST_FAILURES: u32 = 5;

/// A plain or encrypted connection.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// Forwards only what was not forwarded before.
struct Sink<'a> {
    to: &'a mut (dyn FnMut(Stream, &[u8]) + Send),
    /// How much of each stream was forwarded.
    done: [StreamProgress; 2],
    /// How much of each stream this connection has received.
    seen: [usize; 2],
}

impl Sink<'_> {
    fn begin(&mut self) {
        self.seen = [0, 0];
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let seen = &mut self.seen[stream as usize];
        let new = self.done[stream as usize].advance(*seen, bytes);
        *seen += bytes.len();
        if !new.is_empty() {
            (self.to)(stream, new);
        }
    }

    /// Consumes the whole of a stream as text.
    fn write_text(&mut self, stream: Stream, text: &str, ended: bool) {
        let new = self.done[stream as usize].advance_text(text, ended);
        if !new.is_empty() {
            (self.to)(stream, new);
        }
    }
}

impl Toolbox {
    /// Forwards everything a command writes until it ends, and returns its exit code.
    ///
    /// # Errors
    ///
    /// Fails when neither the stream nor polling succeeds.
    pub async fn follow(
        &self,
        command: &SessionCommand,
        to: &mut (dyn FnMut(Stream, &[u8]) + Send),
    ) -> Result<i64, ProviderError> {
        let mut sink = Sink { to, done: Default::default(), seen: [0, 0] };
        for _ in 0..CONNECTIONS {
            match self.stream(command, &mut sink).await {
                Ok(()) => break,
                Err(refusal) if refusal.class == ErrorClass::Denied => {
                    return Err(self.during(refusal, "follow a command"));
                }
                Err(refusal) => debug!(error = %refusal, "a followed log broke off"),
            }
        }
        let polled = self.poll(command, &mut sink).await;
        polled.map_err(|refusal| self.during(refusal, "follow a command"))
    }

    /// Reads the stream to its end.
    async fn stream(&self, command: &SessionCommand, sink: &mut Sink<'_>) -> DaytonaResult<()> {
        let broken = |error: &dyn std::fmt::Display| {
            let message = format!("the log stream of {} broke: {error}", self.origin());
            DaytonaError::new(ErrorClass::Transient, message)
        };
        self.http.check_key()?;
        let mut url = self.logs_url(command);
        url.query_pairs_mut().append_pair("follow", "true");
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(&url)).await;
        let connection = connected.map_err(|late| broken(&late))??;
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        let address = url.as_str().replacen(url.scheme(), scheme, 1);
        let mut request = address.into_client_request().map_err(|error| broken(&error))?;
        request.headers_mut().extend(self.http.identification()?);
        let limits = WebSocketConfig::default()
            .max_message_size(Some(bounds::MESSAGE))
            .max_frame_size(Some(bounds::MESSAGE));
        let handshake =
            tokio_tungstenite::client_async_with_config(request, connection, Some(limits)).await;
        let (mut socket, _) = handshake.map_err(|error| broken(&error))?;
        sink.begin();
        let mut demux = Demux::default();
        while let Some(message) = socket.next().await {
            match message.map_err(|error| broken(&error))? {
                Message::Binary(bytes) => demux.feed(&bytes, |from, data| sink.write(from, data)),
                Message::Text(text) => {
                    demux.feed(text.as_bytes(), |from, data| sink.write(from, data));
                }
                Message::Close(Some(frame)) if u16::from(frame.code) == 1011 => {
                    return Err(broken(&frame.reason));
                }
                _ => {}
            }
        }
        demux.finish(|from, data| sink.write(from, data));
        Ok(())
    }

    async fn connect(&self, url: &Url) -> DaytonaResult<Box<dyn Duplex>> {
        let lost = |error: &dyn std::fmt::Display| {
            let message = format!("cannot reach its toolbox at {}: {error}", self.origin());
            DaytonaError::new(ErrorClass::Unreachable, message)
        };
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(443);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let plain = TcpStream::connect((bare, port)).await.map_err(|error| lost(&error))?;
        if url.scheme() == "http" {
            return Ok(Box::new(plain));
        }
        let name = ServerName::try_from(bare.to_owned()).map_err(|error| lost(&error))?;
        let mut tls = (*self.http.tls()).clone();
        // The server must not choose an HTTP version without upgrades.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connector = TlsConnector::from(Arc::new(tls));
        Ok(Box::new(connector.connect(name, plain).await.map_err(|error| lost(&error))?))
    }

    /// Polls the log until the command has ended.
    async fn poll(&self, command: &SessionCommand, sink: &mut Sink<'_>) -> DaytonaResult<i64> {
        let mut failures = 0;
        loop {
            match self.poll_once(command, sink).await {
                Ok(Some(code)) => return Ok(code),
                Ok(None) => failures = 0,
                Err(refusal) if refusal.is_ambiguous() && failures < MOST_FAILURES => failures += 1,
                Err(refusal) => return Err(refusal),
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    async fn poll_once(
        &self,
        command: &SessionCommand,
        sink: &mut Sink<'_>,
    ) -> DaytonaResult<Option<i64>> {
        // The exit code is requested first: the log then holds everything written before the end.
        let code = self.poll_exit_code(command).await?;
        let logs = self.read_logs(command).await?;
        sink.write_text(Stream::Output, &logs.output, code.is_some());
        sink.write_text(Stream::Error, &logs.error, code.is_some());
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_connection_hands_on_only_what_is_new() {
        let mut all = Vec::new();
        let mut to = |_: Stream, bytes: &[u8]| all.extend_from_slice(bytes);
        let mut sink = Sink { to: &mut to, done: Default::default(), seen: [0, 0] };
        sink.write(Stream::Output, b"abc");
        sink.begin();
        sink.write(Stream::Output, b"ab");
        sink.write(Stream::Output, b"cde");
        sink.begin();
        sink.write(Stream::Output, b"abcdef");
        assert_eq!(all, b"abcdef");
    }
}
