//! The built-in recipes, one file each.

/// Their names and texts.
pub(super) const BUILT_IN: [(&str, &str); 7] = [
    ("compose", include_str!("builtin/compose.toml")),
    ("harbor", include_str!("builtin/harbor.toml")),
    ("inspect", include_str!("builtin/inspect.toml")),
    ("openhands", include_str!("builtin/openhands.toml")),
    ("swe-bench", include_str!("builtin/swe-bench.toml")),
    ("terminal-bench", include_str!("builtin/terminal-bench.toml")),
    ("testcontainers", include_str!("builtin/testcontainers.toml")),
];

#[cfg(test)]
mod tests;
