//! `creel run --detach`: the same run, driven by a background process.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use creel_model::id::RunId;
use serde_json::json;

use crate::app::App;
use crate::output::{Exit, Failure};

/// Starts a driver in the background and waits until its run is on record.
pub(super) fn start(app: &App, path: &Path, inputs: &[(String, String)]) -> Result<Exit, Failure> {
    let internal =
        |error: std::io::Error| Failure::internal("cannot start in the background", &error);
    let home = &app.environment.home;
    std::fs::create_dir_all(home).map_err(internal)?;
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(home.join("runs.log"));
    let log = log.map_err(internal)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["run", "-v", "--in-background"]);
    for (name, value) in inputs {
        command.arg("--input").arg(format!("{name}={value}"));
    }
    command.arg("--").arg(path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // Outside this terminal's process group: Ctrl-C here does not reach it.
    command.process_group(0);
    let mut child = command.spawn().map_err(internal)?;
    let stdout = child.stdout.take().expect("stdout was asked for as a pipe");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(internal)?;
    let Ok(run) = line.trim().parse::<RunId>() else {
        let hint = format!("its output is at the end of {}", home.join("runs.log").display());
        let gone = std::io::Error::other("the driver ended before its run was on record");
        return Err(Failure::internal("cannot start in the background", &gone).hint(&hint));
    };
    if app.printer.json {
        app.printer.json(&json!({ "version": 1, "run": run }));
    } else {
        app.printer.data(&run.to_string());
    }
    Ok(Exit::Done)
}

/// Reports to the process that started this driver that its run is on record.
pub(super) fn report_to_parent(app: &App, run: RunId) {
    app.printer.data(&run.to_string());
}
