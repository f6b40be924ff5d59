//! `ask`: a program in the sandbox asks the person behind the run.
//!
//! A question is a file that whoever asks holds (`flock`) as long as it waits: a
//! question that nobody holds is not waited for any more.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use super::directory::Directory;
use super::failure::Failure;
use super::lookout::wait_for;
use super::watch::Watch;

/// The variable that tells programs of a runtime where their bridge is.
pub(crate) const DIRECTORY_VARIABLE: &str = "CREEL_BRIDGE_DIRECTORY";

/// Asks, waits for the answer and prints it.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode, Failure> {
    let [question] = words else {
        return Err(Failure::Usage("ask takes one question, as one argument".to_owned()));
    };
    let question = question.to_string_lossy();
    let directory = std::env::var_os(DIRECTORY_VARIABLE).ok_or_else(|| {
        Failure::Usage(format!("{DIRECTORY_VARIABLE} is not set: there is no bridge to ask"))
    })?;
    let directory = Directory::new(directory);
    let request = new_request();
    let (answers, lock) = (directory.answers(), directory.lock_file());
    let watch = Watch::over([answers.as_path(), lock.as_path()]);
    // Held until this process ends.
    let _question = leave(&directory.questions(), &request, &question)
        .map_err(Failure::of("leave the question"))?;
    let answer = wait(&directory, &watch, &answers.join(&request))?;
    let mut output = io::stdout();
    let printed = output.write_all(answer.as_bytes()).and_then(|()| output.write_all(b"\n"));
    printed.and_then(|()| output.flush()).map_err(Failure::of("print the answer"))?;
    Ok(ExitCode::SUCCESS)
}

fn new_request() -> String {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{}", since_epoch.as_nanos(), std::process::id())
}

/// Leaves a question; it appears as a whole, and is held already.
fn leave(questions: &Path, request: &str, question: &str) -> io::Result<File> {
    let draft = questions.join(format!(".{request}"));
    let mut options = OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(0o600).open(&draft)?;
    file.lock()?;
    file.write_all(question.as_bytes())?;
    fs::rename(&draft, questions.join(request))?;
    Ok(file)
}

fn wait(directory: &Directory, watch: &Watch, answer: &Path) -> Result<String, Failure> {
    loop {
        // First the bridge, then the answer: one that is gone gives none any more.
        let is_served = directory.is_served();
        match fs::read_to_string(answer) {
            Ok(answer) => return Ok(answer),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::of("read the answer")(error)),
        }
        if !is_served {
            return Err(Failure::Refused("the bridge is gone: nobody will answer".to_owned()));
        }
        let watched: Vec<_> = watch.watched().into_iter().collect();
        wait_for(&watched, Some(Instant::now() + watch.period()));
        watch.drain();
    }
}
