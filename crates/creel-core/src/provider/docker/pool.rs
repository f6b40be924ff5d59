//! Connections that are used again.
//!
//! A new one costs the engine a tenth of a cheap request, and through `ssh` a
//! process and half a second. So one that is done waits a while for the next
//! request, and their number is bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bollard::BollardRequest;
use bollard::errors::Error;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::task;

use super::bounds::Allowance;
use super::ssh::Complaint;

/// How long a connection waits for the next request, before something on the way forgets it.
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
pub(super) struct Live {
    pub sender: SendRequest<Body>,
    /// What `ssh` has to say if it fails.
    pub complaint: Option<Complaint>,
    /// How much the answer that is under way may bring.
    pub allowance: Allowance,
}

/// What became of a request on a connection that was used before.
pub(super) enum Reuse {
    /// It was sent.
    Sent(Result<Response<Incoming>, Error>),
    /// There is no such connection, or it closed before it took the request.
    Unsent(BollardRequest),
}

impl Live {
    /// Sends a request, and says more than "broken" if `ssh` knows more.
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
        match self.complaint.take() {
            Some(complaint) => complaint.into_error().await.map_or(error.into(), Error::from),
            None => error.into(),
        }
    }
}

/// The connections to one engine.
#[derive(Clone)]
pub(super) struct Pool {
    idle: Arc<Mutex<Vec<(Instant, Live)>>>,
    permits: Arc<Semaphore>,
}

impl Pool {
    /// Makes a pool that may have so many connections, and has none yet.
    pub(super) fn new(limit: usize) -> Self {
        Self { idle: Arc::default(), permits: Arc::new(Semaphore::new(limit)) }
    }

    /// Waits for the right to use one connection.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Sends a request over a connection that waits for one, if there is any.
    pub(super) async fn reuse(
        &self,
        request: BollardRequest,
        most: u64,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Reuse {
        let Some(mut live) = self.take_idle() else { return Reuse::Unsent(request) };
        live.allowance.set(most);
        match live.sender.try_send_request(request).await {
            Ok(response) => {
                self.give_back(live, permit.take());
                Reuse::Sent(Ok(response))
            }
            Err(mut error) => match error.take_message() {
                Some(request) => Reuse::Unsent(request),
                None => Reuse::Sent(Err(live.reason(error.into_error()).await)),
            },
        }
    }

    fn take_idle(&self) -> Option<Live> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, live)| since.elapsed() < IDLE_LIMIT && live.sender.is_ready());
        idle.pop().map(|(_, live)| live)
    }

    /// Keeps a connection for the next request, once the answer to this one is read.
    pub(super) fn give_back(&self, mut live: Live, permit: Option<OwnedSemaphorePermit>) {
        let idle = Arc::clone(&self.idle);
        // It ends when the answer is read, or dropped: then the connection closes.
        task::background(async move {
            if live.sender.ready().await.is_ok() {
                idle.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), live));
            }
            drop(permit);
        });
    }
}
