//! Reads one direction of an HTTP/2 connection that carries gRPC, without taking part in it.
//!
//! Frames are split by their headers, and messages by their length prefixes, so text inside a message
//! is never taken for a message. Only the streams that the caller follows are kept in memory. Input
//! that breaks the protocol ends the reading with an error; the bytes are forwarded all the same.
//!
//! ```text
//! bytes ─▶ FrameReader ─▶ frames ─▶ GrpcMessages (one per followed stream) ─▶ messages
//! ```

use std::io::Read;

use flate2::read::GzDecoder;

/// What a client sends before its first frame.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame's header.
const FRAME_HEADER: usize = 9;
/// The length of a message's prefix: whether it is compressed, and its length.
const MESSAGE_PREFIX: usize = 5;
/// The longest message that is read. BuildKit refuses longer ones too.
pub(super) const MESSAGE_LIMIT: usize = 16 << 20;

const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// Why a connection cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Http2Error {
    /// The client does not begin as every HTTP/2 client does.
    #[error("the client does not speak HTTP/2")]
    Preface,
    /// The padding of a frame is longer than the frame.
    #[error("a frame is shorter than its padding")]
    Padding,
    /// A header block is interrupted, or continued without a beginning.
    #[error("a header block is not continuous")]
    Continuation,
    /// A header block cannot be decompressed.
    #[error("a header block cannot be decoded")]
    Headers,
    /// A message is longer than any that is expected.
    #[error("a message is too long")]
    TooLong,
    /// More streams are open than any client needs.
    #[error("too many streams are open")]
    TooManyStreams,
    /// A message is compressed in an unknown way.
    #[error("a compressed message cannot be decoded")]
    Compression,
    /// A message does not have the form of its type.
    #[error("a message cannot be decoded")]
    Message,
}

/// The kind of a frame, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    Headers,
    Reset,
    Continuation,
    Other,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: FrameKind,
    pub(super) stream: u32,
    flags: u8,
    length: usize,
}

impl FrameHead {
    fn parse(bytes: [u8; FRAME_HEADER]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            kind: match kind {
                0x0 => FrameKind::Data,
                0x1 => FrameKind::Headers,
                0x3 => FrameKind::Reset,
                0x9 => FrameKind::Continuation,
                _ => FrameKind::Other,
            },
            // The highest bit is reserved.
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
            flags,
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
        }
    }

    /// Returns whether the sender sends nothing more on this stream.
    pub(super) fn ends_stream(&self) -> bool {
        let can_end = matches!(self.kind, FrameKind::Data | FrameKind::Headers);
        self.kind == FrameKind::Reset || can_end && self.flags & END_STREAM != 0
    }

    /// Returns whether a header block ends with this frame.
    pub(super) fn ends_headers(&self) -> bool {
        self.flags & END_HEADERS != 0
    }

    /// Returns the content of a frame without its padding and priority.
    fn content<'a>(&self, payload: &'a [u8]) -> Result<&'a [u8], Http2Error> {
        let mut content = payload;
        let may_pad = matches!(self.kind, FrameKind::Data | FrameKind::Headers);
        let mut padding = 0;
        if may_pad && self.flags & PADDED != 0 {
            let (first, rest) = payload.split_first().ok_or(Http2Error::Padding)?;
            (padding, content) = (usize::from(*first), rest);
        }
        if self.kind == FrameKind::Headers && self.flags & PRIORITY != 0 {
            content = content.get(5..).ok_or(Http2Error::Padding)?;
        }
        let length = content.len().checked_sub(padding).ok_or(Http2Error::Padding)?;
        Ok(&content[..length])
    }
}

/// Splits bytes into frames, wherever they are cut.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// The bytes of the current frame's header, and of its payload if it is wanted.
    pending: Vec<u8>,
    current: Option<CurrentFrame>,
}

#[derive(Debug, Clone, Copy)]
struct CurrentFrame {
    head: FrameHead,
    /// How many bytes of the payload are still to come.
    left: usize,
    is_wanted: bool,
}

/// Receives frames.
pub(super) trait FrameSink {
    /// Returns whether the content of this frame is needed.
    fn wants(&self, head: &FrameHead) -> bool;

    /// Receives a complete frame. The content is empty if it is not wanted.
    fn frame(&mut self, head: FrameHead, content: &[u8]) -> Result<(), Http2Error>;
}

impl FrameReader {
    /// Consumes the next bytes, and passes each frame on that is complete with them.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl FrameSink,
    ) -> Result<(), Http2Error> {
        loop {
            let mut frame = match self.current {
                Some(frame) => frame,
                None => {
                    let wanted = FRAME_HEADER - self.pending.len();
                    let (more, rest) = bytes.split_at(wanted.min(bytes.len()));
                    self.pending.extend_from_slice(more);
                    bytes = rest;
                    let Ok(header) = <[u8; FRAME_HEADER]>::try_from(self.pending.as_slice()) else {
                        return Ok(());
                    };
                    self.pending.clear();
                    let head = FrameHead::parse(header);
                    CurrentFrame { head, left: head.length, is_wanted: sink.wants(&head) }
                }
            };
            let (more, rest) = bytes.split_at(frame.left.min(bytes.len()));
            if frame.is_wanted {
                self.pending.extend_from_slice(more);
            }
            bytes = rest;
            frame.left -= more.len();
            if frame.left > 0 {
                self.current = Some(frame);
                return Ok(());
            }
            self.current = None;
            let payload = std::mem::take(&mut self.pending);
            let content = if frame.is_wanted { frame.head.content(&payload)? } else { &[] };
            sink.frame(frame.head, content)?;
        }
    }
}

/// Joins the data of one stream into messages.
#[derive(Debug, Default)]
pub(super) struct GrpcMessages {
    pending: Vec<u8>,
}

impl GrpcMessages {
    /// Returns how many bytes wait for the rest of their message.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Consumes the next data, and returns the messages that are complete with them.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Http2Error> {
        self.pending.extend_from_slice(data);
        let (mut messages, mut read, mut size) = (Vec::new(), 0, 0);
        while let [compressed, l0, l1, l2, l3, rest @ ..] = &self.pending[read..] {
            let length = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
            if length > MESSAGE_LIMIT {
                return Err(Http2Error::TooLong);
            }
            let Some(message) = rest.get(..length) else { break };
            let message = match compressed {
                0 => message.to_vec(),
                _ => decompressed(message)?,
            };
            // Small messages may become large, and many of them fit into one frame.
            size += message.len();
            if size > 2 * MESSAGE_LIMIT {
                return Err(Http2Error::TooLong);
            }
            messages.push(message);
            read += MESSAGE_PREFIX + length;
        }
        self.pending.drain(..read);
        Ok(messages)
    }
}

/// Decompresses a message. gzip is the only compression that gRPC libraries have in common.
fn decompressed(message: &[u8]) -> Result<Vec<u8>, Http2Error> {
    let mut text = Vec::new();
    let limit = MESSAGE_LIMIT as u64 + 1;
    let read = GzDecoder::new(message).take(limit).read_to_end(&mut text);
    read.map_err(|_| Http2Error::Compression)?;
    if text.len() > MESSAGE_LIMIT { Err(Http2Error::TooLong) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn messages_that_grow_when_they_are_decompressed_are_cut_off() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; MESSAGE_LIMIT]).unwrap();
        let message = encoder.finish().unwrap();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let framed = [&[1][..], &length, &message].concat();
        assert_eq!(GrpcMessages::default().feed(&framed.repeat(2)).unwrap().len(), 2);
        let many = GrpcMessages::default().feed(&framed.repeat(100));
        assert!(matches!(many, Err(Http2Error::TooLong)));
    }
}
