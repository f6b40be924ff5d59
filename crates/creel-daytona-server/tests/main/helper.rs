//! The other processes of the tests: a holder, and a server that a test kills.

mod server;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use creel_daytona_server::{Delays, Server, Settings};
use creel_process::holder;
use serde_json::json;

use server::{process_backend, runtime};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["holder", _resource] => match holder::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ["serve", home] => serve(home),
        _ => ExitCode::FAILURE,
    }
}

/// Serves until its input ends, and prints its address to stdout.
fn serve(home: &str) -> ExitCode {
    let runtime = runtime();
    let backend = runtime.block_on(process_backend(Path::new(home), "/proc/self/exe"));
    let settings = Settings { delays: Delays::fast(), ..Settings::new(backend) };
    let running = runtime.block_on(Server::start(settings)).expect("loopback has a free port");
    let ready = json!({ "url": running.url(), "api_key": running.api_key() });
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{ready}").and_then(|()| stdout.flush()).expect("the test reads stdout");
    let ended = std::io::stdin().lines().next();
    runtime.block_on(running.stop());
    if ended.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
