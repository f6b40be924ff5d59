//! The content of the working directory before the agent starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use creel_model::backend::Backend;

use crate::workflow::place::KeyPath;
use crate::workflow::suggest::suggestion;
use crate::workflow::{Repository, Workspace, file};

use super::credentials::{CredentialKind, kind_of};
use super::pass::{Pass, Text};
use super::paths::{absolute_mistake, ancestors, mistake};

/// Validates and resolves `[workspace]`.
pub(super) fn resolve(
    pass: &mut Pass<'_>,
    file: &file::Workspace,
    credentials: &BTreeMap<String, file::Credential>,
    backend: Option<&dyn Backend>,
) -> Workspace {
    let at = KeyPath::of("workspace");
    let path = directory(pass, &at.key("path"), file.path.as_deref().unwrap_or("work"), backend);
    let files = files(pass, &at.key("files"), &file.files);
    let repositories = file.repositories.iter().enumerate().map(|(index, file)| {
        repository(pass, &at.key("repositories").index(index), file, credentials)
    });
    let repositories = repositories.collect::<Vec<_>>();
    check_overlaps(pass, &files, &repositories);
    Workspace { path, files, repositories }
}

fn directory(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    raw: &str,
    backend: Option<&dyn Backend>,
) -> String {
    let Some(path) = pass.setting(at, raw) else { return String::new() };
    let wrong = match path.text.strip_prefix('/') {
        Some(_) if backend.is_some_and(|backend| !backend.has_own_file_system()) => {
            Some("the sandbox has no file system of its own: it must be relative")
        }
        Some(_) => absolute_mistake(&path.text),
        None => mistake(&path.text),
    };
    if let Some(wrong) = wrong {
        pass.wrong(at, wrong);
    }
    path.text
}

fn files(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    files: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut resolved = BTreeMap::new();
    for (path, raw) in files {
        let at = at.key(path);
        if let Some(wrong) = mistake(path) {
            pass.wrong(&at, wrong);
        }
        // A file may be empty, and may contain any character.
        let content = pass.content(&at, raw).map(|text| text.text);
        resolved.insert(path.clone(), content.unwrap_or_default());
    }
    resolved
}

/// The default time limit of a clone.
const CLONE_LIMIT: Duration = Duration::from_secs(15 * 60);
/// The default limit for the silence of git during a clone.
const CLONE_SILENCE: Duration = Duration::from_secs(2 * 60);

fn repository(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    file: &file::Repository,
    credentials: &BTreeMap<String, file::Credential>,
) -> Repository {
    let url = pass.setting(&at.key("url"), &file.url);
    let scheme = url.as_ref().and_then(|url| check_url(pass, &at.key("url"), url));
    let path = pass.setting(&at.key("path"), &file.path).map(|path| path.text);
    if let Some(wrong) = path.as_deref().and_then(mistake) {
        pass.wrong(&at.key("path"), wrong);
    }
    let reference = pass.optional_line(&at.key("ref"), file.reference.as_ref());
    if reference
        .as_deref()
        .is_some_and(|name| name.starts_with('-') || name.contains([' ', '~', '^', ':', '\\']))
    {
        pass.wrong(&at.key("ref"), "it is no branch, tag or commit");
    }
    let credential = pass.optional_line(&at.key("credential"), file.credential.as_ref());
    if let Some(name) = credential.as_deref().filter(|name| !name.is_empty()) {
        check_credential(pass, &at.key("credential"), name, (credentials, scheme));
    }
    Repository {
        url: url.map(|url| url.text).unwrap_or_default(),
        path: path.unwrap_or_default(),
        reference: reference.filter(|reference| !reference.is_empty()),
        required: file.required.unwrap_or(true),
        credential,
        timeout: pass.span(&at.key("timeout"), file.timeout.as_ref()).unwrap_or(CLONE_LIMIT),
        inactivity: pass
            .span(&at.key("inactivity"), file.inactivity.as_ref())
            .unwrap_or(CLONE_SILENCE),
    }
}

/// How a repository is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Ssh,
    /// Without authentication.
    Open,
}

/// Returns how a repository is reached. Reports URLs that git should not receive.
fn check_url(pass: &mut Pass<'_>, at: &KeyPath, url: &Text) -> Option<Scheme> {
    let text = url.text.as_str();
    if text.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        pass.wrong(at, "it has spaces or signs that cannot be seen");
        return None;
    }
    let (scheme, rest) = match text.split_once("://") {
        Some(("https" | "http", rest)) => (Scheme::Http, rest),
        Some(("ssh", rest)) => (Scheme::Ssh, rest),
        Some(("git" | "file", rest)) => (Scheme::Open, rest),
        None if text.starts_with('/') => return Some(Scheme::Open),
        None if is_ssh_short_form(text) => return Some(Scheme::Ssh),
        _ => {
            pass.wrong(at, format!("{url} is no address of a repository: https://, ssh://, git@host:path, git:// or file://"));
            return None;
        }
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    if user.is_some_and(|user| scheme != Scheme::Ssh || user.contains(':')) {
        // The URL is stored in the clone and visible in process lists. It is not repeated here.
        pass.wrong(at, "no user or password belongs into it; give them as a `credential`");
    }
    if authority.starts_with('-') || (authority.is_empty() && scheme != Scheme::Open) {
        pass.wrong(at, "it names no host");
    }
    Some(scheme)
}

/// Returns whether a text has the form `user@host:path`, the short form of ssh.
fn is_ssh_short_form(text: &str) -> bool {
    let Some((authority, path)) = text.split_once(':') else { return false };
    let Some((user, host)) = authority.split_once('@') else { return false };
    let plain = |part: &str| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !part.is_empty() && !part.starts_with('-') && part.chars().all(is_plain)
    };
    plain(user) && plain(host) && !path.is_empty() && !path.starts_with([':', '-'])
}

fn check_credential(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    name: &str,
    (credentials, scheme): (&BTreeMap<String, file::Credential>, Option<Scheme>),
) {
    let Some(credential) = credentials.get(name) else {
        let message = match credentials.len() {
            0 => "the file has no `[credentials]`".to_owned(),
            _ => suggestion(name, credentials.keys().map(String::as_str)),
        };
        return pass.wrong(at, format!("no credential has that name; {message}"));
    };
    let Some((kind, scheme)) = kind_of(credential).zip(scheme) else { return };
    match (kind, scheme) {
        (_, Scheme::Open) => pass.wrong(at, "such an address needs no credential"),
        (CredentialKind::SshKey, Scheme::Http) => {
            pass.wrong(at, "it is an ssh key, and the address is http(s)");
        }
        (CredentialKind::Token | CredentialKind::GithubApp, Scheme::Ssh) => {
            pass.wrong(at, "it is a token, and the address is ssh");
        }
        (CredentialKind::SshKey, Scheme::Ssh)
        | (CredentialKind::Token | CredentialKind::GithubApp, Scheme::Http) => {}
    }
}

/// Reports files and repositories whose paths conflict.
fn check_overlaps(
    pass: &mut Pass<'_>,
    files: &BTreeMap<String, String>,
    repositories: &[Repository],
) {
    let mut first = BTreeMap::new();
    for (index, repository) in repositories.iter().enumerate() {
        first.entry(repository.path.as_str()).or_insert(index);
    }
    // An empty path was reported already, or is not known yet.
    first.remove("");
    let above: BTreeSet<&str> = first.keys().flat_map(|path| ancestors(path)).collect();
    let at = KeyPath::of("workspace");
    for (index, repository) in repositories.iter().enumerate() {
        let at = at.key("repositories").index(index).key("path");
        if first.get(repository.path.as_str()).is_some_and(|first| *first != index) {
            pass.wrong(&at, "another repository goes to the same path");
        } else if ancestors(&repository.path).any(|path| first.contains_key(path)) {
            pass.wrong(&at, "it lies inside of another repository");
        }
    }
    let directories: BTreeSet<&str> = files.keys().flat_map(|path| ancestors(path)).collect();
    for path in files.keys().map(String::as_str) {
        let at = at.key("files").key(path);
        let mut places = std::iter::once(path).chain(ancestors(path));
        if above.contains(path) || places.any(|place| first.contains_key(place)) {
            pass.wrong(&at, "a repository is cloned there, into a directory that must be empty");
        }
        if directories.contains(path) {
            pass.wrong(&at, "another file takes it for a directory");
        }
    }
}
