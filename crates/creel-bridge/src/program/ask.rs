//! `ask`: a program in the sandbox asks the person behind the run.
//!
//! A question is a file. The process that asks holds a lock (`flock`) on it as long as it waits. A
//! question without a lock has no process waiting for the answer.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use super::directory::BridgeDirectory;
use super::error::BridgeError;
use super::poll::wait_for;
use super::watch::PathWatch;

/// The variable that names the bridge's directory for programs of a runtime.
pub(crate) const DIRECTORY_VARIABLE: &str = "CREEL_BRIDGE_DIRECTORY";

/// Asks a question, waits for the answer and prints it.
pub(crate) fn run(args: &[OsString]) -> Result<ExitCode, BridgeError> {
    let [question] = args else {
        return Err(BridgeError::Usage("ask takes one question, as one argument".to_owned()));
    };
    let question = question.to_string_lossy();
    let directory = std::env::var_os(DIRECTORY_VARIABLE).ok_or_else(|| {
        BridgeError::Usage(format!("{DIRECTORY_VARIABLE} is not set: there is no bridge to ask"))
    })?;
    let directory = BridgeDirectory::new(directory);
    let request = new_request();
    let (answers, lock) = (directory.answers(), directory.lock_file());
    let watch = PathWatch::over([answers.as_path(), lock.as_path()]);
    // The lock is held until this process ends.
    let _question = leave(&directory.questions(), &request, &question)
        .map_err(BridgeError::of("leave the question"))?;
    let answer = wait(&directory, &watch, &answers.join(&request))?;
    let mut output = io::stdout();
    let printed = output.write_all(answer.as_bytes()).and_then(|()| output.write_all(b"\n"));
    printed.and_then(|()| output.flush()).map_err(BridgeError::of("print the answer"))?;
    Ok(ExitCode::SUCCESS)
}

fn new_request() -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{}", since_epoch.as_nanos(), std::process::id())
}

/// Leaves a question. The file appears under its name complete and locked.
fn leave(questions: &Path, request: &str, question: &str) -> io::Result<File> {
    let draft = questions.join(format!(".{request}"));
    let mut options = OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&draft)?;
    file.lock()?;
    file.write_all(question.as_bytes())?;
    fs::rename(&draft, questions.join(request))?;
    Ok(file)
}

fn wait(
    directory: &BridgeDirectory,
    watch: &PathWatch,
    answer: &Path,
) -> Result<String, BridgeError> {
    loop {
        // Check the bridge before the answer: once the bridge is gone, no answer can follow.
        let is_served = directory.is_served();
        match fs::read_to_string(answer) {
            Ok(answer) => return Ok(answer),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(BridgeError::of("read the answer")(error)),
        }
        if !is_served {
            return Err(BridgeError::Refused(
                "the bridge is gone: there will be no answer".to_owned(),
            ));
        }
        let watched: Vec<_> = watch.watched().into_iter().collect();
        wait_for(&watched, Some(Instant::now() + watch.period()));
        watch.drain();
    }
}
