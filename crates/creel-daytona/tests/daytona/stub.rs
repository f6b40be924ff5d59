//! A service with scripted responses, which records its requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use creel_model::task;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A request that the service received.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    /// The method and the path, as in `GET /api/sandbox`.
    pub(crate) what: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl RecordedRequest {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Responds to a request, possibly later.
pub(crate) type Responder = Arc<
    dyn Fn(RecordedRequest) -> futures::future::BoxFuture<'static, Response<Full<Bytes>>>
        + Send
        + Sync,
>;

/// A service with scripted responses.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    _stop: DropGuard,
}

impl Stub {
    pub(crate) async fn start(respond: Responder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, stop) =
            (Arc::<Mutex<Vec<RecordedRequest>>>::default(), CancellationToken::new());
        let (remembered, stopped) = (Arc::clone(&requests), stop.clone());
        task::background(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = stopped.cancelled() => return,
                };
                let (respond, remembered) = (Arc::clone(&respond), Arc::clone(&remembered));
                let handle = service_fn(move |request| {
                    serve(request, Arc::clone(&respond), Arc::clone(&remembered))
                });
                let served = http1::Builder::new();
                let served = served.serve_connection(TokioIo::new(accepted.0), handle);
                // A client that disconnects does not matter here.
                task::background(async move { drop(served.await) });
            }
        });
        Self { address, requests, _stop: stop.drop_guard() }
    }

    /// Returns the requests with this method and path.
    pub(crate) fn requests(&self, what: &str) -> Vec<RecordedRequest> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.what == what).cloned().collect()
    }
}

async fn serve(
    request: Request<Incoming>,
    respond: Responder,
    remembered: Arc<Mutex<Vec<RecordedRequest>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let what = format!("{} {}", head.method, head.uri.path());
    let recorded = RecordedRequest { what, headers: head.headers, body };
    remembered.lock().unwrap().push(recorded.clone());
    Ok(respond(recorded).await)
}

/// Returns a JSON response.
pub(crate) fn json(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_string()));
    Response::builder().status(status).body(body).unwrap()
}
