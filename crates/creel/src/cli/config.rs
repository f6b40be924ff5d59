//! `creel config`: prints the settings, and where they come from.

use clap::{Args, Subcommand};
use creel_core::config::documented_defaults;
use serde::Serialize;

use crate::app::App;
use crate::backends::BACKENDS;
use crate::output::{Exit, Failure, Printer, table};

/// Show the settings and their origins
#[derive(Debug, Args)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    command: ConfigSubcommand,
}

#[derive(Debug, Subcommand)]
enum ConfigSubcommand {
    /// Show every setting and its value
    #[command(after_help = "Example:\n  creel config show --origin")]
    Show {
        /// Also show where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Print the default settings with their documentation
    #[command(after_help = "Example:\n  creel config defaults > ~/.local/state/creel/config.toml")]
    Defaults,
}

#[derive(Serialize)]
struct ConfigJson {
    version: u32,
    settings: Vec<SettingJson>,
}

#[derive(Serialize)]
struct SettingJson {
    key: String,
    value: String,
    origin: String,
}

impl ConfigCommand {
    pub(crate) fn is_defaults(&self) -> bool {
        matches!(self.command, ConfigSubcommand::Defaults)
    }

    pub(crate) fn run(self, app: &App) -> Result<Exit, Failure> {
        let ConfigSubcommand::Show { origin } = self.command else {
            return Ok(print_defaults(&app.printer));
        };
        let settings = app.layers.origins();
        if app.printer.json {
            let settings = settings
                .into_iter()
                .map(|(key, value, origin)| SettingJson { key, value, origin: origin.to_string() })
                .collect();
            app.printer.json(&ConfigJson { version: 1, settings });
            return Ok(Exit::Done);
        }
        let header: &[&str] = if origin { &["KEY", "VALUE", "ORIGIN"] } else { &["KEY", "VALUE"] };
        let mut table = table::new(header);
        for (key, value, place) in settings {
            let mut row = vec![key, value];
            row.extend(origin.then(|| place.to_string()));
            table.add_row(row);
        }
        app.printer.data(&table::render(&table));
        Ok(Exit::Done)
    }
}

/// Prints the embedded defaults.
pub(crate) fn print_defaults(printer: &Printer) -> Exit {
    printer.data(&documented_defaults(BACKENDS));
    Exit::Done
}
