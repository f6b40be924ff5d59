//! Decoys detect every kind of change, and inventory differences show what is left.

use creel_testkit::decoys::{Decoys, Lookalike};
use creel_testkit::docker::{ContainerSpec, Labels};
use creel_testkit::engine::Engine;
use creel_testkit::inventory::{Inventory, Kind};

fn lookalike(name: &str) -> Lookalike {
    Lookalike {
        name: name.to_owned(),
        label_key: "dev.example.decoy".to_owned(),
        label_value: name.to_owned(),
    }
}

#[test]
fn untouched_decoys_report_nothing_and_are_removed_after_the_test() {
    let engine = Engine::from_env();
    let decoys = Decoys::plant(&engine, &lookalike("decoy-quiet")).unwrap();
    decoys.assert_untouched();
    let planted: Vec<String> = decoys.ids().into_iter().map(str::to_owned).collect();
    assert_eq!(planted.len(), 26);
    drop(decoys);
    let left = Inventory::snapshot(&engine).unwrap().filter(|object| planted.contains(&object.id));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_restart_a_stop_and_a_removal_are_all_detected() {
    let engine = Engine::from_env();
    let decoys = Decoys::plant(&engine, &lookalike("decoy-touched")).unwrap();
    let docker = engine.docker();
    let touch = |path: &str| docker.api().post(path, &serde_json::Value::Null).unwrap();
    touch("/containers/decoy-touchedx/kill");
    touch("/containers/xdecoy-touched/restart?t=0");
    docker.remove_container("decoy-touched-2").unwrap();
    docker.remove_network("decoy-touched_").unwrap();
    docker.create_network("decoy-touched_", &Labels::new()).unwrap();
    docker.remove_volume("decoy-touched.key").unwrap();
    let touched = decoys.touched();
    assert_eq!(touched.len(), 5, "{touched:#?}");
    docker.remove_network("decoy-touched_").unwrap();
}

#[test]
fn the_difference_shows_exactly_what_was_added() {
    let engine = Engine::from_env();
    let docker = engine.docker();
    let mine = |inventory: &creel_testkit::inventory::Inventory| {
        inventory.filter(|object| object.name.starts_with("diff-"))
    };
    let before = Inventory::snapshot(&engine).unwrap();
    let labels = Labels::from([("dev.example.diff".to_owned(), "1".to_owned())]);
    docker.create_network("diff-network", &labels).unwrap();
    docker.create_volume("diff-volume", &labels).unwrap();
    let spec = ContainerSpec::exiting("diff-container").labels(&labels);
    docker.run_to_exit(&spec.network("diff-network").volume("diff-volume", "/data")).unwrap();
    let added = mine(&Inventory::snapshot(&engine).unwrap().minus(&before));
    assert_eq!(added.with_label("dev.example.diff", "1").len(), 3, "{added:?}");
    let container = added.named(Kind::Container, "diff-container").unwrap();
    assert_eq!(container.state, "exited");
    docker.remove_container("diff-container").unwrap();
    docker.remove_network("diff-network").unwrap();
    docker.remove_volume("diff-volume").unwrap();
    let left = mine(&Inventory::snapshot(&engine).unwrap().minus(&before));
    assert!(left.is_empty(), "{left:?}");
}
