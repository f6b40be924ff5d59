//! The transport into sandboxes: one suite, which every provider must pass.
//!
//! A process tree on this machine, a container on the real engine, and a sandbox on the local
//! Daytona server, each with the bridge program that is embedded in the binary.

mod commands;
mod containers;
mod files;
mod fixture;
mod lifecycle;

/// Defines a test of each function for each named provider.
macro_rules! provider_tests {
    ($($provider:ident in $module:ident: $($test:ident),+;)+) => {
        $(
            mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $test() {
                        let fixture = crate::sandbox::fixture::SandboxFixture::enter(
                            $provider::NAME,
                        )
                        .await;
                        super::$test(&fixture).await;
                        fixture.leave().await;
                    }
                )+
            }
        )+
    };
}

/// Defines three tests of each function, one for each provider.
macro_rules! for_every_provider {
    ($($test:ident),+ $(,)?) => {
        crate::sandbox::provider_tests! {
            creel_process in process: $($test),+;
            creel_docker in docker: $($test),+;
            creel_daytona in daytona: $($test),+;
        }
    };
}

use {for_every_provider, provider_tests};
