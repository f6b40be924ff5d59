//! Sandboxes that really run: the client against `creel dev daytona`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod toolbox;
mod world;
