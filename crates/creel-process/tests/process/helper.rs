//! The other processes of the tests: a holder, and a supervisor that dies.
#![expect(clippy::disallowed_methods, reason = "tests of a provider release through it alone")]

mod requests;

use std::path::Path;
use std::process::ExitCode;

use creel_model::crashpoint;
use creel_model::crashpoint::{Crash, Crashpoint};
use creel_model::id::ResourceId;
use creel_model::labels;
use creel_model::labels::Labels;
use creel_model::provider::{CreateRequest, Provider, ReleaseMode, Spec};
use creel_process::holder;
use rustix::process::{Signal, getpid, kill_process};

use requests::{command, directory, provider_at, wait};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["holder", _resource] => match holder::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ["supervisor", root, resource, point] => supervise_and_die(root, resource, point),
        _ => ExitCode::FAILURE,
    }
}

/// The supervisor role: creates a resource, and dies by SIGKILL.
fn supervise_and_die(root: &str, resource: &str, point: &str) -> ExitCode {
    let (point, what) = point.split_once(':').expect("a point and what to make");
    if let Ok(place) = point.parse::<Crashpoint>() {
        crashpoint::arm(place, Crash::Kill, None);
    }
    let resource: ResourceId = resource.parse().expect("a resource id");
    let spec = match what.strip_prefix("disk=") {
        Some(bytes) => Spec::Disk { bytes: bytes.parse().expect("a number of bytes") },
        None if what == "directory" => Spec::Directory,
        None => command(&["sleep", what]).spec,
    };
    let request = CreateRequest {
        resource,
        name: resource.object_name(),
        labels: Labels::from([(labels::RESOURCE, resource.to_string())]),
        spec,
        ..directory()
    };
    let provider = provider_at(Path::new(root), None, "/proc/self/exe");
    let created = wait(provider.create(&request));
    if let (Ok(id), "release-sent" | "disk-unmounted") = (&created, point) {
        let _ = wait(provider.release(request.spec.kind(), id, ReleaseMode::AT_ONCE));
    }
    if created.is_ok() && point == "after-create" {
        let _ = kill_process(getpid(), Signal::KILL);
    }
    ExitCode::SUCCESS
}
