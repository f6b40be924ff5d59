//! Turns plain functions into tests, for a harness other than libtest.

use libtest_mimic::Trial;

/// A test: its name and its function.
pub(crate) type Test = (&'static str, fn());

/// Defines the list of the tests in a module.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const ALL: &[crate::runner::Test] = &[$((stringify!($name), $name)),+];
    };
}
pub(crate) use tests;

/// Wraps a function, which fails by panicking.
pub(crate) fn trial((name, test): Test) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
