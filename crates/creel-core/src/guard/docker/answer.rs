//! Answers, and sessions of BuildKit, read on their way.

use serde_json::Value;

use super::chunked::Dechunker;
use super::head::{self, Framing, Head};

/// The longest line of an answer that is looked at; longer ones are file contents in disguise.
const LINE_LIMIT: usize = 256 * 1024;
/// How much of the bytes before is looked at again, so that nothing is missed between two reads.
const OVERLAP: usize = 1024;

/// What an answer says about images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// References that were made, as the engine writes them.
    pub(super) references: Vec<String>,
    /// Ids that were made.
    pub(super) ids: Vec<String>,
    /// Ids of images that a build took from the cache instead of creating them.
    pub(super) cached: Vec<String>,
    /// The steps of a build that run in containers.
    pub(super) steps: Vec<Step>,
}

/// A step of a build that runs in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The id of the container, in whole or in part.
    pub(super) container: String,
    /// The id of the image that it is built upon, where the answer told it.
    pub(super) upon: Option<String>,
}

impl Named {
    fn is_empty(&self) -> bool {
        self.references.is_empty() && self.ids.is_empty() && self.steps.is_empty()
    }
}

/// Reads an answer while it streams through: its status, and the lines of its body.
#[derive(Debug, Default)]
pub(super) struct AnswerWatch {
    head: Option<Head>,
    /// What is not read yet: of the head, then of the present line.
    pending: Vec<u8>,
    chunks: Dechunker,
    left: u64,
    named: Named,
    /// The id that was told last.
    newest: Option<String>,
    /// Whether the next id is one that a build took from the cache.
    is_cached: bool,
    /// Whether a line of it reports an error.
    has_failed: bool,
}

/// Watches what an engine says about images.
pub(super) trait Watch: Default + Send {
    /// Takes the next bytes.
    fn feed(&mut self, bytes: &[u8]);

    /// Returns what was named since it was last asked.
    fn named(&mut self) -> Option<Named>;

    /// Returns how the answer ended.
    fn watched(&self) -> Watched;
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// It is complete, and says that the request was carried out.
    Made,
    /// It is complete, and says that the request failed.
    Failed,
    /// It broke off.
    Cut,
}

impl AnswerWatch {
    /// Takes the next bytes of the answer.
    fn take(&mut self, bytes: &[u8]) {
        if self.head.is_some() {
            return self.feed_body(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let Some(place) = head::find(&self.pending, b"\r\n\r\n") else { return };
        let rest = self.pending.split_off(place + 4);
        let head = Head::parse(&self.pending[..place]);
        self.pending.clear();
        // An interim answer is followed by the real one.
        if head.status() / 100 != 1 {
            if let Framing::Length(length) = head.framing() {
                self.left = length;
            }
            self.head = Some(head);
        }
        self.take(&rest);
    }

    fn feed_body(&mut self, bytes: &[u8]) {
        let mut data = Vec::new();
        match self.head.as_ref().map_or(Framing::Empty, Head::framing) {
            Framing::Chunked => {
                self.chunks.feed(bytes, |piece| data.extend_from_slice(piece));
            }
            Framing::Length(_) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                data.extend_from_slice(bytes);
            }
            Framing::Empty => {}
        }
        for piece in data.split_inclusive(|&byte| byte == b'\n') {
            if self.pending.len() + piece.len() <= LINE_LIMIT {
                self.pending.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.read_line();
            }
        }
    }

    fn read_line(&mut self) {
        let line = std::mem::take(&mut self.pending);
        if let Ok(value) = serde_json::from_slice::<Value>(&line) {
            self.has_failed |= value.get("error").is_some() || value.get("errorDetail").is_some();
            let known = self.named.ids.len();
            self.named.read(&value, self.newest.as_deref());
            if let Some(id) = self.named.ids.get(known) {
                self.newest = Some(id.clone());
                let cached = std::mem::take(&mut self.is_cached).then(|| id.clone());
                self.named.cached.extend(cached);
            } else {
                self.is_cached = says_cached(&value);
            }
        }
    }

    fn is_complete(&self) -> bool {
        match self.head.as_ref().map(Head::framing) {
            Some(Framing::Chunked) => self.chunks.is_done(),
            Some(Framing::Length(_)) => self.left == 0,
            Some(Framing::Empty) => true,
            None => false,
        }
    }
}

impl Watch for AnswerWatch {
    fn feed(&mut self, bytes: &[u8]) {
        self.take(bytes);
        if self.is_complete() {
            // The body of a short answer has no end of line.
            self.read_line();
        }
    }

    fn named(&mut self) -> Option<Named> {
        Some(std::mem::take(&mut self.named)).filter(|named| !named.is_empty())
    }

    fn watched(&self) -> Watched {
        let is_success = self.head.as_ref().is_some_and(|head| head.status() / 100 == 2);
        match (self.is_complete(), is_success && !self.has_failed) {
            (false, _) => Watched::Cut,
            (true, false) => Watched::Failed,
            (true, true) => Watched::Made,
        }
    }
}

impl Named {
    /// Reads one message of a build, a load, a pull, an import or a commit; `newest` is the id that
    /// was told last.
    fn read(&mut self, message: &Value, newest: Option<&str>) {
        let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default().trim();
        let said = [text("stream"), text("status")];
        let after = |prefix: &str| said.iter().find_map(|text| text.strip_prefix(prefix));
        let reference = after("Loaded image: ")
            .or_else(|| after("Successfully tagged "))
            .or_else(|| after("Status: Downloaded newer image for "));
        self.references.extend(reference.map(|name| name.trim().to_owned()));
        let aux = message.pointer("/aux/ID").and_then(Value::as_str);
        // The classic builder tells each step, and a build that fails leaves the last one.
        let upon = newest.map(str::to_owned);
        let container = after("---> Running in ").map(|id| id.trim().to_owned());
        self.steps.extend(container.map(|container| Step { container, upon }));
        let step = after("---> ").filter(|id| is_short_id(id));
        let id = after("Loaded image ID: ").or_else(|| after("Successfully built ")).or(aux);
        let id = id.or(step);
        let bare = said.iter().copied().find(|text| text.starts_with("sha256:"));
        let id = id.or(bare).or_else(|| message.get("Id").and_then(Value::as_str));
        self.ids.extend(id.map(|id| id.trim().to_owned()));
    }
}

/// Returns whether a message of a build says that the next image comes from the cache.
fn says_cached(message: &Value) -> bool {
    let text = message.get("stream").and_then(Value::as_str).unwrap_or_default();
    text.trim() == "---> Using cache"
}

fn is_short_id(text: &str) -> bool {
    text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Looks for the names of images in what an engine says in a BuildKit session, which it leaves
/// alone.
///
/// They are plain texts in the answer to a build: a key, and after it the value with its length.
#[derive(Debug, Default)]
pub(super) struct SessionWatch {
    tail: Vec<u8>,
    /// What was found and asked for: an overlap shows the same again.
    told: Named,
    named: Named,
}

impl Watch for SessionWatch {
    fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        for names in values(&self.tail, b"image.name") {
            for name in listed(&names) {
                note(name, &mut self.told.references, &mut self.named.references);
            }
        }
        for key in [&b"containerimage.config.digest"[..], b"containerimage.digest"] {
            for id in values(&self.tail, key).into_iter().filter(|id| id.starts_with("sha256:")) {
                note(id, &mut self.told.ids, &mut self.named.ids);
            }
        }
        forget(&mut self.tail);
    }

    fn named(&mut self) -> Option<Named> {
        Some(std::mem::take(&mut self.named)).filter(|named| !named.is_empty())
    }

    /// A session says nothing at its end.
    fn watched(&self) -> Watched {
        Watched::Cut
    }
}

/// Looks for the names of images that a client asks for in a BuildKit session.
#[derive(Debug, Default)]
pub(super) struct SessionWishes {
    tail: Vec<u8>,
    told: Vec<String>,
}

/// Reads what a client asks for.
pub(super) trait Asks: Send {
    /// Takes the next bytes of the client, and returns the names among them that are new.
    fn feed(&mut self, bytes: &[u8]) -> Vec<String>;
}

impl Asks for SessionWishes {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut new = Vec::new();
        self.tail.extend_from_slice(bytes);
        for names in attributes(&self.tail, b"name") {
            for name in listed(&names) {
                note(name, &mut self.told, &mut new);
            }
        }
        forget(&mut self.tail);
        new
    }
}

/// Returns the names in a list of them.
fn listed(names: &str) -> Vec<String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Adds what was not told before.
fn note(name: String, told: &mut Vec<String>, new: &mut Vec<String>) {
    if !told.contains(&name) {
        told.push(name.clone());
        new.push(name);
    }
}

/// Drops the bytes in which nothing can begin any more.
fn forget(tail: &mut Vec<u8>) {
    let old = tail.len().saturating_sub(OVERLAP);
    tail.drain(..old);
}

/// Returns the values of an attribute of an exporter.
///
/// Its name alone is too common a word: it counts only in an entry of one of the two maps in
/// which exporters are described, whose length fits.
fn attributes(bytes: &[u8], key: &[u8]) -> Vec<String> {
    /// The tags of those maps, in a request with one exporter and in one with several.
    const MAPS: [u8; 2] = [0x22, 0x12];
    let mut entry = vec![0x0a, key.len() as u8];
    entry.extend_from_slice(key);
    let (mut found, mut rest) = (Vec::new(), bytes);
    while let Some(place) = head::find(rest, &entry) {
        let (before, after) = (&rest[..place], &rest[place + entry.len()..]);
        let fits = |value: &[u8]| {
            let length = entry.len() + value.len();
            // A value that is long enough needs two bytes for its length, and so does the entry.
            MAPS.iter().any(|&map| match length {
                0..128 => before.ends_with(&[map, length as u8]),
                _ => before.ends_with(&[map, (length & 0x7f | 0x80) as u8, (length >> 7) as u8]),
            })
        };
        if let Some((text, value)) = value_at(after)
            && fits(value)
        {
            found.push(text);
        }
        rest = after;
    }
    found
}

/// Returns the complete values of a key among the bytes.
fn values(bytes: &[u8], key: &[u8]) -> Vec<String> {
    let (mut values, mut rest) = (Vec::new(), bytes);
    while let Some(place) = head::find(rest, key) {
        rest = &rest[place + key.len()..];
        values.extend(value_at(rest).map(|(text, _)| text));
    }
    values
}

/// Returns the value of an entry of a map, and all the bytes it takes, if the bytes begin with
/// a complete one.
fn value_at(bytes: &[u8]) -> Option<(String, &[u8])> {
    /// The tag of the second field of a map entry, a text.
    const VALUE: u8 = 0x12;
    let [VALUE, length, rest @ ..] = bytes else { return None };
    let (length, start) = match rest {
        // Lengths from 128 on take two bytes.
        [high, ..] if length & 0x80 != 0 => {
            (usize::from(length & 0x7f) | usize::from(*high) << 7, 3)
        }
        _ => (usize::from(*length), 2),
    };
    let text = std::str::from_utf8(bytes.get(start..start + length)?).ok()?;
    Some((text.to_owned(), &bytes[..start + length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(answer: &[u8], piece: usize) -> Option<(u16, Named)> {
        let mut watch = AnswerWatch::default();
        answer.chunks(piece).for_each(|bytes| watch.feed(bytes));
        let named = watch.named().unwrap_or_default();
        let is_over = watch.watched() != Watched::Cut;
        is_over.then_some((watch.head.as_ref()?.status(), named))
    }

    #[test]
    fn names_are_read_from_chunks_of_any_size() {
        let body = "{\"stream\":\" ---> Using cache\\n\"}\n{\"stream\":\" ---> 0123456789ab\\n\"}\n\
            {\"stream\":\" ---> Running in 11\\n\"}\n\
            {\"stream\":\"Loaded image: a:1\\n\"}\n{\"aux\":{\"ID\":\"sha256:22\"}}\r\n\
            {\"stream\":\"Successfully built 0123\\n\"}\n{\"stream\":\"Successfully tagged b:2\\n\"}\n";
        let answer = format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let expected = Named {
            references: vec!["a:1".to_owned(), "b:2".to_owned()],
            ids: ["0123456789ab", "sha256:22", "0123"].map(str::to_owned).to_vec(),
            cached: vec!["0123456789ab".to_owned()],
            steps: vec![Step { container: "11".to_owned(), upon: Some("0123456789ab".to_owned()) }],
        };
        for piece in [1, 2, 7, 64, 4096] {
            assert_eq!(watched(answer.as_bytes(), piece), Some((200, expected.clone())));
        }
        let cut = &answer.as_bytes()[..answer.len() - 3];
        assert_eq!(watched(cut, 64), None);
    }

    #[test]
    fn an_error_in_a_complete_answer_is_a_failure() {
        let ended = |status: &str, body: &str| {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            let mut watch = AnswerWatch::default();
            watch.feed(answer.as_bytes());
            watch.watched()
        };
        assert_eq!(ended("201 Created", ""), Watched::Made);
        assert_eq!(ended("200 OK", "{\"stream\":\"x\"}\n"), Watched::Made);
        assert_eq!(ended("200 OK", "{\"errorDetail\":{},\"error\":\"x\"}\n"), Watched::Failed);
        assert_eq!(ended("404 Not Found", "{\"message\":\"x\"}\n"), Watched::Failed);
    }

    #[test]
    fn a_short_answer_needs_no_end_of_line() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 18\r\n\r\n{\"Id\":\"sha256:ab\"}";
        let (status, named) = watched(answer, 5).unwrap();
        assert_eq!((status, named.ids), (201, vec!["sha256:ab".to_owned()]));
        assert_eq!(watched(&answer[..answer.len() - 1], 5), None);
    }

    fn length(length: usize) -> Vec<u8> {
        match length {
            short @ 0..128 => vec![short as u8],
            long => vec![(long & 0x7f | 0x80) as u8, (long >> 7) as u8],
        }
    }

    fn entry(key: &str, value: &str) -> Vec<u8> {
        let key = [vec![0x0a, key.len() as u8], key.as_bytes().to_vec()].concat();
        [key, vec![0x12], length(value.len()), value.as_bytes().to_vec()].concat()
    }

    #[test]
    fn a_session_is_asked_for_images_in_passing() {
        let attribute = |map: u8, key: &str, value: &str| {
            let entry = entry(key, value);
            [vec![map], length(entry.len()), entry].concat()
        };
        let long = format!("{}:1", "x".repeat(150));
        let bytes = [
            // A name in another kind of map is none of an image.
            attribute(0x3a, "name", "other"),
            entry("name", "bare"),
            attribute(0x22, "name", "docker.io/library/a:1,b:2"),
            attribute(0x22, "push", "false"),
            attribute(0x12, "name", &long),
            b"noise".to_vec(),
        ]
        .concat();
        for piece in [1, 3, 50, 1000] {
            let mut wishes = SessionWishes::default();
            let heard: Vec<String> =
                bytes.chunks(piece).flat_map(|bytes| wishes.feed(bytes)).collect();
            assert_eq!(heard, ["docker.io/library/a:1", "b:2", &long]);
        }
    }

    #[test]
    fn a_session_tells_its_images_in_passing() {
        let long = format!("{}:1", "x".repeat(150));
        let bytes = [
            b"noise".to_vec(),
            entry("image.name", "docker.io/library/a:1,b:2"),
            entry("containerimage.config.digest", "sha256:22"),
            entry("image.name", &long),
            b"noise".to_vec(),
        ]
        .concat();
        for piece in [1, 3, 50, 1000] {
            let mut watch = SessionWatch::default();
            bytes.chunks(piece).for_each(|bytes| watch.feed(bytes));
            let named = watch.named().unwrap();
            assert_eq!(watch.named(), None);
            assert_eq!(named.references, ["docker.io/library/a:1", "b:2", &long]);
            assert_eq!(named.ids, ["sha256:22"]);
        }
    }
}
