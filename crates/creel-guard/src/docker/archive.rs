//! Reads the archive that a load sends while it streams to the engine.
//!
//! The response to a load says what it makes, but a response can be lost. The archive itself lists
//! its references, mostly at its end, so they are recorded before the engine has all of it. A gzip
//! archive is decompressed in small parts as it streams. An archive with another compression is
//! not inspected: then only the response names the references.

use std::fmt;
use std::io::Write;

use flate2::write::MultiGzDecoder;
use serde::Deserialize;

use super::chunked::Dechunker;
use super::head::Framing;
use super::response::RequestReader;

/// The length of a tar header, and the unit to which contents are padded.
const BLOCK: usize = 512;
/// The name of the entry that lists the references.
const LIST: &[u8] = b"manifest.json";
/// The longest list that is read.
const LIST_LIMIT: u64 = 1 << 20;

/// The first bytes of every gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How many bytes are decompressed at a time. They may expand a thousandfold.
const UNPACK_SIZE: usize = 512;

/// Finds the references in an archive.
#[derive(Debug)]
pub(super) struct ArchiveRequests {
    framing: Framing,
    chunks: Dechunker,
    compression: Compression,
    state: ArchiveState,
}

/// The compression of an archive.
enum Compression {
    /// Not known yet. These are the bytes so far.
    Unknown(Vec<u8>),
    /// Not compressed.
    Plain,
    /// Compressed with gzip.
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

impl fmt::Debug for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown(_) => "Unknown",
            Self::Plain => "Plain",
            Self::Gzip(_) => "Gzip",
        })
    }
}

/// The part of the archive to which the next byte belongs.
#[derive(Debug)]
enum ArchiveState {
    /// A header. These are its bytes so far.
    Header(Vec<u8>),
    /// Contents that are skipped, with the number of bytes left.
    Contents(u64),
    /// The list, with its bytes so far and the number of bytes left.
    List(Vec<u8>, u64),
    /// Nothing more is to be found.
    Over,
}

impl ArchiveRequests {
    /// Prepares to read a body with this framing.
    pub(super) fn of(framing: Framing) -> Self {
        let (chunks, compression) = (Dechunker::default(), Compression::Unknown(Vec::new()));
        Self { framing, chunks, compression, state: ArchiveState::Header(Vec::new()) }
    }

    /// Consumes the next bytes of the body. Returns the references once they are known.
    fn open(&mut self, bytes: &[u8]) -> Vec<String> {
        match &mut self.compression {
            Compression::Plain => self.consume(bytes),
            Compression::Gzip(_) => self.unpack(bytes),
            Compression::Unknown(begun) => {
                begun.extend_from_slice(bytes);
                if begun.len() < GZIP.len() {
                    return Vec::new();
                }
                let begun = std::mem::take(begun);
                self.compression = match begun.starts_with(&GZIP) {
                    true => Compression::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
                    false => Compression::Plain,
                };
                self.open(&begun)
            }
        }
    }

    /// Decompresses bytes and consumes the output.
    fn unpack(&mut self, bytes: &[u8]) -> Vec<String> {
        for part in bytes.chunks(UNPACK_SIZE) {
            let Compression::Gzip(decoder) = &mut self.compression else { return Vec::new() };
            // Without the flush, the decoder would hold the end of the archive back.
            if decoder.write_all(part).and_then(|()| decoder.flush()).is_err() {
                // The engine will report what is wrong with it.
                self.state = ArchiveState::Over;
                return Vec::new();
            }
            let unpacked = std::mem::take(decoder.get_mut());
            let references = self.consume(&unpacked);
            if !references.is_empty() {
                return references;
            }
        }
        Vec::new()
    }

    /// Consumes the next bytes of the archive. Returns the references once they are known.
    fn consume(&mut self, mut bytes: &[u8]) -> Vec<String> {
        while !bytes.is_empty() {
            let wanted = match &self.state {
                ArchiveState::Header(header) => (BLOCK - header.len()) as u64,
                ArchiveState::Contents(left) | ArchiveState::List(_, left) => *left,
                ArchiveState::Over => return Vec::new(),
            };
            let count = bytes.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
            let (part, rest) = bytes.split_at(count);
            bytes = rest;
            let references = self.step(part);
            if !references.is_empty() {
                return references;
            }
        }
        Vec::new()
    }

    /// Consumes bytes of one part. They do not extend beyond it.
    fn step(&mut self, part: &[u8]) -> Vec<String> {
        let state = std::mem::replace(&mut self.state, ArchiveState::Over);
        self.state = match state {
            ArchiveState::Header(mut header) => {
                header.extend_from_slice(part);
                if header.len() < BLOCK {
                    ArchiveState::Header(header)
                } else {
                    after_header(&header)
                }
            }
            ArchiveState::Contents(left) => match left - part.len() as u64 {
                0 => ArchiveState::Header(Vec::new()),
                left => ArchiveState::Contents(left),
            },
            ArchiveState::List(mut text, left) => {
                text.extend_from_slice(part);
                match left - part.len() as u64 {
                    0 => return references_in(&text),
                    left => ArchiveState::List(text, left),
                }
            }
            ArchiveState::Over => ArchiveState::Over,
        };
        Vec::new()
    }
}

impl RequestReader for ArchiveRequests {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        if matches!(self.state, ArchiveState::Over) {
            return Vec::new();
        }
        if self.framing != Framing::Chunked {
            return self.open(bytes);
        }
        let mut data = Vec::new();
        self.chunks.feed(bytes, |part| data.extend_from_slice(part));
        self.open(&data)
    }
}

/// Returns the state that follows a header.
fn after_header(header: &[u8]) -> ArchiveState {
    let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let digits = std::str::from_utf8(&header[124..136]).unwrap_or_default();
    let digits = digits.trim_matches(|letter: char| letter == '\0' || letter == ' ');
    // Parsing fails at the end of an archive, in a compressed one, and for files of eight
    // gigabytes.
    let Ok(size) = u64::from_str_radix(digits, 8) else { return ArchiveState::Over };
    if name == LIST && size > 0 && size <= LIST_LIMIT {
        return ArchiveState::List(Vec::new(), size);
    }
    match size.next_multiple_of(BLOCK as u64) {
        0 => ArchiveState::Header(Vec::new()),
        padded => ArchiveState::Contents(padded),
    }
}

fn references_in(list: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct ArchiveImage {
        #[serde(default)]
        repo_tags: Option<Vec<String>>,
    }
    let images: Vec<ArchiveImage> = serde_json::from_slice(list).unwrap_or_default();
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

    fn found(framing: Framing, bytes: &[u8], size: usize) -> Vec<String> {
        let mut recorder = ArchiveRequests::of(framing);
        bytes.chunks(size).flat_map(|bytes| recorder.feed(bytes)).collect()
    }

    #[test]
    fn references_are_read_from_chunks_of_any_size() {
        let list = br#"[{"Config":"x","RepoTags":["a:1","b:2"]},{"RepoTags":null}]"#;
        // A file that only mentions such a list does not count.
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
        for size in [1, 100, 511, 512, 5000] {
            let length = Framing::Length(archive.len() as u64);
            assert_eq!(found(length, &archive, size), ["a:1", "b:2"]);
            assert_eq!(found(Framing::Chunked, &chunked, size), ["a:1", "b:2"]);
        }
        // One byte before its end the list is not forwarded, so the engine cannot have it.
        let end = archive.len() - 3 * BLOCK + list.len();
        assert_eq!(found(Framing::Length(0), &archive[..end - 1], 64), [""; 0]);
        assert_eq!(found(Framing::Length(0), &archive[..end], 64), ["a:1", "b:2"]);
    }

    #[test]
    fn a_gzip_archive_is_unpacked_and_half_of_one_yields_nothing() {
        let list = br#"[{"RepoTags":["a:1"]}]"#;
        let archive = [entry("layer.tar", &[0; 3_000_000]), entry("manifest.json", list)].concat();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&archive).unwrap();
        let packed = encoder.finish().unwrap();
        for size in [1, 100, 5000, packed.len()] {
            assert_eq!(found(Framing::Length(0), &packed, size), ["a:1"]);
        }
        assert_eq!(found(Framing::Length(0), &packed[..packed.len() / 2], 100), [""; 0]);
    }

    #[test]
    fn a_body_that_is_no_archive_is_ignored() {
        let compressed: Vec<u8> =
            [0x1f, 0x8b, 8, 0].into_iter().chain((0..=255).cycle().take(5000)).collect();
        assert_eq!(found(Framing::Length(0), &compressed, 100), [""; 0]);
        assert_eq!(found(Framing::Length(0), &[0; 2048], 100), [""; 0]);
    }
}
