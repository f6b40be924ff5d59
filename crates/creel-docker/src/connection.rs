//! A connection to one engine. The API version is negotiated once, at first use.
//!
//! Requests that change the engine's objects go through the client library. Reads go through slim
//! models of our own. The library's models are closed: an engine with one new state, or Podman with
//! its own, would fail a whole list. They also hold every field there is.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker, body_full};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::Error as _;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::address::Address;
use super::bounds::{self, TooMuch, Weigh};
use super::classify::is_absence;
use super::encode::encoded;
use super::engine::{Agreed, EngineVersion};
use super::rows::RowCutter;
use super::transport::{EngineTransport, RawStream};

/// Maximum time of a request that changes something. Callers have deadlines of their own.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum time of a read, unless the settings say otherwise.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A query string in parts.
pub(super) type QueryParams<'a> = &'a [(&'a str, &'a str)];

/// The transport to one engine, and what is known about the engine.
pub(super) struct EngineConnection {
    address: Address,
    transport: Arc<EngineTransport>,
    library: Docker,
    engine: OnceCell<EngineVersion>,
    agreed: OnceCell<Agreed>,
    /// Maximum time of a list or an inspection, which have no other limit.
    read_timeout: Duration,
}

impl fmt::Debug for EngineConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl EngineConnection {
    /// Prepares the connection; nothing is sent yet.
    pub(super) fn new(address: Address) -> Result<Self, Error> {
        let transport = Arc::new(EngineTransport::new(address.clone())?);
        let shared = Arc::clone(&transport);
        let send = move |request: BollardRequest| {
            let transport = Arc::clone(&shared);
            async move { transport.exchange(request, bounds::RESPONSE as u64).await }
        };
        let library = Docker::connect_with_custom_transport(
            send,
            Some("http://docker"),
            REQUEST_TIMEOUT.as_secs(),
            API_DEFAULT_VERSION,
        )?;
        let (engine, agreed) = (OnceCell::new(), OnceCell::new());
        let read_timeout = READ_TIMEOUT;
        Ok(Self { address, transport, library, engine, agreed, read_timeout })
    }

    /// Sets the maximum time of a read.
    pub(super) fn with_read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
        self
    }

    /// Returns the address of the engine.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Opens a connection that belongs to the caller alone.
    pub(super) async fn open_raw(&self) -> io::Result<Box<dyn RawStream>> {
        self.transport.open_raw().await
    }

    /// Returns what the engine says about itself.
    pub(super) async fn engine(&self) -> Result<&EngineVersion, Error> {
        self.engine.get_or_try_init(|| self.fetch("/version", &[])).await
    }

    /// Returns whether the engine is Podman behind Docker's API.
    pub(super) async fn is_podman(&self) -> Result<bool, Error> {
        Ok(self.agreed().await?.is_podman)
    }

    /// Returns whether the creation time of a volume never changes on this engine.
    pub(super) async fn has_stable_volume_times(&self) -> Result<bool, Error> {
        Ok(self.agreed().await?.has_stable_volume_times)
    }

    /// Negotiates a version of the API with the engine.
    ///
    /// A ping is enough for that. For the full version request, an engine starts programs to read
    /// their versions, which takes longer than listing a hundred containers.
    async fn agreed(&self) -> Result<&Agreed, Error> {
        self.agreed
            .get_or_try_init(|| async {
                let agreed = match self.ping().await? {
                    Some(agreed) => agreed,
                    None => Agreed::with(self.engine().await?),
                };
                self.transport.fix_version(&agreed.path_prefix);
                Ok(agreed)
            })
            .await
    }

    /// Requests the version alone. Returns `None` when the response is not sufficient.
    async fn ping(&self) -> Result<Option<Agreed>, Error> {
        let response = self.send(Method::GET, "/_ping", &[], Bytes::new());
        match in_time(self.read_timeout, response).await {
            Ok(response) => {
                let agreed = Agreed::by_ping(response.headers());
                // The body is read to its end, so that the connection can be reused.
                bounds::collect(response.into_body(), "a ping", bounds::REFUSAL).await?;
                Ok(agreed)
            }
            Err(Error::DockerResponseServerError { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the client library, once the version is negotiated.
    pub(super) async fn library(&self) -> Result<&Docker, Error> {
        self.agreed().await?;
        Ok(&self.library)
    }

    /// Reads one object.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: QueryParams<'_>,
    ) -> Result<T, Error> {
        self.agreed().await?;
        self.fetch(path, query).await
    }

    /// Reads one object. `None` means that it does not exist.
    pub(super) async fn get_if_any<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<Option<T>, Error> {
        match self.get(path, &[]).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a list row by row, so that it is never in memory as a whole.
    pub(super) async fn rows<T: DeserializeOwned + Weigh>(
        &self,
        path: &str,
        query: QueryParams<'_>,
        each: impl FnMut(T),
    ) -> Result<(), Error> {
        self.rows_in(1, (path, query), each).await
    }

    /// Reads a list that is nested in `around` brackets and braces, its own included.
    pub(super) async fn rows_in<T: DeserializeOwned + Weigh>(
        &self,
        around: usize,
        (path, query): (&str, QueryParams<'_>),
        mut each: impl FnMut(T),
    ) -> Result<(), Error> {
        self.agreed().await?;
        in_time(self.read_timeout, async {
            let mut body = self.send(Method::GET, path, query, Bytes::new()).await?.into_body();
            let mut cutter = RowCutter::new(around);
            let mut weight = 0;
            let mut consume = |row: &[u8]| {
                let row: T = serde_json::from_slice(row)?;
                weight += row.weight();
                if weight > bounds::LIST {
                    return Err(TooMuch { what: "a list", limit: bounds::LIST }.into());
                }
                each(row);
                Ok::<_, Error>(())
            };
            while let Some(frame) = body.frame().await {
                let Ok(bytes) = frame?.into_data() else { continue };
                cutter.feed(&bytes, &mut consume)?;
            }
            match (cutter.is_complete(), cutter.is_list()) {
                (true, true) => Ok(()),
                (true, false) => Err(serde_json::Error::custom("it is no list").into()),
                (false, _) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        })
        .await
    }

    /// Sends an object and reads the response.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        value: &impl Serialize,
    ) -> Result<T, Error> {
        self.agreed().await?;
        let body = Bytes::from(serde_json::to_vec(value)?);
        let response = async { whole(self.send(Method::POST, path, &[], body).await?).await };
        in_time(REQUEST_TIMEOUT, response).await
    }

    /// Unpacks an archive into a directory of a container.
    pub(super) async fn put_archive(
        &self,
        container: &str,
        directory: &str,
        archive: Bytes,
    ) -> Result<(), Error> {
        self.agreed().await?;
        let path = archive_path(container);
        let put = async {
            let query = [("path", directory)];
            let response = self.send(Method::PUT, &path, &query, archive).await?;
            bounds::collect(response.into_body(), "an upload", bounds::REFUSAL).await?;
            Ok(())
        };
        in_time(REQUEST_TIMEOUT, put).await
    }

    /// Packs a file of a container into an archive. `None` means that there is no such file.
    pub(super) async fn get_archive(
        &self,
        container: &str,
        file: &str,
    ) -> Result<Option<Bytes>, Error> {
        self.agreed().await?;
        let path = archive_path(container);
        let get = async {
            let response = self.send(Method::GET, &path, &[("path", file)], Bytes::new()).await?;
            bounds::collect(response.into_body(), "an archive", bounds::ARCHIVE).await
        };
        match in_time(self.read_timeout, get).await {
            Ok(archive) => Ok(Some(archive)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a POST request without a body, and passes every line of the response to `each`.
    ///
    /// The total time is not limited, but the engine may send nothing for at most `silence`.
    pub(super) async fn post_for_lines(
        &self,
        path: &str,
        query: QueryParams<'_>,
        silence: Duration,
        mut each: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.agreed().await?;
        let response = in_time(silence, self.send(Method::POST, path, query, Bytes::new())).await?;
        let mut body = response.into_body();
        let mut line = Vec::new();
        loop {
            let Some(frame) = in_time(silence, async { Ok(body.frame().await) }).await? else {
                return if line.is_empty() { Ok(()) } else { each(&line) };
            };
            let Ok(bytes) = frame?.into_data() else { continue };
            for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                if line.len() + part.len() > bounds::LINE {
                    return Err(TooMuch { what: "a line of progress", limit: bounds::LINE }.into());
                }
                line.extend_from_slice(part);
                if line.ends_with(b"\n") {
                    each(&line)?;
                    line.clear();
                }
            }
        }
    }

    /// Sends an object, and takes the connection over when the engine upgrades it.
    pub(super) async fn hijack(
        &self,
        path: &str,
        value: &impl Serialize,
    ) -> Result<Upgraded, Error> {
        self.agreed().await?;
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "tcp")
            .body(body_full(serde_json::to_vec(value)?.into()))?;
        let upgrade = async {
            let response = self.transport.upgrade(request).await?;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(hyper::upgrade::on(response).await?);
            }
            Err(refusal(response).await?)
        };
        in_time(REQUEST_TIMEOUT, upgrade).await
    }

    async fn fetch<T: DeserializeOwned>(
        &self,
        path: &str,
        query: QueryParams<'_>,
    ) -> Result<T, Error> {
        let response =
            async { whole(self.send(Method::GET, path, query, Bytes::new()).await?).await };
        in_time(self.read_timeout, response).await
    }

    /// Sends a request, and turns every response but success into an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        query: QueryParams<'_>,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}{mark}{}", query.join("&")))
            .header(CONTENT_TYPE, "application/json")
            .body(body_full(body))?;
        // The callers set their own bounds on what they read.
        let response = self.transport.exchange(request, u64::MAX).await?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        Err(refusal(response).await?)
    }
}

/// Reads the response to a request that the engine did not carry out.
async fn refusal(response: Response<Incoming>) -> Result<Error, Error> {
    let status_code = response.status().as_u16();
    let body = bounds::collect(response.into_body(), "a refusal", bounds::REFUSAL).await?;
    Ok(Error::DockerResponseServerError { status_code, message: message_in(&body) })
}

fn archive_path(container: &str) -> String {
    format!("/containers/{}/archive", encoded(container))
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, work).await.unwrap_or(Err(Error::RequestTimeoutError))
}

async fn whole<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Error> {
    let body = bounds::collect(response.into_body(), "an object", bounds::RESPONSE).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Returns the engine's message for a request that failed.
fn message_in(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct EngineErrorBody {
        message: String,
    }
    match serde_json::from_slice::<EngineErrorBody>(body) {
        Ok(body) => body.message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    }
}
