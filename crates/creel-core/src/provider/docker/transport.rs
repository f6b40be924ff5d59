//! Requests to an engine, whatever way leads to it.
//!
//! One connection per request: nothing is shared, so a broken connection
//! costs one request, and a stream of events never holds up a delete. Both
//! the client library and our own reading of long lists use it.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bollard::BollardRequest;
use bollard::errors::Error;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::task;

use super::address::Address;
use super::ssh::{self, Complaint};
use super::tls;

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The way to one engine.
pub(super) struct Transport {
    address: Address,
    tls: Option<TlsConnector>,
    /// The version of the API that both sides know, as a prefix of every path.
    version: OnceLock<String>,
}

/// What bytes to an engine go over.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An open connection, and what `ssh` has to say if it fails.
struct Opened {
    stream: Box<dyn Stream>,
    complaint: Option<Complaint>,
}

impl Opened {
    fn new(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), complaint: None }
    }
}

impl Transport {
    /// Prepares the way; nothing is opened yet.
    pub(super) fn new(address: Address) -> io::Result<Self> {
        let tls = match &address {
            Address::Tls { tls, .. } => Some(tls::connector(tls)?),
            _ => None,
        };
        Ok(Self { address, tls, version: OnceLock::new() })
    }

    /// Fixes the version of the API for all requests to come; the first call wins.
    pub(super) fn fix_version(&self, version: &str) {
        self.version.get_or_init(|| version.to_owned());
    }

    /// Sends one request and returns the answer as soon as its head is here.
    pub(super) async fn exchange(
        &self,
        mut request: BollardRequest,
    ) -> Result<Response<Incoming>, Error> {
        *request.uri_mut() = self.target(request.uri())?;
        request.headers_mut().insert(HOST, self.host()?);
        let opened = timeout(CONNECT_TIMEOUT, self.open())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(opened.stream)).await?;
        // It ends by itself: when the answer is read or nobody waits for it any more. Its error
        // reaches us through the answer.
        task::background(async move {
            let _ = connection.await;
        });
        match (sender.send_request(request).await, opened.complaint) {
            (Ok(response), _) => Ok(response),
            (Err(error), None) => Err(error.into()),
            (Err(error), Some(complaint)) => {
                Err(complaint.into_error().await.map_or_else(|| error.into(), Error::from))
            }
        }
    }

    /// Returns the request's target with the version in front; the client library sends none.
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

    async fn open(&self) -> io::Result<Opened> {
        match &self.address {
            Address::Unix(path) => Ok(Opened::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => Ok(Opened::new(tcp(host, *port).await?)),
            Address::Tls { host, port, .. } => {
                let connector = self.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tcp(host, *port).await?;
                Ok(Opened::new(connector.connect(name, stream).await?))
            }
            Address::Ssh(target) => {
                let (stream, complaint) = ssh::open(target)?;
                Ok(Opened { stream: Box::new(stream), complaint: Some(complaint) })
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
