//! Error codes: every user-visible error has one, with a page that explains it.
//!
//! The pages are in `docs/errors/` and are built in, for `creel explain CODE`.

use std::fmt;
use std::str::FromStr;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $title:literal;)+) => {
        /// One kind of error; a code is never reused for another kind.
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

            /// Returns a short title.
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
    /// An internal error.
    Internal = "CR0001", "internal error";
    /// The command line is invalid.
    Usage = "CR0002", "wrong usage";
    /// The settings are invalid.
    Settings = "CR0003", "wrong settings";
    /// A file the user named cannot be used.
    File = "CR0004", "a file cannot be used";
    /// A workflow is invalid.
    Workflow = "CR0005", "wrong workflow";
    /// A release could not be recorded.
    AuditIncomplete = "CR0006", "the audit is incomplete";
    /// Another process holds the ledger.
    LedgerLocked = "CR0010", "the ledger is locked";
    /// The ledger cannot be written.
    LedgerReadOnly = "CR0011", "the ledger is read-only";
    /// The ledger's disk is full.
    LedgerDiskFull = "CR0012", "the ledger's disk is full";
    /// The ledger is damaged.
    LedgerCorrupt = "CR0013", "the ledger is damaged";
    /// The ledger was written by a newer creel.
    LedgerNewer = "CR0014", "the ledger is from a newer creel";
    /// The state directory cannot be used.
    Home = "CR0015", "the state directory cannot be used";
    /// The ledger is gone, but traces of it remain.
    LedgerVanished = "CR0016", "the ledger has vanished";
    /// The ledger belongs to another directory.
    LedgerOther = "CR0017", "the ledger is another one";
    /// A rebuild is not needed, or not possible.
    Rebuild = "CR0018", "the ledger cannot be rebuilt";
    /// A provider does not respond.
    Unreachable = "CR0020", "a provider does not answer";
    /// A provider denies access.
    Denied = "CR0021", "a provider denies access";
    /// A requested provider is not configured.
    NotConfigured = "CR0022", "a provider is not configured";
    /// The address of an engine is invalid.
    Endpoint = "CR0023", "the engine's address is wrong";
    /// A provider permanently refused a create or another call.
    Refused = "CR0024", "a provider refused a request";
    /// A sweep would select foreign resources by accident.
    NotNarrow = "CR0030", "foreign resources need a narrowing selector";
    /// The plan is larger than its cap.
    Cap = "CR0031", "the plan exceeds its cap";
    /// The confirmation is missing.
    Unconfirmed = "CR0032", "confirmation is needed";
    /// The resource is protected.
    Protected = "CR0033", "the resource is protected";
    /// A live owner holds the resource.
    Held = "CR0034", "a live owner holds the resource";
    /// The plan is for another engine.
    OtherEngine = "CR0035", "the plan was made for another engine";
    /// Resources changed since the plan was made.
    Drifted = "CR0036", "resources changed since the plan was made";
    /// No resource matches.
    NoSuch = "CR0037", "no resource of that name";
    /// Several resources match.
    Ambiguous = "CR0038", "several resources fit";
    /// No run matches.
    NoRun = "CR0060", "no such run";
    /// Several runs match.
    AmbiguousRun = "CR0061", "several runs fit";
    /// The run is over.
    RunOver = "CR0062", "the run is over";
    /// The driver of the run is dead.
    DriverDead = "CR0063", "the driver of the run is dead";
    /// Another process drives the run.
    RunDrivenElsewhere = "CR0064", "another process drives the run";
    /// The records of a run are inconsistent.
    RunRecords = "CR0065", "the records of a run do not fit together";
    /// A resource is not verified gone.
    NotGone = "CR0040", "something is not verified gone";
    /// The user interrupted.
    Interrupted = "CR0041", "interrupted";
    /// A delete was accepted, but the service keeps the object.
    KeptByService = "CR0050", "deleted, and kept by the service";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns an error with all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A text that is not an error code.
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
    fn every_page_has_its_code_and_a_remedy() {
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
