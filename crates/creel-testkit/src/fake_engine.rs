//! Scripted responses that a real engine cannot be made to give.
//!
//! Use it only for states that a real engine does not keep: ten thousand containers, one that stays
//! in `removing`, a removal in progress, a busy daemon that recovers. Everything else is tested on
//! the real engine.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use regex::Regex;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::listener::UnixServer;
use crate::wire::Head;

/// One scripted response.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A status and a JSON body.
    Json(u16, Value),
    /// A status without a body.
    Empty(u16),
    /// An error in the engine's format.
    Error(u16, String),
    /// A status, and a body with a beginning and a part that repeats for ever.
    Endless(u16, String, String),
    /// A status line and a header that never ends.
    EndlessHead,
    /// No response as long as the fake lives.
    Hang,
}

impl Reply {
    /// Returns an error in the engine's format.
    pub fn error(status: u16, message: &str) -> Self {
        Self::Error(status, message.to_owned())
    }
}

struct Route {
    method: String,
    path: Regex,
    /// The responses, one per request. The last one repeats for ever.
    replies: Vec<Reply>,
    served: usize,
}

/// A running fake. It ends on drop, and cuts hanging connections.
pub struct FakeEngine {
    listener: UnixServer,
    shared: Arc<EngineState>,
}

impl fmt::Debug for FakeEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "FakeEngine at {} received {:?}",
            self.listener.socket().display(),
            self.requests()
        )
    }
}

#[derive(Default)]
struct EngineState {
    routes: Mutex<Vec<Route>>,
    requests: Mutex<Vec<String>>,
    hanging: Mutex<Vec<UnixStream>>,
}

impl FakeEngine {
    /// Starts a fake of an empty engine with API 1.41.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be created.
    pub fn start() -> Result<Self> {
        let shared = Arc::<EngineState>::default();
        let served = Arc::clone(&shared);
        // An error ends only this connection, which its client notices.
        let listener = UnixServer::start("fake.sock", move |client| drop(serve(client, &served)))?;
        let fake = Self { listener, shared };
        fake.route("GET", "/_ping$", [Reply::Json(200, json!("OK"))]);
        fake.route("HEAD", "/_ping$", [Reply::Empty(200)]);
        fake.route("GET", "/version$", [Reply::Json(200, version())]);
        fake.route("GET", "/info$", [Reply::Json(200, info())]);
        for list in ["/containers/json", "/networks", "/images/json"] {
            fake.route("GET", &format!(r"{list}(\?|$)"), [Reply::Json(200, json!([]))]);
        }
        let volumes = json!({ "Volumes": [], "Warnings": null });
        fake.route("GET", r"/volumes(\?|$)", [Reply::Json(200, volumes)]);
        Ok(fake)
    }

    /// Scripts the responses to a method and a path expression. The newest matching route applies.
    ///
    /// # Panics
    ///
    /// Panics when the expression is invalid or there is no response; both are written in the test.
    pub fn route(&self, method: &str, path: &str, replies: impl IntoIterator<Item = Reply>) {
        let replies: Vec<Reply> = replies.into_iter().collect();
        assert!(!replies.is_empty(), "a route needs an answer");
        let path = Regex::new(path).expect("the route's path is a regular expression");
        let route = Route { method: method.to_owned(), path, replies, served: 0 };
        if let Ok(mut routes) = self.shared.routes.lock() {
            routes.push(route);
        }
    }

    /// Scripts the container listing.
    pub fn list_containers(&self, rows: Vec<Value>) {
        let replies = [Reply::Json(200, Value::Array(rows))];
        self.route("GET", r"/containers/json(\?|$)", replies);
    }

    /// Returns the fake's address.
    pub fn engine(&self) -> Engine {
        Engine::at(self.listener.socket())
    }

    /// Returns the address in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        self.engine().host()
    }

    /// Returns every request so far as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().map(|requests| requests.clone()).unwrap_or_default()
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        if let Ok(mut hanging) = self.shared.hanging.lock() {
            hanging.clear();
        }
    }
}

/// Returns a row of the container listing, as an engine shows a Compose container; about two
/// kilobytes.
pub fn container_row(number: usize, state: &str) -> Value {
    let project = format!("fake-{}", number / 10);
    json!({
        "Id": container_id(number),
        "Names": [format!("/fake-{number}")],
        "Image": "creel-test:latest",
        "ImageID": format!("sha256:{:064x}", 1),
        "Command": "sh -c 'sleep 100000'",
        "Created": 1_700_000_000 + number,
        "Ports": [
            { "IP": "0.0.0.0", "PrivatePort": 8080, "PublicPort": 32_768, "Type": "tcp" },
            { "IP": "::", "PrivatePort": 8080, "PublicPort": 32_768, "Type": "tcp" },
        ],
        "Labels": compose_labels(number, &project),
        "State": state,
        "Status": "Up 3 hours (healthy)",
        "HostConfig": { "NetworkMode": format!("{project}_default") },
        "NetworkSettings": { "Networks": { format!("{project}_default"): {
            "IPAMConfig": null,
            "Links": null,
            "Aliases": null,
            "NetworkID": format!("{:064x}", 1_000_000 + number / 10),
            "EndpointID": format!("{:064x}", 2_000_000 + number),
            "Gateway": "172.18.0.1",
            "IPAddress": "172.18.0.2",
            "IPPrefixLen": 16,
            "IPv6Gateway": "",
            "GlobalIPv6Address": "",
            "GlobalIPv6PrefixLen": 0,
            "MacAddress": "02:42:ac:12:00:02",
            "DriverOpts": null,
        } } },
        "Mounts": [{
            "Type": "volume",
            "Name": format!("{project}_data"),
            "Source": "",
            "Destination": "/data",
            "Driver": "local",
            "Mode": "z",
            "RW": true,
            "Propagation": "",
        }],
    })
}

/// Returns the labels that Compose sets, and two of the image.
fn compose_labels(number: usize, project: &str) -> Value {
    let directory = format!("/home/user/suites/fake/tasks/{project}");
    json!({
        "com.docker.compose.config-hash": format!("{:064x}", 3_000_000 + number),
        "com.docker.compose.container-number": "1",
        "com.docker.compose.depends_on": "database:service_healthy:false",
        "com.docker.compose.image": format!("sha256:{:064x}", 1),
        "com.docker.compose.oneoff": "False",
        "com.docker.compose.project": project,
        "com.docker.compose.project.config_files": format!("{directory}/docker-compose.yaml"),
        "com.docker.compose.project.working_dir": directory,
        "com.docker.compose.service": "client",
        "com.docker.compose.version": "2.29.7",
        "dev.example.suite": "fake",
        "dev.example.task": format!("task-{number}"),
    })
}

/// Returns the inspect result of the same container.
pub fn container_detail(number: usize, state: &str) -> Value {
    json!({
        "Id": container_id(number),
        "Name": format!("/fake-{number}"),
        "Created": "2023-11-14T22:13:20.000000000Z",
        "Image": format!("sha256:{:064x}", 1),
        "RestartCount": 0,
        "State": {
            "Status": state,
            "Running": state == "running",
            "Dead": state == "dead",
            "Pid": 0,
            "ExitCode": 0,
            "StartedAt": "2023-11-14T22:13:21.000000000Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        },
        "Config": {
            "Image": "creel-test:latest",
            "Labels": compose_labels(number, &format!("fake-{}", number / 10)),
        },
        "HostConfig": { "NetworkMode": "none", "AutoRemove": false },
        "NetworkSettings": { "Networks": {} },
        "Mounts": [],
    })
}

/// Returns the id of a fake container.
pub fn container_id(number: usize) -> String {
    format!("{:064x}", number + 1)
}

fn version() -> Value {
    json!({
        "Version": "20.10.24",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.12",
        "Os": "linux",
        "Arch": "amd64",
    })
}

fn info() -> Value {
    json!({
        "ID": "FAKE:FAKE:FAKE",
        "Name": "fake",
        "ServerVersion": "20.10.24",
        "OperatingSystem": "fake",
        "OSType": "linux",
        "Driver": "overlay2",
    })
}

fn serve(mut client: UnixStream, shared: &EngineState) -> io::Result<()> {
    let Some(head) = Head::read(&mut client)? else { return Ok(()) };
    head.drain_body(&mut client)?;
    if let Ok(mut requests) = shared.requests.lock() {
        requests.push(format!("{} {}", head.method, head.path));
    }
    match shared.reply(&head) {
        Reply::Json(status, body) => respond(&mut client, status, &body.to_string()),
        Reply::Empty(status) => respond(&mut client, status, ""),
        Reply::Error(status, message) => {
            respond(&mut client, status, &json!({ "message": message }).to_string())
        }
        Reply::Endless(status, first, again) => {
            respond_endlessly(&mut client, status, &first, &again)
        }
        Reply::EndlessHead => {
            write!(client, "HTTP/1.1 200 Scripted\r\nX-Endless: ")?;
            repeat_endlessly(&mut client, "x")
        }
        Reply::Hang => {
            if let Ok(mut hanging) = shared.hanging.lock() {
                hanging.push(client);
            }
            Ok(())
        }
    }
}

impl EngineState {
    fn reply(&self, head: &Head) -> Reply {
        let mut routes = self.routes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let route = routes
            .iter_mut()
            .rev()
            .find(|route| route.method == head.method && route.path.is_match(&head.path));
        let Some(route) = route else {
            return Reply::error(404, &format!("no such object: {}", head.path));
        };
        let index = route.served.min(route.replies.len() - 1);
        route.served += 1;
        route.replies[index].clone()
    }
}

fn respond(client: &mut UnixStream, status: u16, body: &str) -> io::Result<()> {
    write!(
        client,
        "HTTP/1.1 {status} Scripted\r\nApi-Version: 1.41\r\nOstype: linux\r\n\
         Server: Docker/20.10.24 (linux)\r\nContent-Type: application/json\r\n\
         Connection: close\r\n"
    )?;
    // A 204 has no body and must not announce one.
    if status != 204 {
        write!(client, "Content-Length: {}\r\n", body.len())?;
    }
    write!(client, "\r\n{body}")
}

/// Writes until the client stops reading.
fn respond_endlessly(
    client: &mut UnixStream,
    status: u16,
    first: &str,
    again: &str,
) -> io::Result<()> {
    write!(
        client,
        "HTTP/1.1 {status} Scripted\r\nApi-Version: 1.41\r\nOstype: linux\r\n\
         Content-Type: application/json\r\nConnection: close\r\n\r\n{first}"
    )?;
    repeat_endlessly(client, again)
}

fn repeat_endlessly(client: &mut UnixStream, again: &str) -> io::Result<()> {
    let chunk = again.repeat((64 * 1024 / again.len()).max(1));
    loop {
        client.write_all(chunk.as_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_follow_the_script_and_the_last_one_repeats() {
        let fake = FakeEngine::start().unwrap();
        assert!(fake.engine().answers());
        let busy = Reply::error(500, "busy");
        fake.route("DELETE", "/containers/1", [busy.clone(), busy, Reply::Empty(204)]);
        let api = fake.engine().api();
        let status = || api.request("DELETE", "/containers/1?force=true", None).unwrap().status;
        assert_eq!([status(), status(), status(), status()], [500, 500, 204, 204]);
        assert_eq!(fake.requests().len(), 5);
    }

    #[test]
    fn ten_thousand_containers_are_listed() {
        let fake = FakeEngine::start().unwrap();
        let length = container_row(7, "exited").to_string().len();
        assert!((1_500..2_500).contains(&length), "{length} bytes are not what engines send");
        fake.list_containers((0..10_000).map(|n| container_row(n, "exited")).collect());
        let rows = fake.engine().api().get("/containers/json?all=true").unwrap();
        assert_eq!(rows.as_array().map(Vec::len), Some(10_000));
    }

    #[test]
    fn a_hanging_request_ends_with_the_fake() {
        let fake = FakeEngine::start().unwrap();
        fake.route("GET", "/info$", [Reply::Hang]);
        let api = fake.engine().api();
        let request = std::thread::spawn(move || api.get("/info"));
        let is_requested = || fake.requests().iter().any(|request| request.ends_with("/info"));
        assert!(crate::wait::eventually(std::time::Duration::from_secs(5), is_requested));
        assert!(!request.is_finished());
        drop(fake);
        assert!(request.join().unwrap().is_err());
    }
}
