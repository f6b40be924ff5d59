//! Sessions recorded from a real engine, and generated ones, cut anywhere.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// What both directions of a session say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Findings {
    asked: Vec<String>,
    references: Vec<String>,
    ids: Vec<String>,
}

/// Reads a session in pieces of these sizes, which are repeated. All that the client sends comes
/// first, as in the worst case.
fn read(requests: &[u8], responses: &[u8], sizes: &[usize]) -> Findings {
    let (mut reader, mut watch) = session();
    let mut findings = Findings::default();
    for piece in pieces(requests, sizes) {
        findings.asked.extend(reader.feed(piece));
    }
    for piece in pieces(responses, sizes) {
        watch.feed(piece);
        let reported = watch.reported().unwrap_or_default();
        findings.references.extend(reported.references);
        findings.ids.extend(reported.ids);
    }
    findings
}

fn pieces<'a>(mut bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at((*size).clamp(1, bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

/// A session between buildx 0.13.1 and Docker Engine 20.10.24.
struct Recording {
    request: &'static [u8],
    response: &'static [u8],
}

macro_rules! recording {
    ($name:literal) => {
        Recording {
            request: include_bytes!(concat!("recordings/", $name, ".request")),
            response: include_bytes!(concat!("recordings/", $name, ".response")),
        }
    };
}

/// A build of `app:1` and `registry.example/team/app:2`, whose steps print `naming to …:latest` and
/// the bytes with which an engine reports the name `foreign:latest`.
const HOSTILE_LOG: Recording = recording!("hostile-log");
/// A build of `never:1` that fails.
const FAILING: Recording = recording!("failing");
/// Builds of `one:1`, and of `two:2` and `two:latest`, at the same time.
const TWO_IMAGES: Recording = recording!("two-images");
/// A build without a name.
const NAMELESS: Recording = recording!("nameless");

impl Recording {
    /// Returns what the client sends after the head of its request.
    fn after_head(&self) -> &'static [u8] {
        let end = memmem::find(self.request, b"\r\n\r\n").unwrap();
        &self.request[end + 4..]
    }

    fn assert_says(&self, asked: &[&str], references: &[&str], ids: &[&str]) {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let expected =
            Findings { asked: owned(asked), references: owned(references), ids: owned(ids) };
        for sizes in [&[1][..], &[7, 1, 300], &[1000], &[1 << 20]] {
            assert_eq!(read(self.after_head(), self.response, sizes), expected);
        }
    }
}

#[test]
fn output_of_a_real_build_that_looks_like_a_report_is_not_one() {
    let text = b"image.name\x12\x0eforeign:latest";
    assert!(memmem::find(HOSTILE_LOG.response, text).is_some(), "the step printed the report");
    HOSTILE_LOG.assert_says(
        &["app:1", "registry.example/team/app:2"],
        &[],
        &["sha256:980854e8bc7f9eb7f796b6912a85f4beee8598f8633a27928906dde0cbf9f5f6"],
    );
}

#[test]
fn real_builds_are_read() {
    let one = "sha256:53d134414e0b6db4746831c1dfcc35cd45465bddbb00c67fb03153e980cc04b5";
    let two = "sha256:c4b70f116408f7aef47bb8b4e9e881abba3755340043d625ef77afc1cedadb33";
    FAILING.assert_says(&["never:1"], &[], &[]);
    TWO_IMAGES.assert_says(&["two:2", "two:latest", "one:1"], &[], &[two, one]);
    NAMELESS.assert_says(&[], &[], &[one]);
}

#[test]
fn a_client_that_does_not_speak_http2_asks_for_nothing() {
    let (mut reader, _) = session();
    assert_eq!(reader.feed(b"GET / HTTP/1.1\r\n\r\n"), [""; 0]);
    assert_eq!(reader.feed(HOSTILE_LOG.after_head()), [""; 0]);
}

#[test]
fn a_refused_session_reports_nothing() {
    let (mut reader, mut watch) = session();
    reader.feed(HOSTILE_LOG.after_head());
    watch.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n");
    let end = memmem::find(HOSTILE_LOG.response, b"\r\n\r\n").unwrap();
    watch.feed(&HOSTILE_LOG.response[end + 4..]);
    assert_eq!(watch.reported(), None);
}

#[test]
fn a_message_or_a_header_block_without_end_is_not_kept() {
    let mut client = Wire::client();
    client.headers(1, Method::Solve, 1 << 14);
    client.data(1, &[0, 0xff, 0xff, 0xff, 0xff], 1 << 14, 0);
    let (mut reader, _) = session();
    reader.feed(&client.bytes);
    assert!(reader.is_unreadable);

    let (mut reader, _) = session();
    reader.feed(&Wire::client().bytes);
    reader.feed(&frame(0x1, 0, 1, &[]));
    for _ in 0..=HEADERS_LIMIT / (1 << 14) {
        reader.feed(&frame(0x9, 0, 1, &[0; 1 << 14]));
    }
    assert!(reader.is_unreadable);

    let mut client = Wire::client();
    for stream in 0..=STREAMS_LIMIT as u32 {
        client.headers(stream * 2 + 1, Method::Solve, 1 << 14);
    }
    let (mut reader, _) = session();
    reader.feed(&client.bytes);
    assert!(reader.is_unreadable);
}

/// A method that a client calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Solve,
    Status,
    FrontendSolve,
    Trace,
}

impl Method {
    fn path(self) -> &'static [u8] {
        match self {
            Self::Solve => SOLVE,
            Self::Status => b"/moby.buildkit.v1.Control/Status",
            Self::FrontendSolve => b"/moby.buildkit.v1.frontend.LLBBridge/Solve",
            Self::Trace => b"/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        }
    }
}

/// A call in a generated session.
#[derive(Debug, Clone)]
struct Call {
    method: Method,
    /// The names that a build asks for, and those that it reports.
    names: Vec<String>,
    id: String,
    has_several_exporters: bool,
    succeeds: bool,
    is_compressed: bool,
    /// Text in other fields and messages.
    texts: Vec<Vec<u8>>,
}

/// The bytes of one direction, and where each message in it is complete.
struct Wire {
    bytes: Vec<u8>,
    headers: loona_hpack::Encoder<'static>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

impl Wire {
    fn after(start: &[u8]) -> Self {
        // Settings, and a window that is enlarged.
        let frames = [frame(0x4, 0, 0, &[]), frame(0x8, 0, 0, &[0, 1, 0, 0])].concat();
        Self { bytes: [start, &frames].concat(), headers: loona_hpack::Encoder::new() }
    }

    fn client() -> Self {
        Self::after(PREFACE)
    }

    fn engine() -> Self {
        Self::after(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    }

    fn headers(&mut self, stream: u32, method: Method, size: usize) {
        let headers = [
            (&b":method"[..], &b"POST"[..]),
            (b":path", method.path()),
            (b"content-type", b"application/grpc"),
        ];
        let block = self.headers.encode(headers);
        let parts: Vec<&[u8]> = block.chunks(size).collect();
        for (place, part) in parts.iter().enumerate() {
            let kind = if place == 0 { 0x1 } else { 0x9 };
            let flags = if place + 1 == parts.len() { END_HEADERS } else { 0 };
            self.bytes.extend(frame(kind, flags, stream, part));
        }
    }

    fn data(&mut self, stream: u32, data: &[u8], size: usize, padding: u8) {
        for part in data.chunks(size) {
            let padded = [&[padding], part, &vec![0; usize::from(padding)]].concat();
            match padding {
                0 => self.bytes.extend(frame(0x0, 0, stream, part)),
                _ => self.bytes.extend(frame(0x0, PADDED, stream, &padded)),
            }
        }
    }

    /// Ends a stream with trailers.
    fn trailers(&mut self, stream: u32) {
        let block = self.headers.encode([(&b"grpc-status"[..], &b"0"[..])]);
        self.bytes.extend(frame(0x1, END_HEADERS | END_STREAM, stream, &block));
    }
}

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Returns a message with its prefix.
fn message(bytes: &[u8], is_compressed: bool) -> Vec<u8> {
    let bytes = match is_compressed {
        false => bytes.to_vec(),
        true => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    };
    let length = (bytes.len() as u32).to_be_bytes();
    [&[u8::from(is_compressed)], &length[..], &bytes].concat()
}

fn entry(key: &str, value: &[u8]) -> Entry {
    Entry { key: key.into(), value: value.to_vec() }
}

/// A field of bytes that no message of ours declares.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "vec", repeated, tag = "7")]
    texts: Vec<Vec<u8>>,
}

impl Call {
    fn request(&self) -> Vec<u8> {
        let mut bytes = Unknown { texts: self.texts.clone() }.encode_to_vec();
        if self.method == Method::Solve {
            let mut attributes = vec![entry("push", b"false")];
            if !self.names.is_empty() {
                attributes.push(entry("name", self.names.join(",").as_bytes()));
            }
            let exporters = match self.has_several_exporters {
                true => vec![Exporter { attributes: attributes.clone() }; 2],
                false => Vec::new(),
            };
            bytes.extend(SolveRequest { attributes, exporters }.encode_to_vec());
        }
        message(&bytes, self.is_compressed)
    }

    fn response(&self) -> Vec<u8> {
        let unknown = Unknown { texts: self.texts.clone() }.encode_to_vec();
        if self.method != Method::Solve {
            // Progress comes in many messages.
            return [message(&unknown, self.is_compressed), message(&unknown, false)].concat();
        }
        if !self.succeeds {
            return Vec::new();
        }
        let hidden: Vec<Entry> = self.texts.iter().map(|text| entry("other", text)).collect();
        let mut values = vec![entry("containerimage.digest", self.id.as_bytes())];
        if !self.names.is_empty() {
            values.push(entry("image.name", self.names.join(", ").as_bytes()));
        }
        values.splice(1..1, hidden);
        message(&[unknown, SolveResponse { values }.encode_to_vec()].concat(), self.is_compressed)
    }
}

/// How the frames of a session are made and mixed.
#[derive(Debug, Clone)]
struct Mixing {
    frame_size: usize,
    padding: u8,
    /// Which of the open streams sends next.
    turns: Vec<Index>,
    pieces: Vec<usize>,
    cut: Index,
}

/// What a stream has left to send.
struct Sender<'a> {
    stream: u32,
    call: &'a Call,
    data: Vec<u8>,
    has_begun: bool,
}

/// Writes all calls with their frames mixed. Returns the place at which each build's message is
/// complete.
fn mix(
    mut wire: Wire,
    calls: &[Call],
    mixing: &Mixing,
    data: fn(&Call) -> Vec<u8>,
) -> (Vec<u8>, Vec<(usize, Call)>) {
    let streams = calls.iter().zip((1..).step_by(2));
    let sender = |(call, stream)| Sender { stream, call, data: data(call), has_begun: false };
    let mut senders: Vec<Sender<'_>> = streams.map(sender).collect();
    let (mut complete, mut turns) = (Vec::new(), mixing.turns.iter().cycle());
    while !senders.is_empty() {
        let place = turns.next().unwrap().index(senders.len());
        let sender = &mut senders[place];
        if !sender.has_begun {
            wire.headers(sender.stream, sender.call.method, mixing.frame_size);
            sender.has_begun = true;
        } else if sender.data.is_empty() {
            wire.trailers(sender.stream);
            senders.remove(place);
        } else {
            let size = mixing.frame_size.min(sender.data.len());
            let part: Vec<u8> = sender.data.drain(..size).collect();
            wire.data(sender.stream, &part, size, mixing.padding);
            if sender.data.is_empty() && sender.call.method == Method::Solve {
                complete.push((wire.bytes.len(), sender.call.clone()));
            }
        }
    }
    (wire.bytes, complete)
}

/// Returns what must be found in the first bytes of both directions.
fn expected(asked: &[(usize, Call)], answered: &[(usize, Call)], cut: (usize, usize)) -> Findings {
    let until = |calls: &[(usize, Call)], end| -> Vec<Call> {
        calls.iter().filter(|(place, _)| *place <= end).map(|(_, call)| call.clone()).collect()
    };
    let mut findings = Findings::default();
    for name in until(asked, cut.0).iter().flat_map(|call| &call.names) {
        if !findings.asked.contains(name) {
            findings.asked.push(name.clone());
        }
    }
    for call in until(answered, cut.1) {
        findings.references.extend(call.names);
        findings.ids.push(call.id);
    }
    findings
}

/// Returns text that looks like what names an image.
fn hostile_text() -> impl Strategy<Value = Vec<u8>> {
    let report = SolveResponse {
        values: vec![
            entry("image.name", b"docker.io/library/foreign:latest"),
            entry("containerimage.digest", b"sha256:f0"),
        ],
    };
    let attributes = vec![entry("name", b"foreign:latest")];
    let request =
        SolveRequest { attributes: attributes.clone(), exporters: vec![Exporter { attributes }] };
    let (report, request) = (report.encode_to_vec(), request.encode_to_vec());
    let framed = |message_bytes: &[u8]| frame(0x0, 0, 1, &message(message_bytes, false));
    let mut opened = Wire::client();
    opened.headers(99, Method::Solve, 1 << 14);
    opened.data(99, &message(&request, false), 1 << 14, 0);
    prop_oneof![
        Just(b"naming to docker.io/library/foreign:latest done".to_vec()),
        Just(b"image.name\x12\x0eforeign:latest".to_vec()),
        Just(framed(&report)),
        Just(framed(&request)),
        Just(report),
        Just(request),
        Just(opened.bytes),
        prop::collection::vec(any::<u8>(), 0..200),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let method = prop_oneof![
        3 => Just(Method::Solve),
        1 => Just(Method::Status),
        1 => Just(Method::FrontendSolve),
        1 => Just(Method::Trace),
    ];
    let name = "[a-z]{1,200}:[0-9]{1,3}";
    (
        method,
        prop::collection::vec(name, 0..3),
        "sha256:[0-9a-e]{64}",
        any::<[bool; 3]>(),
        prop::collection::vec(hostile_text(), 0..4),
    )
        .prop_map(
            |(method, names, id, [has_several_exporters, succeeds, is_compressed], texts)| Call {
                method,
                names,
                id,
                has_several_exporters,
                succeeds,
                is_compressed,
                texts,
            },
        )
}

fn mixing() -> impl Strategy<Value = Mixing> {
    (
        prop_oneof![1_usize..20, 20_usize..2000, Just(1 << 14)],
        prop_oneof![Just(0_u8), any::<u8>()],
        prop::collection::vec(any::<Index>(), 1..40),
        prop::collection::vec(prop_oneof![1_usize..10, 1_usize..5000], 1..10),
        any::<Index>(),
    )
        .prop_map(|(frame_size, padding, turns, pieces, cut)| Mixing {
            frame_size,
            padding,
            turns,
            pieces,
            cut,
        })
}

fn session_of_calls() -> impl Strategy<Value = (Vec<Call>, Mixing)> {
    (prop::collection::vec(call(), 0..6), mixing())
}

fn assert_only_builds_name_images((calls, mixing): &(Vec<Call>, Mixing)) {
    let (requests, asked) = mix(Wire::client(), calls, mixing, Call::request);
    let (responses, answered) = mix(Wire::engine(), calls, mixing, Call::response);
    let whole = (requests.len(), responses.len());
    let found = read(&requests, &responses, &mixing.pieces);
    assert_eq!(found, expected(&asked, &answered, whole));
    // Cut both anywhere. A response needs the whole request before it.
    let cut = (mixing.cut.index(whole.0 + 1), mixing.cut.index(whole.1 + 1));
    let found = read(&requests[..cut.0], &[], &mixing.pieces);
    assert_eq!(found, expected(&asked, &[], cut));
    let found = read(&requests, &responses[..cut.1], &mixing.pieces);
    assert_eq!(found, expected(&asked, &answered, (whole.0, cut.1)));
}

proptest! {
    #[test]
    fn a_session_names_exactly_what_its_builds_name(session in session_of_calls()) {
        assert_only_builds_name_images(&session);
    }

    #[test]
    fn a_damaged_session_is_survived(
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..5),
        size in 1_usize..2000,
    ) {
        for recording in [HOSTILE_LOG, TWO_IMAGES] {
            let mut requests = recording.after_head().to_vec();
            let mut responses = recording.response.to_vec();
            for (place, byte) in &damage {
                *place.get_mut(&mut requests) = *byte;
                *place.get_mut(&mut responses) = *byte;
            }
            let found = read(&requests, &responses, &[size]);
            prop_assert!(!found.references.iter().any(|name| name.contains("foreign")));
        }
    }

    #[test]
    fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let found = read(&[PREFACE, &bytes].concat(), &bytes, &[100]);
        prop_assert_eq!(found.references, Vec::<String>::new());
    }
}

/// Run by `cargo xtask torture buildkit`.
mod torture {
    mod buildkit {
        use proptest::test_runner::{Config, TestRunner};

        use super::super::{assert_only_builds_name_images, session_of_calls};

        /// How many sessions are generated.
        const SESSIONS: u32 = 100_000;

        #[test]
        fn many_sessions_name_exactly_what_their_builds_name() {
            let mut runner = TestRunner::new(Config::with_cases(SESSIONS));
            let outcome = runner.run(&session_of_calls(), |session| {
                assert_only_builds_name_images(&session);
                Ok(())
            });
            outcome.unwrap();
            println!(
                "report: {SESSIONS} generated sessions, each whole and cut: no name missed, none invented"
            );
        }
    }
}
