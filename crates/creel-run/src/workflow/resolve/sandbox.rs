//! The settings of the sandbox, and which of them each provider supports.

use std::collections::BTreeMap;
use std::time::Duration;

use creel_model::provider::{Limits, ProviderName};
use creel_process::{SMALLEST_DISK, disk_refusal};
use secrecy::SecretString;

use crate::workflow::SandboxSettings;
use crate::workflow::file;
use crate::workflow::place::KeyPath;

use super::pass::Pass;

/// The default lease.
const LEASE: Duration = Duration::from_secs(30 * 60);

/// Returns the provider of the sandbox, or `None` if it is not known yet.
pub(super) fn provider(pass: &mut Pass<'_>, file: &file::Sandbox) -> Option<ProviderName> {
    let known = ("provider", ProviderName::ALL, ProviderName::name as fn(_) -> _);
    match &file.provider {
        Some(raw) => pass.choice(&KeyPath::of("sandbox").key("provider"), raw, known),
        None => Some(ProviderName::Process),
    }
}

/// Validates and resolves `[sandbox]`. Checks that depend on the provider need a known provider.
pub(super) fn resolve(
    pass: &mut Pass<'_>,
    file: &file::Sandbox,
    provider: Option<ProviderName>,
) -> SandboxSettings {
    let at = KeyPath::of("sandbox");
    let mut settings = SandboxSettings {
        provider: provider.unwrap_or(ProviderName::Process),
        image: pass.optional_line(&at.key("image"), file.image.as_ref()),
        snapshot: pass.optional_line(&at.key("snapshot"), file.snapshot.as_ref()),
        lease: pass.span(&at.key("lease"), file.lease.as_ref()).unwrap_or(LEASE),
        env: variables(pass, &at.key("env"), &file.env),
        limits: limits(pass, &at, file),
        disk: pass.size(&at.key("disk"), file.disk.as_ref()),
        network: pass.optional_line(&at.key("network"), file.network.as_ref()),
    };
    match provider {
        Some(ProviderName::Process) => in_process(pass, file, &mut settings),
        Some(ProviderName::Docker) => in_docker(pass, file, &mut settings),
        Some(ProviderName::Daytona) => in_daytona(pass, file, &mut settings),
        None => {}
    }
    settings
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

/// Reports a size that is not a whole number of GiB.
fn whole_gib(pass: &mut Pass<'_>, at: &KeyPath, bytes: Option<u64>) {
    if bytes.is_some_and(|bytes| !bytes.is_multiple_of(1 << 30)) {
        pass.wrong(at, "it must be whole GiB, such as 20g");
    }
}

/// Checks the settings of a process sandbox.
///
/// A limit that would not hold is rejected. An image or a snapshot for another provider is ignored
/// with a note, so that one workflow can serve several providers.
fn in_process(pass: &mut Pass<'_>, file: &file::Sandbox, settings: &mut SandboxSettings) {
    let at = KeyPath::of("sandbox");
    let sandbox = "a process sandbox";
    note_ignored(pass, "image", settings.image.take(), sandbox);
    note_ignored(pass, "snapshot", settings.snapshot.take(), sandbox);
    if let Some(bytes) = settings.disk {
        let too_small = format!("it must be at least {}m", SMALLEST_DISK >> 20);
        refuse(pass, &at.key("disk"), bytes < SMALLEST_DISK, &too_small);
        if let Some(reason) = disk_refusal() {
            pass.wrong(&at.key("disk"), format!("it cannot be limited here: {reason}"));
        }
    }
    refuse(
        pass,
        &at.key("network"),
        file.network.is_some(),
        "process sandboxes have this machine's network",
    );
}

fn in_docker(pass: &mut Pass<'_>, file: &file::Sandbox, settings: &mut SandboxSettings) {
    let at = KeyPath::of("sandbox");
    note_ignored(pass, "snapshot", settings.snapshot.take(), "a Docker sandbox");
    refuse(pass, &at.key("disk"), file.disk.is_some(), "Docker sandboxes have no limit on it");
    let missing = file.image.is_none();
    refuse(pass, &at.key("image"), missing, "a Docker sandbox needs one, such as \"debian:12\"");
}

fn in_daytona(pass: &mut Pass<'_>, file: &file::Sandbox, settings: &mut SandboxSettings) {
    let at = KeyPath::of("sandbox");
    refuse(pass, &at.key("network"), file.network.is_some(), "Daytona sandboxes have their own");
    if settings.snapshot.is_some() {
        note_ignored(pass, "image", settings.image.take(), "a sandbox with a snapshot");
    }
    if settings.image.is_none() {
        let sizes = [
            ("cpus", file.cpus.is_some()),
            ("memory", file.memory.is_some()),
            ("disk", file.disk.is_some()),
        ];
        for (key, is_set) in sizes {
            let why = "a snapshot brings its own resources; only with `image` can it be chosen";
            refuse(pass, &at.key(key), is_set, why);
        }
        return;
    }
    if file.cpus.is_some_and(|cpus| cpus.fract() != 0.0) {
        pass.wrong(&at.key("cpus"), "Daytona counts whole processors");
    }
    whole_gib(pass, &at.key("memory"), settings.limits.memory);
    whole_gib(pass, &at.key("disk"), settings.disk);
}

fn refuse(pass: &mut Pass<'_>, at: &KeyPath, is_wrong: bool, why: &str) {
    if is_wrong {
        pass.wrong(at, why);
    }
}

fn note_ignored(pass: &mut Pass<'_>, key: &str, given: Option<String>, sandbox: &str) {
    if given.is_some() {
        pass.note(format!("`sandbox.{key}` has no effect: {sandbox} does not start from it"));
    }
}
