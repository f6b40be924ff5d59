//! The settings of the sandbox, and which of them each provider supports.

use std::collections::BTreeMap;
use std::time::Duration;

use creel_model::backend::{Backend, Backends, SandboxDraft};
use creel_model::provider::{Limits, ProviderName};
use secrecy::SecretString;

use crate::workflow::SandboxSettings;
use crate::workflow::file;
use crate::workflow::place::KeyPath;

use super::pass::Pass;

/// The default lease.
const LEASE: Duration = Duration::from_secs(30 * 60);

/// Returns the backend of the sandbox, or `None` if it is not known yet.
pub(super) fn backend(
    pass: &mut Pass<'_>,
    file: &file::Sandbox,
    backends: Backends,
) -> Option<&'static dyn Backend> {
    let names = backends.names();
    let known = ("provider", names.as_slice(), ProviderName::name as fn(_) -> _);
    let provider = match &file.provider {
        Some(raw) => pass.choice(&KeyPath::of("sandbox").key("provider"), raw, known),
        None => Some(backends.default_provider()),
    };
    backends.get(provider?)
}

/// Validates and resolves `[sandbox]`. Checks that depend on the provider need a known provider.
pub(super) fn resolve(
    pass: &mut Pass<'_>,
    file: &file::Sandbox,
    (backend, backends): (Option<&dyn Backend>, Backends),
) -> SandboxSettings {
    let at = KeyPath::of("sandbox");
    let lease = pass.span(&at.key("lease"), file.lease.as_ref()).unwrap_or(LEASE);
    let env = variables(pass, &at.key("env"), &file.env);
    // A value that is given but not known yet is empty, so that it does not count as missing.
    let mut line = |key: &str, raw: Option<&String>| {
        let value = pass.optional_line(&at.key(key), raw);
        raw.map(|_| value.unwrap_or_default())
    };
    let mut draft = SandboxDraft {
        image: line("image", file.image.as_ref()),
        snapshot: line("snapshot", file.snapshot.as_ref()),
        network: line("network", file.network.as_ref()),
        limits: limits(pass, &at, file),
        disk: pass.size(&at.key("disk"), file.disk.as_ref()),
        ..SandboxDraft::default()
    };
    if let Some(backend) = backend {
        backend.check_sandbox(&mut draft);
    }
    for (key, problem) in draft.problems {
        pass.wrong(&at.key(key), problem);
    }
    draft.notes.into_iter().for_each(|note| pass.note(note));
    SandboxSettings {
        provider: backend.map_or(backends.default_provider(), Backend::name),
        image: draft.image,
        snapshot: draft.snapshot,
        lease,
        env,
        limits: draft.limits,
        disk: draft.disk,
        network: draft.network,
    }
}

fn limits(pass: &mut Pass<'_>, at: &KeyPath, file: &file::Sandbox) -> Limits {
    if file.cpus.is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0) {
        pass.wrong(&at.key("cpus"), "it must be more than nothing");
    }
    let memory = pass.size(&at.key("memory"), file.memory.as_ref());
    Limits { memory, cpus: file.cpus, processes: None }
}

fn variables(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    env: &BTreeMap<String, String>,
) -> BTreeMap<String, SecretString> {
    let mut resolved = BTreeMap::new();
    for (name, raw) in env {
        let at = at.key(name);
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if name.is_empty()
            || !name.chars().all(plain)
            || name.starts_with(|l: char| l.is_ascii_digit())
        {
            pass.wrong(&at, "the name of a variable has letters, digits and `_`");
        }
        let Some(text) = pass.setting(&at, raw) else { continue };
        if text.text.contains('\0') {
            pass.wrong(&at, "it has a NUL in it");
        }
        if text.by_reference {
            pass.note_variable(name);
        }
        resolved.insert(name.clone(), SecretString::from(text.text));
    }
    resolved
}
