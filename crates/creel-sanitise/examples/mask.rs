//! Masks standard input and writes it to standard output, as a filter for any log.
//!
//! ```text
//! mask SECRETS < log          SECRETS: a file with one NAME=value on each line
//! mask SECRETS --patterns     prints what is searched for, as regular expressions
//! ```
#![expect(clippy::print_stdout, reason = "a filter writes to standard output")]

use std::error::Error;
use std::io::{self, Read, Write};
use std::{env, fs};

use creel_sanitise::{Masker, Secrets, patterns};
use secrecy::SecretString;

/// How much is read at once.
const PIECE: usize = 256 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("usage: mask SECRETS [--patterns]")?;
    let masker = Masker::new(&secrets(&fs::read_to_string(path)?));
    if env::args().nth(2).as_deref() == Some("--patterns") {
        print_patterns(&masker);
        return Ok(());
    }
    filter(&masker, &mut io::stdin().lock(), &mut io::stdout().lock())?;
    Ok(())
}

fn secrets(lines: &str) -> Secrets {
    let mut secrets = Secrets::new();
    for (name, value) in lines.lines().filter_map(|line| line.split_once('=')) {
        secrets.add(name, &SecretString::from(value));
    }
    secrets
}

fn print_patterns(masker: &Masker) {
    patterns().for_each(|(_, expression)| println!("{expression}"));
    masker.searched().for_each(|text| println!("{}", regex::escape(text)));
}

fn filter(masker: &Masker, input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut stream = masker.stream();
    let mut piece = vec![0; PIECE];
    loop {
        match input.read(&mut piece)? {
            0 => break,
            count => output.write_all(stream.feed(&piece[..count]).as_str().as_bytes())?,
        }
    }
    output.write_all(stream.finish().as_str().as_bytes())?;
    output.flush()
}
