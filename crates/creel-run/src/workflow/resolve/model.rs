//! The models that the agent uses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use secrecy::SecretString;

use super::pass::{Filled, Pass};
use crate::workflow::place::KeyPath;
use crate::workflow::suggest::{nearest, suggestion};
use crate::workflow::{Model, ModelChoice, ModelProvider, RuntimeKind, file};

/// The default limit for the silence of a model.
const PATIENCE: Duration = Duration::from_secs(120);

/// Validates and resolves `[model]`.
///
/// A runtime of kind `command` calls no model by itself. So an undefined fallback only leads to a
/// note there: a workflow may be tried with a plain program first.
pub(super) fn resolve(pass: &mut Pass<'_>, file: &file::Model, kind: &RuntimeKind) -> Model {
    let at = KeyPath::of("model");
    let providers = file.providers.iter().map(|(name, file)| {
        let at = at.key("providers").key(name);
        if name.is_empty() || name.contains('/') {
            pass.wrong(&at, "the name of a provider must not be empty or have a `/`");
        }
        (name.clone(), provider(pass, &at, file))
    });
    let providers: BTreeMap<String, ModelProvider> = providers.collect();
    let profiles = file.profiles.iter().map(|(name, file)| {
        let at = at.key("profiles").key(name);
        if name.contains('/') {
            pass.wrong(&at, "the name of a profile must not have a `/`: that means provider/model");
        }
        (name.clone(), profile(pass, &at, (name, file), &providers))
    });
    let profiles: BTreeMap<String, ModelChoice> = profiles.collect();
    let primary = choice(pass, &at.key("primary"), &file.primary, (&profiles, &providers));
    let mut fallbacks = Vec::new();
    for (index, raw) in file.fallbacks.iter().enumerate() {
        let at = at.key("fallbacks").index(index);
        if matches!(kind, RuntimeKind::Command { .. }) && is_undefined(raw, &profiles) {
            pass.note(format!("`{at}` has no effect: no profile has the name `{raw}`"));
        } else {
            fallbacks.push(choice(pass, &at, raw, (&profiles, &providers)));
        }
    }
    check_repeats(pass, &primary, &fallbacks);
    Model { primary, fallbacks, providers }
}

fn provider(pass: &mut Pass<'_>, at: &KeyPath, file: &file::ModelProvider) -> ModelProvider {
    let base_url = pass.line(&at.key("base_url"), &file.base_url);
    if !base_url.is_empty() && !base_url.starts_with("https://") && !base_url.starts_with("http://")
    {
        pass.wrong(&at.key("base_url"), "it must begin with https:// or http://");
    }
    let at = at.key("api_key");
    let api_key = file.api_key.as_ref().and_then(|raw| match pass.secret(&at, raw) {
        Filled::Known(text) => Some(SecretString::from(text.text)),
        Filled::Unknown => None,
        Filled::Missing(reference) => {
            pass.note_missing(&at, reference);
            None
        }
    });
    ModelProvider { base_url, api_key }
}

fn profile(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    (name, file): (&str, &file::Profile),
    providers: &BTreeMap<String, ModelProvider>,
) -> ModelChoice {
    let model = pass.line(&at.key("model"), &file.model);
    let first_token = at.key("first_token_timeout");
    let first_token = pass.span(&first_token, file.first_token_timeout.as_ref());
    let idle = pass.span(&at.key("idle_timeout"), file.idle_timeout.as_ref());
    let resolved = parse_model(pass, &at.key("model"), &model, providers);
    ModelChoice {
        name: name.to_owned(),
        first_token: first_token.unwrap_or(PATIENCE),
        idle: idle.unwrap_or(PATIENCE),
        ..resolved
    }
}

/// Returns whether this is a plain name that matches no profile, not even approximately.
fn is_undefined(raw: &str, profiles: &BTreeMap<String, ModelChoice>) -> bool {
    let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
    !raw.is_empty() && !raw.contains(['/', '$']) && nearest(raw, &names).is_none()
}

/// Reads a choice: a profile, or a model of a provider.
fn choice(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    raw: &str,
    (profiles, providers): (&BTreeMap<String, ModelChoice>, &BTreeMap<String, ModelProvider>),
) -> ModelChoice {
    let name = pass.line(at, raw);
    match profiles.get(&name) {
        Some(profile) => profile.clone(),
        None if name.is_empty() || name.contains('/') => parse_model(pass, at, &name, providers),
        None => {
            let suggestion = match profiles.len() {
                0 => "the file has no `[model.profiles]`; write provider/model".to_owned(),
                _ => suggestion(&name, profiles.keys().map(String::as_str)),
            };
            pass.wrong(at, format!("no profile has that name; {suggestion}"));
            unchosen(&name)
        }
    }
}

/// Parses a model in the form `provider/model`.
fn parse_model(
    pass: &mut Pass<'_>,
    at: &KeyPath,
    text: &str,
    providers: &BTreeMap<String, ModelProvider>,
) -> ModelChoice {
    let mut choice = unchosen(text);
    match text.split_once('/') {
        // An empty value was reported already, or is not known yet.
        None if text.is_empty() => {}
        None => pass.wrong(at, "it must be provider/model"),
        Some((_, "")) => pass.wrong(at, "it must be provider/model, and has no model"),
        Some((provider, model)) => {
            if !providers.contains_key(provider) {
                let suggestion = match providers.len() {
                    0 => "the file has no `[model.providers]`".to_owned(),
                    _ => suggestion(provider, providers.keys().map(String::as_str)),
                };
                pass.wrong(at, format!("no provider of models has that name; {suggestion}"));
            }
            choice.provider = provider.to_owned();
            choice.model = model.to_owned();
        }
    }
    choice
}

fn unchosen(name: &str) -> ModelChoice {
    ModelChoice {
        name: name.to_owned(),
        provider: String::new(),
        model: String::new(),
        first_token: PATIENCE,
        idle: PATIENCE,
    }
}

/// Reports fallbacks that are listed more than once or equal the primary model.
fn check_repeats(pass: &mut Pass<'_>, primary: &ModelChoice, fallbacks: &[ModelChoice]) {
    let mut seen = BTreeSet::from([&primary.name]);
    for (index, fallback) in fallbacks.iter().enumerate() {
        if !seen.insert(&fallback.name) && !fallback.name.is_empty() {
            let at = KeyPath::of("model").key("fallbacks").index(index);
            pass.wrong(&at, "it stands before already");
        }
    }
}
