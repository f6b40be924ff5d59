//! The providers of this program: one line each.

use creel_model::backend::Backends;
use creel_model::provider::{ProviderName, UnknownName};

/// All providers. A workflow that names none gets a process sandbox, which needs nothing installed.
pub(crate) const BACKENDS: Backends = Backends::new(
    &[&creel_docker::DockerBackend, &creel_daytona::DaytonaBackend, &creel_process::ProcessBackend],
    creel_process::NAME,
);

/// Parses the name of a provider on the command line.
pub(crate) fn parse_name(text: &str) -> Result<ProviderName, UnknownName> {
    BACKENDS.named(text)
}

/// Returns the help text of a flag that selects providers.
pub(crate) fn provider_help() -> String {
    let names = BACKENDS.names().into_iter().map(ProviderName::name);
    format!("Only resources of this provider: {}", names.collect::<Vec<_>>().join(", "))
}
