//! The endpoint that a command is given.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use super::gate::DaytonaGate;

/// How long to wait when no file descriptors are left.
const NO_ROOM: Duration = Duration::from_millis(50);

/// A listening port on loopback only.
#[derive(Debug)]
pub struct GateListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl GateListener {
    /// Binds a free port.
    ///
    /// # Errors
    ///
    /// Fails when there is none.
    pub async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

impl DaytonaGate {
    /// Returns the URL of the API at a listener. The path is that of the service.
    pub fn url(&self, listener: &GateListener) -> String {
        format!("http://{}{}", listener.address, self.prefix().trim_end_matches('/'))
    }

    /// Serves until its stopper is cancelled. Returns when the creates in progress are recorded.
    pub async fn serve(self: Arc<Self>, listener: GateListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.listener.accept() => accepted,
                () = self.stop.cancelled() => break,
            };
            match accepted {
                Ok((client, _)) => {
                    self.tasks.spawn(Arc::clone(&self).connection(client));
                }
                Err(error) => {
                    warn!(%error, "no connection can be accepted now");
                    tokio::time::sleep(NO_ROOM).await;
                }
            }
        }
        drop(listener);
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn connection(self: Arc<Self>, client: TcpStream) {
        // Without it small responses are delayed. A failure costs only time.
        let _ = client.set_nodelay(true);
        let stop = self.stop.clone();
        let service = service_fn(move |request| Arc::clone(&self).handle(request));
        let served =
            http1::Builder::new().serve_connection(TokioIo::new(client), service).with_upgrades();
        tokio::select! {
            ended = served => {
                if let Err(error) = ended {
                    debug!(%error, "a connection ended early");
                }
            }
            () = stop.cancelled() => {}
        }
    }
}
