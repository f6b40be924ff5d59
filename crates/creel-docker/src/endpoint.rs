//! Resolves which Docker Engine to use.
//!
//! The rules are those of the Docker command line. `DOCKER_HOST` takes precedence over
//! `DOCKER_CONTEXT`, then the current context of the configuration file, then the default sockets
//! of engines. The caller passes the environment in; nothing here reads it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::address::{Address, InvalidAddress, TlsFiles};

/// The context that means the default socket.
const DEFAULT_CONTEXT: &str = "default";

/// The part of the environment that selects an engine.
#[derive(Debug, Clone, Default)]
pub struct DockerEnvironment {
    /// `DOCKER_HOST`: an address.
    pub docker_host: Option<String>,
    /// `DOCKER_CONTEXT`: the name of a context.
    pub docker_context: Option<String>,
    /// `DOCKER_TLS_VERIFY`: any non-empty text enables TLS.
    pub docker_tls_verify: Option<String>,
    /// `DOCKER_CERT_PATH`: the directory of `ca.pem`, `cert.pem`, `key.pem`.
    pub docker_cert_path: Option<PathBuf>,
    /// `DOCKER_CONFIG`: the directory of `config.json` and the contexts.
    pub docker_config: Option<PathBuf>,
    /// The home directory, whose `.docker` is the default of `DOCKER_CONFIG`.
    pub home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`: where engines without root rights put their sockets.
    pub xdg_runtime_dir: Option<PathBuf>,
}

/// An engine, and what selected it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The address of the engine.
    pub address: Address,
    /// What selected the engine.
    pub origin: EndpointOrigin,
}

/// What selected an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointOrigin {
    /// An explicit address, as in `DOCKER_HOST`.
    Host,
    /// The context of this name.
    Context(String),
    /// Nothing selected one, but a default socket exists.
    DefaultSocket,
}

/// An error in how the environment selects an engine.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// An address is malformed.
    #[error("{place} names no engine we can reach")]
    Address {
        /// Where the address was set.
        place: String,
        /// What is wrong with it.
        #[source]
        source: InvalidAddress,
    },
    /// A context does not exist.
    #[error("the Docker context `{name}` does not exist in {}", .directory.display())]
    NoSuchContext {
        /// The context's name.
        name: String,
        /// The directory that was searched.
        directory: PathBuf,
    },
    /// A context has no Docker endpoint.
    #[error("the Docker context `{name}` has no endpoint of the type docker")]
    NoDockerEndpoint {
        /// The context's name.
        name: String,
    },
    /// There is no configuration directory in which to find a context.
    #[error("the Docker context `{name}` cannot be looked up: no home directory is known")]
    NoConfiguration {
        /// The context's name.
        name: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{} is not valid JSON of its sort", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Endpoint {
    /// Parses an explicit address, without TLS unless it starts with `https://`.
    ///
    /// # Errors
    ///
    /// Fails when the address is malformed.
    pub fn explicit(address: &str) -> Result<Self, EndpointError> {
        let address = Address::parse(address, None)
            .map_err(|source| EndpointError::Address { place: "the address".to_owned(), source })?;
        Ok(Self { address, origin: EndpointOrigin::Host })
    }
}

impl DockerEnvironment {
    /// Resolves the selected engine. `None` means that none is configured.
    ///
    /// # Errors
    ///
    /// Fails when the selection is invalid: a malformed address, or a context that does not exist.
    pub fn resolve(&self) -> Result<Option<Endpoint>, EndpointError> {
        self.resolve_among(&self.default_sockets())
    }

    fn resolve_among(&self, sockets: &[PathBuf]) -> Result<Option<Endpoint>, EndpointError> {
        if let Some(host) = given(&self.docker_host) {
            return self.named_by_host(host).map(Some);
        }
        if let Some(name) = given(&self.docker_context) {
            return match name {
                // It is selected by name, so its absence must show as an unreachable engine.
                DEFAULT_CONTEXT => Ok(Some(first_socket(sockets).unwrap_or_else(|| Endpoint {
                    address: Address::Unix(PathBuf::from("/var/run/docker.sock")),
                    origin: EndpointOrigin::Context(DEFAULT_CONTEXT.to_owned()),
                }))),
                name => self.named_by_context(name).map(Some),
            };
        }
        match self.current_context()? {
            Some(name) if name != DEFAULT_CONTEXT => self.named_by_context(&name).map(Some),
            _ => Ok(first_socket(sockets)),
        }
    }

    fn named_by_host(&self, host: &str) -> Result<Endpoint, EndpointError> {
        // Like the Docker command line: any text counts, even `0`.
        let tls = given(&self.docker_tls_verify).map(|_| {
            let directory = self.docker_cert_path.clone().or_else(|| self.configuration());
            TlsFiles::in_directory(directory.as_deref(), true)
        });
        let address = Address::parse(host, tls)
            .map_err(|source| EndpointError::Address { place: "DOCKER_HOST".to_owned(), source })?;
        Ok(Endpoint { address, origin: EndpointOrigin::Host })
    }

    fn named_by_context(&self, name: &str) -> Result<Endpoint, EndpointError> {
        let contexts = self
            .configuration()
            .ok_or_else(|| EndpointError::NoConfiguration { name: name.to_owned() })?
            .join("contexts");
        let digest = digest_of(name);
        let meta: ContextMeta = read_json(&contexts.join("meta").join(&digest).join("meta.json"))?
            .ok_or_else(|| EndpointError::NoSuchContext {
                name: name.to_owned(),
                directory: contexts.clone(),
            })?;
        let endpoint = meta
            .endpoints
            .docker
            .filter(|endpoint| !endpoint.host.is_empty())
            .ok_or_else(|| EndpointError::NoDockerEndpoint { name: name.to_owned() })?;

        let directory = contexts.join("tls").join(&digest).join("docker");
        let files = TlsFiles::in_directory(Some(&directory), !endpoint.skip_tls_verify);
        let tls = (endpoint.skip_tls_verify || files.any()).then_some(files);
        let address = Address::parse(&endpoint.host, tls).map_err(|source| {
            EndpointError::Address { place: format!("the Docker context `{name}`"), source }
        })?;
        Ok(Endpoint { address, origin: EndpointOrigin::Context(name.to_owned()) })
    }

    fn current_context(&self) -> Result<Option<String>, EndpointError> {
        let Some(directory) = self.configuration() else { return Ok(None) };
        let file: Option<ConfigFile> = read_json(&directory.join("config.json"))?;
        Ok(file.and_then(|file| file.current_context).filter(|name| !name.is_empty()))
    }

    fn configuration(&self) -> Option<PathBuf> {
        self.docker_config.clone().or_else(|| Some(self.home.as_ref()?.join(".docker")))
    }

    /// Returns the sockets on which engines listen by default, Docker's before Podman's.
    fn default_sockets(&self) -> Vec<PathBuf> {
        let runtime = self.xdg_runtime_dir.as_deref();
        [
            Some(PathBuf::from("/var/run/docker.sock")),
            runtime.map(|directory| directory.join("docker.sock")),
            Some(PathBuf::from("/run/podman/podman.sock")),
            runtime.map(|directory| directory.join("podman/podman.sock")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns a setting that is present and not empty.
fn given(setting: &Option<String>) -> Option<&str> {
    setting.as_deref().filter(|text| !text.is_empty())
}

fn first_socket(sockets: &[PathBuf]) -> Option<Endpoint> {
    sockets
        .iter()
        // A socket that we may not stat counts as existing. Using it will report the error.
        .find(|path| path.try_exists().unwrap_or(true))
        .map(|path| Endpoint {
            address: Address::Unix(path.clone()),
            origin: EndpointOrigin::DefaultSocket,
        })
}

/// Returns the directory name of a context.
fn digest_of(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a JSON file; `None` means that it does not exist.
fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, EndpointError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(EndpointError::Read { path: path.to_owned(), source }),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|source| EndpointError::Json { path: path.to_owned(), source })
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct ContextMeta {
    #[serde(rename = "Endpoints", default)]
    endpoints: ContextEndpoints,
}

#[derive(Deserialize, Default)]
struct ContextEndpoints {
    docker: Option<ContextEndpoint>,
}

#[derive(Deserialize)]
struct ContextEndpoint {
    #[serde(rename = "Host", default)]
    host: String,
    #[serde(rename = "SkipTLSVerify", default)]
    skip_tls_verify: bool,
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn write_context(docker: &Path, name: &str, endpoint: &str) {
        let meta = format!(r#"{{"Name":"{name}","Metadata":{{}},"Endpoints":{endpoint}}}"#);
        write(&docker.join("contexts/meta").join(digest_of(name)).join("meta.json"), &meta);
    }

    fn environment(home: &TempDir) -> DockerEnvironment {
        DockerEnvironment { home: Some(home.path().to_owned()), ..DockerEnvironment::default() }
    }

    #[test]
    fn no_setting_and_no_socket_means_not_configured() {
        let home = TempDir::new().unwrap();
        let absent = [home.path().join("absent.sock")];
        assert_eq!(environment(&home).resolve_among(&absent).unwrap(), None);
        write(&home.path().join(".docker/config.json"), r#"{"currentContext":"default"}"#);
        assert_eq!(environment(&home).resolve_among(&absent).unwrap(), None);
    }

    #[test]
    fn the_first_existing_default_socket_is_used() {
        let home = TempDir::new().unwrap();
        let sockets = [home.path().join("absent.sock"), home.path().join("present.sock")];
        write(&sockets[1], "");
        let found = environment(&home).resolve_among(&sockets).unwrap().unwrap();
        assert_eq!(found.address, Address::Unix(sockets[1].clone()));
        assert_eq!(found.origin, EndpointOrigin::DefaultSocket);
    }

    #[test]
    fn rootless_and_podman_sockets_come_after_the_engines_own() {
        let environment = DockerEnvironment {
            xdg_runtime_dir: Some(PathBuf::from("/run/user/7")),
            ..DockerEnvironment::default()
        };
        let sockets: Vec<String> =
            environment.default_sockets().iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            sockets,
            [
                "/var/run/docker.sock",
                "/run/user/7/docker.sock",
                "/run/podman/podman.sock",
                "/run/user/7/podman/podman.sock",
            ]
        );
    }

    #[test]
    fn host_beats_context_beats_current_context() {
        let home = TempDir::new().unwrap();
        let docker = home.path().join(".docker");
        write(&docker.join("config.json"), r#"{"currentContext":"one","auths":{}}"#);
        write_context(&docker, "one", r#"{"docker":{"Host":"unix:///one.sock"}}"#);
        write_context(&docker, "two", r#"{"docker":{"Host":"ssh://me@two"}}"#);

        let mut environment = environment(&home);
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert_eq!(found.address.to_string(), "unix:///one.sock");
        assert_eq!(found.origin, EndpointOrigin::Context("one".to_owned()));

        environment.docker_context = Some("two".to_owned());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert_eq!(found.address.to_string(), "ssh://me@two");

        environment.docker_host = Some("tcp://three:2375".to_owned());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert_eq!(found.address.to_string(), "tcp://three:2375");
        assert_eq!(found.origin, EndpointOrigin::Host);

        environment.docker_host = Some(String::new());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert_eq!(found.address.to_string(), "ssh://me@two");
    }

    #[test]
    fn a_context_brings_its_own_tls_files() {
        let home = TempDir::new().unwrap();
        let docker = home.path().join("elsewhere");
        let endpoint = r#"{"docker":{"Host":"tcp://far:2376","SkipTLSVerify":false}}"#;
        write_context(&docker, "far", endpoint);
        let tls = docker.join("contexts/tls").join(digest_of("far")).join("docker");
        write(&tls.join("ca.pem"), "");
        let environment = DockerEnvironment {
            docker_context: Some("far".to_owned()),
            docker_config: Some(docker),
            ..DockerEnvironment::default()
        };
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        let files = TlsFiles { ca: Some(tls.join("ca.pem")), cert: None, key: None, verify: true };
        assert_eq!(found.address, Address::Tls { host: "far".to_owned(), port: 2376, tls: files });
    }

    #[test]
    fn a_context_that_skips_verification_still_uses_tls() {
        let home = TempDir::new().unwrap();
        let docker = home.path().join(".docker");
        let endpoint = r#"{"docker":{"Host":"tcp://far:2376","SkipTLSVerify":true}}"#;
        write_context(&docker, "far", endpoint);
        let mut environment = environment(&home);
        environment.docker_context = Some("far".to_owned());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert!(matches!(found.address, Address::Tls { tls, .. } if !tls.verify));
    }

    #[test]
    fn tls_verify_makes_a_tcp_host_use_tls() {
        let home = TempDir::new().unwrap();
        let certificates = home.path().join("certificates");
        write(&certificates.join("key.pem"), "");
        let mut environment = environment(&home);
        environment.docker_host = Some("tcp://far".to_owned());
        environment.docker_tls_verify = Some("1".to_owned());
        environment.docker_cert_path = Some(certificates.clone());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        let Address::Tls { port, tls, .. } = found.address else { panic!("no TLS") };
        assert_eq!((port, tls.key), (2376, Some(certificates.join("key.pem"))));
    }

    #[test]
    fn a_missing_or_broken_context_is_a_clear_error() {
        let home = TempDir::new().unwrap();
        let mut environment = environment(&home);
        environment.docker_context = Some("gone".to_owned());
        let error = environment.resolve_among(&[]).unwrap_err();
        let directory = home.path().join(".docker/contexts");
        assert_eq!(
            error.to_string(),
            format!("the Docker context `gone` does not exist in {}", directory.display())
        );

        write_context(&home.path().join(".docker"), "odd", r#"{"kubernetes":{}}"#);
        environment.docker_context = Some("odd".to_owned());
        let error = environment.resolve_among(&[]).unwrap_err();
        assert!(matches!(error, EndpointError::NoDockerEndpoint { .. }), "{error}");

        write(&home.path().join(".docker/config.json"), "{");
        environment.docker_context = None;
        let error = environment.resolve_among(&[]).unwrap_err();
        assert!(matches!(error, EndpointError::Json { .. }), "{error}");
    }

    #[test]
    fn a_default_context_requested_by_name_is_configured_even_without_a_socket() {
        let home = TempDir::new().unwrap();
        let mut environment = environment(&home);
        environment.docker_context = Some("default".to_owned());
        let found = environment.resolve_among(&[]).unwrap().unwrap();
        assert_eq!(found.origin, EndpointOrigin::Context("default".to_owned()));
    }
}
