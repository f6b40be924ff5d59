//! The provider against an engine that answers from a script.
//!
//! A real engine shows what engines do; this shows what we do when one does
//! something rare.

#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::id::ResourceId;
use crate::labels::{self, Labels};
use crate::provider::{
    CreateOrder, ErrorClass, Kind, Marks, Provider, ReleaseMode, Released, Spec, VolumeSpec,
};
use crate::task;

use super::{DockerProvider, Endpoint, step_name};

const VERSION: &str = r#"{"Version":"29.0","ApiVersion":"1.52","MinAPIVersion":"1.44"}"#;
const PODMAN: &str =
    r#"{"ApiVersion":"1.41","MinAPIVersion":"1.24","Components":[{"Name":"Podman Engine"}]}"#;

/// What the engine answers to a method and path: a status and a body.
type Script = BTreeMap<&'static str, (u16, String)>;

/// An engine that knows its lines, and keeps what it was asked.
struct Scripted {
    provider: DockerProvider,
    asked: Arc<Mutex<Vec<String>>>,
    _directory: TempDir,
}

impl Scripted {
    fn new(lines: &[(&'static str, u16, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut script = Script::from([("GET /version", (200, VERSION.to_owned()))]);
        script.extend(lines.iter().map(|(line, status, body)| (*line, (*status, (*body).into()))));
        let asked = Arc::default();
        task::background(serve(listener, script, Arc::clone(&asked)));
        let endpoint = Endpoint::explicit(&format!("unix://{}", path.display())).unwrap();
        let provider = DockerProvider::connect(endpoint).unwrap();
        Self { provider, asked, _directory: directory }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, script: Script, asked: Arc<Mutex<Vec<String>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        answer(stream, &script, &asked).await;
    }
}

async fn answer(mut stream: UnixStream, script: &Script, asked: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read_buf(&mut head).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    asked.lock().unwrap().push(format!("{method} {target}"));
    let path = target.split('?').next().unwrap().trim_start_matches("/v1.47");
    let path = path.trim_start_matches("/v1.41");
    let missing = (404, r#"{"message":"no such object"}"#.to_owned());
    let (status, body) = script.get(format!("{method} {path}").as_str()).unwrap_or(&missing);
    let text = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n{body}");
    // A caller that went away has its answer already; one that still sends must be let finish,
    // or the system throws the answer away with what was not read.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

fn marks(kind: Kind) -> Marks {
    let resource = ResourceId::new();
    Marks { kind, resource, name: resource.object_name() }
}

#[tokio::test]
async fn a_list_survives_states_and_fields_nobody_has_heard_of() {
    let engine = Scripted::new(&[(
        "GET /containers/json",
        200,
        r#"[{"Id":"a","State":"Initialized","New":{"x":[1]}},{"Id":"b","Labels":null}]"#,
    )]);
    let seen = engine.provider.list(&[Kind::Container]).await.unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].state, "initialized");
    assert_eq!(
        engine.asked(),
        ["GET /_ping", "GET /version", "GET /v1.47/containers/json?all=1&filters=%7B%7D"]
    );
}

#[tokio::test]
async fn a_list_that_breaks_off_is_an_error_and_not_a_short_list() {
    let engine = Scripted::new(&[("GET /containers/json", 200, r#"[{"Id":"a"},"#)]);
    let error = engine.provider.list(&[Kind::Container]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unreachable, "{error}");
}

#[tokio::test]
async fn a_row_without_an_id_is_an_error_and_not_a_missing_row() {
    let engine = Scripted::new(&[("GET /containers/json", 200, r#"[{"Names":["/a"]}]"#)]);
    let error = engine.provider.list(&[Kind::Container]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient, "{error}");
}

#[tokio::test]
async fn what_is_no_list_is_an_error_and_not_an_empty_list() {
    for body in ["", "<html></html>", r#""text""#, r#"{"message":"later"}"#] {
        let engine = Scripted::new(&[("GET /containers/json", 200, body)]);
        let error = engine.provider.list(&[Kind::Container]).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Transient, "{body}: {error}");
    }
}

/// Returns what is asked of the provider to create a volume.
fn a_volume() -> CreateOrder {
    let resource = ResourceId::new();
    CreateOrder {
        resource,
        labels: Labels::from([(labels::RESOURCE, resource.to_string())]),
        lease: Duration::from_secs(1),
        spec: Spec::Volume(VolumeSpec {}),
        name: resource.object_name(),
    }
}

#[tokio::test]
async fn an_answer_to_a_create_that_cannot_be_read_is_no_refusal() {
    let order = a_volume();
    for body in ["", "<html></html>", "[]"] {
        let engine = Scripted::new(&[("POST /volumes/create", 201, body)]);
        let error = engine.provider.create(&order).await.unwrap_err();
        assert!(error.class.is_retryable(), "{body}: {error}");
    }
}

#[tokio::test]
async fn only_404_about_the_object_verifies_an_absence() {
    let engine = Scripted::new(&[("GET /containers/a/json", 404, "404 page not found")]);
    assert!(engine.provider.inspect(Kind::Container, "a").await.is_err());
    for status in [400, 403, 409, 500, 503] {
        let engine = Scripted::new(&[("GET /containers/a/json", status, "")]);
        assert!(engine.provider.inspect(Kind::Container, "a").await.is_err(), "{status}");
    }
    let engine = Scripted::new(&[]);
    assert_eq!(engine.provider.inspect(Kind::Container, "a").await.unwrap(), None);
}

/// Verifies the absence of so many containers at once, on an engine with these lines.
async fn verify_at_once(engine: &Scripted, count: usize) -> Vec<Option<bool>> {
    let ids: Vec<String> = (0..count).map(|number| format!("{number:064}")).collect();
    let looks = ids.iter().map(|id| engine.provider.verify(Kind::Container, id));
    let answers = futures::future::join_all(looks).await;
    answers.into_iter().map(|answer| answer.ok().map(|seen| seen.is_none())).collect()
}

/// Counts the lists and the looks at single containers that an engine was asked for.
fn lists_and_looks(engine: &Scripted) -> (usize, usize) {
    let asked = engine.asked();
    let about = asked.iter().filter(|line| line.contains("/containers/"));
    let (lists, looks): (Vec<_>, Vec<_>) = about.partition(|line| line.contains("json?all=1"));
    (lists.len(), looks.len())
}

#[tokio::test]
async fn looks_at_the_same_time_share_one_question() {
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    assert_eq!(verify_at_once(&engine, 100).await, vec![Some(true); 100]);
    let (lists, looks) = lists_and_looks(&engine);
    assert!((2..10).contains(&lists), "{lists} lists");
    assert_eq!(looks, 0);
}

#[tokio::test]
async fn what_a_shared_question_finds_is_looked_at_by_itself() {
    let id = format!("{:064}", 1);
    let row = format!(r#"{{"Id":"{id}"}}"#);
    let path: &'static str = format!("GET /containers/{id}/json").leak();
    let engine =
        Scripted::new(&[("GET /containers/json", 200, &format!("[{row}]")), (path, 200, &row)]);
    assert_eq!(verify_at_once(&engine, 3).await, [Some(true), Some(false), Some(true)]);
    assert_eq!(lists_and_looks(&engine).1, 1);
}

#[tokio::test]
async fn a_shared_question_that_fails_proves_nothing() {
    for (status, body) in [(500, ""), (403, ""), (200, "[{"), (200, r#"[{"Names":["/a"]}]"#)] {
        let engine = Scripted::new(&[("GET /containers/json", status, body)]);
        assert_eq!(verify_at_once(&engine, 3).await, [Some(true); 3], "{status} {body}");
        assert_eq!(lists_and_looks(&engine).1, 3, "each is looked at: {status} {body}");
    }
    let path: &'static str = format!("GET /containers/{:064}/json", 0).leak();
    let engine = Scripted::new(&[("GET /containers/json", 500, ""), (path, 500, "")]);
    assert_eq!(verify_at_once(&engine, 2).await, [None, Some(true)]);
}

#[tokio::test]
async fn a_look_goes_on_when_whoever_asked_for_it_gives_up() {
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    let ids = [0, 1, 2].map(|number| format!("{number:064}"));
    engine.provider.connection().is_podman().await.unwrap();
    let [mut first, mut second, mut third] =
        ids.each_ref().map(|id| engine.provider.verify(Kind::Container, id));
    // The first asks for itself. The others wait; then the second asks for both.
    for look in [&mut first, &mut second, &mut third] {
        assert!(futures::poll!(look).is_pending());
    }
    assert_eq!(first.await.unwrap(), None);
    assert!(futures::poll!(&mut second).is_pending());
    drop(second);
    assert_eq!(third.await.unwrap(), None);
    assert_eq!(lists_and_looks(&engine).1, 1, "the third had to look by itself");
}

#[tokio::test]
async fn podman_and_short_ids_are_asked_for_one_by_one() {
    let podman =
        Scripted::new(&[("GET /version", 200, PODMAN), ("GET /containers/json", 200, "[]")]);
    assert_eq!(verify_at_once(&podman, 3).await, [Some(true); 3]);
    assert_eq!(lists_and_looks(&podman), (0, 3));
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    assert_eq!(engine.provider.verify(Kind::Container, "short").await.unwrap(), None);
    assert_eq!(lists_and_looks(&engine), (0, 1));
}

#[tokio::test]
async fn only_what_has_the_name_and_its_own_label_is_found() {
    let marks = marks(Kind::Container);
    let labels = format!(r#""Labels":{{"{}":"{}"}}"#, labels::RESOURCE, marks.resource);
    let rows = format!(
        r#"[{{"Id":"a","Names":["/{name}"],"ImageID":"plain",{labels}}},
            {{"Id":"f","Names":["/{name}"],"ImageID":"marked",{labels}}},
            {{"Id":"b","Names":["/other"],"ImageID":"marked",{labels}}},
            {{"Id":"c","Names":["/renamed"],"ImageID":"plain",{labels}}},
            {{"Id":"d","Names":["/{name}-2"],"ImageID":"lost",{labels}}},
            {{"Id":"e","Names":["/{name}"],"ImageID":"plain"}}]"#,
        name = marks.name
    );
    let engine = Scripted::new(&[
        ("GET /containers/json", 200, &rows),
        ("GET /images/marked/json", 200, &format!(r#"{{"Id":"marked","Config":{{{labels}}}}}"#)),
        ("GET /images/plain/json", 200, r#"{"Id":"plain","Config":null}"#),
    ]);
    let found = engine.provider.find(&marks).await.unwrap();
    let ids: Vec<&str> = found.iter().map(|seen| seen.id.as_str()).collect();
    assert_eq!(ids, ["a"]);
}

#[tokio::test]
async fn a_network_in_use_is_left_to_its_users_even_on_podman() {
    let engine = Scripted::new(&[
        ("GET /version", 200, PODMAN),
        ("GET /networks/n", 200, r#"{"Id":"n","Name":"n","Containers":{"c":{}}}"#),
        ("DELETE /networks/n", 204, ""),
    ]);
    let error =
        engine.provider.release(Kind::Network, "n", ReleaseMode::AT_ONCE).await.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (ErrorClass::InUse, "it is used by container c")
    );
    assert!(!engine.asked().iter().any(|line| line.starts_with("DELETE")));
}

#[tokio::test]
async fn a_predefined_network_is_refused_before_the_engine_is_asked() {
    let engine = Scripted::new(&[("GET /networks/n", 200, r#"{"Id":"n","Name":"bridge"}"#)]);
    let error =
        engine.provider.release(Kind::Network, "n", ReleaseMode::AT_ONCE).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Denied);
}

#[tokio::test]
async fn a_volume_that_was_there_before_is_not_ours() {
    let order = a_volume();
    let theirs = format!(r#"{{"Name":"{}","Labels":null}}"#, order.name);
    let engine = Scripted::new(&[("POST /volumes/create", 201, &theirs)]);
    let error = engine.provider.create(&order).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid, "{error}");
}

/// What looks like the id of an image; anything else is one of its names.
const ID: &str = "0123456789ab";

#[tokio::test]
async fn an_image_in_use_keeps_its_names() {
    let engine = Scripted::new(&[
        ("DELETE /images/0123456789ab", 409, r#"{"message":"conflict: must be forced"}"#),
        ("GET /images/0123456789ab/json", 200, r#"{"Id":"0123456789ab","RepoTags":["a:1","b:1"]}"#),
        ("GET /containers/json", 200, r#"[{"Id":"c","ImageID":"0123456789ab"}]"#),
    ]);
    let error = engine.provider.release(Kind::Image, ID, ReleaseMode::AT_ONCE).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::InUse);
    assert!(!engine.asked().iter().any(|line| line.contains("/images/a:1")));
}

#[tokio::test]
async fn an_image_of_several_names_goes_name_by_name() {
    let engine = Scripted::new(&[
        ("DELETE /images/0123456789ab", 409, r#"{"message":"conflict: must be forced"}"#),
        ("GET /images/0123456789ab/json", 200, r#"{"Id":"0123456789ab","RepoTags":["b:1","a:1"]}"#),
        ("GET /containers/json", 200, "[]"),
        ("DELETE /images/a:1", 200, "[]"),
        ("DELETE /images/b:1", 500, r#"{"message":"busy"}"#),
    ]);
    let error = engine.provider.release(Kind::Image, ID, ReleaseMode::AT_ONCE).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient, "{error}");
    let deletes: Vec<String> =
        engine.asked().into_iter().filter(|line| line.starts_with("DELETE")).collect();
    assert!(deletes[1].contains("/images/a:1") && deletes[2].contains("/images/b:1"));
}

#[tokio::test]
async fn a_reference_goes_alone_and_leaves_the_other_names_of_its_image() {
    let engine = Scripted::new(&[
        ("GET /images/a%3A1/json", 200, r#"{"Id":"0123456789ab","RepoTags":["b:1","a:1"]}"#),
        ("DELETE /images/a:1", 409, r#"{"message":"conflict: container c is using it"}"#),
    ]);
    let seen = engine.provider.inspect(Kind::Image, "a:1").await.unwrap().unwrap();
    assert_eq!((seen.id.as_str(), seen.name.as_str()), ("a:1", "a:1"));
    assert_eq!(seen.references().collect::<Vec<_>>(), ["a:1", "0123456789ab"]);
    let refused = engine.provider.release(Kind::Image, "a:1", ReleaseMode::AT_ONCE).await;
    assert_eq!(refused.unwrap_err().class, ErrorClass::InUse);
    let deletes = engine.asked().into_iter().filter(|line| line.starts_with("DELETE"));
    assert_eq!(deletes.count(), 1);
}

#[tokio::test]
async fn the_image_of_a_step_is_found_by_the_container_that_ran_it() {
    let engine = Scripted::new(&[
        (
            "GET /images/json",
            200,
            r#"[{"Id":"sha256:aa","RepoTags":["kept:1"]},{"Id":"sha256:bb","RepoTags":null},
                {"Id":"sha256:cc","RepoTags":["<none>:<none>"]}]"#,
        ),
        ("GET /images/sha256%3Abb/json", 200, r#"{"Id":"sha256:bb","Container":"0123ff"}"#),
        ("GET /images/sha256%3Acc/json", 200, r#"{"Id":"sha256:cc","Container":"012345"}"#),
    ]);
    let find = |container: &str| {
        let marks = Marks {
            kind: Kind::Image,
            resource: ResourceId::new(),
            name: step_name(container, None),
        };
        let provider = &engine.provider;
        async move {
            let found = provider.find(&marks).await.unwrap();
            found.into_iter().map(|seen| seen.id).collect::<Vec<_>>()
        }
    };
    assert_eq!(find("01234").await, ["sha256:cc"]);
    assert_eq!(find("99999").await, [""; 0]);
    assert!(!engine.asked().iter().any(|line| line.contains("sha256%3Aaa")));
}

#[tokio::test]
async fn releasing_what_is_absent_is_success() {
    let engine = Scripted::new(&[]);
    for kind in [Kind::Container, Kind::Network, Kind::Volume, Kind::Image] {
        let released = engine.provider.release(kind, "a", ReleaseMode::AT_ONCE).await.unwrap();
        assert_eq!(released, Released::AlreadyGone, "{kind}");
    }
}

#[tokio::test]
async fn a_polite_release_waits_for_the_stop_and_forces_nothing() {
    let engine =
        Scripted::new(&[("POST /containers/a/stop", 304, ""), ("DELETE /containers/a", 204, "")]);
    let polite = ReleaseMode {
        stop_timeout: Some(Duration::from_millis(1500)),
        kill_running: false,
        ..ReleaseMode::AT_ONCE
    };
    let released = engine.provider.release(Kind::Container, "a", polite).await.unwrap();
    assert_eq!(released, Released::Done);
    assert_eq!(
        engine.asked()[2..],
        [
            "POST /v1.47/containers/a/stop?t=2",
            "DELETE /v1.47/containers/a?v=true&force=false&link=false"
        ]
    );
}
