//! The command line: one file per subcommand.

mod apply;
mod cancel;
mod completions;
mod config;
mod demo;
mod dev;
mod doctor;
mod event_text;
mod events;
mod explain;
mod find_run;
mod finder;
mod guard;
pub(crate) mod holder;
mod kept;
mod ledger;
mod ledger_why;
mod ls;
mod message;
mod orphans;
mod rebuild;
mod recipes;
mod reconcile;
mod release_args;
mod report;
mod rm;
mod run;
mod run_request;
mod runs;
mod selector_args;
mod show;
mod stop;
mod sweep;
mod unfinished;
mod waiting;
mod watchdog;

use std::io;

use clap::{Parser, Subcommand};
use tokio::runtime::{self, Runtime};

use crate::app::App;
use crate::output::{Exit, Failure, Global, Printer};

/// Run agents in sandboxes and release every resource, verifiably
///
/// creel records every resource before it creates it, releases it however the
/// work ends, and verifies that it is gone. If creel is killed, its watchdog or
/// the next command finishes the cleanup.
#[derive(Debug, Parser)]
#[command(
    name = "creel",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  creel demo                                       try it in a temporary directory
  creel ls                                         list resources and their owners
  creel sweep --preset stopped                     show what would be released
  creel sweep --label bench --older-than 2h --apply
  creel reconcile                                  finish interrupted cleanup
  creel explain CR0020                             explain an error code"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Retry(run::retry::Retry),
    Resume(run::resume::Resume),
    Demo(demo::Demo),
    Guard(guard::Guard),
    Runs(runs::Runs),
    Show(show::Show),
    Events(events::Events),
    Cancel(cancel::Cancel),
    Message(message::Message),
    Ls(ls::Ls),
    Sweep(sweep::Sweep),
    Apply(apply::Apply),
    Stop(stop::Stop),
    Rm(rm::Rm),
    Recipes(recipes::Recipes),
    Reconcile(reconcile::Reconcile),
    Ledger(ledger::LedgerCommand),
    Doctor(doctor::Doctor),
    Config(config::ConfigCommand),
    Explain(explain::Explain),
    Completions(completions::Completions),
    Dev(dev::Dev),
    #[command(hide = true)]
    Watchdog(watchdog::WatchdogCommand),
}

impl Cli {
    /// Builds the runtime that suits the command.
    ///
    /// Commands that forward the output of other programs use all cores. The others wait for
    /// responses, where passing each one between threads would cost more than it gains.
    pub(crate) fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = match self.command {
            Command::Run(_)
            | Command::Retry(_)
            | Command::Resume(_)
            | Command::Demo(_)
            | Command::Guard(_)
            | Command::Dev(_) => runtime::Builder::new_multi_thread(),
            _ => runtime::Builder::new_current_thread(),
        };
        builder.enable_all().build()
    }
}

/// Runs the command.
pub(crate) async fn run(cli: Cli, printer: &Printer) -> Result<Exit, Failure> {
    // These need neither settings nor state, so that they work when those are broken.
    match cli.command {
        Command::Explain(command) => return command.run(printer),
        Command::Completions(command) => return command.run(printer),
        Command::Config(ref command) if command.is_defaults() => {
            return Ok(config::print_defaults(printer));
        }
        _ => {}
    }
    let app = App::start(printer)?;
    match cli.command {
        Command::Run(command) => command.run(&app).await,
        Command::Retry(command) => command.run(&app).await,
        Command::Resume(command) => command.run(&app).await,
        Command::Demo(command) => command.run(&app).await,
        Command::Guard(command) => command.run(&app).await,
        Command::Runs(command) => command.run(&app).await,
        Command::Show(command) => command.run(&app).await,
        Command::Events(command) => command.run(&app).await,
        Command::Cancel(command) => command.run(&app).await,
        Command::Message(command) => command.run(&app).await,
        Command::Ls(command) => command.run(&app).await,
        Command::Sweep(command) => command.run(&app).await,
        Command::Apply(command) => command.run(&app).await,
        Command::Stop(command) => command.run(&app).await,
        Command::Rm(command) => command.run(&app).await,
        Command::Recipes(command) => command.run(&app),
        Command::Reconcile(command) => command.run(&app).await,
        Command::Ledger(command) => command.run(&app).await,
        Command::Doctor(command) => command.run(&app).await,
        Command::Config(command) => command.run(&app),
        Command::Dev(command) => command.run(&app).await,
        Command::Watchdog(command) => command.run(&app).await,
        Command::Explain(command) => command.run(printer),
        Command::Completions(command) => command.run(printer),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                let path = format!("{path} {}", sub.get_name());
                let has_examples =
                    sub.get_after_help().is_some_and(|help| help.to_string().contains("Example"));
                assert!(has_examples || sub.has_subcommands(), "{path} has no examples");
                check(sub, &path);
            }
        }
        check(&Cli::command(), "creel");
    }
}
