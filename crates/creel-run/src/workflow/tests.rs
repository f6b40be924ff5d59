//! Workflows as people write them, valid and invalid.

use creel_model::backend::Backends;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::*;

/// The required rest of every workflow, to be put after the lines that a test is about.
const REST: &str = "\n[runtime]\nkind = \"command\"\ncommand = [\"sh\"]\n[task]\nprompt = \"p\"\n";

/// A workflow with every key.
const WHOLE: &str = r##"
name = "hello"
[sandbox]
provider = "docker"
image = "debian:12"
snapshot = "unused"
lease = "45m"
env = { GREETING = "hi", KEY = "${env:KEY}" }
cpus = 1.5
memory = "512m"
network = "none"
[workspace]
path = "/work"
files = { "NOTES.md" = "about ${input:topic}" }
[[workspace.repositories]]
url = "https://example.org/app.git"
path = "app"
ref = "main"
required = false
credential = "git"
timeout = "5m"
inactivity = "30s"
[credentials.git]
token = "${env:GIT_TOKEN}"
username = "bot"
[credentials.deploy]
ssh_key = "${env:DEPLOY_KEY}"
known_hosts = "example.org ssh-ed25519 AAAA"
[credentials.app]
app_id = 12
installation_id = "34"
private_key = "${env:APP_KEY}"
api_url = "http://127.0.0.1:1"
[[setup]]
name = "tools"
run = "echo ${HOME}"
timeout = "60s"
inactivity = "5s"
optional = true
tries = 3
[runtime]
kind = "command"
plugins = []
command = ["agent", "--ask", "{prompt}"]
prompt = "argument"
check = ["agent", "--version"]
[model]
primary = "fast"
fallbacks = ["acme/small"]
[model.providers.acme]
base_url = "https://models.example.org/v1"
api_key = "${env:ACME_KEY}"
[model.profiles.fast]
model = "acme/org/large"
first_token_timeout = "60s"
idle_timeout = "30s"
[task]
prompt = "Say hello about ${input:topic}"
follow_ups = ["Again"]
[limits]
turns = 5
wall = "10m"
idle = "20m"
turn = "1m"
[pause]
after_turns = 2
[[teardown]]
run = "true"
[on_failure]
keep = "5m"
"##;

/// The providers that the workflows of these tests may name.
pub(super) const BACKENDS: Backends = Backends::new(
    &[&creel_docker::DockerBackend, &creel_daytona::DaytonaBackend, &creel_process::ProcessBackend],
    creel_process::NAME,
);

fn source(text: &str) -> Source {
    Source { name: "w.toml".to_owned(), text: text.to_owned() }
}

fn parse(text: &str) -> Result<Workflow, WorkflowError> {
    Workflow::parse(&source(text), BACKENDS)
}

/// Resolves with variables `NAME` = `env-NAME`, except those that begin with `NO`, and inputs.
fn resolve(text: &str, inputs: &[(&str, &str)]) -> Result<Resolved, WorkflowError> {
    let inputs = inputs.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let env = |name: &str| (!name.starts_with("NO")).then(|| format!("env-{name}"));
    parse(text)?.resolve(&Lookup { env: &env, inputs: &inputs.collect() })
}

fn mistakes(text: &str) -> Vec<String> {
    let error = resolve(text, &[]).unwrap_err();
    error.problems().iter().map(Problem::to_string).collect()
}

/// Returns the one mistake of a workflow that starts with these lines.
fn mistake(lines: &str) -> String {
    let mistakes = mistakes(&format!("{lines}{REST}"));
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    mistakes.into_iter().next().unwrap()
}

/// Returns the one mistake of a workflow with this runtime.
fn runtime_mistake(lines: &str) -> String {
    let mistakes = mistakes(&format!("name = \"n\"\n[task]\nprompt = \"p\"\n[runtime]\n{lines}"));
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    mistakes.into_iter().next().unwrap()
}

#[test]
fn every_key_arrives_where_it_belongs() {
    let workflow = resolve(WHOLE, &[("topic", "cats")]).unwrap();
    let sandbox = &workflow.sandbox;
    assert_eq!(sandbox.provider, creel_docker::NAME);
    assert_eq!(sandbox.image.as_deref(), Some("debian:12"));
    assert_eq!((sandbox.limits.cpus, sandbox.limits.memory), (Some(1.5), Some(512 << 20)));
    assert_eq!(sandbox.env["KEY"].expose_secret(), "env-KEY");
    assert_eq!(workflow.workspace.path, "/work");
    assert_eq!(workflow.workspace.files["NOTES.md"], "about cats");
    let repository = &workflow.workspace.repositories[0];
    assert_eq!(repository.reference.as_deref(), Some("main"));
    assert!(!repository.required);
    let Credential::GithubApp { app_id, installation_id, .. } = &workflow.credentials["app"] else {
        panic!("{:?}", workflow.credentials);
    };
    assert_eq!((app_id.as_str(), installation_id.as_str()), ("12", "34"));
    let setup = &workflow.setup[0];
    assert_eq!((setup.run.as_str(), setup.tries, setup.optional), ("echo ${HOME}", 3, true));
    assert_eq!(workflow.teardown[0].name, "1");
    let model = workflow.model.as_ref().unwrap();
    assert_eq!(
        (model.primary.provider.as_str(), model.primary.model.as_str()),
        ("acme", "org/large")
    );
    assert_eq!(model.primary.idle, Duration::from_secs(30));
    assert_eq!(model.fallbacks[0].first_token, Duration::from_secs(120));
    assert_eq!(workflow.task.prompt, "Say hello about cats");
    assert_eq!(workflow.limits.turn, Some(Duration::from_secs(60)));
    assert_eq!(workflow.pause, Some(Pause { after_turns: 2 }));
    assert_eq!(workflow.on_failure.keep, Duration::from_secs(300));
    assert_eq!(workflow.notes.len(), 1, "{:?}", workflow.notes);
}

#[test]
fn the_defaults_are_those_of_the_page() {
    let workflow = resolve(&format!("name = \"n\"{REST}"), &[]).unwrap();
    assert_eq!(workflow.sandbox.provider, creel_process::NAME);
    assert_eq!(workflow.sandbox.lease, Duration::from_secs(1_800));
    assert_eq!(workflow.workspace.path, "work");
    assert_eq!(workflow.limits, RunLimits::default());
    assert_eq!(workflow.on_failure, OnFailure::default());
    let RuntimeKind::Command { prompt, .. } = workflow.runtime.kind;
    assert_eq!(prompt, PromptBy::Stdin);
    let repository = "name = \"n\"\n[[workspace.repositories]]\nurl = \"/srv/a\"\npath = \"a\"\n\
                      [[setup]]\nrun = \"true\"\n[[teardown]]\nrun = \"true\"";
    let workflow = resolve(&format!("{repository}{REST}"), &[]).unwrap();
    assert!(workflow.workspace.repositories[0].required);
    let limits = (workflow.setup[0].timeout.as_secs(), workflow.teardown[0].timeout.as_secs());
    assert_eq!(limits, (600, 60));
}

#[test]
fn every_key_is_documented_and_tried() {
    fn keys(shape: &serde_json::Value, found: &mut Vec<String>) {
        let properties = shape.get("properties").and_then(serde_json::Value::as_object);
        found.extend(properties.into_iter().flat_map(|map| map.keys().cloned()));
        let parts = shape.get("$defs").and_then(serde_json::Value::as_object);
        parts.into_iter().flat_map(|map| map.values()).for_each(|part| keys(part, found));
    }
    let mut all = Vec::new();
    keys(schema(), &mut all);
    let page = include_str!("../../../../docs/reference/workflow.md");
    // These keys are tested elsewhere: no runnable provider or kind accepts them with the others.
    let apart = ["disk", "version"];
    for key in all {
        let documented = page.contains(&format!("`{key}`")) || page.contains(&format!(".{key}`"));
        assert!(documented, "{key} is not documented");
        let tried = WHOLE.contains(&key) || apart.contains(&key.as_str());
        assert!(tried, "{key} is not tried");
    }
}

#[test]
fn the_examples_are_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let source = Source::read(&entry.unwrap().path()).unwrap();
        let workflow = Workflow::parse(&source, BACKENDS).unwrap();
        let input = |name: String| {
            let value = if name == "url" { "https://example.org/app.git" } else { "given" };
            (name, value.to_owned())
        };
        let inputs: BTreeMap<_, _> = workflow.inputs().into_iter().map(input).collect();
        let env = |_: &str| Some("set".to_owned());
        let resolved = workflow.resolve(&Lookup { env: &env, inputs: &inputs }).unwrap();
        assert_eq!(resolved.notes, Vec::<String>::new(), "{}", source.name);
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn the_workflows_of_the_reference_are_valid() {
    let page = include_str!("../../../../docs/reference/workflow.md");
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).collect();
    assert!(blocks.len() >= 4);
    for block in blocks {
        let text = block.split("```").next().unwrap();
        resolve(text, &[]).unwrap();
    }
}

#[test]
fn unknown_keys_at_every_level_are_reported_at_once_with_place_and_suggestion() {
    let text = "nam = \"x\"\nname = \"n\"\n[sandbox]\nlaese = \"1m\"\n[workspace]\npth = \"w\"\n\
                [[workspace.repositories]]\nurl = \"u\"\npath = \"p\"\nbranch = \"b\"\n\
                [credentials.git]\ntokn = \"x\"\n[[setup]]\nrun = \"r\"\ntimout = \"1m\"\n\
                [runtime]\nkind = \"command\"\ncomand = []\n[model]\nprimry = \"x\"\n\
                [model.providers.a]\nurl = \"x\"\n[model.profiles.p]\nmodle = \"x\"\n\
                [task]\nprompt = \"p\"\nfollow_up = []\n[limits]\nwal = \"1m\"\n\
                [pause]\nafter = 1\n[[teardown]]\nrun = \"r\"\noptional = true\n\
                [on_failure]\nkep = \"1m\"\n[elsewhere]\n";
    let problems = mistakes(text);
    for expected in [
        "1:1: unknown key `nam`; did you mean `name`?",
        "4:1: unknown key `sandbox.laese`; did you mean `lease`?",
        "6:1: unknown key `workspace.pth`; did you mean `path`?",
        "10:1: unknown key `workspace.repositories[0].branch`; known are credential, inactivity, path, ref, required, timeout, url",
        "12:1: unknown key `credentials.git.tokn`; did you mean `token`?",
        "15:1: unknown key `setup[0].timout`; did you mean `timeout`?",
        "18:1: unknown key `runtime.comand`; did you mean `command`?",
        "20:1: unknown key `model.primry`; did you mean `primary`?",
        "19:2: `model.primary` is missing",
        "22:1: unknown key `model.providers.a.url`; known are api_key, base_url",
        "24:1: unknown key `model.profiles.p.modle`; did you mean `model`?",
        "27:1: unknown key `task.follow_up`; did you mean `follow_ups`?",
        "29:1: unknown key `limits.wal`; did you mean `wall`?",
        "31:1: unknown key `pause.after`; did you mean `after_turns`?",
        "34:1: unknown key `teardown[0].optional`",
        "36:1: unknown key `on_failure.kep`; did you mean `keep`?",
        "37:2: unknown key `elsewhere`",
    ] {
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{expected}\n{problems:#?}"
        );
    }
}

#[test]
fn wrong_types_and_sizes_are_reported_at_once_without_their_values() {
    let text = "name = 1\n[sandbox]\nlease = 30\nenv = [\"s3cret\"]\ncpus = \"s3cret\"\n\
                [workspace]\nfiles = { a = 1 }\nrepositories = [\"s3cret\"]\n\
                [runtime]\nkind = \"command\"\ncommand = \"s3cret\"\n[task]\nprompt = [\"p\"]\n\
                [limits]\nturns = 0\n[[setup]]\nrun = \"r\"\noptional = \"yes\"\ntries = 11\n";
    let problems = mistakes(text).join("\n");
    assert!(!problems.contains("s3cret"), "{problems}");
    for expected in [
        "1:8: `name` must be a string, and this is an integer",
        "3:9: `sandbox.lease` must be a string, and this is an integer",
        "4:7: `sandbox.env` must be a table, and this is an array",
        "5:8: `sandbox.cpus` must be a number, and this is a string",
        "7:15: `workspace.files.a` must be a string, and this is an integer",
        "8:17: `workspace.repositories[0]` must be a table, and this is a string",
        "11:11: `runtime.command` must be an array, and this is a string",
        "13:10: `task.prompt` must be a string, and this is an array",
        "15:9: `limits.turns` must be at least 1",
        "18:12: `setup[0].optional` must be true or false, and this is a string",
        "19:9: `setup[0].tries` must be at most 10",
    ] {
        assert!(problems.contains(expected), "{expected}\n{problems}");
    }
}

#[test]
fn broken_toml_is_reported_with_its_place_and_without_its_lines() {
    let error = parse("name = \"n\"\ntoken = s3cret\n[sandbox\n").unwrap_err().to_string();
    assert!(error.starts_with("w.toml") && error.contains("2:9"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    assert!(mistakes("").iter().any(|problem| problem == "1:1: `name` is missing"));
    let twice = format!("name = \"a\"\nname = \"b\"{REST}");
    assert!(parse(&twice).unwrap_err().to_string().contains("2:1: duplicate key"));
}

#[test]
fn a_file_that_is_too_large_or_too_deep_is_refused() {
    let large = format!("name = \"{}\"{REST}", "x".repeat(2 << 20));
    let error = parse(&large).unwrap_err().to_string();
    assert_eq!(error, "w.toml: it is larger than the 1024 KiB a workflow may have");
    let deep = format!("name = {}{REST}", "[".repeat(100_000));
    assert!(parse(&deep).is_err());
    for deep in [format!("{}b = 1", "a.".repeat(400_000)), format!("[{}b]", "a.".repeat(400_000))] {
        assert!(parse(&deep).is_err());
    }
    let unknown: String = (0..5_000).map(|number| format!("k{number} = 1\n")).collect();
    let error = parse(&unknown).unwrap_err();
    assert_eq!(error.problems().len(), 50);
    assert!(error.to_string().starts_with("w.toml has 5003 mistakes: "), "{error}");
}

#[test]
fn a_large_file_full_of_mistakes_is_parsed_quickly() {
    let many = |line: fn(usize) -> String| (0..4_000).map(line).collect::<String>();
    let repositories = many(|number| {
        format!(
            "[[workspace.repositories]]\nurl=\"/r\"\npath=\"a/b/{number}\"\ncredential=\"c{number}\"\n"
        )
    });
    let files = many(|number| format!("\"a/b/{number}/c\" = \"\"\n"));
    let credentials = many(|number| format!("[credentials.d{number}]\ntoken=\"x\"\n"));
    let text = format!("name = \"n\"\n{repositories}[workspace.files]\n{files}{credentials}{REST}");
    assert!(text.len() < 1 << 20);
    let started = std::time::Instant::now();
    let error = parse(&text).unwrap_err().to_string();
    assert!(error.starts_with("w.toml has 12000 mistakes"), "{}", &error[..200]);
    // About a second of computing, with a margin for a busy machine.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn references_cannot_make_a_workflow_larger_than_it_may_be() {
    let text = format!("name = \"n\"{REST}")
        .replace("\"p\"", &format!("\"{}\"", "${input:x}".repeat(1_000)));
    let error = resolve(&text, &[("x", &"y".repeat(100_000))]).unwrap_err().to_string();
    assert!(error.contains("come to more than 8 MiB"), "{error}");
}

#[test]
fn all_missing_references_are_reported_at_once() {
    let text = "name = \"${input:title}\"\n[sandbox]\nenv = { A = \"${env:NO_A}\", B = \"${env:NO_A}\" }\n\
                image = \"${env:NO_B}\"";
    let problems = mistakes(&format!("{text}{REST}"));
    assert_eq!(
        problems,
        [
            "1:8: `name`: ${input:title} was not given",
            "3:13: `sandbox.env.A`: ${env:NO_A} is not set in the environment",
            "4:9: `sandbox.image`: ${env:NO_B} is not set in the environment",
        ]
    );
}

#[test]
fn an_input_that_nothing_refers_to_is_a_mistake() {
    let text = format!("name = \"${{input:title}}\"{REST}");
    let error = resolve(&text, &[("title", "t"), ("titel", "t")]).unwrap_err().to_string();
    let expected = "w.toml: nothing refers to the input `titel`; did you mean `title`?";
    assert_eq!(error, expected);
    let none = format!("name = \"n\"{REST}");
    assert!(resolve(&none, &[("x", "")]).unwrap_err().to_string().ends_with("it has no inputs"));
    assert_eq!(parse(&text).unwrap().inputs().into_iter().collect::<Vec<_>>(), ["title"]);
}

#[test]
fn a_missing_credential_is_left_to_the_run() {
    let text = "name = \"n\"\n[credentials.a]\ntoken = \"${env:NO_TOKEN}\"\n[credentials.b]\n\
                app_id = \"${env:NO_APP}\"\ninstallation_id = 1\nprivate_key = \"${env:KEY}\"";
    let workflow = resolve(&format!("{text}{REST}"), &[]).unwrap();
    let reference = |name: &str| match &workflow.credentials[name] {
        Credential::Missing { reference } => reference.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(reference("a"), "${env:NO_TOKEN}");
    assert_eq!(reference("b"), "${env:NO_APP}");
    let empty = Lookup { env: &|_| Some(String::new()), inputs: &BTreeMap::new() };
    let empty = parse(&format!("{text}{REST}")).unwrap().resolve(&empty);
    // An empty token counts as missing; an empty id is a mistake.
    assert!(empty.unwrap_err().to_string().contains("credentials.b.app_id`: it is empty"));
}

#[test]
fn secrets_are_accepted_only_by_reference_and_never_repeated() {
    for (lines, key) in [
        ("[credentials.c]\ntoken = \"s3cret\"", "credentials.c.token"),
        ("[credentials.c]\nssh_key = \"s3cret\"", "credentials.c.ssh_key"),
        ("[credentials.c]\ntoken = \"s3cret${env:A}\"", "credentials.c.token"),
        ("[credentials.c]\ntoken = \"\"", "credentials.c.token"),
    ] {
        let problem = mistake(&format!("name = \"n\"\n{lines}"));
        assert!(
            problem.contains(&format!("`{key}`: a secret is given only by reference")),
            "{problem}"
        );
        assert!(problem.contains("\"${env:NAME}\"") && !problem.contains("s3cret"), "{problem}");
    }
    let app = "[credentials.c]\napp_id = 1\ninstallation_id = 2\nprivate_key = \"s3cret\"";
    assert!(mistake(&format!("name = \"n\"\n{app}")).contains("only by reference"));
    let model = "[model]\nprimary = \"a/m\"\n[model.providers.a]\nbase_url = \"http://h\"\napi_key = \"s3cret\"";
    assert!(mistake(&format!("name = \"n\"\n{model}")).contains("only by reference"));
    let url = "[[workspace.repositories]]\npath = \"a\"\nurl = \"https://me:s3cret@h/a.git\"";
    let problem = mistake(&format!("name = \"n\"\n{url}"));
    assert!(
        problem.contains("give them as a `credential`") && !problem.contains("s3cret"),
        "{problem}"
    );
}

#[test]
fn invalid_values_of_references_are_not_repeated() {
    let text = "name = \"n\"\n[sandbox]\nprovider = \"${env:P}\"\nlease = \"${env:L}\"\n\
                memory = \"${env:M}\"\n[[workspace.repositories]]\nurl = \"${env:U}\"\npath = \"a\"";
    let problems = mistakes(&format!("{text}{REST}"));
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(!problems.join("\n").contains("env-"), "{problems:?}");
    assert!(problems[1].contains("what it refers to is not a duration"), "{problems:?}");
}

#[test]
fn debug_output_hides_values_of_references() {
    let text = WHOLE
        .replace("\"hello\"", "\"${env:X}\"")
        .replace("\"debian:12\"", "\"${env:X}\"")
        .replace("https://example.org/app.git", "https://${env:X}/app.git")
        .replace("\"main\"", "\"${env:X}\"")
        .replace("\"bot\"", "\"${env:X}\"")
        .replace("echo ${HOME}", "${env:X}")
        .replace("\"tools\"", "\"${env:X}\"")
        .replace("\"--ask\"", "\"${env:X}\"")
        .replace("\"Again\"", "\"${env:X}\"")
        .replace("acme/small", "acme/${env:X}")
        .replace("models.example.org", "${env:X}");
    let workflow = parse(&text).unwrap();
    let inputs = BTreeMap::from([("topic".to_owned(), "plant3d-input".to_owned())]);
    let env = |_: &str| Some("plant3d".to_owned());
    let lookup = Lookup { env: &env, inputs: &inputs };
    let resolved = workflow.resolve(&lookup).unwrap();
    let shown = format!("{:?}{resolved:?}{workflow:?}{lookup:?}", source(&text));
    assert!(!shown.contains("plant3d"), "{shown}");
    let parts = format!(
        "{:?}{:?}{:?}{:?}{:?}{:?}",
        resolved.sandbox,
        resolved.workspace,
        resolved.credentials,
        resolved.setup,
        resolved.model,
        resolved.runtime
    );
    assert!(!parts.contains("plant3d") && parts.contains("timeout"), "{parts}");
}

#[test]
fn secrets_and_private_texts_are_all_returned_once() {
    let workflow = resolve(WHOLE, &[("topic", "cats")]).unwrap();
    let secrets: BTreeMap<String, &str> = workflow
        .secrets()
        .into_iter()
        .map(|(name, secret)| (name, secret.expose_secret()))
        .collect();
    let expected = BTreeMap::from([
        ("credentials.git.token".to_owned(), "env-GIT_TOKEN"),
        ("credentials.deploy.ssh_key".to_owned(), "env-DEPLOY_KEY"),
        ("credentials.app.private_key".to_owned(), "env-APP_KEY"),
        ("model.providers.acme.api_key".to_owned(), "env-ACME_KEY"),
        ("sandbox.env.KEY".to_owned(), "env-KEY"),
    ]);
    assert_eq!(secrets, expected);
    let texts = workflow.private_texts();
    assert_eq!(texts, ["Say hello about cats", "Again", "about cats", "cats"]);
    let inside = format!("name = \"n\"\n[sandbox]\nenv = {{ A = \"a ${{env:B}}\" }}{REST}");
    let workflow = resolve(&inside, &[]).unwrap();
    let names: Vec<String> = workflow.secrets().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["sandbox.env.A", "env:B"]);
}

#[test]
fn paths_stay_in_the_workspace_and_do_not_overlap() {
    let repository =
        |path: &str| format!("[[workspace.repositories]]\nurl = \"/r\"\npath = \"{path}\"\n");
    let with = |lines: &str| mistake(&format!("name = \"n\"\n{lines}"));
    assert!(with(&repository("/abs")).contains("must be relative"));
    assert!(with(&repository("a/../b")).contains("without `.` and `..`"));
    assert!(with("[workspace]\nfiles = { \"../x\" = \"\" }").contains("without `.` and `..`"));
    assert!(with("[workspace]\nfiles = { \"/etc/x\" = \"\" }").contains("must be relative"));
    assert!(with("[workspace]\npath = \"/abs\"").contains("no file system of its own"));
    let two = |a: &str, b: &str| with(&(repository(a) + &repository(b)));
    assert!(two("a", "a").contains("the same path"));
    assert!(two("a", "a/b").contains("inside of another"));
    assert!(two("a/b", "a").contains("inside of another"));
    let both = |file: &str| {
        with(&format!("[workspace]\nfiles = {{ \"{file}\" = \"\" }}\n{}", repository("a/b")))
    };
    assert!(both("a/b/c").contains("must be empty") && both("a").contains("must be empty"));
    let files = "[workspace]\nfiles = { \"a\" = \"\", \"a/b\" = \"\" }";
    assert!(with(files).contains("takes it for a directory"));
    let beside = format!("name = \"n\"\n{}{}{REST}", repository("a"), repository("ab"));
    assert!(resolve(&beside, &[]).is_ok());
}

#[test]
fn unsafe_git_urls_are_refused() {
    let with = |url: &str| {
        mistake(&format!("name = \"n\"\n[[workspace.repositories]]\nurl = \"{url}\"\npath = \"a\""))
    };
    for url in
        ["--upload-pack=x", "ext::sh -c x", "ext::x", "a@-oProxy:x", "relative/path", "ftp://h/x"]
    {
        assert!(with(url).contains("workspace.repositories[0].url"), "{url}");
    }
    assert!(with("https://-x/a").contains("names no host"));
    assert!(with("https://token@h/a").contains("`credential`"));
    let reference = "[[workspace.repositories]]\nurl = \"/r\"\npath = \"a\"\nref = \"--x\"";
    assert!(mistake(&format!("name = \"n\"\n{reference}")).contains("no branch"));
}

#[test]
fn credentials_are_of_one_kind_and_match_the_url() {
    let with = |url: &str, name: &str, credential: &str| {
        mistake(&format!(
            "name = \"n\"\n[[workspace.repositories]]\nurl = \"{url}\"\npath = \"a\"\n\
             credential = \"{name}\"\n[credentials.git]\n{credential}"
        ))
    };
    let token = "token = \"${env:T}\"";
    assert!(with("https://h/a", "gti", token).contains("did you mean `git`?"));
    assert!(with("git@h:a", "git", token).contains("the address is ssh"));
    assert!(with("https://h/a", "git", "ssh_key = \"${env:T}\"").contains("is http(s)"));
    assert!(with("file:///a", "git", token).contains("needs no credential"));
    let mixed = format!("{token}\nssh_key = \"${{env:K}}\"");
    assert!(with("https://h/a", "git", &mixed).contains("must be one of"));
    assert!(with("https://h/a", "git", "username = \"u\"").contains("git.token`: it is missing"));
    assert!(mistake("name = \"n\"\n[credentials.git]").contains("must be one of"));
    let none = "name = \"n\"\n[[workspace.repositories]]\nurl = \"http://h/a\"\npath = \"a\"\ncredential = \"g\"";
    assert!(mistake(none).contains("the file has no `[credentials]`"));
}

#[test]
fn settings_are_accepted_only_for_providers_that_support_them() {
    let with = |lines: &str| mistake(&format!("name = \"n\"\n[sandbox]\nprovider = {lines}"));
    assert!(with("\"dokcer\"").contains("did you mean `docker`?"));
    assert!(with("\"docker\"").contains("needs one"));
    assert!(with("\"docker\"\nimage = \"i\"\ndisk = \"1g\"").contains("sandbox.disk"));
    assert!(with("\"process\"\nnetwork = \"none\"").contains("sandbox.network"));
    assert!(with("\"process\"\ndisk = \"1m\"").contains("sandbox.disk"));
    assert!(with("\"daytona\"\nnetwork = \"none\"").contains("sandbox.network"));
    assert!(with("\"daytona\"\nsnapshot = \"s\"\ncpus = 1").contains("brings its own"));
    assert!(with("\"daytona\"\nimage = \"i\"\ncpus = 1.5").contains("whole processors"));
    assert!(with("\"daytona\"\nimage = \"i\"\nmemory = \"512m\"").contains("whole GiB"));
    assert!(with("\"daytona\"\nimage = \"i\"\ndisk = \"1500m\"").contains("whole GiB"));
    assert!(with("\"process\"\ncpus = 0.0").contains("more than nothing"));
    assert!(with("\"process\"\ncpus = inf").contains("more than nothing"));
    assert!(with("\"process\"\nmemory = \"0g\"").contains("more than nothing"));
    assert!(with("\"process\"\nlease = \"0s\"").contains("more than nothing"));
    assert!(with("\"process\"\nenv = { \"A-B\" = \"\" }").contains("letters, digits"));
    let daytona = "name = \"n\"\n[sandbox]\nprovider = \"daytona\"\nimage = \"i\"\ncpus = 2\nmemory = \"4g\"\ndisk = \"10g\"";
    let workflow = resolve(&format!("{daytona}{REST}"), &[]).unwrap();
    assert_eq!(workflow.sandbox.disk, Some(10 << 30));
}

#[test]
fn one_workflow_can_serve_several_providers() {
    let text =
        "name = \"n\"\n[sandbox]\nprovider = \"${input:p}\"\nimage = \"i\"\nsnapshot = \"s\"";
    let text = format!("{text}{REST}");
    let on = |provider: &str| resolve(&text, &[("p", provider)]).unwrap();
    let parts = |workflow: &Resolved| {
        (
            workflow.sandbox.image.is_some(),
            workflow.sandbox.snapshot.is_some(),
            workflow.notes.len(),
        )
    };
    assert_eq!(parts(&on("process")), (false, false, 2));
    assert_eq!(parts(&on("docker")), (true, false, 1));
    assert_eq!(parts(&on("daytona")), (false, true, 1));
    let path = text.replace("[runtime]", "[workspace]\npath = \"/w\"\n[runtime]");
    assert!(resolve(&path, &[("p", "docker")]).is_ok());
    assert!(resolve(&path, &[("p", "process")]).is_err());
}

#[test]
fn a_runtime_has_what_its_kind_needs_and_no_more() {
    assert!(runtime_mistake("kind = \"comand\"").contains("did you mean `command`?"));
    assert!(runtime_mistake("kind = \"command\"").contains("needs one"));
    assert!(runtime_mistake("kind = \"command\"\ncommand = []").contains("it is empty"));
    assert!(
        runtime_mistake("kind = \"command\"\ncommand = [\"\"]")
            .contains("command[0]`: it is empty")
    );
    let command = "kind = \"command\"\ncommand = [\"a\"]\n";
    assert!(
        runtime_mistake(&format!("{command}prompt = \"stdio\"")).contains("did you mean `stdin`?")
    );
    assert!(
        runtime_mistake("kind = \"command\"\ncommand = [\"a\", \"{prompt}\"]").contains("argument")
    );
    let argument =
        format!("name = \"n\"{REST}").replace("[\"sh\"]", "[\"sh\"]\nprompt = \"argument\"");
    let RuntimeKind::Command { command, .. } = resolve(&argument, &[]).unwrap().runtime.kind;
    assert_eq!(command, ["sh", "{prompt}"]);
}

#[test]
fn known_kinds_that_this_build_cannot_run_parse_and_are_refused_later() {
    for kind in ["openclaw", "stream-json"] {
        let runtime = format!("kind = \"{kind}\"\nversion = \"1\"\nplugins = [\"p\"]");
        let text = format!("name = \"n\"\n[task]\nprompt = \"p\"\n[runtime]\n{runtime}");
        assert!(parse(&text).is_ok());
        let problem = runtime_mistake(&runtime);
        assert!(problem.contains(&format!("knows `{kind}` but cannot run it yet")), "{problem}");
    }
}

#[test]
fn an_undefined_fallback_leads_to_a_note_for_runtimes_without_models() {
    let model = "[model]\nprimary = \"acme/x\"\nfallbacks = [\"steady\"]\n\
                 [model.providers.acme]\nbase_url = \"https://h\"\n";
    let resolved = resolve(&format!("name = \"n\"\n{model}{REST}"), &[]).unwrap();
    assert!(resolved.model.unwrap().fallbacks.is_empty());
    let note = "`model.fallbacks[0]` has no effect: no profile has the name `steady`";
    assert_eq!(resolved.notes, [note]);
}

#[test]
fn models_refer_to_defined_profiles_and_providers() {
    let providers = "[model.providers.acme]\nbase_url = \"https://h\"\n[model.profiles.fast]\nmodel = \"acme/x\"\n";
    let with = |model: &str| mistake(&format!("name = \"n\"\n[model]\n{model}\n{providers}"));
    assert!(with("primary = \"fsat\"").contains("did you mean `fast`?"));
    assert!(with("primary = \"acm/x\"").contains("did you mean `acme`?"));
    assert!(with("primary = \"acme/\"").contains("has no model"));
    assert!(with("primary = \"fast\"\nfallbacks = [\"fats\"]").contains("fallbacks[0]"));
    assert!(with("primary = \"fast\"\nfallbacks = [\"fast\"]").contains("before already"));
    let profile = "name = \"n\"\n[model]\nprimary = \"p\"\n[model.profiles.p]\nmodel = \"plain\"";
    assert!(mistakes(&format!("{profile}{REST}"))[0].contains("must be provider/model"));
    let url = "name = \"n\"\n[model]\nprimary = \"a/m\"\n[model.providers.a]\nbase_url = \"h\"";
    assert!(mistake(url).contains("must begin with https://"));
    let key = "name = \"n\"\n[model]\nprimary = \"a/m\"\n[model.providers.a]\nbase_url = \"http://h\"\napi_key = \"${env:NO_KEY}\"";
    assert!(mistake(key).contains("${env:NO_KEY} is not set"));
}

#[test]
fn scripts_have_distinct_names_and_content() {
    let with = |lines: &str| mistake(&format!("name = \"n\"\n{lines}"));
    assert!(
        with("[[setup]]\nname = \"a\"\nrun = \"x\"\n[[setup]]\nname = \"a\"\nrun = \"x\"")
            .contains("called so")
    );
    assert!(
        with("[[setup]]\nrun = \"x\"\n[[setup]]\nname = \"1\"\nrun = \"x\"").contains("called so")
    );
    assert!(with("[[setup]]\nrun = \" \"").contains("it is empty"));
    assert!(with("[[teardown]]\nrun = \"x\"\ntimeout = \"0s\"").contains("more than nothing"));
    assert!(
        with("[[setup]]\nrun = \"x\"\ntimeout = \"soon\"").contains("`soon` is not a duration")
    );
    assert!(with("[[setup]]\nrun = \"x\"\nname = \"a\\nb\"").contains("more than one line"));
    assert!(with("[[setup]]\nrun = \"a\\u0000b\"").contains("NUL"));
}

#[test]
fn broken_references_are_reported_with_their_place() {
    let problems = mistakes(&format!(
        "name = \"${{HOME}}\"\n[sandbox]\nimage = \"${{env:A\"\nsnapshot = \"${{env:${{input:B}}}}\"{REST}"
    ));
    assert!(problems[0].starts_with("1:8: `name`: `${` begins a reference"), "{problems:?}");
    assert!(
        problems[1].starts_with("3:9: ") && problems[1].contains("that no `}` ends"),
        "{problems:?}"
    );
    assert!(
        problems[2].starts_with("4:12: ") && problems[2].contains("inside of another"),
        "{problems:?}"
    );
}

#[test]
fn the_checklist_has_its_steps_in_order() {
    let workflow = resolve(WHOLE, &[("topic", "cats")]).unwrap();
    let names: Vec<String> = workflow.steps().into_iter().map(|step| step.name).collect();
    let expected = [
        "sandbox",
        "setup tools",
        "workspace",
        "credential git",
        "clone app",
        "verify app",
        "capabilities",
        "agent",
    ];
    assert_eq!(names, expected);
    let optional: Vec<bool> = workflow.steps().iter().map(|step| step.optional).collect();
    assert_eq!(optional, [false, true, false, true, true, true, false, false]);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in ".{0,200}") {
        drop(parse(&text));
    }

    #[test]
    fn a_whole_workflow_with_a_cut_is_read_or_refused(start in 0..WHOLE.len(), length in 0..80usize) {
        let end = (start + length).min(WHOLE.len());
        let cut = format!("{}{}", &WHOLE[..start], &WHOLE[end..]);
        if let Err(error) = parse(&cut) {
            prop_assert!(!error.problems().is_empty());
            let lines = cut.lines().count() + 1;
            let inside = |problem: &Problem| problem.place.is_none_or(|at| at.line <= lines);
            prop_assert!(error.problems().iter().all(inside));
        }
    }

    #[test]
    fn any_value_in_any_place_never_panics(value in "(\"[^\"\\\\]{0,20}\"|-?[0-9]{1,22}|true|\\[\\]|\\{\\}|inf)", number in 0..60usize) {
        let lines = WHOLE.lines().enumerate().map(|(index, line)| match line.split_once(" = ") {
            Some((key, _)) if index == number => format!("{key} = {value}\n"),
            _ => format!("{line}\n"),
        });
        let text: String = lines.collect();
        drop(resolve(&text, &[("topic", "cats")]));
    }
}
