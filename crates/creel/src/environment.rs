//! The environment of this process. Backends read their own variables from it.

use std::env;
use std::path::PathBuf;

use creel_model::backend::Variables;
use creel_model::crashpoint;

use crate::output::Failure;

/// The directory for state; the default is the user's state directory.
pub(crate) const CREEL_HOME: &str = "CREEL_HOME";
/// Which log lines are shown, in `tracing` filter syntax; takes precedence over `-v` and `-q`.
pub(crate) const CREEL_LOG: &str = "CREEL_LOG";
/// For tests: the point at which this process kills itself.
pub(crate) const CREEL_CRASHPOINT: &str = "CREEL_CRASHPOINT";
/// For tests: the file that proves that the crash happened.
pub(crate) const CREEL_CRASHPOINT_MARK: &str = "CREEL_CRASHPOINT_MARK";

/// The values from the environment.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// The directory for state.
    pub(crate) home: PathBuf,
    /// The working directory, where it can be determined.
    pub(crate) working_directory: Option<PathBuf>,
}

impl Environment {
    /// Reads the environment, once.
    pub(crate) fn read() -> Result<Self, Failure> {
        arm_crashpoint()?;
        Ok(Self { home: state_directory()?, working_directory: env::current_dir().ok() })
    }
}

/// Returns the filter of log lines, if one is set.
pub(crate) fn log_filter() -> Option<String> {
    text(CREEL_LOG)
}

/// Returns a variable that a workflow refers to.
pub(crate) fn referred_to(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn state_directory() -> Result<PathBuf, Failure> {
    let home = path(CREEL_HOME)
        .or_else(|| Some(path("XDG_STATE_HOME")?.join("creel")))
        .or_else(|| Some(path("HOME")?.join(".local/state/creel")))
        .ok_or_else(|| {
            Failure::usage("there is no home directory to keep state in")
                .hint("set CREEL_HOME to a directory that this user may write")
        })?;
    std::path::absolute(&home).map_err(|error| Failure::internal("cannot find CREEL_HOME", &error))
}

/// Returns the variables that backends read.
pub(crate) fn variables() -> Variables {
    Variables::new(|name| env::var_os(name))
}

/// Returns the variables with which clients reach these hosts without a proxy.
///
/// Hosts that are exempt already stay exempt.
pub(crate) fn reached_directly(hosts: &[&str]) -> Vec<(&'static str, String)> {
    let [upper, lower] = ["NO_PROXY", "no_proxy"].map(text);
    let either = upper.clone().or_else(|| lower.clone());
    let both = [("NO_PROXY", upper), ("no_proxy", lower)];
    let with = |known: Option<String>| with_hosts(known.or_else(|| either.clone()), hosts);
    both.into_iter().map(|(name, known)| (name, with(known))).collect()
}

fn with_hosts(known: Option<String>, hosts: &[&str]) -> String {
    match known {
        // A star means all hosts, but only on its own.
        Some(all) if all.trim() == "*" => all,
        Some(some) => format!("{some},{}", hosts.join(",")),
        None => hosts.join(","),
    }
}

/// Returns the variables in use from which clients read the address of Daytona.
pub(crate) fn daytona_addresses() -> Vec<&'static str> {
    let old = text("DAYTONA_SERVER_URL").map(|_| "DAYTONA_SERVER_URL");
    ["DAYTONA_API_URL"].into_iter().chain(old).collect()
}

fn arm_crashpoint() -> Result<(), Failure> {
    if let Some(name) = text(CREEL_CRASHPOINT) {
        let (point, crash) =
            crashpoint::parse(&name).map_err(|error| Failure::usage(&error.to_string()))?;
        crashpoint::arm(point, crash, path(CREEL_CRASHPOINT_MARK));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_added_to_those_that_need_no_proxy() {
        let hosts = ["127.0.0.1", "localhost"];
        let with = |known: &str| with_hosts(Some(known.to_owned()), &hosts);
        assert_eq!(with_hosts(None, &hosts), "127.0.0.1,localhost");
        assert_eq!(with("a.example"), "a.example,127.0.0.1,localhost");
        assert_eq!(with("*"), "*");
    }
}
