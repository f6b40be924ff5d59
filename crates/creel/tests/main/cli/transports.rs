//! The other transports to an engine: Podman, ssh, TCP with TLS, contexts.

use std::fs;
use std::path::Path;
use std::process::Command;

use creel_testkit::creel::Creel;
use creel_testkit::engine::{Engine, EngineOptions, PrivateEngine};
use creel_testkit::podman::Podman;
use creel_testkit::sshd::Sshd;
use serde_json::json;

use super::fixture::{CliFixture, Hold, run, text};

/// Lists, creates and sweeps through `creel`, which reaches `engine`.
fn prove(fixture: &CliFixture, creel: &Creel, engine: &Engine) {
    let docker = engine.docker();
    let foreign = fixture.exited("-foreign");
    let listed = run(creel, "ls --json").expect_code(0);
    assert!(listed.stdout.contains(&foreign), "{listed}");

    let hold = Hold::start(creel, "--container IMAGE --network --volume");
    let id = hold.id("container");
    assert_eq!(docker.inspect_container(&id).unwrap().unwrap()["State"]["Status"], "running");
    let owned = run(creel, "ls --json --owned").expect_code(0).json();
    assert_eq!(owned["resources"].as_array().unwrap().len(), 3, "{owned}");
    let ended = hold.end();
    assert!(ended.stderr.contains("released 3"), "{ended}");
    assert!(docker.inspect_container(&id).unwrap().is_none());

    let hold = Hold::start(creel, "--container IMAGE --network --volume --no-watchdog");
    let (id, volume) = (hold.id("container"), hold.name("volume"));
    hold.kill();
    let line = format!("sweep --json --apply --label {}", fixture.label());
    assert_eq!(run(creel, &line).expect_code(0).json()["gone"], 1);
    assert!(docker.inspect_container(&foreign).unwrap().is_none());
    // The sweep also released the orphans.
    assert!(docker.inspect_container(&id).unwrap().is_none());
    assert!(docker.inspect_volume(&volume).unwrap().is_none());
    let left = run(creel, "ledger --json").expect_code(0).json();
    assert_eq!(left["records"].as_array().unwrap().len(), 0, "{left}");
}

#[test]
fn podman_lists_creates_and_sweeps() {
    let podman = Podman::start().unwrap();
    let fixture = CliFixture::on(podman.engine());
    prove(&fixture, &fixture.creel(), &podman.engine());
    let doctor = fixture.run("doctor").expect_code(0);
    assert!(doctor.stdout.contains("Podman"), "{doctor}");
}

#[test]
fn an_engine_behind_ssh_lists_creates_and_sweeps() {
    let fixture = CliFixture::new();
    let sshd = Sshd::start(fixture.engine()).unwrap();
    let creel = fixture.creel().env("DOCKER_HOST", sshd.host()).path_first(&sshd.path_first());
    prove(&fixture, &creel, fixture.engine());
    let doctor = run(&creel, "doctor").expect_code(0);
    assert!(doctor.stdout.contains(&sshd.host()), "{doctor}");
}

/// Creates a certificate signed by an authority, for an engine or a client.
fn sign(directory: &Path, name: &str, usage: &str) {
    let script = format!(
        "openssl req -newkey rsa:2048 -nodes -keyout {name}-key.pem -out {name}.csr \
         -subj /CN={name} 2>/dev/null && \
         printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage={usage}\\n' > {name}.ext && \
         openssl x509 -req -in {name}.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
         -out {name}-cert.pem -days 2 -extfile {name}.ext 2>/dev/null"
    );
    shell(directory, &script);
}

fn shell(directory: &Path, script: &str) {
    let status = Command::new("sh").args(["-c", script]).current_dir(directory).status().unwrap();
    assert!(status.success(), "{script}: {status}");
}

#[test]
fn an_engine_behind_tls_requires_a_certificate_and_then_lists_creates_and_sweeps() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let authority = "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca.pem \
                     -days 2 -subj /CN=creel-test 2>/dev/null";
    shell(place, authority);
    sign(place, "server", "serverAuth");
    sign(place, "client", "clientAuth");
    let client = place.join("client");
    fs::create_dir(&client).unwrap();
    for (from, to) in
        [("ca.pem", "ca.pem"), ("client-cert.pem", "cert.pem"), ("client-key.pem", "key.pem")]
    {
        fs::copy(place.join(from), client.join(to)).unwrap();
    }
    let file = |name: &str| place.join(name).display().to_string();
    let arguments = [
        "--host=tcp://127.0.0.1:2376".to_owned(),
        "--tlsverify".to_owned(),
        format!("--tlscacert={}", file("ca.pem")),
        format!("--tlscert={}", file("server-cert.pem")),
        format!("--tlskey={}", file("server-key.pem")),
    ];
    let options = EngineOptions { arguments: arguments.to_vec(), ..EngineOptions::default() };
    let private = PrivateEngine::start_temporary(options).unwrap();
    let fixture = CliFixture::on(private.engine());
    let plain = fixture
        .creel()
        .env("DOCKER_HOST", "tcp://127.0.0.1:2376")
        .env("DOCKER_TLS_VERIFY", "1")
        .within(private.namespace());
    let trusted = plain.clone().env("DOCKER_CERT_PATH", &client);
    prove(&fixture, &trusted, &private.engine());

    // Without the client's certificate, and with an authority that did not sign the engine's.
    let output = run(&plain, "ls --json");
    assert!([Some(2), Some(7)].contains(&output.code()), "{output}");
    shell(&client, authority);
    let output = run(&trusted, "ls --json").expect_code(7);
    assert_eq!(text(&output.json()["unreachable"][0], "provider"), "docker");
    private.stop().unwrap();
}

#[test]
fn a_context_selects_the_engine() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    let config = fixture.path(".docker");
    // The directory is named by the digest of the context's name.
    let digest = Command::new("sh")
        .args(["-c", "printf %s elsewhere | sha256sum | cut -c1-64"])
        .output()
        .unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    let place = config.join("contexts/meta").join(digest.trim());
    fs::create_dir_all(&place).unwrap();
    let meta = json!({
        "Name": "elsewhere",
        "Metadata": {},
        "Endpoints": { "docker": { "Host": fixture.engine().host(), "SkipTLSVerify": false } },
    });
    fs::write(place.join("meta.json"), meta.to_string()).unwrap();
    let creel = fixture.creel_without_docker();
    let line = format!("ls --json --label {}", fixture.label());
    let count = |creel: &Creel| {
        let output = run(creel, &line).expect_code(0);
        output.json()["resources"].as_array().unwrap().len()
    };
    assert_eq!(count(&creel), 0, "a context that was not selected is not used");
    assert_eq!(count(&creel.clone().env("DOCKER_CONTEXT", "elsewhere")), 1);
    fs::write(config.join("config.json"), r#"{"currentContext":"elsewhere"}"#).unwrap();
    assert_eq!(count(&creel), 1);
    let elsewhere = creel.clone().env("DOCKER_CONFIG", fixture.path("empty"));
    assert_eq!(count(&elsewhere), 0);
    let output = run(&creel.env("DOCKER_CONTEXT", "nowhere"), "ls").expect_code(2);
    assert!(output.stderr.starts_with("error[CR0023]: "), "{output}");
    assert!(output.stderr.contains("nowhere"), "{output}");
}

#[test]
fn an_address_in_the_settings_is_used_if_the_environment_names_none() {
    let fixture = CliFixture::new();
    fixture.exited("-a");
    fixture.configure(&format!("[docker]\nhost = \"{}\"\n", fixture.engine().host()));
    let line = format!("ls --json --label {}", fixture.label());
    let output = run(&fixture.creel_without_docker(), &line).expect_code(0);
    assert_eq!(output.json()["resources"].as_array().unwrap().len(), 1);
    let elsewhere = fixture.creel().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    run(&elsewhere, &line).expect_code(7);
}
