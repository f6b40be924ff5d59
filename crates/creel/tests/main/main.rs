//! The one integration binary: the real `creel` against real parts.

mod cli;
