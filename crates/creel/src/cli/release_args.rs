//! The flags about how things are released, shared by sweep, apply and rm.

use std::time::Duration;

use clap::Args;
use creel_core::provider::ErrorClass;
use creel_core::reap::ReapOptions;

use crate::app::App;
use crate::output::Failure;
use crate::shutdown;

/// How things are released
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Release")]
pub(crate) struct ReleaseArgs {
    /// Ask running things to stop, and wait this long before killing (default: kill at once)
    #[arg(long, value_name = "TIME", value_parser = creel_core::duration::parse)]
    stop_timeout: Option<Duration>,
    /// Start nothing more after the first failure
    #[arg(long)]
    fail_fast: bool,
    /// How often a failed call is tried again (default 3)
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// The wait before the first retry (default 2s); each later one is twice as long
    #[arg(long, value_name = "TIME", value_parser = creel_core::duration::parse)]
    retry_delay: Option<Duration>,
    /// The limit for all tries of one release together (default 30s)
    #[arg(long, value_name = "TIME", value_parser = creel_core::duration::parse)]
    retry_deadline: Option<Duration>,
    /// Another number of retries for one class of error: throttled=9, in_use=2
    #[arg(long, value_name = "CLASS=N", value_parser = class_retries)]
    retry: Vec<(ErrorClass, u32)>,
    /// How many releases at once (default: adapts to the provider)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,
}

fn class_retries(text: &str) -> Result<(ErrorClass, u32), String> {
    let (class, retries) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not of the form CLASS=N"))?;
    let class = class.parse::<ErrorClass>().map_err(|error| error.to_string())?;
    let retries = retries.parse().map_err(|_| format!("`{retries}` is not a number"))?;
    Ok((class, retries))
}

impl ReleaseArgs {
    /// Lays the flags on top of the settings, and listens for Ctrl-C from here on.
    pub(crate) fn options(&self, app: &App) -> Result<ReapOptions, Failure> {
        let mut options = app.reap_options();
        options.stop_timeout = self.stop_timeout;
        options.fail_fast = self.fail_fast;
        if let Some(concurrency) = self.concurrency {
            options.concurrency = Some(usize::from(concurrency));
        }
        let retry = &mut options.retry;
        retry.retries = self.retries.unwrap_or(retry.retries);
        retry.initial = self.retry_delay.unwrap_or(retry.initial);
        retry.deadline = self.retry_deadline.unwrap_or(retry.deadline);
        retry.class.extend(self.retry.iter().copied());
        options.cancel = shutdown::cancel_on_signal(&app.printer)
            .map_err(|error| Failure::internal("cannot listen for signals", &error))?;
        Ok(options)
    }
}
