//! Error codes: every error a user meets has one, with a page that explains it.
//!
//! The pages live in `docs/errors/` and are built in, for `creel explain CODE`.

use std::fmt;
use std::str::FromStr;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $title:literal;)+) => {
        /// One sort of error, for good: a code is never given to another sort.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $variant,)+
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the code as it is printed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns what it is about, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// Returns the page that explains it.
            pub const fn page(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!(
                        concat!("../../../../docs/errors/", $code, ".md")
                    ),)+
                }
            }
        }
    };
}

codes! {
    /// Something that should not happen did.
    Internal = "CR0001", "internal error";
    /// The command line does not make sense.
    Usage = "CR0002", "wrong usage";
    /// The settings are not right.
    Settings = "CR0003", "wrong settings";
    /// A file the user named cannot be used.
    File = "CR0004", "a file cannot be used";
    /// A workflow is not right.
    Workflow = "CR0005", "wrong workflow";
    /// Something was released and could not be recorded.
    AuditIncomplete = "CR0006", "the audit is incomplete";
    /// Another process holds the ledger.
    LedgerLocked = "CR0010", "the ledger is locked";
    /// The ledger may not be written.
    LedgerReadOnly = "CR0011", "the ledger is read-only";
    /// No room for the ledger.
    LedgerDiskFull = "CR0012", "the ledger's disk is full";
    /// The ledger is damaged.
    LedgerCorrupt = "CR0013", "the ledger is damaged";
    /// The ledger is too new.
    LedgerNewer = "CR0014", "the ledger is from a newer creel";
    /// The state directory cannot be used.
    Home = "CR0015", "the state directory cannot be used";
    /// The ledger is gone, and traces of it are left.
    LedgerVanished = "CR0016", "the ledger has vanished";
    /// The ledger belongs to another directory.
    LedgerOther = "CR0017", "the ledger is another one";
    /// A rebuild is not needed, or not possible.
    Rebuild = "CR0018", "the ledger cannot be rebuilt";
    /// A provider does not answer.
    Unreachable = "CR0020", "a provider does not answer";
    /// A provider denies us.
    Denied = "CR0021", "a provider denies access";
    /// A provider that was asked for is not configured.
    NotConfigured = "CR0022", "a provider is not configured";
    /// The address of an engine makes no sense.
    Endpoint = "CR0023", "the engine's address is wrong";
    /// A provider refused a create or another call for good.
    Refused = "CR0024", "a provider refused a request";
    /// A sweep would mean foreign resources by accident.
    NotNarrow = "CR0030", "foreign resources need a narrowing selector";
    /// The plan is larger than its cap.
    Cap = "CR0031", "the plan exceeds its cap";
    /// Nobody confirmed.
    Unconfirmed = "CR0032", "confirmation is needed";
    /// It is protected.
    Protected = "CR0033", "the resource is protected";
    /// A live owner holds it.
    Held = "CR0034", "a live owner holds the resource";
    /// The plan is for another engine.
    OtherWorld = "CR0035", "the plan was made for another engine";
    /// Items changed since the plan was made.
    Drifted = "CR0036", "resources changed since the plan was made";
    /// No such resource.
    NoSuch = "CR0037", "no resource of that name";
    /// Several resources fit.
    Ambiguous = "CR0038", "several resources fit";
    /// No such run.
    NoRun = "CR0060", "no such run";
    /// Several runs fit.
    AmbiguousRun = "CR0061", "several runs fit";
    /// The run is over.
    RunOver = "CR0062", "the run is over";
    /// Whoever drove the run is dead.
    DriverDead = "CR0063", "whoever drove the run is dead";
    /// Another process drives the run.
    RunTaken = "CR0064", "another process drives the run";
    /// The records of a run do not fit together.
    RunRecords = "CR0065", "the records of a run do not fit together";
    /// Something is not verified gone.
    NotGone = "CR0040", "something is not verified gone";
    /// The user interrupted.
    Interrupted = "CR0041", "interrupted";
    /// A delete was accepted, and the service keeps the object.
    KeptByService = "CR0050", "deleted, and kept by the service";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no error code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an error code such as CR0020")]
pub struct UnknownCode {
    text: String,
}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let wanted = text.trim().to_uppercase();
        let found = Self::ALL.iter().find(|code| code.name() == wanted);
        found.copied().ok_or_else(|| UnknownCode { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_code_and_says_what_to_do() {
        for code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# {code}: {}\n", code.title())), "{code}");
            assert!(page.contains("## What to do\n"), "{code}");
        }
    }

    #[test]
    fn codes_are_unique_and_read_in_any_case() {
        let names: std::collections::BTreeSet<_> = Code::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        assert_eq!("cr0020".parse(), Ok(Code::Unreachable));
        assert!("CR9999".parse::<Code>().is_err());
    }
}
