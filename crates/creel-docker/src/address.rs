//! The address of an engine, as written in `DOCKER_HOST`.

use std::fmt;
use std::path::{Path, PathBuf};

/// The port of an engine without TLS.
const PLAIN_PORT: u16 = 2375;
/// The port of an engine with TLS.
const TLS_PORT: u16 = 2376;

/// The address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port without TLS.
    Tcp {
        /// The name or IP address of the host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A TCP port with TLS.
    Tls {
        /// The name or IP address of the host, which must match its certificate.
        host: String,
        /// The port.
        port: u16,
        /// The authorities to trust and the client certificate.
        tls: TlsFiles,
    },
    /// An engine behind `ssh`, reached by `docker system dial-stdio` on the remote host.
    Ssh(SshTarget),
}

/// The certificates of a TLS connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to trust. `None` means those of this machine.
    pub ca: Option<PathBuf>,
    /// Our certificate.
    pub cert: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
    /// Whether the engine's certificate is verified.
    pub verify: bool,
}

impl TlsFiles {
    /// Uses the files with their usual names, as far as they exist.
    pub fn in_directory(directory: Option<&Path>, verify: bool) -> Self {
        let file = |name: &str| {
            directory.map(|directory| directory.join(name)).filter(|path| path.exists())
        };
        Self { ca: file("ca.pem"), cert: file("cert.pem"), key: file("key.pem"), verify }
    }

    /// Returns whether there is any file.
    pub(super) fn any(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }
}

/// The target of an `ssh` connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshTarget {
    /// The remote user. `None` leaves it to the configuration of `ssh`.
    pub user: Option<String>,
    /// The host, or an alias in the configuration of `ssh`.
    pub host: String,
    /// The port. `None` leaves it to the configuration of `ssh`.
    pub port: Option<u16>,
    /// The engine's socket on the remote host. `None` means its default.
    pub socket: Option<String>,
}

/// A text that is not a valid address of an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address of a Docker Engine: {reason}")]
pub struct InvalidAddress {
    text: String,
    reason: &'static str,
}

impl Address {
    /// Parses an address. TCP uses TLS if files for it are given.
    ///
    /// # Errors
    ///
    /// Fails with the reason when the text is not a valid address.
    pub fn parse(text: &str, tls: Option<TlsFiles>) -> Result<Self, InvalidAddress> {
        let invalid = |reason| InvalidAddress { text: without_user(text), reason };
        let (scheme, rest) = text.split_once("://").unwrap_or(("tcp", text));
        match scheme {
            "unix" => unix(rest).map_err(invalid),
            "tcp" | "http" => tcp(rest, tls).map_err(invalid),
            "https" => {
                let tls = tls.unwrap_or(TlsFiles { verify: true, ..TlsFiles::default() });
                tcp(rest, Some(tls)).map_err(invalid)
            }
            "ssh" => ssh(rest).map(Self::Ssh).map_err(invalid),
            _ => Err(invalid("it must start with unix://, tcp://, https:// or ssh://")),
        }
    }
}

/// Removes the user from an address, which may include a password.
fn without_user(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}…{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    }
}

fn unix(path: &str) -> Result<Address, &'static str> {
    if !path.starts_with('/') {
        return Err("a unix socket needs an absolute path, as in unix:///var/run/docker.sock");
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

fn tcp(rest: &str, tls: Option<TlsFiles>) -> Result<Address, &'static str> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '@', '?', '#']) {
        return Err("a TCP address is a host and a port, as in tcp://127.0.0.1:2375");
    }
    let (host, port) = host_and_port(rest)?;
    Ok(match tls {
        None => Address::Tcp { host, port: port.unwrap_or(PLAIN_PORT) },
        Some(tls) => Address::Tls { host, port: port.unwrap_or(TLS_PORT), tls },
    })
}

fn ssh(rest: &str) -> Result<SshTarget, &'static str> {
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    if user.is_some_and(|user| user.is_empty() || user.contains(':')) {
        return Err("ssh takes a user without a password, as in ssh://user@host:22");
    }
    let (host, port) = host_and_port(place)?;
    let is_option = |text: &str| text.starts_with('-');
    if is_option(&host) || user.is_some_and(is_option) {
        return Err("a host or user of ssh must not start with a dash");
    }
    let socket = Some(path).filter(|path| path.len() > 1).map(str::to_owned);
    Ok(SshTarget { user: user.map(str::to_owned), host, port, socket })
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
fn host_and_port(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err("only a port may follow the closing bracket"),
            }
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 host needs brackets, as in [::1]:2375");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("the host is missing");
    }
    let port = port
        .map(|port| port.parse::<u16>().map_err(|_| "the port is not a number up to 65535"))
        .transpose()?;
    Ok((host.to_owned(), port))
}

/// Puts an IPv6 host into brackets.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => {
                write!(f, "tcp://{}:{port}", bracketed(host))
            }
            Self::Ssh(target) => target.fmt(f),
        }
    }
}

impl fmt::Display for SshTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&bracketed(&self.host))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.socket.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_is_written() {
        for (text, printed) in [
            ("unix:///var/run/docker.sock", "unix:///var/run/docker.sock"),
            ("tcp://far:2375", "tcp://far:2375"),
            ("tcp://far/", "tcp://far:2375"),
            ("http://far:80", "tcp://far:80"),
            ("https://far", "tcp://far:2376"),
            ("127.0.0.1:99", "tcp://127.0.0.1:99"),
            ("tcp://[::1]:99", "tcp://[::1]:99"),
            ("ssh://far", "ssh://far"),
            ("ssh://me@far:22", "ssh://me@far:22"),
            ("ssh://me@[::1]:22/run/docker.sock", "ssh://me@[::1]:22/run/docker.sock"),
        ] {
            assert_eq!(Address::parse(text, None).unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn a_malformed_address_explains_the_error() {
        for (text, reason) in [
            ("unix://docker.sock", "a unix socket needs an absolute path"),
            ("npipe:////./pipe/docker_engine", "it must start with"),
            ("tcp://", "the host is missing"),
            ("tcp://far:many", "the port is not a number"),
            ("tcp://far:2375/v1", "a TCP address is a host and a port"),
            ("tcp://::1:2375", "an IPv6 host needs brackets"),
            ("ssh://", "the host is missing"),
            ("ssh://me:secret@far", "ssh takes a user without a password"),
            ("ssh://-oProxyCommand=x", "must not start with a dash"),
        ] {
            let error = Address::parse(text, None).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
