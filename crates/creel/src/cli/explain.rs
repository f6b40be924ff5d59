//! `creel explain`: prints what an error code means.

use clap::Args;
use creel_model::failure::{Code, UnknownCode};
use serde::Serialize;

use crate::output::{Exit, Failure, Printer, table};

/// Explain an error code and how to fix the error
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  creel explain CR0020\n  creel explain            list all codes"
)]
pub(crate) struct Explain {
    /// The error code, such as CR0020
    #[arg(value_name = "CODE")]
    code: Option<String>,
}

#[derive(Serialize)]
struct ExplainJson {
    version: u32,
    codes: Vec<CodeJson>,
}

#[derive(Serialize)]
struct CodeJson {
    code: &'static str,
    title: &'static str,
    page: &'static str,
}

impl Explain {
    pub(crate) fn run(self, printer: &Printer) -> Result<Exit, Failure> {
        let codes: Vec<Code> = match &self.code {
            None => Code::ALL.to_vec(),
            Some(text) => vec![text.parse().map_err(|error: UnknownCode| {
                Failure::usage(&error.to_string()).hint("creel explain lists all codes")
            })?],
        };
        if printer.json {
            let json =
                |code: Code| CodeJson { code: code.name(), title: code.title(), page: code.page() };
            printer.json(&ExplainJson { version: 1, codes: codes.into_iter().map(json).collect() });
        } else if self.code.is_some() {
            printer.data(codes[0].page().trim_end());
        } else {
            let mut table = table::new(&["CODE", "MEANING"]);
            for code in codes {
                table.add_row([code.name(), code.title()]);
            }
            printer.data(&table::render(&table));
        }
        Ok(Exit::Done)
    }
}
