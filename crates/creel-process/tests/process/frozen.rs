//! Trees that are frozen or stopped, from inside or outside, end all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use creel_model::os;
use creel_model::provider::{Kind, Provider, ReleaseMode, Released};
use creel_process::Containment;

use crate::fixture::{
    ProcessFixture, command, eventually, groups_named, odd_seconds, script, sleeper_count,
    sleepers, wait,
};

/// Freezes these groups if possible, and returns how many are frozen.
fn freeze(groups: &[PathBuf]) -> usize {
    let frozen = groups.iter().filter(|group| {
        fs::write(group.join("freezer.state"), "FROZEN").is_ok()
            || fs::write(group.join("cgroup.freeze"), "1").is_ok()
    });
    frozen.count()
}

fn release(fixture: &ProcessFixture, id: &str) {
    let released = wait(fixture.provider.release(Kind::Process, id, ReleaseMode::AT_ONCE));
    assert_eq!(released.expect("it can be ended"), Released::Done);
}

#[test]
fn a_frozen_tree_is_released() {
    for containment in Containment::ALL {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let text = format!("(setsid env -i sleep {seconds} &) ; exec sleep {seconds}");
        let Ok(id) = wait(fixture.provider.create(&script(&text))) else { continue };
        eventually("both sleep", || sleeper_count(&seconds) == 2);
        freeze(&groups_named(&id));
        fixture.release(&id);
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        fixture.assert_empty();
    }
}

#[test]
fn a_tree_in_a_frozen_group_below_its_own_is_released() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let id = wait(fixture.provider.create(&command(&["sleep", &seconds]))).expect("it starts");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    let below: Vec<PathBuf> = groups_named(&id).iter().map(|group| group.join("below")).collect();
    for group in &below {
        fs::create_dir(group).expect("the name is free");
        // A group that delegates controllers accepts no process. Only the freezer matters here.
        let _ = fs::write(group.join("cgroup.procs"), sleepers(&seconds)[0].to_string());
    }
    freeze(&below);
    fixture.release(&id);
    assert_eq!(sleeper_count(&seconds), 0);
    fixture.assert_empty();
}

/// A frozen foreign group with a process in it. Both end with the test.
struct FrozenElsewhere {
    group: PathBuf,
    process: Child,
}

impl FrozenElsewhere {
    /// Creates it and moves another process into it. Returns `None` if there is no freezer.
    fn with(seconds: &str) -> Option<Self> {
        let group = Path::new("/sys/fs/cgroup/freezer").join(format!("elsewhere-{seconds}"));
        fs::create_dir(&group).ok()?;
        let process = Command::new("sleep").arg("600").spawn().expect("sleep is installed");
        let created = Self { group, process };
        for pid in sleepers(seconds).into_iter().chain(i32::try_from(created.process.id())) {
            fs::write(created.group.join("cgroup.procs"), pid.to_string()).expect("root may");
        }
        assert_eq!(freeze(std::slice::from_ref(&created.group)), 1);
        Some(created)
    }

    fn state(&self) -> String {
        let state = fs::read_to_string(self.group.join("freezer.state")).expect("it is there");
        state.trim().to_owned()
    }
}

impl Drop for FrozenElsewhere {
    fn drop(&mut self) {
        let _ = fs::write(self.group.join("freezer.state"), "THAWED");
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn a_tree_that_froze_itself_elsewhere_is_released_and_others_stay_frozen() {
    for containment in Containment::ALL {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let Ok(id) = wait(fixture.provider.create(&command(&["sleep", &seconds]))) else {
            continue;
        };
        eventually("it sleeps", || sleeper_count(&seconds) == 1);
        let Some(mut elsewhere) = FrozenElsewhere::with(&seconds) else {
            release(&fixture, &id);
            return;
        };
        eventually("it is frozen", || elsewhere.state() == "FROZEN");
        fixture.release(&id);
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        assert_eq!(elsewhere.state(), "FROZEN", "what is not ours was thawed");
        assert!(matches!(elsewhere.process.try_wait(), Ok(None)), "it was killed");
        fixture.assert_empty();
    }
}

fn stop_all(seconds: &str) {
    for pid in sleepers(seconds) {
        let stopped = Command::new("kill").args(["-STOP", &pid.to_string()]).status();
        assert!(stopped.expect("kill is installed").success());
    }
}

#[test]
fn a_stopped_tree_is_released() {
    for containment in Containment::ALL {
        let (fixture, seconds) = (ProcessFixture::with(Some(containment)), odd_seconds());
        let Ok(id) = wait(fixture.provider.create(&command(&["sleep", &seconds]))) else {
            continue;
        };
        eventually("it sleeps", || sleeper_count(&seconds) == 1);
        stop_all(&seconds);
        fixture.release(&id);
        assert_eq!(sleeper_count(&seconds), 0, "{containment:?}");
        fixture.assert_empty();
    }
}

#[test]
fn a_frozen_tree_is_stopped_gracefully() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let goodbye_file = fixture.outside();
    let text = format!(
        "trap 'echo goodbye > {}; exit 0' TERM; sleep {seconds} & wait",
        goodbye_file.display()
    );
    let id = wait(fixture.provider.create(&script(&text))).expect("sh is installed");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    freeze(&groups_named(&id));
    wait(fixture.provider.stop(Kind::Process, &id, Duration::from_secs(20))).expect("it can be");
    assert_eq!(fs::read_to_string(goodbye_file).expect("it received the signal"), "goodbye\n");
    fixture.release(&id);
}

#[test]
fn a_frozen_and_stopped_tree_can_be_resumed() {
    let (fixture, seconds) = (ProcessFixture::new(), odd_seconds());
    let id = wait(fixture.provider.create(&command(&["sleep", &seconds]))).expect("it starts");
    eventually("it sleeps", || sleeper_count(&seconds) == 1);
    stop_all(&seconds);
    let groups = groups_named(&id);
    let frozen = freeze(&groups);
    wait(fixture.provider.wake(&id)).expect("procfs is mounted");
    let pid = sleepers(&seconds)[0];
    eventually("it continues", || os::process_stat(pid).is_ok_and(|stat| stat.state == 'S'));
    let is_thawed = |group: &&PathBuf| {
        let read = |file| fs::read_to_string(group.join(file)).unwrap_or_default();
        read("freezer.state").trim() == "THAWED" || read("cgroup.freeze").trim() == "0"
    };
    assert_eq!(groups.iter().filter(is_thawed).count(), frozen);
    assert_eq!(sleeper_count(&seconds), 1, "nothing was ended");
    fixture.release(&id);
}
