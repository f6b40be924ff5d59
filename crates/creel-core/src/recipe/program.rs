//! Determines what a process runs: its program, and the script or module that an interpreter runs.
//!
//! Other arguments do not count: `tail -f harbor.log` and `vim harbor.py` do not run Harbor. A
//! launcher such as `uv run` or `sudo` starts the program as a separate process.

use std::fmt;

/// Interpreters whose first plain argument is a script.
const INTERPRETERS: [&str; 14] = [
    "python", "pypy", "ipython", "node", "nodejs", "deno", "bun", "ruby", "perl", "php", "sh",
    "bash", "dash", "zsh",
];
/// Options of Python that take the next argument as their value.
const VALUED: [&str; 3] = ["-X", "-W", "--check-hash-based-pycs"];

/// One program, script or module that a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramName {
    /// How the process runs it.
    pub how: RunAs,
    /// Its name, without a directory.
    pub name: String,
}

/// Which part of a command line names the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// The program itself.
    Program,
    /// The script that an interpreter runs.
    Script,
    /// The module that Python runs.
    Module,
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            RunAs::Program => "program",
            RunAs::Script => "script",
            RunAs::Module => "module",
        };
        write!(f, "{how} {}", self.name)
    }
}

/// Returns what a command line runs; `file` is the executable, if known.
pub(super) fn run_by(args: &[String], file: Option<&str>) -> Vec<ProgramName> {
    let file = file.map(|file| file.trim_end_matches(" (deleted)"));
    let Some(first) = args.first() else {
        // A program may erase its command line; its executable still names it.
        return file.map(|file| program_name(RunAs::Program, file)).into_iter().collect();
    };
    // Some programs replace their command line with a title: `harbor: worker 3`.
    let title = first.split_whitespace().next().unwrap_or_default().trim_end_matches(':');
    let mut runs = vec![program_name(RunAs::Program, title.trim_start_matches('-'))];
    let file = file.map(|file| program_name(RunAs::Program, file));
    let interprets = runs.iter().chain(&file).any(|program| is_interpreter(&program.name));
    runs.extend(file.filter(|file| runs.iter().all(|known| known != file)));
    if interprets {
        runs.extend(interpreted(&args[1..]));
    }
    runs
}

fn program_name(how: RunAs, path: &str) -> ProgramName {
    let name = path.rsplit('/').next().unwrap_or_default();
    ProgramName { how, name: name.strip_suffix(".py").unwrap_or(name).to_owned() }
}

/// Returns whether a program of this name, in any version, runs scripts.
pub(super) fn is_interpreter(name: &str) -> bool {
    let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    INTERPRETERS.iter().any(|known| name.strip_prefix(known).is_some_and(is_version))
}

/// Returns the script or module among the arguments of an interpreter.
fn interpreted(args: &[String]) -> Option<ProgramName> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(option) = arg.strip_prefix('-').filter(|option| !option.is_empty()) else {
            return Some(program_name(RunAs::Script, arg));
        };
        let is_long = option.starts_with('-');
        if VALUED.contains(&arg.as_str()) {
            args.next();
        } else if is_long {
            continue;
        } else if option.ends_with('m') {
            let module = args.next()?;
            return Some(ProgramName { how: RunAs::Module, name: module.clone() });
        } else if option.ends_with(['c', 'e']) {
            // The program is the text of the argument itself.
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(line: &str) -> Vec<String> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        run_by(&args, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_program_a_script_and_a_module_count() {
        assert_eq!(runs("/opt/bin/harbor run"), ["program harbor"]);
        assert_eq!(
            runs("/usr/bin/python3 /opt/bin/harbor run"),
            ["program python3", "script harbor"]
        );
        assert_eq!(
            runs("python3.12 -u -X dev -m swebench.harness.run_evaluation -n 3"),
            ["program python3.12", "module swebench.harness.run_evaluation"]
        );
        assert_eq!(runs("python -Im harbor"), ["program python", "module harbor"]);
        assert_eq!(
            runs("python ./run_evaluation.py harbor"),
            ["program python", "script run_evaluation"]
        );
        assert_eq!(runs("sh /opt/bin/harbor"), ["program sh", "script harbor"]);
    }

    #[test]
    fn other_arguments_do_not_count() {
        assert_eq!(runs("tail -f harbor.log"), ["program tail"]);
        assert_eq!(runs("tail -f harbor"), ["program tail"]);
        assert_eq!(runs("vim harbor.py"), ["program vim"]);
        assert_eq!(runs("python -c print(1) harbor"), ["program python"]);
        assert_eq!(runs("creel sweep --recipe harbor"), ["program creel"]);
        assert_eq!(runs("python"), ["program python"]);
        assert_eq!(run_by(&[], None), []);
    }

    #[test]
    fn a_title_and_the_file_of_the_program_count_too() {
        let title = ["harbor: worker 3".to_owned()];
        let names = run_by(&title, Some("/usr/bin/python3.12"));
        assert_eq!(names[0].name, "harbor");
        assert_eq!(names[1].name, "python3.12");
        let login = ["-bash".to_owned()];
        assert_eq!(run_by(&login, Some("/usr/bin/bash")).len(), 1);
        let erased = run_by(&[], Some("/opt/bin/harbor (deleted)"));
        assert_eq!(erased.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["harbor"]);
    }
}
