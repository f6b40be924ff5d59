//! Finds the processes that may still use an object.
//!
//! These are processes of the harness, programs that can run it as a library, and commands that
//! were started in the object.

use std::path::{Path, PathBuf};
use std::time::Duration;

use creel_model::labels;
use creel_model::provider::Observed;

use super::judge::{Collected, JudgeContext, described, is_inside, unknown_age};
use super::{Connections, Owners, Processes, RecipeRule, RunningProcess};

/// Tolerance when comparing the start of a process with the creation of an object.
///
/// The two times come from different clocks.
const SLACK: Duration = Duration::from_secs(5);
/// Directories too common to identify the users of what is mounted from them.
const SHARED: [&str; 9] =
    ["/", "/tmp", "/var/tmp", "/root", "/home", "/etc", "/usr", "/dev/shm", "/opt"];
/// Directories of the kernel and of services, which every process uses.
const SYSTEM: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/var/run"];

/// Searches for users of one object, and notes what was and was not checked.
pub(super) struct Users<'a> {
    pub(super) context: &'a JudgeContext<'a>,
    pub(super) seen: &'a Observed,
    pub(super) proof: &'a mut Collected,
}

impl Users<'_> {
    /// Returns how old the object must be: older if its users cannot be seen.
    pub(super) fn least_age(&mut self, rule: &RecipeRule) -> Result<Duration, String> {
        let recipe = self.context.recipe;
        if recipe.programs.is_empty() && recipe.interpreters.is_empty() {
            self.proof.not_checked.push("processes: the recipe names no programs".to_owned());
            return Ok(rule.older_than);
        }
        let Some(hidden) = self.hidden()? else { return Ok(rule.older_than) };
        let unknown =
            || format!("it is unknown whether {} still runs: {hidden}", self.context.name);
        let least = rule.older_than_remote.ok_or_else(unknown)?;
        self.proof.evidence.push(format!("only its age counts: {hidden}"));
        self.proof.not_checked.push(format!("processes that may use it: {hidden}"));
        Ok(least)
    }

    /// Checks that no visible process may use the object; returns why some are not visible.
    fn hidden(&mut self) -> Result<Option<String>, String> {
        let evidence = self.context.around.evidence;
        let Some(connections) = evidence.here.get(&self.seen.provider) else {
            return Ok(Some(format!("{} is not on this machine", self.seen.provider)));
        };
        let running = match &evidence.processes {
            Processes::Hidden(why) => return Ok(Some(why.clone())),
            Processes::Seen(running) => running,
        };
        self.no_process(running)?;
        if self.context.recipe.interpreters.is_empty() {
            let unchecked = "connections to the engine: the recipe names no interpreters";
            self.proof.not_checked.push(unchecked.to_owned());
            return Ok(None);
        }
        match connections {
            Connections::Hidden(why) => Ok(Some(why.clone())),
            Connections::Seen(connected) => {
                self.no_connection(running, |one| connected.contains(&one.pid))?;
                self.no_session(running, |one| connected.contains(&one.pid))?;
                self.no_open_file(running)?;
                Ok(self.unseen(running))
            }
        }
    }

    /// Returns the processes that may own the object, as far as the recipe allows.
    fn possible_owners<'b>(
        &self,
        running: &'b [RunningProcess],
    ) -> Result<impl Iterator<Item = &'b RunningProcess> + use<'b, '_>, String> {
        let created_at = self.seen.known_since().ok_or_else(|| unknown_age(self.seen))?;
        let latest_creation =
            self.context.around.evidence.clocks.latest_creation(created_at) + SLACK;
        let (owners, marked) = (self.context.recipe.owners, &self.context.marked);
        Ok(running.iter().filter(move |one| !is_inside(marked, one)).filter(
            move |one| match owners {
                Owners::Any => true,
                Owners::Earlier => one.started <= latest_creation,
            },
        ))
    }

    /// Checks that no process of the harness itself may use the object.
    fn no_process(&mut self, running: &[RunningProcess]) -> Result<(), String> {
        let programs = &self.context.recipe.programs;
        if programs.is_empty() {
            return Ok(());
        }
        let owner = self
            .possible_owners(running)?
            .find_map(|one| Some(described(one, one.runs_one_of(programs)?)));
        if let Some(owner) = owner {
            return Err(format!("{owner} may use it"));
        }
        let name = self.context.name;
        self.proof.evidence.push(match self.context.recipe.owners {
            Owners::Any => format!("no process of {name} runs here"),
            Owners::Earlier => format!("no process of {name} here is older than it"),
        });
        Ok(())
    }

    /// Checks that no program that can run the harness as a library is connected to the engine.
    fn no_connection(
        &mut self,
        running: &[RunningProcess],
        is_connected: impl Fn(&RunningProcess) -> bool,
    ) -> Result<(), String> {
        let interpreters = &self.context.recipe.interpreters;
        let owner =
            self.possible_owners(running)?.filter(|one| is_connected(one)).find_map(|one| {
                let run = one.runs_one_of(interpreters)?;
                Some(format!("{} is connected to the engine", described(one, run)))
            });
        if let Some(owner) = owner {
            return Err(format!("{owner} and may use it"));
        }
        self.proof
            .evidence
            .push("no older program that could run it is connected to the engine".to_owned());
        Ok(())
    }

    /// Checks that no process waits for a command that was started in the container.
    fn no_session(
        &mut self,
        running: &[RunningProcess],
        is_connected: impl Fn(&RunningProcess) -> bool,
    ) -> Result<(), String> {
        let in_use = self.context.around.evidence.in_use.get(&self.seen.id);
        let Some(sessions) = in_use.map(|it| it.sessions).filter(|count| *count > 0) else {
            return Ok(());
        };
        let what = if sessions == 1 { "a command runs" } else { "commands run" };
        let waits = running.iter().filter(|one| !is_inside(&self.context.marked, one));
        if let Some(client) = waits
            .filter(|one| is_connected(one))
            .find_map(|one| Some(described(one, one.runs.first()?)))
        {
            return Err(format!("{what} inside, and {client} is connected to the engine"));
        }
        self.proof.evidence.push(format!("{what} inside that no client waits for"));
        Ok(())
    }

    /// Checks that no program that can run the harness uses files of the container.
    fn no_open_file(&mut self, running: &[RunningProcess]) -> Result<(), String> {
        let directories = self.directories();
        if directories.is_empty() {
            return Ok(());
        }
        let recipe = self.context.recipe;
        let user = self.possible_owners(running)?.find_map(|one| {
            let run = one.runs_one_of(&recipe.interpreters)?;
            let file = one.file_below(&directories)?;
            Some(format!("{} uses {}, which is its directory", described(one, run), file.display()))
        });
        match user {
            Some(user) => Err(user),
            None => Ok(()),
        }
    }

    /// Returns the directories that identify users of the container: what is mounted into it, and
    /// where its Compose project is.
    fn directories(&self) -> Vec<PathBuf> {
        let in_use = self.context.around.evidence.in_use.get(&self.seen.id);
        let mounted = in_use.map(|it| it.directories.clone()).unwrap_or_default();
        let project = self.seen.labels.get(labels::COMPOSE_DIRECTORY).map(PathBuf::from);
        mounted.into_iter().chain(project).filter(|path| is_telling(path)).collect()
    }

    /// Reports programs that could run the harness and whose activity is not visible.
    fn unseen(&self, running: &[RunningProcess]) -> Option<String> {
        let interpreters = &self.context.recipe.interpreters;
        let hidden = self
            .possible_owners(running)
            .ok()?
            .filter(|one| one.handles.is_none() && one.runs_one_of(interpreters).is_some());
        match hidden.count() {
            0 => None,
            1 => Some("what a process of another user does cannot be seen".to_owned()),
            count => Some(format!("what {count} processes of other users do cannot be seen")),
        }
    }
}

/// Returns whether use of a directory identifies users of what is mounted from it.
fn is_telling(path: &Path) -> bool {
    path.is_absolute()
        && SHARED.iter().all(|shared| path != Path::new(shared))
        && SYSTEM.iter().all(|system| !path.starts_with(system))
        && path.parent() != Some(Path::new("/home"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_directory_proves_nothing() {
        let telling = |path: &str| is_telling(Path::new(path));
        assert!(telling("/root/jobs/one") && telling("/tmp/job") && telling("/home/me/task"));
        for shared in ["/", "/tmp", "/home/me", "/root", "/var/run/docker.sock", "jobs"] {
            assert!(!telling(shared), "{shared}");
        }
    }
}
