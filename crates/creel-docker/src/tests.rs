//! Tests the provider against an engine with scripted responses.
//!
//! A real engine shows what engines do. This one shows what we do when an engine does something
//! rare.

#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{
    CreateRequest, ErrorClass, Kind, Marks, Provider, ReleaseMode, Released, Spec, VolumeSpec,
};
use creel_model::task;
use memchr::memmem;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{DockerProvider, Endpoint, step_name};

const VERSION: &str = r#"{"Version":"29.0","ApiVersion":"1.52","MinAPIVersion":"1.44"}"#;
const PODMAN: &str =
    r#"{"ApiVersion":"1.41","MinAPIVersion":"1.24","Components":[{"Name":"Podman Engine"}]}"#;

/// Maps a method and path to the status and body of the response.
type Script = BTreeMap<&'static str, (u16, String)>;

/// An engine with scripted responses that records its requests.
struct Scripted {
    provider: DockerProvider,
    requests: Arc<Mutex<Vec<String>>>,
    _directory: TempDir,
}

impl Scripted {
    fn new(lines: &[(&'static str, u16, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut script = Script::from([("GET /version", (200, VERSION.to_owned()))]);
        script.extend(lines.iter().map(|(line, status, body)| (*line, (*status, (*body).into()))));
        let requests = Arc::default();
        task::background(serve(listener, script, Arc::clone(&requests)));
        let endpoint = Endpoint::explicit(&format!("unix://{}", path.display())).unwrap();
        let provider = DockerProvider::connect(endpoint).unwrap();
        Self { provider, requests, _directory: directory }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, script: Script, requests: Arc<Mutex<Vec<String>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        respond(stream, &script, &requests).await;
    }
}

async fn respond(mut stream: UnixStream, script: &Script, requests: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while memmem::find(&head, b"\r\n\r\n").is_none() {
        match stream.read_buf(&mut head).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut parts = head.split(' ');
    let (method, target) = (parts.next().unwrap(), parts.next().unwrap());
    requests.lock().unwrap().push(format!("{method} {target}"));
    let path = target.split('?').next().unwrap().trim_start_matches("/v1.47");
    let path = path.trim_start_matches("/v1.41");
    let missing = (404, r#"{"message":"no such object"}"#.to_owned());
    let (status, body) = script.get(format!("{method} {path}").as_str()).unwrap_or(&missing);
    let text = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n{body}");
    // A caller that has disconnected has its response already. One that still sends must be able to
    // finish, or the system discards the response together with the unread bytes.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

fn marks(kind: Kind) -> Marks {
    let resource = ResourceId::new();
    Marks { kind, resource, name: resource.object_name() }
}

#[tokio::test]
async fn a_list_survives_unknown_states_and_fields() {
    let engine = Scripted::new(&[(
        "GET /containers/json",
        200,
        r#"[{"Id":"a","State":"Initialized","New":{"x":[1]}},{"Id":"b","Labels":null}]"#,
    )]);
    let seen = engine.provider.list(&[Kind::Container]).await.unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].state, "initialized");
    assert_eq!(
        engine.requests(),
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

/// Returns a request to create a volume.
fn a_volume() -> CreateRequest {
    let resource = ResourceId::new();
    CreateRequest {
        resource,
        labels: Labels::from([(labels::RESOURCE, resource.to_string())]),
        lease: Duration::from_secs(1),
        spec: Spec::Volume(VolumeSpec {}),
        name: resource.object_name(),
    }
}

#[tokio::test]
async fn an_unreadable_response_to_a_create_is_retryable() {
    let request = a_volume();
    for body in ["", "<html></html>", "[]"] {
        let engine = Scripted::new(&[("POST /volumes/create", 201, body)]);
        let error = engine.provider.create(&request).await.unwrap_err();
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

/// Verifies the absence of `count` containers at once.
async fn verify_at_once(engine: &Scripted, count: usize) -> Vec<Option<bool>> {
    let ids: Vec<String> = (0..count).map(|number| format!("{number:064}")).collect();
    let inspections = ids.iter().map(|id| engine.provider.verify(Kind::Container, id));
    let results = futures::future::join_all(inspections).await;
    results.into_iter().map(|result| result.ok().map(|seen| seen.is_none())).collect()
}

/// Counts the lists, and the inspections of single containers, that an engine received.
fn lists_and_inspections(engine: &Scripted) -> (usize, usize) {
    let requests = engine.requests();
    let about = requests.iter().filter(|line| line.contains("/containers/"));
    let (lists, inspections): (Vec<_>, Vec<_>) =
        about.partition(|line| line.contains("json?all=1"));
    (lists.len(), inspections.len())
}

#[tokio::test]
async fn concurrent_checks_share_one_list() {
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    assert_eq!(verify_at_once(&engine, 100).await, vec![Some(true); 100]);
    let (lists, inspections) = lists_and_inspections(&engine);
    assert!((2..10).contains(&lists), "{lists} lists");
    assert_eq!(inspections, 0);
}

#[tokio::test]
async fn what_a_shared_list_finds_is_inspected_individually() {
    let id = format!("{:064}", 1);
    let row = format!(r#"{{"Id":"{id}"}}"#);
    let path: &'static str = format!("GET /containers/{id}/json").leak();
    let engine =
        Scripted::new(&[("GET /containers/json", 200, &format!("[{row}]")), (path, 200, &row)]);
    assert_eq!(verify_at_once(&engine, 3).await, [Some(true), Some(false), Some(true)]);
    assert_eq!(lists_and_inspections(&engine).1, 1);
}

#[tokio::test]
async fn a_shared_list_that_fails_proves_nothing() {
    for (status, body) in [(500, ""), (403, ""), (200, "[{"), (200, r#"[{"Names":["/a"]}]"#)] {
        let engine = Scripted::new(&[("GET /containers/json", status, body)]);
        assert_eq!(verify_at_once(&engine, 3).await, [Some(true); 3], "{status} {body}");
        assert_eq!(lists_and_inspections(&engine).1, 3, "each is looked at: {status} {body}");
    }
    let path: &'static str = format!("GET /containers/{:064}/json", 0).leak();
    let engine = Scripted::new(&[("GET /containers/json", 500, ""), (path, 500, "")]);
    assert_eq!(verify_at_once(&engine, 2).await, [None, Some(true)]);
}

#[tokio::test]
async fn a_shared_check_continues_when_its_caller_is_dropped() {
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    let ids = [0, 1, 2].map(|number| format!("{number:064}"));
    engine.provider.connection().is_podman().await.unwrap();
    let [mut first, mut second, mut third] =
        ids.each_ref().map(|id| engine.provider.verify(Kind::Container, id));
    // The first sends its own list. The others wait; then the second sends one for both.
    for check in [&mut first, &mut second, &mut third] {
        assert!(futures::poll!(check).is_pending());
    }
    assert_eq!(first.await.unwrap(), None);
    assert!(futures::poll!(&mut second).is_pending());
    drop(second);
    assert_eq!(third.await.unwrap(), None);
    assert_eq!(lists_and_inspections(&engine).1, 1, "the third had to look by itself");
}

#[tokio::test]
async fn podman_and_short_ids_are_inspected_one_by_one() {
    let podman =
        Scripted::new(&[("GET /version", 200, PODMAN), ("GET /containers/json", 200, "[]")]);
    assert_eq!(verify_at_once(&podman, 3).await, [Some(true); 3]);
    assert_eq!(lists_and_inspections(&podman), (0, 3));
    let engine = Scripted::new(&[("GET /containers/json", 200, "[]")]);
    assert_eq!(engine.provider.verify(Kind::Container, "short").await.unwrap(), None);
    assert_eq!(lists_and_inspections(&engine), (0, 1));
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
    assert!(!engine.requests().iter().any(|line| line.starts_with("DELETE")));
}

#[tokio::test]
async fn a_predefined_network_is_refused_before_a_request_is_sent() {
    let engine = Scripted::new(&[("GET /networks/n", 200, r#"{"Id":"n","Name":"bridge"}"#)]);
    let error =
        engine.provider.release(Kind::Network, "n", ReleaseMode::AT_ONCE).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Denied);
}

#[tokio::test]
async fn a_volume_that_was_there_before_is_not_ours() {
    let request = a_volume();
    let theirs = format!(r#"{{"Name":"{}","Labels":null}}"#, request.name);
    let engine = Scripted::new(&[("POST /volumes/create", 201, &theirs)]);
    let error = engine.provider.create(&request).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid, "{error}");
}

/// A text in the format of an image id. Anything else is one of its names.
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
    assert!(!engine.requests().iter().any(|line| line.contains("/images/a:1")));
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
        engine.requests().into_iter().filter(|line| line.starts_with("DELETE")).collect();
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
    let deletes = engine.requests().into_iter().filter(|line| line.starts_with("DELETE"));
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
    assert!(!engine.requests().iter().any(|line| line.contains("sha256%3Aaa")));
}

#[tokio::test]
async fn a_reported_step_that_lands_after_its_window_is_found_by_its_container() {
    let engine = Scripted::new(&[
        (
            "GET /images/json",
            200,
            r#"[{"Id":"sha256:aa","RepoTags":null},
                {"Id":"sha256:bb","ParentId":"sha256:aa","RepoTags":null},
                {"Id":"sha256:cc","ParentId":"sha256:aa","RepoTags":null}]"#,
        ),
        ("GET /images/sha256%3Aaa/json", 200, r#"{"Id":"sha256:aa","Container":"77"}"#),
        ("GET /images/sha256%3Abb/json", 200, r#"{"Id":"sha256:bb","Container":"0123ff"}"#),
        ("GET /images/sha256%3Acc/json", 200, r#"{"Id":"sha256:cc","Container":"012345"}"#),
    ]);
    let steps = async |container: &str| {
        let recorded = [step_name(container, Some("aa"))];
        let found = engine.provider.unrecorded_steps(&["sha256:aa".to_owned()], &recorded).await;
        found.unwrap().into_iter().map(|seen| seen.id).collect::<Vec<_>>()
    };
    assert_eq!(steps("01234").await, ["sha256:cc"], "not the other image upon the same one");
    assert_eq!(steps("99999").await, [""; 0]);
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
        engine.requests()[2..],
        [
            "POST /v1.47/containers/a/stop?t=2",
            "DELETE /v1.47/containers/a?v=true&force=false&link=false"
        ]
    );
}
