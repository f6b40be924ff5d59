//! The last stage: compare what exists now with what existed before.

use creel_ledger::Record;
use creel_model::certificate::CertificateEntry;
use jiff::Timestamp;

use crate::reap::{Certificate, CertificateEvidence, Report};

use super::listing::identities;
use super::{Listing, Pipeline};

/// What a certificate is about.
#[derive(Debug)]
pub struct CertificateRequest<'a> {
    /// When the baseline was taken.
    pub started_at: Timestamp,
    /// What existed before.
    pub before: &'a Listing,
    /// What exists now.
    pub after: &'a Listing,
    /// The actions that were taken.
    pub report: &'a Report,
    /// The records that still have to be released.
    pub outstanding: &'a [Record],
    /// The records that stay, as requested or protected.
    pub kept: Vec<&'a Record>,
    /// The objects that appeared, may be ours and are not on record.
    pub unexplained: Vec<CertificateEntry>,
}

impl<'a> CertificateRequest<'a> {
    /// Requests a certificate of a plan: what existed before its release, and exists after it.
    pub fn of_plan(
        started_at: Timestamp,
        (before, after): (&'a Listing, &'a Listing),
        report: &'a Report,
    ) -> Self {
        let (kept, unexplained) = Default::default();
        Self { started_at, before, after, report, outstanding: &[], kept, unexplained }
    }
}

impl Pipeline {
    /// Issues the certificate of a release.
    pub async fn certify(&self, request: CertificateRequest<'_>) -> Certificate {
        let CertificateRequest { started_at, before, after, report, .. } = request;
        let identities = identities(&self.providers, |name| before.is_reachable(name)).await;
        Certificate::issue(CertificateEvidence {
            ledger: self.ledger.as_ref().map(|ledger| ledger.id()),
            identities: identities.unwrap_or_default(),
            started_at,
            baseline: &before.inventory,
            report,
            inventory: &after.inventory,
            unread: before.unread().into_iter().chain(after.unread()).collect(),
            outstanding: request.outstanding.iter().map(CertificateEntry::from).collect(),
            kept: request.kept.into_iter().map(CertificateEntry::from).collect(),
            unexplained: request.unexplained,
        })
    }
}
