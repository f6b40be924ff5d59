//! The program for sandboxes, embedded by the build script.

use creel_run::sandbox::BridgeProgram;

/// `creel-bridge` for this machine's architecture: static, so it runs wherever it is uploaded.
pub(crate) const PROGRAM: BridgeProgram = BridgeProgram {
    bytes: include_bytes!(env!("CREEL_BRIDGE_PROGRAM")),
    digest: env!("CREEL_BRIDGE_DIGEST"),
};

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use memchr::memmem;

    use super::*;

    /// Maximum size in bytes; the program is uploaded into every sandbox.
    const LARGEST: usize = 4 << 20;

    #[test]
    fn the_program_for_sandboxes_is_small_and_static_and_runs() {
        assert!(PROGRAM.bytes.len() < LARGEST, "{} bytes", PROGRAM.bytes.len());
        // A program that needs a loader names it.
        let names_loader = memmem::find(PROGRAM.bytes, b"/ld-linux-").is_some();
        assert!(!names_loader, "the program is not static");
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(PROGRAM.digest);
        fs::write(&file, PROGRAM.bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
        let output = Command::new(&file).arg("nonsense").env_clear().output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stderr.starts_with(b"creel-bridge: no such command: \"nonsense\""));
    }
}
