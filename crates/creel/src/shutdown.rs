//! Signals: the first finishes what is under way, the second stops at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::output::{Exit, Printer};

/// A signal that requests the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    HangUp,
}

/// Receives the signals that request the end of the process.
#[derive(Debug)]
pub(crate) struct Shutdown {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Shutdown {
    /// Installs the handlers; from now on these signals no longer kill the process.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn requested(&mut self) {
        self.next().await;
    }

    /// Waits for the next signal and returns it.
    pub(crate) async fn next(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ShutdownSignal::Interrupt,
            _ = self.terminate.recv() => ShutdownSignal::Terminate,
            _ = self.hang_up.recv() => ShutdownSignal::HangUp,
        }
    }
}

/// Cancels the token at the first signal, and ends the process at the second.
pub(crate) fn cancel_on_signal(printer: &Printer) -> std::io::Result<CancellationToken> {
    let mut shutdown = Shutdown::listen()?;
    let (cancel, printer) = (CancellationToken::new(), printer.clone());
    let token = cancel.clone();
    creel_model::task::background(async move {
        shutdown.requested().await;
        printer.say("interrupted: finishing what is under way; press Ctrl-C again to stop at once");
        token.cancel();
        shutdown.requested().await;
        exit_at_once();
    });
    Ok(cancel)
}

/// Ends the process without further output; the ledger covers what was under way.
#[expect(clippy::disallowed_methods, reason = "the second signal must not wait for anything")]
pub(crate) fn exit_at_once() -> ! {
    std::process::exit(i32::from(Exit::Interrupted.code()))
}
