//! The way into sandboxes: one suite, and every world must pass it.
//!
//! A process tree on this machine, a container of the real engine, and a sandbox of the local
//! Daytona server, each with the program that is built into the binary.

mod bench;
mod commands;
mod containers;
mod files;
mod life;

/// Makes tests of proofs, one for each world that is named.
macro_rules! proofs {
    ($($world:ident in $module:ident: $($proof:ident),+;)+) => {
        $(
            mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $proof() {
                        let bench = crate::inside::bench::Bench::enter(
                            creel_model::provider::ProviderName::$world,
                        )
                        .await;
                        super::$proof(&bench).await;
                        bench.leave().await;
                    }
                )+
            }
        )+
    };
}

/// Makes three tests of each proof, one for each world.
macro_rules! in_every_world {
    ($($proof:ident),+ $(,)?) => {
        crate::inside::proofs! {
            Process in process: $($proof),+;
            Docker in docker: $($proof),+;
            Daytona in daytona: $($proof),+;
        }
    };
}

use {in_every_world, proofs};
