//! Reuses connections.
//!
//! A new connection costs the engine a tenth of a cheap request, and through `ssh` a process and
//! half a second. So an idle connection waits a while for the next request, and the number of
//! connections is bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::BollardRequest;
use bollard::errors::Error;
use creel_model::task;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ssh::SshStderr;
use super::stream::Allowance;

/// How long a connection stays idle. After it, something on the network path may drop it.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

pub(super) type Body = <BollardRequest as BodyOf>::Body;

/// Names the body of the client library's requests, which it does not export.
pub(super) trait BodyOf {
    type Body;
}

impl<B> BodyOf for hyper::Request<B> {
    type Body = B;
}

/// An open connection.
pub(super) struct LiveConnection {
    pub sender: SendRequest<Body>,
    /// The error output of `ssh`, if the connection uses it.
    pub ssh_stderr: Option<SshStderr>,
    /// How many bytes the current response may have.
    pub allowance: Allowance,
}

/// The result of sending a request over an idle connection.
pub(super) enum Reuse {
    /// The request was sent.
    Sent(Result<Response<Incoming>, Error>),
    /// There is no such connection, or it closed before it took the request.
    Unsent(BollardRequest),
}

impl LiveConnection {
    /// Sends a request. If it fails, reports the error of `ssh` where there is one.
    pub(super) async fn send(
        &mut self,
        request: BollardRequest,
    ) -> Result<Response<Incoming>, Error> {
        match self.sender.send_request(request).await {
            Ok(response) => Ok(response),
            Err(error) => Err(self.reason(error).await),
        }
    }

    async fn reason(&mut self, error: hyper::Error) -> Error {
        match self.ssh_stderr.take() {
            Some(ssh_stderr) => ssh_stderr.into_error().await.map_or(error.into(), Error::from),
            None => error.into(),
        }
    }
}

/// The connections to one engine.
#[derive(Clone)]
pub(super) struct Pool {
    idle: Arc<Mutex<Vec<(Instant, LiveConnection)>>>,
    permits: Arc<Semaphore>,
}

impl Pool {
    /// Creates an empty pool with a limit on its connections.
    pub(super) fn new(limit: usize) -> Self {
        Self { idle: Arc::default(), permits: Arc::new(Semaphore::new(limit)) }
    }

    /// Waits for a permit to use one connection.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Sends a request over an idle connection, if there is any.
    pub(super) async fn reuse(
        &self,
        request: BollardRequest,
        most: u64,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Reuse {
        let Some(mut live) = self.pop_idle() else { return Reuse::Unsent(request) };
        live.allowance.set(most);
        match live.sender.try_send_request(request).await {
            Ok(response) => {
                self.recycle(live, permit.take());
                Reuse::Sent(Ok(response))
            }
            Err(mut error) => match error.take_message() {
                Some(request) => Reuse::Unsent(request),
                None => Reuse::Sent(Err(live.reason(error.into_error()).await)),
            },
        }
    }

    fn pop_idle(&self) -> Option<LiveConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, live)| since.elapsed() < IDLE_LIMIT && live.sender.is_ready());
        idle.pop().map(|(_, live)| live)
    }

    /// Keeps a connection for the next request, once the response to this one is read.
    pub(super) fn recycle(&self, mut live: LiveConnection, permit: Option<OwnedSemaphorePermit>) {
        let idle = Arc::clone(&self.idle);
        // It ends when the response is read, or dropped: then the connection closes.
        task::background(async move {
            if live.sender.ready().await.is_ok() {
                idle.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), live));
            }
            drop(permit);
        });
    }
}
