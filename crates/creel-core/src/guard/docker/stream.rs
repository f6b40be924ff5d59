//! Bytes between a client and the engine, passed on as they come.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What a connection begins with: most carry little, and there may be hundreds.
const FIRST_BUFFER: usize = 4 * 1024;
/// Larger ones brought nothing in measurements.
const BUFFER: usize = 64 * 1024;
/// How long a client may go on talking to an engine that has closed the connection.
const FAREWELL: Duration = Duration::from_secs(5);

/// Sees what one side sends before the other does.
pub(super) trait Foresight: Send {
    /// Sees the next bytes; they are passed on when it has returned.
    fn foresee(&mut self, bytes: &[u8]) -> impl Future<Output = ()> + Send;
}

/// Nobody looks.
impl Foresight for () {
    async fn foresee(&mut self, _: &[u8]) {}
}

/// Copies both ways until both sides have ended, passing the end of each side on.
pub(super) async fn pass<C, E>(
    client: C,
    engine: E,
    mut requests: impl Foresight,
    mut answers: impl Foresight,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    E: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_engine, mut to_engine) = tokio::io::split(engine);
    let up = async {
        // An engine that takes no more may still have something to say.
        let _ = copy(&mut from_client, &mut to_engine, &mut requests).await;
        let _ = to_engine.shutdown().await;
    };
    let down = async {
        let copied = copy(&mut from_engine, &mut to_client, &mut answers).await;
        // A client that is gone needs no farewell.
        let _ = to_client.shutdown().await;
        copied
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
        // Not dropped at once: closing on unread bytes could cost the client the answer.
        let _ = timeout(FAREWELL, up).await;
    }
    copied
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    witness: &mut impl Foresight,
) -> io::Result<()> {
    let mut buffer = vec![0; FIRST_BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        witness.foresee(&buffer[..count]).await;
        to.write_all(&buffer[..count]).await?;
        if count == buffer.len() && count < BUFFER {
            buffer.resize(count * 4, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// Counts the bytes that it sees.
    struct Count<'a>(&'a mut usize);

    impl Foresight for Count<'_> {
        async fn foresee(&mut self, bytes: &[u8]) {
            *self.0 += bytes.len();
        }
    }

    #[tokio::test]
    async fn the_end_of_one_side_leaves_the_other_going() {
        let (client, ours) = duplex(64);
        let (theirs, mut engine) = duplex(64);
        let (mut from_gate, mut to_gate) = tokio::io::split(client);
        let ask = async {
            to_gate.write_all(b"question").await.unwrap();
            to_gate.shutdown().await.unwrap();
        };
        let answer = async {
            let mut question = vec![0; 8];
            engine.read_exact(&mut question).await.unwrap();
            assert_eq!(
                (engine.read(&mut [0]).await.unwrap(), &question[..]),
                (0, &b"question"[..])
            );
            engine.write_all(&[b'x'; 100_000]).await.unwrap();
            drop(engine);
        };
        let mut heard = Vec::new();
        let listen = async { from_gate.read_to_end(&mut heard).await.unwrap() };
        let mut observed = 0;
        let passed = pass(ours, theirs, (), Count(&mut observed));
        let (_, _, length, passed) = tokio::join!(ask, answer, listen, passed);
        passed.unwrap();
        assert_eq!((length, observed), (100_000, 100_000));
    }
}
