//! Answers, read on their way to the client.

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
}

impl AnswerWatch {
    /// Takes the next bytes of the answer.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
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
        self.feed(&rest);
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
            self.named.read(&value);
        }
    }

    /// Returns the status, and what was named, once the answer is complete; `None` when it
    /// broke off.
    pub(super) fn finish(mut self) -> Option<(u16, Named)> {
        // The body of a short answer has no end of line.
        self.read_line();
        let head = self.head?;
        let is_complete = match head.framing() {
            Framing::Chunked => self.chunks.is_done(),
            Framing::Length(_) => self.left == 0,
            Framing::Empty => true,
        };
        is_complete.then(|| (head.status(), self.named))
    }
}

impl Named {
    /// Reads one message of a build, a load, a pull, an import or a commit.
    fn read(&mut self, message: &Value) {
        let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default().trim();
        let said = [text("stream"), text("status")];
        let after = |prefix: &str| said.iter().find_map(|text| text.strip_prefix(prefix));
        let reference = after("Loaded image: ")
            .or_else(|| after("Successfully tagged "))
            .or_else(|| after("Status: Downloaded newer image for "));
        self.references.extend(reference.map(|name| name.trim().to_owned()));
        let aux = message.pointer("/aux/ID").and_then(Value::as_str);
        let id = after("Loaded image ID: ").or_else(|| after("Successfully built ")).or(aux);
        let bare = said.iter().copied().find(|text| text.starts_with("sha256:"));
        let id = id.or(bare).or_else(|| message.get("Id").and_then(Value::as_str));
        self.ids.extend(id.map(|id| id.trim().to_owned()));
    }
}

/// Looks for the names of images in the bytes of a BuildKit session, which it leaves alone.
///
/// They are plain texts in the answer to a build: a key, and after it the value with its length.
#[derive(Debug, Default)]
pub(super) struct SessionWatch {
    tail: Vec<u8>,
    named: Named,
}

impl SessionWatch {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        for name in values(&self.tail, b"image.name") {
            let names = name.split(',').map(str::trim).filter(|name| !name.is_empty());
            for name in names {
                if !self.named.references.iter().any(|known| known == name) {
                    self.named.references.push(name.to_owned());
                }
            }
        }
        for key in [&b"containerimage.config.digest"[..], b"containerimage.digest"] {
            for id in values(&self.tail, key) {
                if id.starts_with("sha256:") && !self.named.ids.contains(&id) {
                    self.named.ids.push(id);
                }
            }
        }
        let old = self.tail.len().saturating_sub(OVERLAP);
        self.tail.drain(..old);
    }

    pub(super) fn finish(self) -> Named {
        self.named
    }
}

/// Returns the complete values of a key among the bytes.
fn values(bytes: &[u8], key: &[u8]) -> Vec<String> {
    /// The tag of the second field of a map entry, a text.
    const VALUE: u8 = 0x12;
    let mut values = Vec::new();
    let mut rest = bytes;
    while let Some(place) = head::find(rest, key) {
        rest = &rest[place + key.len()..];
        let [VALUE, length, text @ ..] = rest else { continue };
        let (length, text) = match text {
            // Lengths from 128 on take two bytes.
            [high, text @ ..] if length & 0x80 != 0 => {
                (usize::from(length & 0x7f) | usize::from(*high) << 7, text)
            }
            _ => (usize::from(*length), text),
        };
        let value = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
        values.extend(value.map(str::to_owned));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(answer: &[u8], piece: usize) -> Option<(u16, Named)> {
        let mut watch = AnswerWatch::default();
        answer.chunks(piece).for_each(|bytes| watch.feed(bytes));
        watch.finish()
    }

    #[test]
    fn names_are_read_from_chunks_of_any_size() {
        let body = "{\"stream\":\"Loaded image: a:1\\n\"}\n{\"aux\":{\"ID\":\"sha256:22\"}}\r\n\
            {\"stream\":\"Successfully built 0123\\n\"}\n{\"stream\":\"Successfully tagged b:2\\n\"}\n";
        let answer = format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let expected = Named {
            references: vec!["a:1".to_owned(), "b:2".to_owned()],
            ids: vec!["sha256:22".to_owned(), "0123".to_owned()],
        };
        for piece in [1, 2, 7, 64, 4096] {
            assert_eq!(watched(answer.as_bytes(), piece), Some((200, expected.clone())));
        }
        let cut = &answer.as_bytes()[..answer.len() - 3];
        assert_eq!(watched(cut, 64), None);
    }

    #[test]
    fn a_short_answer_needs_no_end_of_line() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 18\r\n\r\n{\"Id\":\"sha256:ab\"}";
        let (status, named) = watched(answer, 5).unwrap();
        assert_eq!((status, named.ids), (201, vec!["sha256:ab".to_owned()]));
        assert_eq!(watched(&answer[..answer.len() - 1], 5), None);
    }

    #[test]
    fn a_session_tells_its_images_in_passing() {
        let entry = |key: &str, value: &str| {
            let mut bytes = vec![0x0a, key.len() as u8];
            bytes.extend_from_slice(key.as_bytes());
            bytes.push(0x12);
            match value.len() {
                short @ 0..128 => bytes.push(short as u8),
                long => bytes.extend([(long & 0x7f | 0x80) as u8, (long >> 7) as u8]),
            }
            bytes.extend_from_slice(value.as_bytes());
            bytes
        };
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
            let named = watch.finish();
            assert_eq!(named.references, ["docker.io/library/a:1", "b:2", &long]);
            assert_eq!(named.ids, ["sha256:22"]);
        }
    }
}
