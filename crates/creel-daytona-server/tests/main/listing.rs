//! The list: filters, pages, and rows that come and go meanwhile.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fixture::ServerFixture;

#[test]
fn filters_select() {
    let fixture = ServerFixture::hollow(|_| {});
    let label = json!({ "count": 2, "labels": { "a": "1", "b": "2" }, "name_prefix": "Alpha-" });
    let both = fixture.seed(&label);
    let stopped = fixture.seed(&json!({ "count": 1, "state": "stopped", "age_seconds": 7200 }));
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    let encoded = "%7B%22a%22%3A%20%221%22%2C%20%22b%22%3A%20%222%22%7D";
    assert_eq!(sorted(fixture.list(&format!("labels={encoded}"))), sorted(both.clone()));
    assert_eq!(sorted(fixture.list("name=alpha")), sorted(both.clone()));
    assert_eq!(fixture.list("states=stopped&states=error"), stopped);
    assert_eq!(fixture.list(&format!("id={}", both[0])), [both[0].clone()]);
    let now = jiff::Timestamp::now();
    let hour = jiff::SignedDuration::from_hours(1);
    let ago = now.checked_sub(hour).expect("an hour ago exists");
    assert_eq!(fixture.list(&format!("createdAtBefore={ago}")), stopped);
    assert_eq!(fixture.list(&format!("lastEventAfter={ago}")).len(), 2);
    assert_eq!(fixture.list("sort=createdAt&order=asc").first(), stopped.first());
    assert_eq!(fixture.list("sort=createdAt&order=desc").last(), stopped.first());
    assert_eq!(fixture.list("sort=name&order=asc&limit=1").len(), 3);
}

#[test]
fn pages_include_every_row_that_stays() {
    let fixture = ServerFixture::hollow(|_| {});
    // A millisecond apart from each other, and long before the others, because rows of one
    // millisecond may appear twice.
    let stay =
        fixture.seed(&json!({ "count": 250, "labels": { "stay": "yes" }, "age_seconds": 60 }));
    let stay: BTreeSet<String> = stay.into_iter().collect();
    let go = fixture.seed(&json!({ "count": 100 }));
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for id in &go {
                fixture.send("DELETE", &format!("sandbox/{id}"), &Value::Null).expect(200);
                fixture.seed(&json!({ "count": 1 }));
            }
        });
        while !changing.is_finished() {
            let seen = fixture.list("sort=createdAt&order=asc&limit=20");
            let staying = seen.iter().filter(|id| stay.contains(*id)).count();
            let unique: BTreeSet<String> = seen.into_iter().collect();
            assert!(stay.is_subset(&unique), "a row was missed");
            assert_eq!(staying, stay.len(), "a row came twice");
        }
    });
}

#[test]
fn wrong_queries_are_refused() {
    let fixture = ServerFixture::hollow(|_| {});
    for query in [
        "limit=0",
        "limit=201",
        "states=destroyed",
        "states=started,error",
        "cursor=nonsense",
        "labels=nonsense",
        "order=up",
        "sort=colour",
        "createdAtAfter=yesterday",
    ] {
        let refused = fixture.get(&format!("sandbox?{query}")).expect(400);
        assert_eq!(refused["error"], "Bad Request", "{query}");
    }
}

#[test]
fn ten_thousand_sandboxes_are_listed_in_every_sort_mode() {
    let fixture = ServerFixture::hollow(|_| {});
    let ids: BTreeSet<String> = fixture.seed(&json!({ "count": 10_000 })).into_iter().collect();
    for query in ["sort=createdAt&order=asc&limit=200", "sort=name&limit=200"] {
        let seen = fixture.list(query);
        assert_eq!(seen.len(), 10_000);
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), ids, "{query}");
    }
    let counts = fixture.admin("GET", "requests", &Value::Null);
    assert_eq!(counts["by_route"]["GET /sandbox"], 100);
}
