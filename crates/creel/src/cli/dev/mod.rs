//! `creel dev`: tools for people who build on creel.

mod daytona;
mod hold;

use clap::{Args, Subcommand};

use crate::app::App;
use crate::output::{Exit, Failure};

pub(crate) use hold::{HeldJson, Hold};

/// Tools for developing with creel
#[derive(Debug, Args)]
pub(crate) struct Dev {
    #[command(subcommand)]
    command: DevSubcommand,
}

#[derive(Debug, Subcommand)]
enum DevSubcommand {
    Daytona(daytona::Daytona),
    Hold(Hold),
}

impl Dev {
    pub(crate) async fn run(self, app: &App) -> Result<Exit, Failure> {
        match self.command {
            DevSubcommand::Daytona(command) => command.run(app).await,
            DevSubcommand::Hold(command) => command.run(app).await,
        }
    }
}
