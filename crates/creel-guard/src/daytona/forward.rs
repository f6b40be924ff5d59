//! Forwards requests to the service, and its responses to the client, as they are.

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

use super::gate::{DaytonaGate, NoResponse};

/// The longest body of a create that is read. The service accepts no longer ones.
const BODY_LIMIT: usize = 16 << 20;

/// A body that is being forwarded.
pub(super) type ProxyBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A request that is not forwarded yet.
pub(super) struct ForwardRequest {
    pub(super) head: Parts,
    /// The URL to which it is forwarded.
    pub(super) url: Url,
    /// The path as the client wrote it.
    pub(super) path: String,
}

/// A response that was read to its end, or as far as it arrived.
#[derive(Debug)]
pub(super) struct ForwardResponse {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether it is incomplete.
    pub(super) is_broken: bool,
}

/// Headers that apply to one connection only.
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
    /// Forwards a request, and streams both bodies.
    pub(super) async fn forward(
        &self,
        request: ForwardRequest,
        body: Incoming,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let length = request.head.headers.get(header::CONTENT_LENGTH).cloned();
        let mut request = self.request(request);
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
        let upstream = self.passthrough.send(request).await.map_err(NoResponse::from)?;
        Ok(self.streamed(upstream))
    }

    /// Forwards an upgrade, and the bytes of both sides from then on.
    pub(super) async fn tunnel(
        &self,
        request: ForwardRequest,
        client: hyper::upgrade::OnUpgrade,
    ) -> Result<Response<ProxyBody>, NoResponse> {
        let protocol = request.head.headers.get(header::UPGRADE).cloned();
        let mut request = self.request(request);
        let upgrade = HeaderValue::from_static("Upgrade");
        request.headers_mut().insert(header::CONNECTION, upgrade.clone());
        request.headers_mut().extend(protocol.map(|protocol| (header::UPGRADE, protocol)));
        let upstream = self.passthrough.send_alone(request).await.map_err(NoResponse::from)?;
        if upstream.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.streamed(upstream));
        }
        let mut response =
            Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = upstream.status();
        *response.headers_mut() = upstream.headers().clone();
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let tunnel = async {
                let service = upstream.upgrade().await.map_err(std::io::Error::other)?;
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

    /// Sends a request whose body is complete, once, and reads the response.
    pub(super) async fn exchange(
        &self,
        request: &ForwardRequest,
        body: Bytes,
    ) -> Result<ForwardResponse, NoResponse> {
        let request = ForwardRequest {
            head: request.head.clone(),
            url: request.url.clone(),
            path: request.path.clone(),
        };
        let mut request = self.request(request);
        request.headers_mut().remove(header::CONTENT_LENGTH);
        *request.body_mut() = Some(body.into());
        let mut upstream = self.passthrough.send_alone(request).await.map_err(NoResponse::from)?;
        let (status, headers) = (upstream.status(), upstream.headers().clone());
        let (mut body, mut is_broken) = (Vec::new(), false);
        loop {
            match upstream.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, "an answer broke off");
                    is_broken = true;
                    break;
                }
            }
        }
        let headers = self.response_headers(headers);
        Ok(ForwardResponse { status, headers, body: body.into(), is_broken })
    }

    /// Returns a request for the service, without a body.
    fn request(&self, request: ForwardRequest) -> reqwest::Request {
        let ForwardRequest { head, url, .. } = request;
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

    /// Converts a response of the service into one of ours, with a streaming body.
    fn streamed(&self, upstream: reqwest::Response) -> Response<ProxyBody> {
        let upstream: hyper::http::Response<reqwest::Body> = upstream.into();
        let (mut head, body) = upstream.into_parts();
        head.headers = self.response_headers(head.headers);
        head.extensions.clear();
        head.version = hyper::Version::HTTP_11;
        Response::from_parts(head, body.map_err(Into::into).boxed_unsync())
    }

    /// Returns the headers of a response as the client receives them.
    fn response_headers(&self, headers: HeaderMap) -> HeaderMap {
        let mut headers = without_hops(headers);
        // A redirect to the service itself would bypass the guard.
        let inside = headers.get(header::LOCATION).and_then(|place| {
            let rest = place.to_str().ok()?.strip_prefix(self.origin.as_str())?;
            rest.starts_with('/').then(|| HeaderValue::from_str(rest).ok())?
        });
        headers.extend(inside.map(|place| (header::LOCATION, place)));
        headers
    }

    /// Returns the URL to which a request is forwarded.
    pub(super) fn place(&self, uri: &Uri) -> Option<Url> {
        let target = uri.path_and_query()?.as_str();
        Url::parse(&format!("{}{target}", self.origin)).ok()
    }
}

impl ForwardResponse {
    /// Converts it into the client's response. An incomplete one breaks off there too.
    pub(super) fn into_response(self) -> Response<ProxyBody> {
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

/// Reads the whole body of a request that the guard inspects.
pub(super) async fn read(body: Incoming) -> Option<Bytes> {
    let read = Limited::new(body, BODY_LIMIT).collect().await;
    read.ok().map(http_body_util::Collected::to_bytes)
}

/// Returns whether a request asks to upgrade its connection.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get_all(header::CONNECTION).into_iter();
    let mut tokens =
        connection.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    headers.contains_key(header::UPGRADE)
        && tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

/// Returns whether an origin is this machine, as it is for clients of the gate.
fn is_local(origin: &str) -> bool {
    let host = Url::parse(origin).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| LOCAL.contains(&host.as_str()))
}

/// The host names by which clients may reach the gate.
const LOCAL: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// Returns whether a request was meant for this machine. One from a web page whose own name
/// resolves to our address is not.
pub(super) fn is_for_us(head: &Parts) -> bool {
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host.and_then(|host| {
        Some(host.parse::<hyper::http::uri::Authority>().ok()?.host().to_ascii_lowercase())
    });
    name.is_some_and(|name| LOCAL.contains(&name.as_str()))
}

fn without_hops(mut headers: HeaderMap) -> HeaderMap {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&listed) {
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
    fn an_upgrade_needs_two_headers() {
        let both = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(is_upgrade(&both));
        assert!(!is_upgrade(&headers(&[("upgrade", "h2c")])));
        assert!(!is_upgrade(&headers(&[("connection", "upgrade")])));
    }

    #[test]
    fn only_host_names_of_this_machine_are_accepted() {
        let accepts = |host: Option<&str>| {
            let mut request = hyper::Request::builder();
            if let Some(host) = host {
                request = request.header(header::HOST, host);
            }
            is_for_us(&request.body(()).unwrap().into_parts().0)
        };
        for host in ["127.0.0.1:4000", "localhost", "LocalHost:1", "[::1]:80"] {
            assert!(accepts(Some(host)), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::2]"] {
            assert!(!accepts(Some(host)), "{host}");
        }
        assert!(!accepts(None));
    }
}
