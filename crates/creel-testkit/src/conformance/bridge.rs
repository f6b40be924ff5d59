//! The program that runs in sandboxes, as the build of `creel` made it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use creel_model::sandbox::BridgeProgram;
use sha2::{Digest, Sha256};

/// Returns the static program for sandboxes.
///
/// # Panics
///
/// Panics when it was not built yet: a case that needs it is never skipped.
pub fn bridge_program() -> BridgeProgram {
    static PROGRAM: OnceLock<BridgeProgram> = OnceLock::new();
    *PROGRAM.get_or_init(|| {
        let path = path();
        let bytes = std::fs::read(&path).unwrap_or_else(|error| {
            panic!("{}: {error}: build it with `cargo build -p creel`", path.display())
        });
        let digest: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        // Both live as long as the test program anyway.
        BridgeProgram { bytes: bytes.leak(), digest: digest.leak() }
    })
}

/// Returns the place where creel's build script leaves the program, beside the build of this test.
fn path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/test-0123
    let target = test.ancestors().nth(3).unwrap_or(Path::new("target"));
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    target.join("creel-bridge").join(triple).join("bridge/creel-bridge")
}
