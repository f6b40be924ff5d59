//! Checks that the ledger explains every release request: before it is sent, and after its response.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use creel_ledger::{Event, Ledger, Record, RecordFilter, Try};
use creel_model::id::ResourceId;
use creel_model::provider::Kind;

/// Maximum number of audit rows that one ledger has.
const MAX_ROWS: u32 = 1_000_000;
/// How long the writer of a dropped audit may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many requests for an object got a response, by kind and object.
pub(super) type ResponseCounts = BTreeMap<(String, String), usize>;

/// What the provider sees of release requests, and what the ledger says about them.
#[derive(Debug)]
pub(super) struct AuditWitness {
    ledger: Ledger,
    /// Requests that arrived before their evidence was durable.
    unexplained: Mutex<Vec<String>>,
    responses: Mutex<ResponseCounts>,
}

impl AuditWitness {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, unexplained: Mutex::default(), responses: Mutex::default() }
    }

    /// Checks that the evidence of a request is durable when the request arrives.
    ///
    /// The object of a lost response is not on record by its id, but by the resource that its
    /// labels name.
    pub(super) async fn see_request(&self, kind: Kind, id: &str, claimed: Option<ResourceId>) {
        if !self.is_explained(kind, id, claimed).await {
            let request = format!("{kind} {id}");
            self.unexplained.lock().expect("no test panics with it").push(request);
        }
    }

    /// Counts a request whose response reached the caller: from then on it has a row of its own.
    pub(super) fn see_response(&self, kind: Kind, id: &str) {
        let mut responses = self.responses.lock().expect("no test panics with it");
        *responses.entry((kind.to_string(), id.to_owned())).or_default() += 1;
    }

    /// Returns the requests that arrived before their evidence was durable.
    pub(super) fn unexplained(&self) -> Vec<String> {
        self.unexplained.lock().expect("no test panics with it").clone()
    }

    /// Adds the responses to those of other models on the same ledger.
    pub(super) fn add_responses(&self, counts: &mut ResponseCounts) {
        for (object, count) in self.responses.lock().expect("no test panics with it").iter() {
            *counts.entry(object.clone()).or_default() += count;
        }
    }

    /// Returns whether `creel ledger why` would show what allows this request if the caller died
    /// now: an event of the open record, or a row that was written ahead.
    async fn is_explained(&self, kind: Kind, id: &str, claimed: Option<ResourceId>) -> bool {
        let open = self.ledger.records(&RecordFilter::open()).await.unwrap();
        let is_it = |record: &&Record| match record.state.object() {
            Some(object) => record.kind == kind && object == id,
            None => record.kind == kind && Some(record.id) == claimed,
        };
        let records: Vec<&Record> = open.iter().filter(is_it).collect();
        for record in &records {
            let history = self.ledger.history(record.id).await.unwrap();
            let has_evidence = |event: &Event| match event {
                // The rule, a semicolon, and the proof of ownership.
                Event::ReleaseRequested { why } => why.as_str().contains("; "),
                _ => false,
            };
            if history.iter().any(|stored| has_evidence(&stored.event)) {
                return true;
            }
        }
        let rows = self.ledger.releases_of(id, MAX_ROWS).await.unwrap();
        let is_of_request = |row: &Try| {
            let is_tracked = row.resource.is_some_and(|id| records.iter().any(|one| one.id == id));
            row.kind == kind && (is_tracked || row.resource.is_none())
        };
        rows.iter().any(|row| is_of_request(row) && has_evidence(row))
    }
}

/// Checks that the audit has a row with evidence for every response.
pub(super) async fn assert_audited(ledger: &Ledger, responses: &ResponseCounts) {
    let began = Instant::now();
    loop {
        let missing = unaudited(ledger, responses).await;
        if missing.is_empty() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "releases without a row in the audit: {missing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the objects that have fewer rows than responses.
async fn unaudited(ledger: &Ledger, responses: &ResponseCounts) -> Vec<String> {
    let mut rows = ResponseCounts::new();
    for row in ledger.tries(None, MAX_ROWS).await.unwrap() {
        if row.operation.as_str() == "release" && row.attempt > 0 && has_evidence(&row) {
            *rows.entry((row.kind.to_string(), row.object)).or_default() += 1;
        }
    }
    let count = |object: &(String, String)| rows.get(object).copied().unwrap_or_default();
    let missing = responses.iter().filter(|(object, responses)| count(object) < **responses);
    missing.map(|((kind, id), _)| format!("{kind} {id}")).collect()
}

fn has_evidence(row: &Try) -> bool {
    row.evidence.as_ref().is_some_and(|evidence| !evidence.as_str().is_empty())
}
