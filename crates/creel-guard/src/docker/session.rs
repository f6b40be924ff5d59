//! Reads what a BuildKit session asks for and what it made.
//!
//! A client of BuildKit speaks gRPC over one upgraded connection. Two messages name images: the
//! request of the method `Control/Solve` names what its exporters will make, and the response to it
//! names what they made. Everything else is skipped: the progress of the build with the output of its
//! steps, traces, and the frontend's own calls. So whatever a step prints, it never becomes a name.
//!
//! The messages are declared with the fields that matter here. All other fields are skipped.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memchr::memmem;
use prost::Message;
use tracing::warn;

use super::head::{self, HttpHead};
use super::http2::{
    FrameHead, FrameKind, FrameReader, FrameSink, GrpcMessages, Http2Error, MESSAGE_LIMIT, PREFACE,
};
use super::response::{ImageWatch, ReportedImages, RequestReader, ResponseEnding};

/// The method that builds.
const SOLVE: &[u8] = b"/moby.buildkit.v1.Control/Solve";
/// The longest header block that is decoded.
const HEADERS_LIMIT: usize = 1 << 20;
/// The largest table for header compression. Engines allow 4 KiB by default.
const HEADER_TABLE_LIMIT: usize = 64 << 10;
/// How many builds are followed at once.
const STREAMS_LIMIT: usize = 4096;
/// How many bytes of incomplete messages are kept for one direction of a connection.
const BUFFER_LIMIT: usize = 2 * MESSAGE_LIMIT;

/// The request of a build.
#[derive(Clone, PartialEq, Message)]
struct SolveRequest {
    /// The attributes of the only exporter, from clients that know no others.
    #[prost(message, repeated, tag = "4")]
    attributes: Vec<Entry>,
    #[prost(message, repeated, tag = "13")]
    exporters: Vec<Exporter>,
}

/// What is made of the result of a build.
#[derive(Clone, PartialEq, Message)]
struct Exporter {
    #[prost(message, repeated, tag = "2")]
    attributes: Vec<Entry>,
}

/// The response to a build: the values that its exporters report.
#[derive(Clone, PartialEq, Message)]
struct SolveResponse {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Entry>,
}

/// An entry of a map of strings. It is read as bytes: one value that is not UTF-8 must not hide the
/// others.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Returns the value of a key. The last entry counts, as in every implementation of such maps.
fn value<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
    let entry = entries.iter().rfind(|entry| entry.key == key.as_bytes())?;
    std::str::from_utf8(&entry.value).ok()
}

/// Splits a comma-separated list of names.
fn listed(names: &str) -> impl Iterator<Item = String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
}

impl SolveRequest {
    /// Returns the names that the exporters will put on images.
    fn names(&self) -> Vec<String> {
        let several = self.exporters.iter().map(|exporter| &exporter.attributes);
        let attributes = several.chain([&self.attributes]);
        attributes.filter_map(|entries| value(entries, "name")).flat_map(listed).collect()
    }
}

impl SolveResponse {
    fn reported(&self) -> ReportedImages {
        let value = |key| value(&self.values, key);
        let digests = ["containerimage.config.digest", "containerimage.digest"];
        let ids = digests.into_iter().filter_map(value).filter(|id| id.starts_with("sha256:"));
        ReportedImages {
            references: value("image.name").into_iter().flat_map(listed).collect(),
            ids: ids.map(str::to_owned).collect(),
            ..ReportedImages::default()
        }
    }
}

/// The streams of a session that build, which both directions have to know.
#[derive(Debug, Clone, Default)]
struct SolveStreams(Arc<Mutex<HashMap<u32, SolveStream>>>);

/// The incomplete messages of a stream.
#[derive(Debug, Default)]
struct SolveStream {
    request: GrpcMessages,
    response: GrpcMessages,
}

impl SolveStreams {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, SolveStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contains(&self, stream: u32) -> bool {
        self.lock().contains_key(&stream)
    }

    /// Drops what a client has sent of a request that it gave up.
    fn forget_request(&self, stream: u32) {
        if let Some(stream) = self.lock().get_mut(&stream) {
            stream.request = GrpcMessages::default();
        }
    }

    /// Adds data to one side of a stream, and returns the messages that are complete with them.
    fn feed(
        &self,
        stream: u32,
        data: &[u8],
        side: impl Fn(&mut SolveStream) -> &mut GrpcMessages,
    ) -> Result<Vec<Vec<u8>>, Http2Error> {
        let mut streams = self.lock();
        let buffered: usize = streams.values_mut().map(|stream| side(stream).len()).sum();
        if buffered + data.len() > BUFFER_LIMIT {
            return Err(Http2Error::TooLong);
        }
        streams.get_mut(&stream).map_or(Ok(Vec::new()), |stream| side(stream).feed(data))
    }
}

/// Returns the readers of both directions of a session.
pub(super) fn session() -> (SessionRequests, SessionWatch) {
    let streams = SolveStreams::default();
    (SessionRequests::of(streams.clone()), SessionWatch::of(streams))
}

/// Finds the names of images that a client asks for in a BuildKit session.
pub(super) struct SessionRequests {
    /// How many bytes of the preface were read.
    preface: usize,
    frames: FrameReader,
    builds: RequestedBuilds,
    is_unreadable: bool,
}

/// Follows the builds that a client requests.
struct RequestedBuilds {
    streams: SolveStreams,
    headers: loona_hpack::Decoder<'static>,
    /// The header block that is not complete yet.
    block: Option<(u32, Vec<u8>)>,
    /// The names found so far. A client repeats them for engines that know only one exporter.
    seen: HashSet<String>,
    names: Vec<String>,
}

impl SessionRequests {
    fn of(streams: SolveStreams) -> Self {
        let mut headers = loona_hpack::Decoder::new();
        headers.set_max_allowed_table_size(HEADER_TABLE_LIMIT);
        let (seen, names) = Default::default();
        let builds = RequestedBuilds { streams, headers, block: None, seen, names };
        Self { preface: 0, frames: FrameReader::default(), builds, is_unreadable: false }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), Http2Error> {
        let expected = &PREFACE[self.preface..];
        let (preface, frames) = bytes.split_at(expected.len().min(bytes.len()));
        if !expected.starts_with(preface) {
            return Err(Http2Error::Preface);
        }
        self.preface += preface.len();
        self.frames.feed(frames, &mut self.builds)
    }
}

impl RequestReader for SessionRequests {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        if !self.is_unreadable
            && let Err(error) = self.read(bytes)
        {
            warn!(%error, "a BuildKit session cannot be read; the names that it asks for are not on record");
            self.is_unreadable = true;
        }
        std::mem::take(&mut self.builds.names)
    }
}

impl FrameSink for RequestedBuilds {
    fn wants(&self, head: &FrameHead) -> bool {
        match head.kind {
            // Every header block changes the table that later ones refer to.
            FrameKind::Headers | FrameKind::Continuation => true,
            FrameKind::Data => self.streams.contains(head.stream),
            FrameKind::Reset | FrameKind::Other => false,
        }
    }

    fn frame(&mut self, head: FrameHead, content: &[u8]) -> Result<(), Http2Error> {
        let is_continuation = head.kind == FrameKind::Continuation;
        if self.block.as_ref().is_some_and(|(stream, _)| !is_continuation || *stream != head.stream)
        {
            return Err(Http2Error::Continuation);
        }
        match head.kind {
            FrameKind::Headers => self.block = Some((head.stream, Vec::new())),
            FrameKind::Data if !content.is_empty() => {
                for message in self.streams.feed(head.stream, content, |one| &mut one.request)? {
                    let request = SolveRequest::decode(message.as_slice());
                    let names = request.map_err(|_| Http2Error::Message)?.names();
                    let is_new = |name: &String| self.seen.insert(name.clone());
                    self.names.extend(names.into_iter().filter(is_new));
                }
            }
            FrameKind::Reset => self.streams.forget_request(head.stream),
            _ => {}
        }
        match &mut self.block {
            Some((_, block)) => {
                block.extend_from_slice(content);
                if block.len() > HEADERS_LIMIT {
                    return Err(Http2Error::TooLong);
                }
            }
            None if is_continuation => return Err(Http2Error::Continuation),
            None => {}
        }
        match self.block.take_if(|_| head.ends_headers()) {
            Some((stream, block)) => self.open(stream, &block),
            None => Ok(()),
        }
    }
}

impl RequestedBuilds {
    /// Follows a stream from now on if it builds.
    fn open(&mut self, stream: u32, block: &[u8]) -> Result<(), Http2Error> {
        let mut is_build = false;
        let decoded = self.headers.decode_with_cb(block, |name, value| {
            is_build |= *name == *b":path" && *value == *SOLVE;
        });
        decoded.map_err(|_| Http2Error::Headers)?;
        if is_build {
            let mut streams = self.streams.lock();
            if streams.len() >= STREAMS_LIMIT {
                return Err(Http2Error::TooManyStreams);
            }
            streams.entry(stream).or_default();
        }
        Ok(())
    }
}

/// Finds the images that an engine reports in a BuildKit session.
pub(super) struct SessionWatch {
    /// The head of the response, until it is complete.
    head: Vec<u8>,
    state: WatchState,
    frames: FrameReader,
    builds: ReportedBuilds,
}

/// What a watch reads at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchState {
    /// The head that upgrades the connection.
    Head,
    Frames,
    /// Nothing: the engine refused the session, or the session cannot be read.
    Nothing,
}

/// Follows the responses to builds.
struct ReportedBuilds {
    streams: SolveStreams,
    reported: ReportedImages,
}

impl SessionWatch {
    fn of(streams: SolveStreams) -> Self {
        let builds = ReportedBuilds { streams, reported: ReportedImages::default() };
        let (head, frames) = (Vec::new(), FrameReader::default());
        Self { head, state: WatchState::Head, frames, builds }
    }

    /// Reads the head of the response, and then the bytes that follow it.
    fn read_head(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
        let Some(place) = memmem::find(&self.head, b"\r\n\r\n") else {
            if self.head.len() > head::HEAD_LIMIT {
                (self.state, self.head) = (WatchState::Nothing, Vec::new());
            }
            return;
        };
        let rest = self.head.split_off(place + 4);
        self.state = match HttpHead::parse(&self.head[..place]).status() {
            101 => WatchState::Frames,
            // An interim response is followed by the final one.
            100..200 => WatchState::Head,
            _ => WatchState::Nothing,
        };
        self.head = Vec::new();
        self.feed(&rest);
    }

    fn read_frames(&mut self, bytes: &[u8]) {
        if let Err(error) = self.frames.feed(bytes, &mut self.builds) {
            warn!(%error, "a BuildKit session cannot be read; the images that it makes are not on record");
            self.state = WatchState::Nothing;
        }
    }
}

impl ImageWatch for SessionWatch {
    /// A session has no end of its own: it lasts until one side closes it.
    const DRAIN_TIME: Duration = Duration::ZERO;

    fn feed(&mut self, bytes: &[u8]) {
        match self.state {
            WatchState::Head => self.read_head(bytes),
            WatchState::Frames => self.read_frames(bytes),
            WatchState::Nothing => {}
        }
    }

    fn reported(&mut self) -> Option<ReportedImages> {
        Some(std::mem::take(&mut self.builds.reported)).filter(|reported| !reported.is_empty())
    }

    /// A session sends nothing at its end.
    fn ending(&self) -> ResponseEnding {
        ResponseEnding::Incomplete
    }
}

impl FrameSink for ReportedBuilds {
    fn wants(&self, head: &FrameHead) -> bool {
        head.kind == FrameKind::Data && self.streams.contains(head.stream)
    }

    fn frame(&mut self, head: FrameHead, content: &[u8]) -> Result<(), Http2Error> {
        if !content.is_empty() {
            for message in self.streams.feed(head.stream, content, |one| &mut one.response)? {
                let response = SolveResponse::decode(message.as_slice());
                let reported = response.map_err(|_| Http2Error::Message)?.reported();
                self.reported.references.extend(reported.references);
                self.reported.ids.extend(reported.ids);
            }
        }
        if head.ends_stream() {
            self.streams.lock().remove(&head.stream);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
