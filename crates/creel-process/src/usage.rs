//! Resource usage of a process tree, summed over its processes.
//!
//! Control groups would be more exact, but not every tree has one, and two kinds of numbers would
//! mislead. Processor time of ended processes is counted where their parent waited for them.

use std::fs;
use std::io;

use creel_model::id::ResourceId;
use creel_model::os;
use creel_model::provider::Usage;

use super::cgroup::GroupRecord;
use super::tree::ProcessCensus;

/// Returns the summed usage of the processes of a tree.
pub(super) fn of_tree(resource: &ResourceId, groups: &[GroupRecord]) -> io::Result<Usage> {
    let census = ProcessCensus::take()?;
    let members = census.members(resource, groups);
    if members.is_empty() {
        return Ok(Usage::default());
    }
    let (mut ticks, mut pages) = (0, 0);
    for member in &members {
        // A process that has ended meanwhile uses nothing.
        ticks += os::process_stat(member.key.pid).map_or(0, |stat| stat.used_ticks);
        pages += pages_of(member.key.pid).unwrap_or_default();
    }
    Ok(Usage {
        memory: Some(pages * rustix::param::page_size() as u64),
        cpu_seconds: Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64),
        processes: Some(members.len() as u64),
    })
}

/// Returns how many pages of a process are in memory.
fn pages_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        let pid = rustix::process::getpid().as_raw_pid();
        assert!(pages_of(pid).is_some_and(|pages| pages > 0));
    }

    #[test]
    fn a_tree_that_is_not_there_uses_nothing() {
        assert_eq!(of_tree(&ResourceId::new(), &[]).unwrap(), Usage::default());
    }
}
