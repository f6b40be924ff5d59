//! Process trees: every process in them ends, and no other.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use creel_model::provider::{ErrorClass, Kind, Provider, ReleaseMode};
use creel_process::{Containment, ProcessEnding, RESOURCE_VARIABLE};

use crate::fixture::{
    ProcessFixture, command, die_during_create, directory, eventually, groups_named, odd_seconds,
    process_of, release_by, script, sleeper_count, wait,
};

/// Returns the containments that are available here.
fn available() -> Vec<Containment> {
    let works = |one: &Containment| {
        let fixture = ProcessFixture::with(Some(*one));
        wait(fixture.provider.capabilities()).is_ok()
    };
    let available: Vec<Containment> = Containment::ALL.into_iter().filter(works).collect();
    assert!(available.contains(&Containment::Subreaper), "it needs nothing: {available:?}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(available, Containment::ALL, "this system holds back what root may do");
    }
    available
}

#[test]
fn a_daemon_dies_with_its_tree_in_every_containment() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let daemons = format!(
            "(setsid sh -c 'sleep {seconds} & exec sleep {seconds}' &)
             (setsid env -i sleep {seconds} &)
             exec sleep {seconds}"
        );
        let id = wait(fixture.provider.create(&script(&daemons))).expect("sh is installed");
        eventually("all four sleep", || sleeper_count(&seconds) == 4);
        let recorded = fixture.provider.containment(&id).expect("it is recorded");
        assert_eq!(recorded, Some((containment, Vec::new())));
        fixture.release(&id);
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        fixture.assert_empty();
    }
}

#[test]
fn a_daemon_without_marker_or_parent_dies_when_the_workload_ends() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let text = format!("(setsid env -i sleep {seconds} &) ; exit 3");
        let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
        eventually("the ending is recorded", || {
            fixture.provider.ending(&id).expect("readable").is_some()
        });
        assert_eq!(fixture.provider.ending(&id).expect("readable"), Some(ProcessEnding::Code(3)));
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        eventually("it is exited", || {
            fixture.process(&id).is_some_and(|seen| seen.state == "exited")
        });
        fixture.release(&id);
        fixture.assert_empty();
    }
}

#[test]
fn a_respawner_is_ended_in_every_containment() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        // Each process starts its successor before it ends, two hundred times.
        let text = format!(
            "respawn() {{ [ $1 -gt 0 ] && {{ sleep 0.01; respawn $(($1 - 1)) & }}; }}
             for i in 1 2 3 4 5; do respawn 200 & done
             sleep {seconds}"
        );
        let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
        eventually("it sleeps", || sleeper_count(&seconds) == 1);
        fixture.release(&id);
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        fixture.assert_empty();
    }
}

#[test]
fn a_workload_that_ignores_sigterm_is_killed() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let text = format!("trap '' TERM; sleep {seconds} & wait");
    let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    let mode = ReleaseMode {
        stop_timeout: Some(Duration::from_millis(200)),
        kill_running: true,
        ..ReleaseMode::AT_ONCE
    };
    let released = wait(fixture.provider.release(Kind::Process, &id, mode));
    assert!(released.is_ok(), "{released:?}");
    assert_eq!(sleeper_count(&seconds), 0);
    fixture.assert_empty();
}

#[test]
fn a_workload_that_handles_sigterm_ends_by_itself() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let goodbye_file = fixture.outside();
    let text = format!(
        "trap 'echo goodbye > {}; exit 0' TERM; sleep {seconds} & wait",
        goodbye_file.display()
    );
    let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    let mode = ReleaseMode {
        stop_timeout: Some(Duration::from_secs(20)),
        kill_running: true,
        ..ReleaseMode::AT_ONCE
    };
    let started_at = Instant::now();
    let released = wait(fixture.provider.release(Kind::Process, &id, mode));
    assert!(released.is_ok(), "{released:?}");
    assert!(started_at.elapsed() < Duration::from_secs(10), "it waited for nothing");
    assert_eq!(fs::read_to_string(goodbye_file).expect("it wrote the file"), "goodbye\n");
    fixture.assert_empty();
}

#[test]
fn a_stopped_tree_keeps_its_ending() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let text = format!("trap 'exit 7' TERM; sleep {seconds} & wait");
    let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    let patience = Duration::from_secs(20);
    wait(fixture.provider.stop(Kind::Process, &id, patience)).expect("it can be stopped");
    assert_eq!(fixture.process(&id).expect("it is recorded").state, "exited");
    assert_eq!(fixture.provider.ending(&id).expect("readable"), Some(ProcessEnding::Code(7)));
    fixture.release(&id);

    let stubborn = format!("trap '' TERM; sleep {seconds} & wait");
    let id = wait(fixture.provider.create(&script(&stubborn))).expect("sh is installed");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    let patience = Duration::from_millis(100);
    wait(fixture.provider.stop(Kind::Process, &id, patience)).expect("it can be killed");
    assert_eq!(fixture.provider.ending(&id).expect("readable"), Some(ProcessEnding::Signal(9)));
    assert_eq!(sleeper_count(&seconds), 0);
    fixture.release(&id);
    let refused = wait(fixture.provider.stop(Kind::Directory, &id, patience));
    assert_eq!(refused.expect_err("a directory does not run").class, ErrorClass::Invalid);
}

#[test]
fn an_exit_code_is_recorded() {
    let fixture = ProcessFixture::new();
    let id = wait(fixture.provider.create(&script("echo out; echo err >&2; exit 42")));
    let id = id.expect("sh is installed");
    eventually("it exited", || fixture.process(&id).is_some_and(|seen| seen.state == "exited"));
    assert_eq!(fixture.provider.ending(&id).expect("readable"), Some(ProcessEnding::Code(42)));
    let log = fixture.provider.log_file(&id).expect("it is an id of ours");
    assert_eq!(fs::read_to_string(log).expect("it wrote"), "out\nerr\n");
    fixture.release(&id);
    fixture.assert_empty();
}

#[test]
fn a_running_tree_is_not_released_by_mistake() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let id = wait(fixture.provider.create(&command(&["sleep", &seconds]))).expect("it starts");
    let mode = ReleaseMode { kill_running: false, ..ReleaseMode::AT_ONCE };
    let refused = wait(fixture.provider.release(Kind::Process, &id, mode));
    let refused = refused.expect_err("it runs");
    assert_eq!((refused.class, refused.message.as_str()), (ErrorClass::InUse, "it is running now"));
    assert_eq!(sleeper_count(&seconds), 1);
    fixture.release(&id);
}

#[test]
fn the_process_limit_stops_forks() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let mut request =
        script(&format!("for i in 1 2 3 4 5 6 7 8 9 10; do sleep {seconds} & done; wait"));
    process_of(&mut request).limits.processes = Some(5);
    let id = wait(fixture.provider.create(&request)).expect("sh is installed");
    let (_, missing) = fixture.provider.containment(&id).expect("readable").expect("recorded");
    if missing.is_empty() {
        let log = fixture.provider.log_file(&id).expect("it is an id of ours");
        eventually("a fork was refused", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("fork"))
        });
        assert!(sleeper_count(&seconds) <= 4, "{}", sleeper_count(&seconds));
        // The shell gives up at its own limit, which does not affect the init.
        eventually("the ending is recorded", || {
            fixture.provider.ending(&id).expect("readable").is_some()
        });
        assert_eq!(fixture.provider.ending(&id).expect("readable"), Some(ProcessEnding::Code(2)));
    } else {
        assert_eq!(missing, ["processes"]);
    }
    fixture.release(&id);
    assert_eq!(sleeper_count(&seconds), 0);
}

#[test]
fn the_memory_and_processor_limits_are_set() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let mut request = command(&["sleep", &seconds]);
    process_of(&mut request).limits.memory = Some(64 << 20);
    process_of(&mut request).limits.cpus = Some(0.5);
    let id = wait(fixture.provider.create(&request)).expect("sleep is installed");
    let (_, missing) = fixture.provider.containment(&id).expect("readable").expect("recorded");
    let values: Vec<String> = groups_named(&id)
        .iter()
        .flat_map(|group| {
            ["memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max"]
                .map(|file| fs::read_to_string(group.join(file)).unwrap_or_default())
        })
        .collect();
    let is_set = |value: &str| values.iter().any(|one| one.trim() == value);
    assert!(missing.contains(&"memory".to_owned()) || is_set("67108864"), "{values:?}");
    assert!(
        missing.contains(&"cpus".to_owned()) || is_set("50000") || is_set("50000 100000"),
        "{values:?}"
    );
    fixture.release(&id);
}

#[test]
fn a_killed_supervisor_leaves_a_tree_that_its_successor_finds() {
    check_killed_supervisor("after-create");
}

#[test]
fn a_crash_before_the_pids_are_recorded_leaves_a_tree_that_is_found() {
    check_killed_supervisor("create-sent");
}

fn check_killed_supervisor(point: &str) {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let request = command(&["sleep", &seconds]);
    die_during_create(&fixture, &request, point);
    assert_eq!(sleeper_count(&seconds), 1, "the tree outlives its supervisor");
    let successor = fixture.successor();
    let found = wait(successor.find(&request.marks())).expect("procfs is mounted");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, "running");
    assert_eq!(
        found[0].labels.get("dev.creel.resource"),
        Some(request.resource.to_string().as_str())
    );
    release_by(&successor, &found[0].id);
    assert_eq!(sleeper_count(&seconds), 0);
    fixture.assert_empty();
}

#[test]
fn a_crash_after_the_kill_leaves_a_record_that_is_finished() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let request = command(&["sleep", &seconds]);
    die_during_create(&fixture, &request, "release-sent");
    assert_eq!(sleeper_count(&seconds), 0);
    let found = wait(fixture.provider.find(&request.marks())).expect("procfs is mounted");
    assert_eq!(found.len(), 1);
    // The holder may have reported the end of the workload before its own.
    assert!(matches!(found[0].state.as_str(), "lost" | "exited"), "{}", found[0].state);
    fixture.release(&request.name);
    fixture.assert_empty();
}

#[test]
fn a_killed_holder_ends_its_tree() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let text = format!("(setsid env -i sleep {seconds} &) ; exec sleep {seconds}");
        let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
        eventually("both sleep", || sleeper_count(&seconds) == 2);
        let generation = fixture.process(&id).expect("it runs").generation;
        let pid = generation.split([' ', '-']).nth(1).expect("state, pid, start").to_owned();
        let killed = Command::new("kill").args(["-KILL", &pid]).status();
        assert!(killed.expect("kill is installed").success());
        eventually("the tree is gone", || sleeper_count(&seconds) == 0);
        eventually("it is lost", || fixture.process(&id).is_some_and(|seen| seen.state == "lost"));
        fixture.release(&id);
        fixture.assert_empty();
    }
}

#[test]
fn a_missing_program_leaves_nothing() {
    let fixture = ProcessFixture::new();
    let request = command(&["no-such-program-anywhere"]);
    let refused = wait(fixture.provider.create(&request)).expect_err("there is no such program");
    assert_eq!(refused.class, ErrorClass::Invalid);
    assert_eq!(refused.message, "no such program: no-such-program-anywhere");
    assert_eq!(wait(fixture.provider.find(&request.marks())).expect("readable"), []);
    assert!(groups_named(&request.name).is_empty());
    fixture.assert_empty();
}

#[test]
fn a_missing_directory_leaves_nothing() {
    let fixture = ProcessFixture::new();
    let mut request = command(&["true"]);
    process_of(&mut request).directory = Some("/no/such/place".into());
    let refused = wait(fixture.provider.create(&request)).expect_err("there is no such directory");
    assert_eq!(refused.class, ErrorClass::Invalid);
    assert_eq!(refused.message, "no such directory: /no/such/place");
    fixture.assert_empty();
}

#[test]
fn a_lease_that_is_not_renewed_ends_the_tree() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let mut request = script(&format!("(setsid sleep {seconds} &) ; exec sleep {seconds}"));
        request.lease = Duration::from_millis(400);
        let id = wait(fixture.provider.create(&request)).expect("sh is installed");
        eventually("it is exited", || {
            fixture.process(&id).is_some_and(|seen| seen.state == "exited")
        });
        assert_eq!(
            fixture.provider.ending(&id).expect("readable"),
            Some(ProcessEnding::LeaseExpired)
        );
        assert_eq!(sleeper_count(&seconds), 0);
        fixture.release(&id);
        fixture.assert_empty();
    }
}

#[test]
fn a_renewed_lease_keeps_the_tree() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let mut request = command(&["sleep", &seconds]);
    request.lease = Duration::from_secs(3);
    let id = wait(fixture.provider.create(&request)).expect("sleep is installed");
    let until = Instant::now() + Duration::from_secs(6);
    eventually("twice the lease has passed", || {
        wait(fixture.provider.renew(&id)).expect("it is recorded");
        Instant::now() > until
    });
    assert_eq!(fixture.process(&id).expect("it is recorded").state, "running");
    fixture.release(&id);
    let gone = wait(fixture.provider.renew(&id)).expect_err("it was released");
    assert_eq!(gone.class, ErrorClass::Gone);
}

/// A process that closely resembles one of a tree. It ends with the test.
struct Decoy(Child);

impl Decoy {
    fn with_marker(marker: &str) -> Self {
        let mut sleep = Command::new("sleep");
        Self(sleep.arg("600").env(RESOURCE_VARIABLE, marker).spawn().expect("sleep is installed"))
    }

    fn lives(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn near_identical_processes_survive() {
    for containment in available() {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let request = command(&["sleep", &seconds]);
        let resource = request.resource.to_string();
        let mut named = Command::new("sleep");
        let named = named.arg0(&resource).arg("600").spawn().expect("sleep is installed");
        let mut decoys = [
            Decoy::with_marker(&format!("{resource}0")),
            Decoy::with_marker(&resource[..resource.len() - 1]),
            Decoy::with_marker(&resource.to_uppercase()),
            Decoy(named),
        ];
        let id = wait(fixture.provider.create(&request)).expect("sleep is installed");
        fixture.release(&id);
        for decoy in &mut decoys {
            assert!(decoy.lives(), "a decoy was killed");
        }
        assert_eq!(sleeper_count(&seconds), 0);
    }
}

#[test]
fn a_damaged_sidecar_does_not_hide_the_others() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let (whole, damaged) = (command(&["sleep", &seconds]), command(&["sleep", &seconds]));
    wait(fixture.provider.create(&whole)).expect("sleep is installed");
    wait(fixture.provider.create(&damaged)).expect("sleep is installed");
    let sidecar = fixture.root().join(format!("{}.json", damaged.resource.digits()));
    fs::write(sidecar, "{ half a rec").expect("it was written before");
    let listed = wait(fixture.provider.list(&[Kind::Process])).expect("procfs is mounted");
    let state = |id: &str| listed.iter().find(|one| one.id == id).map(|one| one.state.clone());
    assert_eq!(listed.len(), 2);
    assert_eq!(state(&whole.name).as_deref(), Some("running"));
    assert_eq!(state(&damaged.name).as_deref(), Some("unreadable"));
    let mode = ReleaseMode { kill_running: false, ..ReleaseMode::AT_ONCE };
    let refused = wait(fixture.provider.release(Kind::Process, &damaged.name, mode));
    assert_eq!(refused.expect_err("it runs").class, ErrorClass::InUse);
    fixture.release(&damaged.name);
    assert_eq!(sleeper_count(&seconds), 1, "only the damaged one was released");
    fixture.release(&whole.name);
    fixture.assert_empty();
}

#[test]
fn the_environment_is_bare_and_marked() {
    let fixture = ProcessFixture::new();
    let home = directory();
    let home_id = wait(fixture.provider.create(&home)).expect("it can be made");
    let path = fixture.provider.directory(&home_id).expect("it is an id of ours");
    let mut request = command(&["env"]);
    process_of(&mut request).directory = Some(path.clone());
    process_of(&mut request).env.insert("TASK".to_owned(), "one two".to_owned());
    process_of(&mut request).env.insert(RESOURCE_VARIABLE.to_owned(), "res_other".to_owned());
    let id = wait(fixture.provider.create(&request)).expect("env is installed");
    eventually("it exited", || fixture.process(&id).is_some_and(|seen| seen.state == "exited"));
    let log = fs::read_to_string(fixture.provider.log_file(&id).expect("ours")).expect("it wrote");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let expected = [
        format!("CREEL_RESOURCE={}", request.resource),
        format!("HOME={}", path.display()),
        "LANG=C.UTF-8".to_owned(),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "TASK=one two".to_owned(),
    ];
    // A shell or a libc may add its own variable; `env` adds none.
    assert_eq!(lines, expected);
    let uses = fixture.process(&id).expect("it is recorded").uses;
    assert_eq!(uses, [(Kind::Directory, home_id)]);
    fixture.release(&id);
}

#[test]
fn an_inherited_descriptor_does_not_reach_the_tree() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let (mut reader, writer) = std::io::pipe().expect("pipes can be made");
    // A copy survives the exec of every child of this process, including the holder.
    let inherited = rustix::io::dup(&writer).expect("descriptors can be copied");
    let id = wait(fixture.provider.create(&command(&["sleep", &seconds]))).expect("it starts");
    drop((writer, inherited));
    // Another test may start a process at the same time, but none that outlives this read.
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).expect("the pipe can be read");
    assert_eq!(sleeper_count(&seconds), 1);
    fixture.release(&id);
}

#[test]
fn the_same_create_twice_makes_one_tree() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let request = command(&["sleep", &seconds]);
    let first = wait(fixture.provider.create(&request)).expect("sleep is installed");
    let second = wait(fixture.provider.create(&request)).expect("it is ours already");
    assert_eq!(first, second);
    assert_eq!(sleeper_count(&seconds), 1);
    fixture.release(&first);
}

#[test]
fn a_tree_outlives_the_records_of_it_and_is_still_found() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let request = command(&["sleep", &seconds]);
    let id = wait(fixture.provider.create(&request)).expect("sleep is installed");
    fs::remove_dir_all(fixture.root()).expect("the records can be removed");
    let found = wait(fixture.provider.find(&request.marks())).expect("procfs is mounted");
    assert_eq!(found.len(), 1);
    fixture.release(&id);
    assert_eq!(sleeper_count(&seconds), 0);
}

#[test]
fn this_machine_reports_its_capabilities() {
    let fixture = ProcessFixture::new();
    let capabilities = wait(fixture.provider.capabilities()).expect("a holder can be started");
    assert_eq!(capabilities.containment, available()[0]);
    fixture.assert_empty();
}
