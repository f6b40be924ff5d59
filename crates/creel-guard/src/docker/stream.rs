//! Forwards bytes between a client and the engine as they arrive.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The initial buffer size. Most connections carry little, and there may be hundreds.
const FIRST_BUFFER: usize = 4 * 1024;
/// The maximum buffer size. Larger ones brought nothing in measurements.
const BUFFER: usize = 64 * 1024;
/// How long a client may keep sending to an engine that has closed the connection.
const FAREWELL: Duration = Duration::from_secs(5);

/// Receives what one side sends before the other side does.
pub(super) trait ChunkHook: Send {
    /// Receives the next bytes. They are forwarded when it returns.
    fn before_chunk(&mut self, bytes: &[u8]) -> impl Future<Output = ()> + Send;
}

/// Ignores all bytes.
impl ChunkHook for () {
    async fn before_chunk(&mut self, _: &[u8]) {}
}

/// When a connection is cut off, and what happens to the rest of its response.
pub(super) struct Cutoff<'a> {
    /// Cuts the connection off when it is cancelled. A client that accepts no more bytes does so
    /// as well.
    pub(super) stop: &'a CancellationToken,
    /// How long the hook still receives the engine's response after that. The engine notices that
    /// its client is gone, stops the work and reports what it created by then.
    pub(super) drain_for: Duration,
}

/// How copying in one direction ended.
enum CopyEnd {
    /// The stream ended.
    Complete,
    /// The receiver accepts no more bytes, or the connection was cut off.
    Unread(io::Result<()>),
    /// Reading from the sender failed.
    Broken(io::Error),
}

/// Copies in both directions until both sides have ended, and forwards the end of each side.
pub(super) async fn pass<C, E>(
    client: C,
    engine: E,
    mut requests: impl ChunkHook,
    mut responses: impl ChunkHook,
    cutoff: Cutoff<'_>,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    E: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_engine, mut to_engine) = tokio::io::split(engine);
    let up = async {
        // An engine that accepts no more may still send a response.
        copy(&mut from_client, &mut to_engine, &mut requests, cutoff.stop).await;
        let _ = to_engine.shutdown().await;
    };
    let down = async {
        let copied = copy(&mut from_engine, &mut to_client, &mut responses, cutoff.stop).await;
        // This fails if the client is gone, which does not matter.
        let _ = to_client.shutdown().await;
        match copied {
            CopyEnd::Complete => Ok(()),
            CopyEnd::Broken(error) => Err(error),
            CopyEnd::Unread(result) => {
                // Whether the engine ended in time shows in what the hook received.
                let _ = timeout(cutoff.drain_for, drain(&mut from_engine, &mut responses)).await;
                result
            }
        }
    };
    tokio::pin!(up, down);
    let mut is_up_over = false;
    let copied = loop {
        tokio::select! {
            () = &mut up, if !is_up_over => is_up_over = true,
            copied = &mut down => break copied,
        }
    };
    if !is_up_over {
        // Not dropped at once: closing with unread bytes could cost the client the response.
        let _ = timeout(FAREWELL, up).await;
    }
    copied
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    hook: &mut impl ChunkHook,
    stop: &CancellationToken,
) -> CopyEnd {
    let mut buffer = vec![0; FIRST_BUFFER];
    loop {
        let count = tokio::select! {
            count = from.read(&mut buffer) => count,
            () = stop.cancelled() => return CopyEnd::Unread(Ok(())),
        };
        let count = match count {
            Ok(0) => return CopyEnd::Complete,
            Ok(count) => count,
            Err(error) => return CopyEnd::Broken(error),
        };
        // Not cancelled in the middle: the hook may be writing to the ledger.
        hook.before_chunk(&buffer[..count]).await;
        let written = tokio::select! {
            written = to.write_all(&buffer[..count]) => written,
            () = stop.cancelled() => return CopyEnd::Unread(Ok(())),
        };
        if written.is_err() {
            return CopyEnd::Unread(written);
        }
        if count == buffer.len() && count < BUFFER {
            buffer.resize(count * 4, 0);
        }
    }
}

/// Reads to the end, and passes everything to the hook only.
async fn drain(from: &mut (impl AsyncRead + Unpin), hook: &mut impl ChunkHook) {
    let mut buffer = vec![0; FIRST_BUFFER];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        hook.before_chunk(&buffer[..count]).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// Counts the bytes it receives.
    struct Count<'a>(&'a mut usize);

    impl ChunkHook for Count<'_> {
        async fn before_chunk(&mut self, bytes: &[u8]) {
            *self.0 += bytes.len();
        }
    }

    #[tokio::test]
    async fn the_end_of_one_direction_leaves_the_other_open() {
        let (client, ours) = duplex(64);
        let (theirs, mut engine) = duplex(64);
        let (mut from_gate, mut to_gate) = tokio::io::split(client);
        let request = async {
            to_gate.write_all(b"question").await.unwrap();
            to_gate.shutdown().await.unwrap();
        };
        let respond = async {
            let mut question = vec![0; 8];
            engine.read_exact(&mut question).await.unwrap();
            assert_eq!(
                (engine.read(&mut [0]).await.unwrap(), &question[..]),
                (0, &b"question"[..])
            );
            engine.write_all(&[b'x'; 100_000]).await.unwrap();
            drop(engine);
        };
        let mut received = Vec::new();
        let listen = async { from_gate.read_to_end(&mut received).await.unwrap() };
        let mut observed = 0;
        let stop = CancellationToken::new();
        let cutoff = Cutoff { stop: &stop, drain_for: Duration::ZERO };
        let passed = pass(ours, theirs, (), Count(&mut observed), cutoff);
        let (_, _, length, passed) = tokio::join!(request, respond, listen, passed);
        passed.unwrap();
        assert_eq!((length, observed), (100_000, 100_000));
    }

    /// The client dies or the guard ends. The engine notices, and the hook receives the rest.
    #[tokio::test]
    async fn the_hook_receives_the_response_after_the_client_is_gone() {
        for is_stopped in [false, true] {
            let (client, ours) = duplex(64);
            let (theirs, mut engine) = duplex(64);
            let stop = CancellationToken::new();
            let respond = async {
                engine.write_all(b"begun").await.unwrap();
                assert_eq!(
                    engine.read(&mut [0]).await.unwrap(),
                    0,
                    "the engine does not see the end"
                );
                engine.write_all(&[b'x'; 1000]).await.unwrap();
                drop(engine);
            };
            let leave = async {
                let mut client = client;
                client.read_exact(&mut [0; 5]).await.unwrap();
                if is_stopped {
                    stop.cancel();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let mut observed = 0;
            let cutoff = Cutoff { stop: &stop, drain_for: Duration::from_secs(60) };
            let passed = pass(ours, theirs, (), Count(&mut observed), cutoff);
            let ((), (), _) = tokio::join!(respond, leave, passed);
            assert_eq!(observed, 1005, "stopped: {is_stopped}");
        }
    }
}
