//! The release flags, shared by `sweep`, `apply` and `rm`.

use std::time::Duration;

use clap::Args;
use creel_core::reap::ReapOptions;
use creel_model::provider::ErrorClass;

use crate::app::App;
use crate::output::Failure;
use crate::shutdown;

/// Options for releases
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Release")]
pub(crate) struct ReleaseArgs {
    /// Stop running resources, and wait this long before killing them (default: kill immediately)
    #[arg(long, value_name = "TIME", value_parser = creel_model::duration::parse)]
    stop_timeout: Option<Duration>,
    /// Stop after the first failure
    #[arg(long)]
    fail_fast: bool,
    /// Retry a failed call this many times (default 3)
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Wait this long before the first retry, doubling each time (default 2s)
    #[arg(long, value_name = "TIME", value_parser = creel_model::duration::parse)]
    retry_delay: Option<Duration>,
    /// Limit the total time of one release (default 30s; directories get 10 minutes more)
    #[arg(long, value_name = "TIME", value_parser = creel_model::duration::parse)]
    retry_deadline: Option<Duration>,
    /// Set the retries for one error class: throttled=9, in_use=2
    #[arg(long, value_name = "CLASS=N", value_parser = class_retries)]
    retry: Vec<(ErrorClass, u32)>,
    /// Run this many releases at once (default: adapts to the provider)
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
    /// Applies the flags on top of the settings, and handles Ctrl-C from now on.
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
