//! Makes tests of plain functions, for a harness that is not libtest's.

use libtest_mimic::Trial;

/// A test: its name and what it does.
pub(crate) type Test = (&'static str, fn());

/// Makes the list of the tests in a module from their functions.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const ALL: &[crate::runner::Test] = &[$((stringify!($name), $name)),+];
    };
}
pub(crate) use tests;

/// Wraps a function; it fails by panicking, as tests do.
pub(crate) fn trial((name, test): Test) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
