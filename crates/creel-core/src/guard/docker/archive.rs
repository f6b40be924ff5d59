//! The archive that a load sends, read on its way to the engine.
//!
//! What a load makes is known from its answer, but an answer can be lost. The
//! archive itself lists the references it brings, mostly at its end, so they
//! are on record before the engine has all of it. One that was made by gzip is
//! unpacked on the way, in little pieces; one that was compressed otherwise is
//! not looked into: then only the answer tells.

use std::fmt;
use std::io::Write;

use flate2::write::MultiGzDecoder;
use serde::Deserialize;

use super::answer::Asks;
use super::chunked::Dechunker;
use super::head::Framing;

/// The length of a header, and of what contents are padded to.
const BLOCK: usize = 512;
/// The entry that lists the references.
const LIST: &[u8] = b"manifest.json";
/// The longest list that is read.
const LIST_LIMIT: u64 = 1 << 20;

/// How every file that gzip made begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// So much is unpacked at a time: it may become a thousand times as much.
const PIECE: usize = 512;

/// Looks for the references in an archive.
#[derive(Debug)]
pub(super) struct ArchiveWishes {
    framing: Framing,
    chunks: Dechunker,
    form: Form,
    state: State,
}

/// In what form an archive comes.
enum Form {
    /// Not known yet: so much of it is there.
    Unknown(Vec<u8>),
    /// As it is.
    Plain,
    /// Made by gzip.
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown(_) => "Unknown",
            Self::Plain => "Plain",
            Self::Gzip(_) => "Gzip",
        })
    }
}

/// Where in the archive the next byte belongs.
#[derive(Debug)]
enum State {
    /// In a header, of which so much is there.
    Header(Vec<u8>),
    /// In contents that nobody reads: so many bytes are left.
    Contents(u64),
    /// In the list: so many bytes are left.
    List(Vec<u8>, u64),
    /// Nothing more is to be found.
    Over,
}

impl ArchiveWishes {
    /// Reads a body of this length.
    pub(super) fn of(framing: Framing) -> Self {
        let (chunks, form) = (Dechunker::default(), Form::Unknown(Vec::new()));
        Self { framing, chunks, form, state: State::Header(Vec::new()) }
    }

    /// Takes the next bytes of the body; returns the references, once they are known.
    fn open(&mut self, bytes: &[u8]) -> Vec<String> {
        match &mut self.form {
            Form::Plain => self.take(bytes),
            Form::Gzip(_) => self.unpack(bytes),
            Form::Unknown(begun) => {
                begun.extend_from_slice(bytes);
                if begun.len() < GZIP.len() {
                    return Vec::new();
                }
                let begun = std::mem::take(begun);
                self.form = match begun.starts_with(&GZIP) {
                    true => Form::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
                    false => Form::Plain,
                };
                self.open(&begun)
            }
        }
    }

    /// Unpacks bytes and takes what comes out of them.
    fn unpack(&mut self, bytes: &[u8]) -> Vec<String> {
        for piece in bytes.chunks(PIECE) {
            let Form::Gzip(decoder) = &mut self.form else { return Vec::new() };
            // Without the flush the end of the archive would wait for more.
            if decoder.write_all(piece).and_then(|()| decoder.flush()).is_err() {
                // The engine will say what is wrong with it.
                self.state = State::Over;
                return Vec::new();
            }
            let unpacked = std::mem::take(decoder.get_mut());
            let references = self.take(&unpacked);
            if !references.is_empty() {
                return references;
            }
        }
        Vec::new()
    }

    /// Takes the next bytes of the archive; returns the references, once they are known.
    fn take(&mut self, mut bytes: &[u8]) -> Vec<String> {
        while !bytes.is_empty() {
            let wanted = match &self.state {
                State::Header(header) => (BLOCK - header.len()) as u64,
                State::Contents(left) | State::List(_, left) => *left,
                State::Over => return Vec::new(),
            };
            let count = bytes.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
            let (piece, rest) = bytes.split_at(count);
            bytes = rest;
            let references = self.step(piece);
            if !references.is_empty() {
                return references;
            }
        }
        Vec::new()
    }

    /// Takes bytes of one part; they do not go beyond it.
    fn step(&mut self, piece: &[u8]) -> Vec<String> {
        let state = std::mem::replace(&mut self.state, State::Over);
        self.state = match state {
            State::Header(mut header) => {
                header.extend_from_slice(piece);
                if header.len() < BLOCK { State::Header(header) } else { after_header(&header) }
            }
            State::Contents(left) => match left - piece.len() as u64 {
                0 => State::Header(Vec::new()),
                left => State::Contents(left),
            },
            State::List(mut text, left) => {
                text.extend_from_slice(piece);
                match left - piece.len() as u64 {
                    0 => return references_in(&text),
                    left => State::List(text, left),
                }
            }
            State::Over => State::Over,
        };
        Vec::new()
    }
}

impl Asks for ArchiveWishes {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        if matches!(self.state, State::Over) {
            return Vec::new();
        }
        if self.framing != Framing::Chunked {
            return self.open(bytes);
        }
        let mut data = Vec::new();
        self.chunks.feed(bytes, |piece| data.extend_from_slice(piece));
        self.open(&data)
    }
}

/// Returns what follows a header.
fn after_header(header: &[u8]) -> State {
    let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let digits = std::str::from_utf8(&header[124..136]).unwrap_or_default();
    let digits = digits.trim_matches(|letter: char| letter == '\0' || letter == ' ');
    // The end of an archive, one that is compressed, and a file of eight gigabytes look like this.
    let Ok(size) = u64::from_str_radix(digits, 8) else { return State::Over };
    if name == LIST && size > 0 && size <= LIST_LIMIT {
        return State::List(Vec::new(), size);
    }
    match size.next_multiple_of(BLOCK as u64) {
        0 => State::Header(Vec::new()),
        padded => State::Contents(padded),
    }
}

fn references_in(list: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Image {
        #[serde(default)]
        repo_tags: Option<Vec<String>>,
    }
    let images: Vec<Image> = serde_json::from_slice(list).unwrap_or_default();
    images.into_iter().filter_map(|image| image.repo_tags).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, contents: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    fn heard(framing: Framing, bytes: &[u8], piece: usize) -> Vec<String> {
        let mut wishes = ArchiveWishes::of(framing);
        bytes.chunks(piece).flat_map(|bytes| wishes.feed(bytes)).collect()
    }

    #[test]
    fn references_are_read_from_pieces_of_any_size() {
        let list = br#"[{"Config":"x","RepoTags":["a:1","b:2"]},{"RepoTags":null}]"#;
        // A file that only talks about such a list is none.
        let talk = br#""RepoTags":["not:this"]"#;
        let archive = [
            entry("layer/", b""),
            entry("layer/layer.tar", &[7; 1300]),
            entry("layer/json", talk),
            entry("manifest.json", list),
            vec![0; 2 * BLOCK],
        ]
        .concat();
        let chunked = [
            format!("{:x}\r\n", archive.len()).into_bytes(),
            archive.clone(),
            b"\r\n0\r\n\r\n".to_vec(),
        ]
        .concat();
        for piece in [1, 100, 511, 512, 5000] {
            let length = Framing::Length(archive.len() as u64);
            assert_eq!(heard(length, &archive, piece), ["a:1", "b:2"]);
            assert_eq!(heard(Framing::Chunked, &chunked, piece), ["a:1", "b:2"]);
        }
        // One byte before its end it is not passed on, so the engine cannot have it.
        let end = archive.len() - 3 * BLOCK + list.len();
        assert_eq!(heard(Framing::Length(0), &archive[..end - 1], 64), [""; 0]);
        assert_eq!(heard(Framing::Length(0), &archive[..end], 64), ["a:1", "b:2"]);
    }

    #[test]
    fn what_gzip_made_is_unpacked_and_half_of_it_tells_nothing() {
        let list = br#"[{"RepoTags":["a:1"]}]"#;
        let archive = [entry("layer.tar", &[0; 3_000_000]), entry("manifest.json", list)].concat();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&archive).unwrap();
        let packed = encoder.finish().unwrap();
        for piece in [1, 100, 5000, packed.len()] {
            assert_eq!(heard(Framing::Length(0), &packed, piece), ["a:1"]);
        }
        assert_eq!(heard(Framing::Length(0), &packed[..packed.len() / 2], 100), [""; 0]);
    }

    #[test]
    fn what_is_no_archive_is_left_alone() {
        let compressed: Vec<u8> =
            [0x1f, 0x8b, 8, 0].into_iter().chain((0..=255).cycle().take(5000)).collect();
        assert_eq!(heard(Framing::Length(0), &compressed, 100), [""; 0]);
        assert_eq!(heard(Framing::Length(0), &[0; 2048], 100), [""; 0]);
    }
}
