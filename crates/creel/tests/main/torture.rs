//! The second tier: random instants and load. Run by `cargo xtask torture crash`.
