//! Sends requests to an engine over any transport.
//!
//! A connection carries one request at a time, so a broken one costs one request, and a stream of
//! events never delays a delete. An idle connection is reused (see `pool`). Both the client library
//! and our own reader of long lists use this transport.

mod pool;
mod ssh;
mod stream;
mod tls;

pub use stream::RawStream;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bollard::BollardRequest;
use bollard::errors::Error;
use creel_model::task;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::Address;

use pool::{LiveConnection, Pool, Reuse};
use ssh::SshStderr;
use stream::{Allowance, Metered};

/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of open connections. It is more than a reaper needs.
const CONNECTIONS: usize = 128;
/// The same through `ssh`: `sshd` starts to drop connections when ten are opened at once.
const SSH_CONNECTIONS: usize = 8;

/// The transport to one engine.
pub(super) struct EngineTransport {
    address: Address,
    /// The TLS configuration, if the address uses TLS.
    tls: Option<TlsConnector>,
    /// The idle connections.
    pool: Pool,
    /// The agreed version of the API, as a prefix of every path.
    version: OnceLock<String>,
}

impl EngineTransport {
    /// Prepares the transport. Nothing is opened yet.
    pub(super) fn new(address: Address) -> io::Result<Self> {
        let tls = match &address {
            Address::Tls { tls, .. } => Some(tls::connector(tls)?),
            _ => None,
        };
        let pool = Pool::new(match address {
            Address::Ssh(_) => SSH_CONNECTIONS,
            Address::Unix(_) | Address::Tcp { .. } | Address::Tls { .. } => CONNECTIONS,
        });
        Ok(Self { address, tls, pool, version: OnceLock::new() })
    }

    /// Sets the version of the API for all further requests. The first call wins.
    pub(super) fn fix_version(&self, version: &str) {
        self.version.get_or_init(|| version.to_owned());
    }

    /// Sends one request, and returns the response as soon as its head has arrived. The connection
    /// closes when the response is longer than `most` bytes.
    pub(super) async fn exchange(
        &self,
        mut request: BollardRequest,
        most: u64,
    ) -> Result<Response<Incoming>, Error> {
        self.address(&mut request)?;
        let mut permit = self.pool.permit().await;
        let request = match self.pool.reuse(request, most, &mut permit).await {
            Reuse::Sent(result) => return result,
            Reuse::Unsent(request) => request,
        };
        let mut live = self.dial().await?;
        live.allowance.set(most);
        let response = live.send(request).await?;
        self.pool.recycle(live, permit);
        Ok(response)
    }

    /// Sends one request over a connection that belongs to the caller once the response arrives.
    ///
    /// It is not one of the pooled connections and does not count towards their limit. It lasts as
    /// long as the caller keeps it.
    pub(super) async fn upgrade(
        &self,
        mut request: BollardRequest,
    ) -> Result<Response<Incoming>, Error> {
        self.address(&mut request)?;
        let stream = self.open_raw().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends when it is handed over, or when the caller no longer waits for the response.
        task::background(async move {
            let _ = connection.with_upgrades().await;
        });
        Ok(sender.send_request(request).await?)
    }

    fn address(&self, request: &mut BollardRequest) -> Result<(), Error> {
        *request.uri_mut() = self.target(request.uri())?;
        request.headers_mut().insert(HOST, self.host()?);
        Ok(())
    }

    /// Returns the request's target with the version prefix. The client library sends none.
    fn target(&self, uri: &Uri) -> Result<Uri, Error> {
        let path = uri.path_and_query().map_or("/", |target| target.as_str());
        let version = self.version.get().map(String::as_str).unwrap_or_default();
        Ok(format!("{version}{path}").parse()?)
    }

    fn host(&self) -> Result<HeaderValue, Error> {
        let host = match &self.address {
            Address::Unix(_) | Address::Ssh(_) => "docker".to_owned(),
            Address::Tcp { .. } | Address::Tls { .. } => {
                self.address.to_string().replacen("tcp://", "", 1)
            }
        };
        HeaderValue::try_from(host).map_err(|error| Error::from(io::Error::other(error)))
    }

    /// Opens a connection that belongs to the caller alone.
    pub(super) async fn open_raw(&self) -> io::Result<Box<dyn RawStream>> {
        let opened = timeout(CONNECT_TIMEOUT, self.open()).await;
        let (stream, _) = opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(stream)
    }

    async fn dial(&self) -> Result<LiveConnection, Error> {
        let (stream, ssh_stderr) = timeout(CONNECT_TIMEOUT, self.open())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let allowance = Allowance::default();
        let stream = Metered { stream, allowance: allowance.clone() };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends by itself when the response is read, or when the caller no longer waits for it.
        // Its error reaches us through the response.
        task::background(async move {
            let _ = connection.await;
        });
        Ok(LiveConnection { sender, ssh_stderr, allowance })
    }

    async fn open(&self) -> io::Result<(Box<dyn RawStream>, Option<SshStderr>)> {
        let stream: Box<dyn RawStream> = match &self.address {
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Address::Tcp { host, port } => Box::new(tcp(host, *port).await?),
            Address::Tls { host, port, .. } => {
                let connector = self.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Box::new(connector.connect(name, tcp(host, *port).await?).await?)
            }
            Address::Ssh(target) => {
                let (stream, ssh_stderr) = ssh::open(target)?;
                return Ok((Box::new(stream), Some(ssh_stderr)));
            }
        };
        Ok((stream, None))
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
