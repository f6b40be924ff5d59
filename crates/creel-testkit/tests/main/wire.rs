//! Every fault fires, is counted, and has its documented effect on the engine.

use std::time::{Duration, Instant};

use creel_docker::{DockerProvider, Endpoint};
use creel_model::provider::{Kind, Provider};
use creel_testkit::docker::{ContainerSpec, concurrently};
use creel_testkit::engine::Engine;
use creel_testkit::wait::eventually;
use creel_testkit::wire::{Fault, Rule, Wire};

#[test]
fn a_proxy_without_rules_passes_everything_and_closes_each_connection() {
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    let response = wire.engine().api().request("GET", "/version", None).unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.header("connection"), Some("close"));
    let calls: Vec<u32> = (0..200).collect();
    let api = wire.engine().api();
    concurrently(&calls, 40, |_| api.get("/containers/json?all=true")).unwrap();
    assert_eq!(wire.requests(), 201);
}

#[test]
fn the_docker_cli_works_through_the_proxy() {
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    let arguments = ["run", "--rm", "--network=none", "creel-test", "echo", "through"];
    let output = wire.engine().docker().cli(&arguments).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "through\n", "{error}");
}

#[test]
fn a_lost_response_leaves_the_container_behind() {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    for (name, fault) in [
        ("wire-lost-answer", Fault::LoseResponse),
        ("wire-cut-after-send", Fault::CutAfterSend { after: Duration::from_millis(1) }),
    ] {
        let rule = wire.add(Rule::new("/containers/create", fault).method("POST").times(1));
        assert!(wire.engine().docker().create(&ContainerSpec::sleeping(name)).is_err());
        assert_eq!(rule.fired(), 1);
        let exists = || engine.docker().inspect_container(name).is_ok_and(|found| found.is_some());
        assert!(eventually(Duration::from_secs(10), exists), "{name}");
        engine.docker().remove_container(name).unwrap();
    }
}

#[test]
fn a_reset_and_an_injected_status_never_reach_the_engine() {
    let engine = Engine::from_env();
    let wire = Wire::start(&engine, 1).unwrap();
    let reset = wire.add(Rule::new("/containers/create", Fault::Reset).times(1));
    let busy = Fault::Status { code: 503, message: "busy".to_owned() };
    let busy = wire.add(Rule::new("/containers/create", busy).times(1));
    let docker = wire.engine().docker();
    let spec = ContainerSpec::sleeping("wire-reset");
    assert!(docker.create(&spec).is_err());
    let error = docker.create(&spec).unwrap_err().to_string();
    assert!(error.contains("503") && error.contains("busy"), "{error}");
    assert_eq!((reset.fired(), busy.fired()), (1, 1));
    assert!(engine.docker().inspect_container("wire-reset").unwrap().is_none());
}

#[test]
fn a_half_body_is_cut_in_the_middle() {
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    let rule = wire.add(Rule::new("/version$", Fault::HalfBody));
    let error = wire.engine().api().get("/version").unwrap_err();
    assert!(format!("{error:#}").contains("cut"), "{error:#}");
    assert_eq!(rule.fired(), 1);
    wire.heal();
    wire.engine().api().get("/version").unwrap();
}

#[test]
fn a_hanging_request_ends_with_the_proxy_and_a_delay_does_not_lose_it() {
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    let by = Duration::from_millis(120);
    wire.add(Rule::new("/info$", Fault::Delay { by }));
    let started_at = Instant::now();
    wire.engine().api().get("/info").unwrap();
    assert!(started_at.elapsed() >= by);

    let rule = wire.add(Rule::new("/version$", Fault::Hang));
    let api = wire.engine().api();
    let request = std::thread::spawn(move || api.get("/version"));
    assert!(eventually(Duration::from_secs(5), || rule.fired() == 1));
    assert!(!request.is_finished());
    drop(wire);
    assert!(request.join().unwrap().is_err());
}

#[test]
fn probabilities_follow_the_seed() {
    let fired = |seed| {
        let wire = Wire::start(&Engine::from_env(), seed).unwrap();
        let rule = wire.add(Rule::new("/_ping$", Fault::Reset).probability(0.1));
        let responses: Vec<bool> = (0..200).map(|_| wire.engine().answers()).collect();
        assert_eq!(responses.iter().filter(|is_up| !**is_up).count() as u64, rule.fired());
        responses
    };
    assert_eq!(fired(7), fired(7));
    let failures = fired(8).iter().filter(|is_up| !**is_up).count();
    assert!((5..50).contains(&failures), "{failures} of 200 at 10 %");
}

#[tokio::test]
async fn a_pooling_client_never_uses_a_closed_connection() {
    let wire = Wire::start(&Engine::from_env(), 1).unwrap();
    let endpoint = Endpoint::explicit(&wire.host()).unwrap();
    let client = DockerProvider::connect(endpoint).unwrap();
    // The first request is preceded by the negotiation of a version.
    client.list(&[Kind::Network]).await.unwrap();
    let before = wire.requests();
    let one_after_another = || async {
        for _ in 0..20 {
            client.list(&[Kind::Network]).await.unwrap();
        }
    };
    futures::future::join_all((0..32).map(|_| one_after_another())).await;
    assert_eq!(wire.requests() - before, 32 * 20);
}
