//! TLS to an engine: trusted authorities and client certificates.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::address::TlsFiles;

/// Reads the files and creates the client side of a connection.
pub(super) fn connector(files: &TlsFiles) -> io::Result<TlsConnector> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = if files.verify {
        builder.with_root_certificates(roots(files.ca.as_deref())?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Trusting { provider }))
    };
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
            builder
                .with_client_auth_cert(certificates(cert)?, key)
                .map_err(|error| unreadable(cert, error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns only the given authorities, or those of this machine if none are given.
fn roots(ca: Option<&Path>) -> io::Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let trusted = match ca {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = store.add_parsable_certificates(trusted);
    match (added, ca) {
        (0, Some(path)) => Err(unreadable(path, "it holds no certificate")),
        _ => Ok(store),
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, reason: impl std::fmt::Display) -> io::Error {
    let text = format!("cannot use {}: {reason}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Accepts any server certificate, as a context with `SkipTLSVerify` requests.
#[derive(Debug)]
struct Trusting {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
