//! Signals: once means finish what is under way, twice means stop at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::output::{Exit, Printer};

/// Hears the signals that ask a process to end.
#[derive(Debug)]
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Shutdown {
    /// Starts to listen; from here on these signals no longer kill the process.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// Cancels the token at the first signal, and ends the process at the second.
pub(crate) fn cancel_on_signal(printer: &Printer) -> std::io::Result<CancellationToken> {
    let mut shutdown = Shutdown::listen()?;
    let (cancel, printer) = (CancellationToken::new(), printer.clone());
    let token = cancel.clone();
    creel_core::task::background(async move {
        shutdown.asked().await;
        printer.say("interrupted: finishing what is under way; press Ctrl-C again to stop at once");
        token.cancel();
        shutdown.asked().await;
        exit_at_once();
    });
    Ok(cancel)
}

/// Ends the process without another word; the ledger covers what was under way.
#[expect(clippy::disallowed_methods, reason = "the second signal must not wait for anything")]
pub(crate) fn exit_at_once() -> ! {
    std::process::exit(i32::from(Exit::Interrupted.code()))
}
