//! A log like those of agents, builds and servers, with some secrets in it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use fastrand::Rng;

/// The size of the log.
pub(super) const BYTES: usize = 256_000_000;
/// One line in this many holds a secret.
const SECRET_EVERY: usize = 200;
/// The known secrets.
const KNOWN: [(&str, &str); 6] = [
    ("GIT_TOKEN", "correct-horse-battery-staple-4711"),
    ("ACME_KEY", "acme-Zk3vQ9tXw2LmB7yRp4Ns8Hd1Gf6Jc5Ka"),
    ("DATABASE_URL", "postgres://app:s3cr3t%20w0rd@db.internal:5432/app"),
    ("PASSPHRASE", "it's a \"long\" way / to tipperary"),
    ("WEBHOOK", "whsec/9Jd+72kLmQw0zXcV5bN8tRyUiOp3aSd"),
    ("PIN", "pin-90210-x"),
];
/// Tokens that only their format reveals.
const TOKENS: [&str; 6] = [
    "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "sk-ant-api03-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "AKIAIOSFODNN7EXAMPLE",
    "dtn_0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "glpat-a1B2c3D4e5F6g7H8i9J0",
];
const PATHS: [&str; 6] = [
    "crates/creel-ledger/src/store.rs",
    "/usr/lib/python3.11/site-packages/requests/adapters.py",
    "node_modules/@types/node/http.d.ts",
    "/home/agent/work/app/tests/integration/test_checkout.py",
    "src/main/java/org/example/orders/OrderServiceImpl.java",
    "/nix/store/3n58xw4373jp0ljirf06d8077j15pc4j-glibc-2.38/lib/libc.so.6",
];
const MESSAGES: [&str; 12] = [
    "the sandbox answered after the third try",
    "connection reset by peer",
    "Compiling serde_json v1.0.145",
    "warning: unused variable: `request`",
    "expected one of `,` or `}`, found `token`",
    "thread 'main' panicked at assertion failed",
    "GET /api/v1/orders?page=3&limit=50 HTTP/1.1 200",
    "retrying in 2.5s (attempt 2 of 5)",
    "downloaded 14 packages, 3.2 MB in 1.8s",
    "no progress for 120 seconds, nudging the agent",
    "test result: ok. 212 passed; 0 failed; 3 ignored",
    "user asked for a summary of the changes",
];

/// Returns the known secrets in the format of the secrets file.
pub(super) fn secrets() -> String {
    KNOWN.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// Returns every secret in the log, exactly as it is written there.
pub(super) fn planted() -> Vec<String> {
    let known = KNOWN.iter().map(|(_, value)| (*value).to_owned());
    known
        .chain(KNOWN.iter().map(|(_, value)| hex(value)))
        .chain(TOKENS.map(str::to_owned))
        .collect()
}

/// Writes the log, which is the same each time.
pub(super) fn write(path: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut chance = Rng::with_seed(11);
    let (mut written, mut line) = (0, String::new());
    for number in 0.. {
        if written >= BYTES {
            break;
        }
        line.clear();
        write_line(&mut line, number, &mut chance)?;
        file.write_all(line.as_bytes())?;
        written += line.len();
    }
    Ok(file.flush()?)
}

fn write_line(line: &mut String, number: usize, chance: &mut Rng) -> Result<()> {
    let (second, millisecond) = (number / 90 % 60, number % 1000);
    let message = MESSAGES[chance.usize(..MESSAGES.len())];
    let path = PATHS[chance.usize(..PATHS.len())];
    match chance.u8(..6) {
        0 => write!(line, "2026-11-15T17:48:{second:02}.{millisecond:03}Z  INFO run: {message}")?,
        1 => write!(line, "{{\"level\":\"info\",\"seq\":{number},\"message\":\"{message}\"}}")?,
        2 => write!(line, "  --> {path}:{}:{}", number % 900, number % 80)?,
        3 => write!(line, "[{number}/9999] {path}: {message}")?,
        4 => write!(line, "commit {:032x}{:08x} {message}", chance.u128(..), chance.u32(..))?,
        _ => write!(line, "fetched https://registry.example.org/{path} in {millisecond} ms")?,
    }
    if number.is_multiple_of(SECRET_EVERY) {
        write!(line, " {}", secret(chance))?;
    }
    line.push('\n');
    Ok(())
}

fn secret(chance: &mut Rng) -> String {
    let (_, known) = KNOWN[chance.usize(..KNOWN.len())];
    match chance.u8(..4) {
        0 => known.to_owned(),
        1 => hex(known),
        2 => format!("Authorization: Bearer {}", TOKENS[chance.usize(..TOKENS.len())]),
        _ => TOKENS[chance.usize(..TOKENS.len())].to_owned(),
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
