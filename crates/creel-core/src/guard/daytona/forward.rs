//! Passing on: a request goes to the service as it came, its answer comes back as it is.

use std::error::Error;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode, Uri};
use reqwest::Url;
use tokio::io::copy_bidirectional;
use tracing::debug;

use super::gate::{Cut, DaytonaGate};

/// The longest body of a create that is read: the service takes no longer ones.
const BODY_LIMIT: usize = 16 << 20;

/// A body on its way.
pub(super) type Body = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A request that is not passed on yet.
pub(super) struct Order {
    pub(super) head: Parts,
    /// Where it goes.
    pub(super) url: Url,
    /// Its path as the client wrote it.
    pub(super) path: String,
}

/// An answer that was read to its end, or as far as it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether it broke off.
    pub(super) is_broken: bool,
}

/// Headers that speak of one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

impl DaytonaGate {
    /// Passes a request on, and streams both bodies.
    pub(super) async fn forward(
        &self,
        order: Order,
        body: Incoming,
    ) -> Result<Response<Body>, Cut> {
        let length = order.head.headers.get(header::CONTENT_LENGTH).cloned();
        let mut request = self.request(order);
        if !body.is_end_stream() {
            let data = BodyStream::new(body).filter_map(|frame| async move {
                frame.map(|frame| frame.into_data().ok()).transpose()
            });
            *request.body_mut() = Some(reqwest::Body::wrap_stream(data));
            // Without it the body would be sent in chunks.
            if let Some(length) = length {
                request.headers_mut().insert(header::CONTENT_LENGTH, length);
            }
        }
        let answer = self.passage.send(request).await.map_err(Cut::from)?;
        Ok(self.streamed(answer))
    }

    /// Passes an upgrade on, and the bytes of both sides from then on.
    pub(super) async fn tunnel(
        &self,
        order: Order,
        client: hyper::upgrade::OnUpgrade,
    ) -> Result<Response<Body>, Cut> {
        let protocol = order.head.headers.get(header::UPGRADE).cloned();
        let mut request = self.request(order);
        let upgrade = HeaderValue::from_static("Upgrade");
        request.headers_mut().insert(header::CONNECTION, upgrade.clone());
        request.headers_mut().extend(protocol.map(|protocol| (header::UPGRADE, protocol)));
        let answer = self.passage.send_alone(request).await.map_err(Cut::from)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.streamed(answer));
        }
        let mut response =
            Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let tunnel = async {
                let service = answer.upgrade().await.map_err(std::io::Error::other)?;
                let client = client.await.map_err(std::io::Error::other)?;
                let (mut client, mut service) = (hyper_util::rt::TokioIo::new(client), service);
                copy_bidirectional(&mut client, &mut service).await
            };
            tokio::select! {
                ended = tunnel => debug!(?ended, "a tunnel ended"),
                () = stop.cancelled() => {}
            }
        });
        Ok(response)
    }

    /// Sends a request whose body is complete, once, and reads the answer.
    pub(super) async fn exchange(&self, order: &Order, body: Bytes) -> Result<Answer, Cut> {
        let order =
            Order { head: order.head.clone(), url: order.url.clone(), path: order.path.clone() };
        let mut request = self.request(order);
        request.headers_mut().remove(header::CONTENT_LENGTH);
        *request.body_mut() = Some(body.into());
        let mut answer = self.passage.send_alone(request).await.map_err(Cut::from)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let (mut body, mut is_broken) = (Vec::new(), false);
        loop {
            match answer.chunk().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, "an answer broke off");
                    is_broken = true;
                    break;
                }
            }
        }
        let headers = self.answered(headers);
        Ok(Answer { status, headers, body: body.into(), is_broken })
    }

    /// Returns a request for the service, without a body.
    fn request(&self, order: Order) -> reqwest::Request {
        let Order { head, url, .. } = order;
        let mut request = reqwest::Request::new(head.method, url);
        let mut headers = without_hops(head.headers);
        headers.remove(header::HOST);
        if let Some(origin) = headers.get_mut(header::ORIGIN)
            && let Ok(theirs) = HeaderValue::from_str(&self.origin)
            && origin.to_str().is_ok_and(is_local)
        {
            *origin = theirs;
        }
        *request.headers_mut() = headers;
        request
    }

    /// Makes an answer of the service one of ours, with a body that streams.
    fn streamed(&self, answer: reqwest::Response) -> Response<Body> {
        let answer: hyper::http::Response<reqwest::Body> = answer.into();
        let (mut head, body) = answer.into_parts();
        head.headers = self.answered(head.headers);
        head.extensions.clear();
        head.version = hyper::Version::HTTP_11;
        Response::from_parts(head, body.map_err(Into::into).boxed_unsync())
    }

    /// Returns the headers of an answer as the client gets them.
    fn answered(&self, headers: HeaderMap) -> HeaderMap {
        let mut headers = without_hops(headers);
        // A redirect to the service itself would lead around the guard.
        let inside = headers.get(header::LOCATION).and_then(|place| {
            let rest = place.to_str().ok()?.strip_prefix(self.origin.as_str())?;
            rest.starts_with('/').then(|| HeaderValue::from_str(rest).ok())?
        });
        headers.extend(inside.map(|place| (header::LOCATION, place)));
        headers
    }

    /// Returns where a request goes.
    pub(super) fn place(&self, uri: &Uri) -> Option<Url> {
        let target = uri.path_and_query()?.as_str();
        Url::parse(&format!("{}{target}", self.origin)).ok()
    }
}

impl Answer {
    /// Makes it the client's; one that broke off breaks off there too.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut frames = vec![Ok(Frame::data(self.body))];
        if self.is_broken {
            frames.push(Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()));
        }
        let body = StreamBody::new(futures::stream::iter(frames));
        let mut response = Response::new(BodyExt::boxed_unsync(body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Reads the body of a request that is looked into.
pub(super) async fn read(body: Incoming) -> Option<Bytes> {
    let read = Limited::new(body, BODY_LIMIT).collect().await;
    read.ok().map(http_body_util::Collected::to_bytes)
}

/// Returns whether a request asks for another protocol on its connection.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get_all(header::CONNECTION).into_iter();
    let mut words =
        connection.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    headers.contains_key(header::UPGRADE)
        && words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Returns whether an origin is this machine, as it is for what talks to the gate.
fn is_local(origin: &str) -> bool {
    let host = Url::parse(origin).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| LOCAL.contains(&host.as_str()))
}

/// The names by which clients may reach the gate.
const LOCAL: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// Returns whether a request was meant for this machine: a web page that gives its own name our
/// address is not.
pub(super) fn is_for_us(head: &Parts) -> bool {
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host.and_then(|host| {
        Some(host.parse::<hyper::http::uri::Authority>().ok()?.host().to_ascii_lowercase())
    });
    name.is_some_and(|name| LOCAL.contains(&name.as_str()))
}

fn without_hops(mut headers: HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn headers_of_one_connection_stay_there() {
        let all = headers(&[
            ("connection", "close, x-own"),
            ("x-own", "1"),
            ("transfer-encoding", "chunked"),
            ("x-ratelimit-limit-authenticated", "5"),
        ]);
        let left = without_hops(all);
        assert_eq!(left, headers(&[("x-ratelimit-limit-authenticated", "5")]));
    }

    #[test]
    fn an_upgrade_is_asked_for_by_two_headers() {
        let both = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(is_upgrade(&both));
        assert!(!is_upgrade(&headers(&[("upgrade", "h2c")])));
        assert!(!is_upgrade(&headers(&[("connection", "upgrade")])));
    }

    #[test]
    fn only_names_of_this_machine_are_let_in() {
        let named = |host: Option<&str>| {
            let mut request = hyper::Request::builder();
            if let Some(host) = host {
                request = request.header(header::HOST, host);
            }
            is_for_us(&request.body(()).unwrap().into_parts().0)
        };
        for host in ["127.0.0.1:4000", "localhost", "LocalHost:1", "[::1]:80"] {
            assert!(named(Some(host)), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::2]"] {
            assert!(!named(Some(host)), "{host}");
        }
        assert!(!named(None));
    }
}
