//! `creel run --check`: checks whether a workflow is valid, and prints what it would do.
//!
//! Nothing is created, and no provider is contacted.

use std::collections::BTreeMap;
use std::path::Path;

use creel_run::workflow::{Lookup, Resolved, Source, Workflow};
use creel_sanitise as sanitise;

use crate::app::App;
use crate::backends::BACKENDS;
use crate::environment;
use crate::output::{Exit, Failure};

use super::plan::RunPlan;

/// Checks a workflow with the inputs of a run, and prints what it would do.
pub(crate) fn check(app: &App, path: &Path, inputs: &[(String, String)]) -> Result<Exit, Failure> {
    let source = Source::read(path)?;
    let (workflow, resolved) = resolve(&source, inputs)?;
    let plan = RunPlan::of(&workflow, &resolved);
    if app.printer.json {
        app.printer.json(&plan);
    } else {
        app.printer.data(&plan.to_string());
    }
    Ok(Exit::Done)
}

/// Parses a workflow and substitutes environment variables and inputs.
pub(crate) fn resolve(
    source: &Source,
    inputs: &[(String, String)],
) -> Result<(Workflow, Resolved), Failure> {
    let workflow = Workflow::parse(source, BACKENDS)?;
    let inputs = by_name(inputs)?;
    let lookup = Lookup { env: &environment::referred_to, inputs: &inputs };
    let resolved = workflow.resolve(&lookup)?;
    Ok((workflow, resolved))
}

fn by_name(inputs: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    let mut known = BTreeMap::new();
    for (name, value) in inputs {
        if known.insert(name.clone(), value.clone()).is_some() {
            return Err(Failure::usage(&format!("the input `{name}` was given twice")));
        }
    }
    Ok(known)
}

/// Refuses inputs that contain a secret, because inputs are stored unmasked with the run.
pub(super) fn refuse_secrets(inputs: &[(String, String)]) -> Result<(), Failure> {
    for (input, value) in inputs {
        if let Some((_, name)) = sanitise::tokens(value).first() {
            return Err(Failure::usage(&format!(
                "the input `{input}` has a secret in it ({name}); put it in an environment \
                 variable and write ${{env:NAME}} in the workflow"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "w.toml".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn mistakes_exit_with_the_usage_code() {
        let failure = resolve(&source("nam = 1"), &[]).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let sentence = failure.sentence();
        assert!(sentence.starts_with("w.toml has 4 mistakes: w.toml:1:1: "), "{sentence}");
        assert!(sentence.contains("unknown key `nam`; did you mean `name`?"), "{sentence}");
    }

    #[test]
    fn a_secret_is_no_input() {
        let token = format!("sk-ant-{}", "a1B2".repeat(8));
        let given = |value: &str| [("key".to_owned(), value.to_owned())];
        let sentence = refuse_secrets(&given(&token)).unwrap_err().sentence();
        assert!(sentence.starts_with("the input `key` has a secret in it (anthropic-key); "));
        assert!(!sentence.contains(&token));
        refuse_secrets(&given("main")).unwrap();
    }

    #[test]
    fn an_input_that_is_given_twice_is_wrong_usage() {
        let twice = [("a", "1"), ("a", "2")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let sentence = by_name(&twice).unwrap_err().sentence();
        assert_eq!(sentence, "the input `a` was given twice");
    }
}
