//! `creel guard`, proven with the clients that people use.

mod daytona;
