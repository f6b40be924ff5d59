//! `creel completions`: prints completion scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::{Exit, Failure, Printer};

use super::Cli;

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  creel completions bash > ~/.local/share/bash-completion/completions/creel
  creel completions zsh > ~/.zfunc/_creel
  creel completions fish > ~/.config/fish/completions/creel.fish")]
pub(crate) struct Completions {
    /// The shell to generate the script for
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, printer: &Printer) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "creel", &mut script);
        printer.data(String::from_utf8_lossy(&script).trim_end());
        Ok(Exit::Done)
    }
}
