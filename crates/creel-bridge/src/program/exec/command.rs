//! Starting the command.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use creel_bridge::exec::ExecRequest;

/// Starts the command. The error says in one sentence why it could not be started.
pub(super) fn start(request: &ExecRequest) -> Result<Child, String> {
    let (program, arguments) = request.command.split_first().ok_or("the command is empty")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(&request.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(directory) = &request.directory {
        if !Path::new(directory).is_dir() {
            return Err(format!("no such directory: {directory}"));
        }
        command.current_dir(directory);
    }
    command.spawn().map_err(|error| explain(program, &error))
}

fn explain(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("no such program: {program}"),
        io::ErrorKind::PermissionDenied => format!("not an executable program: {program}"),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            format!("no room to start {program}: {error}")
        }
        _ => format!("{program} cannot be started: {error}"),
    }
}
