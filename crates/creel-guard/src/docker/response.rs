//! Reads responses while they stream through.

use std::time::Duration;

use memchr::memmem;
use serde_json::Value;

use super::chunked::Dechunker;
use super::head::{self, Framing, HttpHead};

/// The longest line of a response that is parsed. Longer ones are file contents.
const LINE_LIMIT: usize = 256 * 1024;

/// What a response says about images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReportedImages {
    /// References that were made, as the engine writes them.
    pub(super) references: Vec<String>,
    /// Ids of images that were made.
    pub(super) ids: Vec<String>,
    /// Ids of images that a build took from the cache instead of creating them.
    pub(super) cached: Vec<String>,
    /// The steps of a build that run in containers.
    pub(super) steps: Vec<BuildStep>,
}

/// A step of a build that runs in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuildStep {
    /// The full or abbreviated id of the container.
    pub(super) container: String,
    /// The id of the image that the step is built upon, if the response named it.
    pub(super) upon: Option<String>,
}

impl ReportedImages {
    pub(super) fn is_empty(&self) -> bool {
        self.references.is_empty() && self.ids.is_empty() && self.steps.is_empty()
    }
}

/// Reads the status and the body lines of a response while it streams through.
#[derive(Debug, Default)]
pub(super) struct ResponseWatch {
    head: Option<HttpHead>,
    /// Whether the head is too long to be one. The rest is only passed on.
    is_unreadable: bool,
    /// The unread bytes: of the head first, then of the current line.
    pending: Vec<u8>,
    chunks: Dechunker,
    left: u64,
    reported: ReportedImages,
    /// The id that was named last.
    newest: Option<String>,
    /// Whether the next id is an image that a build took from the cache.
    is_cached: bool,
    /// Whether a line of the response reports an error.
    has_failed: bool,
}

/// Extracts what an engine says about images.
pub(super) trait ImageWatch: Send {
    /// How long a response is read after its client stopped reading it. An engine that notices this
    /// stops the work, and reports what it created until then.
    const DRAIN_TIME: Duration;

    /// Consumes the next bytes.
    fn feed(&mut self, bytes: &[u8]);

    /// Returns what was named since the last call.
    fn reported(&mut self) -> Option<ReportedImages>;

    /// Returns how the response ended.
    fn ending(&self) -> ResponseEnding;
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseEnding {
    /// The response is complete and reports success.
    Succeeded,
    /// The response is complete and reports failure.
    Failed,
    /// The response is incomplete.
    Incomplete,
}

impl ResponseWatch {
    /// Consumes the next bytes of the response.
    fn consume(&mut self, bytes: &[u8]) {
        if self.head.is_some() {
            return self.feed_body(bytes);
        }
        if self.is_unreadable {
            return;
        }
        self.pending.extend_from_slice(bytes);
        let Some(place) = memmem::find(&self.pending, b"\r\n\r\n") else {
            self.is_unreadable = self.pending.len() > head::HEAD_LIMIT;
            if self.is_unreadable {
                self.pending = Vec::new();
            }
            return;
        };
        let rest = self.pending.split_off(place + 4);
        let head = HttpHead::parse(&self.pending[..place]);
        self.pending.clear();
        // An interim response is followed by the final one.
        if head.status() / 100 != 1 {
            if let Framing::Length(length) = head.framing() {
                self.left = length;
            }
            self.head = Some(head);
        }
        self.consume(&rest);
    }

    fn feed_body(&mut self, bytes: &[u8]) {
        let mut data = Vec::new();
        match self.head.as_ref().map_or(Framing::Empty, HttpHead::framing) {
            Framing::Chunked => {
                self.chunks.feed(bytes, |part| data.extend_from_slice(part));
            }
            Framing::Length(_) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                data.extend_from_slice(bytes);
            }
            Framing::Empty => {}
        }
        for part in data.split_inclusive(|&byte| byte == b'\n') {
            if self.pending.len() + part.len() <= LINE_LIMIT {
                self.pending.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.read_line();
            }
        }
    }

    fn read_line(&mut self) {
        let line = std::mem::take(&mut self.pending);
        if let Ok(value) = serde_json::from_slice::<Value>(&line) {
            self.has_failed |= value.get("error").is_some() || value.get("errorDetail").is_some();
            let known = self.reported.ids.len();
            self.reported.read(&value, self.newest.as_deref());
            if let Some(id) = self.reported.ids.get(known) {
                self.newest = Some(id.clone());
                let cached = std::mem::take(&mut self.is_cached).then(|| id.clone());
                self.reported.cached.extend(cached);
            } else {
                self.is_cached = is_cache_hit(&value);
            }
        }
    }

    fn is_complete(&self) -> bool {
        match self.head.as_ref().map(HttpHead::framing) {
            Some(Framing::Chunked) => self.chunks.is_done(),
            Some(Framing::Length(_)) => self.left == 0,
            Some(Framing::Empty) => true,
            None => false,
        }
    }
}

impl ImageWatch for ResponseWatch {
    const DRAIN_TIME: Duration = Duration::from_secs(10);

    fn feed(&mut self, bytes: &[u8]) {
        self.consume(bytes);
        if self.is_complete() {
            // The body of a short response has no line ending.
            self.read_line();
        }
    }

    fn reported(&mut self) -> Option<ReportedImages> {
        Some(std::mem::take(&mut self.reported)).filter(|reported| !reported.is_empty())
    }

    fn ending(&self) -> ResponseEnding {
        let is_success = self.head.as_ref().is_some_and(|head| head.status() / 100 == 2);
        match (self.is_complete(), is_success && !self.has_failed) {
            (false, _) => ResponseEnding::Incomplete,
            (true, false) => ResponseEnding::Failed,
            (true, true) => ResponseEnding::Succeeded,
        }
    }
}

impl ReportedImages {
    /// Reads one message of a build, a load, a pull, an import or a commit.
    ///
    /// `newest` is the id that was named last.
    fn read(&mut self, message: &Value, newest: Option<&str>) {
        let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default().trim();
        let texts = [text("stream"), text("status")];
        let after = |prefix: &str| texts.iter().find_map(|text| text.strip_prefix(prefix));
        let reference = after("Loaded image: ")
            .or_else(|| after("Successfully tagged "))
            .or_else(|| after("Status: Downloaded newer image for "));
        self.references.extend(reference.map(|name| name.trim().to_owned()));
        let aux = message.pointer("/aux/ID").and_then(Value::as_str);
        // The classic builder reports each step, and a build that fails leaves the last one.
        let upon = newest.map(str::to_owned);
        let container = after("---> Running in ").map(|id| id.trim().to_owned());
        self.steps.extend(container.map(|container| BuildStep { container, upon }));
        let step = after("---> ").filter(|id| is_short_id(id));
        let id = after("Loaded image ID: ").or_else(|| after("Successfully built ")).or(aux);
        let id = id.or(step);
        let bare = texts.iter().copied().find(|text| text.starts_with("sha256:"));
        let id = id.or(bare).or_else(|| message.get("Id").and_then(Value::as_str));
        self.ids.extend(id.map(|id| id.trim().to_owned()));
    }
}

/// Returns whether a message of a build says that the next image comes from the cache.
fn is_cache_hit(message: &Value) -> bool {
    let text = message.get("stream").and_then(Value::as_str).unwrap_or_default();
    text.trim() == "---> Using cache"
}

fn is_short_id(text: &str) -> bool {
    text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Extracts the references that a client asks for.
pub(super) trait RequestReader: Send {
    /// Consumes the next bytes from the client, and returns the new names among them.
    fn feed(&mut self, bytes: &[u8]) -> Vec<String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(response: &[u8], size: usize) -> Option<(u16, ReportedImages)> {
        let mut watch = ResponseWatch::default();
        response.chunks(size).for_each(|bytes| watch.feed(bytes));
        let reported = watch.reported().unwrap_or_default();
        let is_over = watch.ending() != ResponseEnding::Incomplete;
        is_over.then_some((watch.head.as_ref()?.status(), reported))
    }

    #[test]
    fn a_head_that_never_ends_is_not_kept() {
        let mut watch = ResponseWatch::default();
        watch.feed(b"HTTP/1.1 200 OK\r\nX-Endless: ");
        for _ in 0..64 {
            watch.feed(&[b'x'; 64 * 1024]);
            assert!(watch.pending.len() <= head::HEAD_LIMIT);
        }
        watch.feed(b"\r\n\r\n{\"stream\":\"Successfully tagged a:1\\n\"}\n");
        assert_eq!(watch.reported(), None);
        assert_eq!(watch.ending(), ResponseEnding::Incomplete);
    }

    #[test]
    fn names_are_read_from_chunks_of_any_size() {
        let body = "{\"stream\":\" ---> Using cache\\n\"}\n{\"stream\":\" ---> 0123456789ab\\n\"}\n\
            {\"stream\":\" ---> Running in 11\\n\"}\n\
            {\"stream\":\"Loaded image: a:1\\n\"}\n{\"aux\":{\"ID\":\"sha256:22\"}}\r\n\
            {\"stream\":\"Successfully built 0123\\n\"}\n{\"stream\":\"Successfully tagged b:2\\n\"}\n";
        let response = format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let expected = ReportedImages {
            references: vec!["a:1".to_owned(), "b:2".to_owned()],
            ids: ["0123456789ab", "sha256:22", "0123"].map(str::to_owned).to_vec(),
            cached: vec!["0123456789ab".to_owned()],
            steps: vec![BuildStep {
                container: "11".to_owned(),
                upon: Some("0123456789ab".to_owned()),
            }],
        };
        for size in [1, 2, 7, 64, 4096] {
            assert_eq!(ending(response.as_bytes(), size), Some((200, expected.clone())));
        }
        let truncated = &response.as_bytes()[..response.len() - 3];
        assert_eq!(ending(truncated, 64), None);
    }

    #[test]
    fn an_error_in_a_complete_response_is_a_failure() {
        let ended = |status: &str, body: &str| {
            let length = body.len();
            let response = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            let mut watch = ResponseWatch::default();
            watch.feed(response.as_bytes());
            watch.ending()
        };
        assert_eq!(ended("201 Created", ""), ResponseEnding::Succeeded);
        assert_eq!(ended("200 OK", "{\"stream\":\"x\"}\n"), ResponseEnding::Succeeded);
        assert_eq!(
            ended("200 OK", "{\"errorDetail\":{},\"error\":\"x\"}\n"),
            ResponseEnding::Failed
        );
        assert_eq!(ended("404 Not Found", "{\"message\":\"x\"}\n"), ResponseEnding::Failed);
    }

    #[test]
    fn a_short_response_needs_no_line_ending() {
        let response = b"HTTP/1.1 201 Created\r\nContent-Length: 18\r\n\r\n{\"Id\":\"sha256:ab\"}";
        let (status, reported) = ending(response, 5).unwrap();
        assert_eq!((status, reported.ids), (201, vec!["sha256:ab".to_owned()]));
        assert_eq!(ending(&response[..response.len() - 1], 5), None);
    }
}
