//! A service that answers as a test says, and remembers what it was asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use creel_core::task;
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

/// What the service was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The method and the path, as in `GET /api/sandbox`.
    pub(crate) what: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Answers a request, maybe later.
pub(crate) type Answer =
    Arc<dyn Fn(Asked) -> futures::future::BoxFuture<'static, Response<Full<Bytes>>> + Send + Sync>;

/// A service that answers as a test says.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _stop: DropGuard,
}

impl Stub {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, stop) = (Arc::<Mutex<Vec<Asked>>>::default(), CancellationToken::new());
        let (remembered, stopped) = (Arc::clone(&asked), stop.clone());
        task::background(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = stopped.cancelled() => return,
                };
                let (answer, remembered) = (Arc::clone(&answer), Arc::clone(&remembered));
                let handle = service_fn(move |request| {
                    serve(request, Arc::clone(&answer), Arc::clone(&remembered))
                });
                let served = http1::Builder::new();
                let served = served.serve_connection(TokioIo::new(accepted.0), handle);
                // A client that hangs up is none of its business.
                task::background(async move { drop(served.await) });
            }
        });
        Self { address, asked, _stop: stop.drop_guard() }
    }

    /// Returns what was asked by a method and a path.
    pub(crate) fn asked(&self, what: &str) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.what == what).cloned().collect()
    }
}

async fn serve(
    request: Request<Incoming>,
    answer: Answer,
    remembered: Arc<Mutex<Vec<Asked>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let what = format!("{} {}", head.method, head.uri.path());
    let asked = Asked { what, headers: head.headers, body };
    remembered.lock().unwrap().push(asked.clone());
    Ok(answer(asked).await)
}

/// Makes an answer of JSON.
pub(crate) fn json(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_string()));
    Response::builder().status(status).body(body).unwrap()
}
