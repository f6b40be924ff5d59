//! What must be true after every round.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use creel_testkit::docker::Docker;
use creel_testkit::world::{Kind, Object};
use memchr::memmem;
use serde_json::Value;

use super::arena::{Arena, Place};
use super::others::{Others, image_of, sandboxes};
use super::work::Names;

/// The phases of a run that is over.
const FINAL: [&str; 3] = ["succeeded", "failed", "cancelled"];

/// What a round left behind.
pub(super) struct Verdict {
    /// One line for each broken promise.
    pub(super) broken: Vec<String>,
    /// What stays because nothing proves whose it is; the ledger reports each of them.
    pub(super) in_doubt: Vec<String>,
    /// The references of images among it.
    references: Vec<String>,
}

impl Verdict {
    /// Examines everything the round could have touched.
    pub(super) fn reach(
        arena: &Arena,
        place: &Place,
        others: &Others<'_>,
        names: &Names,
        said: &str,
    ) -> Self {
        let references = unproven_references(place);
        let mut verdict = Self { broken: Vec::new(), in_doubt: Vec::new(), references };
        let docker = arena.docker();
        let damage = others.theirs.iter().filter_map(|one| one.damage(&docker, place));
        let damage = damage.chain(arena.touched());
        verdict.broken.extend(damage.map(|one| format!("foreign touched: {one}")));
        verdict.check_leaks(arena, place, others, names);
        verdict.check_runs(place);
        verdict.check_secrets(place, names, said);
        verdict
    }

    fn check_leaks(&mut self, arena: &Arena, place: &Place, others: &Others<'_>, names: &Names) {
        let reported = reported(place);
        let docker = arena.docker();
        let theirs = others.theirs.iter().map(|one| one.id().to_owned());
        let theirs = with_ancestors(&docker, theirs.collect());
        // What such a reference is built upon cannot go before it.
        let kept = self.references.iter().filter_map(|one| image_of(&docker, one));
        let kept = with_ancestors(&docker, kept.collect());
        // Where the whole answer to a build was lost and others moved its name on, nothing tells
        // what it made; the name is reported.
        let is_build_lost = self.references.contains(&names.tag);
        let is_unknown = |one: &Object| one.kind == Kind::Image && one.name.starts_with("<none>");
        for object in arena.added().objects().filter(|one| !theirs.contains(&one.id)) {
            let is_kept = kept.contains(&object.id) || (is_build_lost && is_unknown(object));
            if is_reported(object, &reported) || is_kept {
                self.in_doubt.push(format!("{object:?}"));
            } else {
                self.broken.push(format!("leak: {object:?}"));
            }
        }
        let is_theirs = |line: &String| others.theirs.iter().any(|one| line.ends_with(one.id()));
        let local = place.home.on_machine().into_iter().filter(|line| !is_theirs(line));
        self.broken.extend(local.map(|line| format!("leak: {line}")));
        let is_theirs = |row: &Value| others.theirs.iter().any(|one| row["id"] == one.id());
        let remote = sandboxes(place).into_iter().filter(|row| !is_theirs(row));
        self.broken.extend(remote.map(|row| format!("leak: sandbox {row}")));
        let open = place.home.open_records();
        let is_kept = |record: &Value| record["id"].as_str().is_some_and(|id| kept.contains(id));
        let unfinished =
            open.iter().filter(|record| record["state"] != "quarantined" && !is_kept(record));
        self.broken.extend(unfinished.map(|record| format!("open record: {record}")));
    }

    /// Removes the references in doubt, as a user would who knows: the next round begins clean.
    pub(super) fn remove_doubtful(&self, docker: &Docker) {
        for reference in &self.references {
            // It may have gone with another one.
            let _ = docker.remove_image(reference);
        }
    }

    fn check_runs(&mut self, place: &Place) {
        let runs = runs_of(place);
        let is_final = |run: &Value| FINAL.iter().any(|phase| run["phase"] == *phase);
        let open = runs.iter().filter(|run| !is_final(run));
        self.broken.extend(open.map(|run| format!("run not final: {run}")));
    }

    fn check_secrets(&mut self, place: &Place, names: &Names, said: &str) {
        let mut texts = vec![("what commands printed".to_owned(), said.as_bytes().to_vec())];
        read_all(place.state(), &mut texts);
        // Long events are packed in their file.
        for run in runs_of(place).iter().filter_map(|run| run["run"].as_str()) {
            let events = place.home.creel.run(["events", run, "--json"]).expect_code(0);
            texts.push((format!("the events of {run}"), events.stdout.into_bytes()));
        }
        let encoded = STANDARD.encode(&names.secret);
        for (path, bytes) in &texts {
            for form in [&names.secret, &encoded] {
                if contains(bytes, form.as_bytes()) {
                    self.broken.push(format!("secret found in {path}"));
                }
            }
        }
    }
}

fn runs_of(place: &Place) -> Vec<Value> {
    let listed = place.home.creel.run(["runs", "--json"]).expect_code(0).json();
    listed["runs"].as_array().cloned().unwrap_or_default()
}

/// Returns what the ledger says it could not release.
fn reported(place: &Place) -> Vec<Value> {
    let open = place.home.open_records().into_iter();
    open.filter(|record| record["state"] == "quarantined").collect()
}

/// Only what is addressed by a name can be in doubt; an id always proves.
fn is_reported(object: &Object, reported: &[Value]) -> bool {
    let named = matches!(object.kind, Kind::Image | Kind::Volume);
    let is_it = |record: &Value| {
        [&record["id"], &record["name"]].into_iter().any(|text| {
            text.as_str().is_some_and(|text| object.id.contains(text) || object.name == text)
        })
    };
    named && reported.iter().any(is_it)
}

/// Returns the references that creel reports to have kept without proof: no answer told them.
fn unproven_references(place: &Place) -> Vec<String> {
    let records = place.home.records().into_iter().filter(|record| record["kind"] == "image");
    let unproven = records.filter(|record| {
        if record["state"] == "quarantined" {
            return true;
        }
        let events = place.home.events(record["resource"].as_str().unwrap());
        events.iter().any(|event| {
            let evidence = event["evidence"].as_str().unwrap_or_default();
            event["event"] == "never_created" && evidence.starts_with("kept, nothing proves")
        })
    });
    unproven.map(|record| record["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns ids with those of the images that they are built on.
fn with_ancestors(docker: &Docker, mut ids: HashSet<String>) -> HashSet<String> {
    let mut images: Vec<String> =
        ids.iter().filter(|id| id.starts_with("sha256:")).cloned().collect();
    while let Some(image) = images.pop() {
        let details = docker.inspect_image(&image).unwrap();
        let parent = details.and_then(|one| one["Parent"].as_str().map(str::to_owned));
        if let Some(parent) = parent.filter(|parent| !parent.is_empty())
            && ids.insert(parent.clone())
        {
            images.push(parent);
        }
    }
    ids
}

/// Reads every regular file below a directory.
fn read_all(directory: &Path, texts: &mut Vec<(String, Vec<u8>)>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            read_all(&entry.path(), texts);
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            texts.push((entry.path().display().to_string(), bytes));
        }
    }
}

fn contains(bytes: &[u8], secret: &[u8]) -> bool {
    memmem::find(bytes, secret).is_some()
}
