//! Starts and stops the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use creel_model::task;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;
use tower_service::Service;
use uuid::Uuid;

use crate::gate::{self, Cut};
use crate::limit::RateLimiter;
use crate::sandbox::ServerInfo;
use crate::settings::Settings;
use crate::shared::{Credentials, KnownNames, ServerParts, ServerState};
use crate::{admin, api, backend, timers, toolbox};

/// How long open connections may take to end when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address can be reached from other machines.
    #[error("{0} is not a loopback address, and this server is for this machine only")]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// The server, before it runs.
#[derive(Debug)]
pub struct Server;

/// A running server. Dropping it stops nothing: call [`Running::stop`].
#[derive(Debug)]
#[must_use]
pub struct Running {
    shared: Arc<ServerState>,
    address: SocketAddr,
    connections: TaskTracker,
    keep_alive: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// Starts to listen. Requests are answered when this returns.
    ///
    /// # Errors
    ///
    /// Fails when the address is not this machine's own or cannot be listened on.
    pub async fn start(settings: Settings) -> Result<Running, StartError> {
        let address = settings.listen;
        if !address.ip().is_loopback() {
            return Err(StartError::NotLoopback(address));
        }
        let failed = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let keep_alive = backend::keep_alive(&settings.backend);
        let shared = Arc::new(prepare(settings, address));
        let connections = TaskTracker::new();
        let app = app(&shared);
        let accepting = accept(listener, app, Arc::clone(&shared), connections.clone());
        task::background(shared.tasks.track_future(accepting));
        task::background(shared.tasks.track_future(timers::run(Arc::clone(&shared))));
        Ok(Running { shared, address, connections, keep_alive })
    }
}

impl Running {
    /// Returns the base URL of the API, for `DAYTONA_API_URL`.
    pub fn url(&self) -> String {
        format!("http://{}/api", self.address)
    }

    /// Returns the key, for `DAYTONA_API_KEY`.
    pub fn api_key(&self) -> &str {
        &self.shared.access.api_key
    }

    /// Returns the token that works instead of the key, together with the organisation.
    pub fn jwt(&self) -> &str {
        &self.shared.access.jwt
    }

    /// Returns the organisation that owns all sandboxes.
    pub fn organization_id(&self) -> &str {
        &self.shared.origin.organization
    }

    /// Returns the base URL of the admin routes. A client that knows it may do anything.
    pub fn admin_url(&self) -> String {
        format!("http://{}/{}", self.address, self.shared.access.admin)
    }

    /// Stops the server: closes every connection, and releases every sandbox, verified.
    pub async fn stop(self) {
        self.shared.cancel.cancel();
        self.shared.tasks.close();
        self.connections.close();
        if tokio::time::timeout(DRAIN, self.connections.wait()).await.is_err() {
            tracing::warn!("a connection did not end in time");
        }
        self.shared.tasks.wait().await;
        self.shared.end_backends().await;
        if let Some(keep_alive) = self.keep_alive {
            keep_alive.abort();
        }
    }
}

fn prepare(settings: Settings, address: SocketAddr) -> ServerState {
    let scenario = settings.scenario;
    let permissions = scenario.permissions.unwrap_or(settings.permissions);
    let shared = ServerState::new(ServerParts {
        origin: ServerInfo {
            organization: Uuid::new_v4().to_string(),
            toolbox_url: format!("http://{address}/toolbox"),
            runner: Uuid::new_v4(),
            api: settings.api,
        },
        access: Credentials {
            authorities: [address.to_string(), format!("localhost:{}", address.port())],
            api_key: format!("dtn_{}", secret()),
            jwt: format!("{}.{}.{}", secret(), secret(), secret()),
            permissions: permissions.into(),
            admin: format!("admin-{}", secret()),
        },
        backend: settings.backend,
        delays: settings.delays,
        known: KnownNames { snapshots: settings.snapshots, regions: settings.regions },
        limiter: RateLimiter::new(scenario.rate_limits.unwrap_or(settings.rate_limits)),
    });
    for fault in scenario.faults {
        shared.faults().add(fault);
    }
    for seed in &scenario.seeds {
        admin::plant(&shared, seed);
    }
    shared
}

fn secret() -> String {
    Uuid::new_v4().simple().to_string() + &Uuid::new_v4().simple().to_string()
}

fn app(shared: &Arc<ServerState>) -> Router {
    Router::new()
        .nest("/api", api::routes())
        .nest("/toolbox/{sandbox}", toolbox::routes())
        .nest(&format!("/{}", shared.access.admin), admin::routes())
        .fallback(api::no_route)
        .layer(middleware::from_fn_with_state(Arc::clone(shared), gate::pass))
        .with_state(Arc::clone(shared))
}

async fn accept(
    listener: TcpListener,
    app: Router,
    shared: Arc<ServerState>,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.cancel.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without this, small answers on a kept connection would wait for each other.
                let _ = stream.set_nodelay(true);
                let serving = serve(stream, app.clone(), Arc::clone(&shared));
                task::background(connections.track_future(serving));
            }
            // Out of file descriptors. Other connections end and free theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(stream: TcpStream, app: Router, shared: Arc<ServerState>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut app = app.clone();
        async move {
            let Ok(response) = app.call(request).await;
            match response.extensions().get::<Cut>() {
                // The connection ends without a response.
                Some(Cut) => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
                None => Ok(response),
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        // A client that disconnects, or one that was cut off, is not worth a log line.
        _ = connection.as_mut() => return,
        () = shared.cancel.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(DRAIN / 2, connection).await;
}
