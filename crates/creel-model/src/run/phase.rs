//! Phases: the stages of a run.

crate::named_enum! {
    /// The phase of a run.
    pub enum Phase: "phase" {
        /// Waits for a driver.
        Queued = "queued",
        /// The sandbox is being created.
        Provisioning = "provisioning",
        /// The checklist is running.
        Bootstrapping = "bootstrapping",
        /// Everything is in place, and the bridge and the agent may start.
        Ready = "ready",
        /// The agent works.
        Running = "running",
        /// A turn failed and is retried.
        Retrying = "retrying",
        /// The agent waits for a user.
        AwaitingInput = "awaiting_input",
        /// A rule of the workflow holds the run until a user resumes it.
        Paused = "paused",
        /// All its resources are being released.
        Releasing = "releasing",
        /// The run did what it should.
        Succeeded = "succeeded",
        /// The run failed, and the cause is recorded.
        Failed = "failed",
        /// A user cancelled the run.
        Cancelled = "cancelled",
    }
}

impl Phase {
    /// Returns whether only another attempt can follow.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Returns whether the agent is running or waiting.
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Retrying | Self::AwaitingInput | Self::Paused)
    }

    /// Returns whether another phase may follow this one within an attempt.
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Queued, Self::Provisioning | Self::Bootstrapping)
            | (Self::Provisioning, Self::Bootstrapping)
            | (Self::Bootstrapping, Self::Ready)
            | (Self::Ready, Self::Running)
            | (Self::Releasing, Self::Succeeded | Self::Failed | Self::Cancelled) => true,
            // A driver that resumes a run determines the state of the agent again.
            (from, to) if from.is_active() && to.is_active() => true,
            (from, Self::Releasing) => !from.is_final() && !matches!(from, Self::Releasing),
            _ => false,
        }
    }
}

crate::named_enum! {
    /// Whether the sandbox can be reached.
    ///
    /// This is independent of the phase and says nothing about the cause.
    #[derive(Default)]
    pub enum Connection: "connection" {
        /// There is nothing to connect to yet, or nothing any more.
        #[default]
        None = "none",
        /// Events arrive.
        Connected = "connected",
        /// The stream broke and is being re-established.
        Reconnecting = "reconnecting",
        /// No sign of life for three heartbeats.
        Offline = "offline",
    }
}
