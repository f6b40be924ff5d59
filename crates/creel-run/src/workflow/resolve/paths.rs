//! Paths in a sandbox, and their relations.

use crate::sandbox::CREEL_DIRECTORY;

/// Returns what is wrong with a relative path that must stay below its base, if anything.
pub(super) fn mistake(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        return Some("it must be relative to the working directory");
    }
    mistake_below(path)
}

/// Returns what is wrong with an absolute path in a sandbox's own file system, if anything.
pub(super) fn absolute_mistake(path: &str) -> Option<&'static str> {
    let below = path.strip_prefix('/').unwrap_or(path);
    if below.is_empty() { Some("it must be a directory of its own") } else { mistake_below(below) }
}

fn mistake_below(path: &str) -> Option<&'static str> {
    const LONGEST: usize = 1024;
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.len() > LONGEST {
        return Some("it is too long");
    }
    if path.contains(creel_model::names::is_invisible) {
        return Some("it has signs that cannot be seen");
    }
    let mut parts = path.split('/');
    if parts.any(|part| matches!(part, "" | "." | "..")) {
        return Some("it must be plain names with `/` between them, without `.` and `..`");
    }
    let mut parts = path.split('/');
    if parts.any(|part| part == CREEL_DIRECTORY) {
        return Some("`.creel` is the name of creel's own directory in a sandbox; take another");
    }
    None
}

/// Returns the parent directories that a path contains.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_where_they_belong() {
        for right in ["a", "a/b.c", ".hidden", "a b", "..a/b.."] {
            assert_eq!(mistake(right), None, "{right}");
        }
        for wrong in ["", "/a", "..", "a/../b", "./a", "a//b", "a/", "a\nb", "a\0"] {
            assert!(mistake(wrong).is_some(), "{wrong:?}");
        }
        for own in [".creel", ".creel/x", "a/.creel", "a/.creel/b"] {
            assert!(mistake(own).is_some_and(|why| why.contains("creel's own")), "{own}");
        }
        assert!(absolute_mistake("/.creel/spool").is_some());
        assert_eq!(mistake(".creels/creel"), None);
        assert_eq!(absolute_mistake("/srv/space"), None);
        assert!(absolute_mistake("/").is_some() && absolute_mistake("/a/..").is_some());
    }

    #[test]
    fn a_path_lies_in_every_directory_that_it_names() {
        assert_eq!(ancestors("a/bc/d").collect::<Vec<_>>(), ["a", "a/bc"]);
        assert_eq!(ancestors("a").count(), 0);
    }
}
