//! The credentials for repositories.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::pass::{Filled, Pass};
use crate::workflow::Credential;
use crate::workflow::file;
use crate::workflow::file::NumberOrText;
use crate::workflow::place::KeyPath;
use crate::workflow::reference::{Reference, ReferenceMode};

/// The default URL of GitHub's API.
const GITHUB: &str = "https://api.github.com";

/// The kinds of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CredentialKind {
    /// For http(s).
    Token,
    /// For ssh.
    SshKey,
    /// Issues tokens for http(s).
    GithubApp,
}

/// Validates and resolves `[credentials]`.
pub(super) fn resolve(
    pass: &mut Pass<'_>,
    credentials: &BTreeMap<String, file::Credential>,
) -> BTreeMap<String, Credential> {
    let resolved = credentials.iter().map(|(name, file)| {
        let at = KeyPath::of("credentials").key(name);
        (name.clone(), credential(pass, &at, file))
    });
    resolved.collect()
}

/// Returns the kind of a credential, if its keys are of exactly one kind.
pub(super) fn kind_of(file: &file::Credential) -> Option<CredentialKind> {
    let kinds = [
        (CredentialKind::Token, [file.token.is_some(), file.username.is_some(), false, false]),
        (
            CredentialKind::SshKey,
            [file.ssh_key.is_some(), file.known_hosts.is_some(), false, false],
        ),
        (
            CredentialKind::GithubApp,
            [
                file.app_id.is_some(),
                file.installation_id.is_some(),
                file.private_key.is_some(),
                file.api_url.is_some(),
            ],
        ),
    ];
    let mut present = kinds.iter().filter(|(_, keys)| keys.contains(&true));
    match (present.next(), present.next()) {
        (Some((kind, _)), None) => Some(*kind),
        _ => None,
    }
}

fn credential(pass: &mut Pass<'_>, at: &KeyPath, file: &file::Credential) -> Credential {
    let mut reader = CredentialReader { pass, at, missing: None };
    let resolved = match kind_of(file) {
        Some(CredentialKind::Token) => Credential::Token {
            token: reader.secret("token", file.token.as_deref()),
            username: file.username.as_deref().map(|raw| reader.text("username", Some(raw))),
        },
        Some(CredentialKind::SshKey) => Credential::SshKey {
            private_key: reader.secret("ssh_key", file.ssh_key.as_deref()),
            known_hosts: file
                .known_hosts
                .as_deref()
                .map(|raw| reader.text("known_hosts", Some(raw))),
        },
        Some(CredentialKind::GithubApp) => Credential::GithubApp {
            app_id: reader.id("app_id", file.app_id.as_ref()),
            installation_id: reader.id("installation_id", file.installation_id.as_ref()),
            private_key: reader.secret("private_key", file.private_key.as_deref()),
            api_url: reader.api_url(file.api_url.as_deref()),
        },
        None => {
            reader.pass.wrong(
                at,
                "it must be one of: `token` (and `username`); `ssh_key` (and `known_hosts`); \
                 `app_id`, `installation_id` and `private_key` (and `api_url`)",
            );
            reader.placeholder()
        }
    };
    match reader.missing {
        Some(reference) => Credential::Missing { reference: reference.to_string() },
        None => resolved,
    }
}

/// Reads the keys of one credential, and remembers a reference without a value.
struct CredentialReader<'a, 'p> {
    pass: &'a mut Pass<'p>,
    at: &'a KeyPath,
    missing: Option<Reference>,
}

impl CredentialReader<'_, '_> {
    fn placeholder(&self) -> Credential {
        Credential::Missing { reference: String::new() }
    }

    fn secret(&mut self, key: &str, raw: Option<&str>) -> SecretString {
        let at = self.at.key(key);
        let Some(raw) = raw else {
            self.pass.wrong(&at, "it is missing");
            return SecretString::default();
        };
        let filled = self.pass.secret(&at, raw);
        SecretString::from(self.value_of(filled))
    }

    fn text(&mut self, key: &str, raw: Option<&str>) -> String {
        let at = self.at.key(key);
        let Some(raw) = raw else {
            self.pass.wrong(&at, "it is missing");
            return String::new();
        };
        let filled = self.pass.fill(&at, raw, ReferenceMode::Setting);
        if matches!(&filled, Filled::Known(text) if text.text.trim().is_empty()) {
            self.pass.wrong(&at, "it is empty");
        }
        self.value_of(filled)
    }

    fn id(&mut self, key: &str, raw: Option<&NumberOrText>) -> String {
        let text = raw.map(NumberOrText::text);
        let id = self.text(key, text.as_deref());
        if id.contains(|letter: char| !letter.is_ascii_alphanumeric() && !"-_.".contains(letter)) {
            self.pass.wrong(&self.at.key(key), "it is no id");
        }
        id
    }

    fn api_url(&mut self, raw: Option<&str>) -> String {
        let url = raw.map_or_else(|| GITHUB.to_owned(), |raw| self.text("api_url", Some(raw)));
        if !url.is_empty() && !url.starts_with("https://") && !url.starts_with("http://") {
            self.pass.wrong(&self.at.key("api_url"), "it must begin with https:// or http://");
        }
        url
    }

    fn value_of(&mut self, filled: Filled) -> String {
        match filled {
            Filled::Known(text) => text.text,
            Filled::Unknown => String::new(),
            Filled::Missing(reference) => {
                self.missing.get_or_insert(reference);
                String::new()
            }
        }
    }
}
