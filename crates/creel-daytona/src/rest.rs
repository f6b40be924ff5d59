//! Version 1 of the API: routes and shapes.

use creel_model::labels::Labels;
use creel_model::provider::ErrorClass;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api::{DaytonaResult, ListQuery, NewSandbox, SandboxPage, StopMode};
use super::bounds::{self, TooLarge};
use super::classify::DaytonaError;
use super::http::{ApiRequest, Http};
use super::limiter::Throttler;
use super::model::{DaytonaSandbox, KeyRights, id_in};

/// The largest page that the server returns.
const PAGE: &str = "200";

/// Version 1 of the API, as one connection uses it. Every error is classified.
#[derive(Debug, Clone)]
pub struct DaytonaApi {
    http: Http,
}

impl DaytonaApi {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    fn of(&self, id: &str, parts: &[&str]) -> Url {
        let mut all = vec!["sandbox", id];
        all.extend(parts);
        self.http.url(&all)
    }

    async fn post(&self, id: &str, parts: &[&str], counts_for: Throttler) -> DaytonaResult<()> {
        let request = ApiRequest::to_api(Method::POST, self.of(id, parts)).counting_for(counts_for);
        self.http.send(request).await.map(drop)
    }

    /// Turns a 404 for a listing into an error that says that no API is at this address.
    fn no_api(&self, refusal: DaytonaError) -> DaytonaError {
        if !refusal.is_absence() {
            return refusal;
        }
        let address = &self.http.access().url;
        let message =
            format!("no Daytona API is at {address} ({}): check DAYTONA_API_URL", refusal.message);
        DaytonaError { class: ErrorClass::Unreachable, message, ..refusal }
    }

    async fn read(&self, url: Url) -> DaytonaResult<Value> {
        let body = self.http.send(ApiRequest::to_api(Method::GET, url)).await?;
        serde_json::from_slice(&body).map_err(|_| unreadable())
    }
}

/// Returns a retryable error, because bodies can be truncated in transit.
fn unreadable() -> DaytonaError {
    DaytonaError::new(ErrorClass::Transient, "it answered with something that is not JSON")
}

fn no_listing() -> DaytonaError {
    let message = "its answer to a listing is none: is DAYTONA_API_URL right?";
    DaytonaError::new(ErrorClass::Transient, message)
}

/// A page of a listing. Rows are parsed one at a time, so that only one is in memory in full.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageBody<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
    #[serde(default)]
    next_cursor: Option<Value>,
}

fn page(body: &[u8]) -> DaytonaResult<SandboxPage> {
    let read: PageBody<'_> = match serde_json::from_slice(body) {
        Ok(read) => read,
        Err(error) if error.is_data() => return Err(no_listing()),
        Err(_) => return Err(unreadable()),
    };
    if read.items.len() > bounds::PAGE_ROWS {
        return Err(TooLarge::PageRows.into());
    }
    let next = read.next_cursor.as_ref().and_then(Value::as_str).filter(|next| !next.is_empty());
    let next = next.map(str::to_owned);
    if let Some(size) = next.as_ref().map(String::len).filter(|size| *size > bounds::TEXT) {
        return Err(TooLarge::Text { field: "cursor", size }.into());
    }
    let mut items = Vec::with_capacity(read.items.len());
    for row in read.items {
        // A row without an id cannot be acted on.
        items.extend(DaytonaSandbox::read_row(row)?);
    }
    Ok(SandboxPage { items, next, size: body.len() })
}

fn list_url(base: Url, query: &ListQuery, cursor: Option<&str>) -> Url {
    let mut url = base;
    let mut pairs = url.query_pairs_mut();
    // The default sort moves rows between pages whenever their sandboxes are active.
    pairs.append_pair("sort", "createdAt").append_pair("order", "asc").append_pair("limit", PAGE);
    if let Some(cursor) = cursor {
        pairs.append_pair("cursor", cursor);
    }
    if let Some(id) = &query.id {
        pairs.append_pair("id", id);
    }
    if let Some(name) = &query.name {
        pairs.append_pair("name", name);
    }
    if !query.labels.is_empty() {
        pairs.append_pair("labels", &json!(query.labels).to_string());
    }
    for state in &query.states {
        pairs.append_pair("states", state);
    }
    if query.errored_deleted {
        pairs.append_pair("includeErroredDeleted", "true");
    }
    drop(pairs);
    url
}

impl DaytonaApi {
    /// Returns the address of the API, for messages.
    pub fn address(&self) -> String {
        self.http.access().url.to_string()
    }

    /// Returns one page of a listing.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn list(
        &self,
        query: &ListQuery,
        cursor: Option<&str>,
    ) -> DaytonaResult<SandboxPage> {
        let url = list_url(self.http.url(&["sandbox"]), query, cursor);
        let request =
            ApiRequest { most_bytes: bounds::PAGE, ..ApiRequest::to_api(Method::GET, url) };
        let response = self.http.send(request).await;
        page(&response.map_err(|refusal| self.no_api(refusal))?)
    }

    /// Returns one sandbox by its id or name.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn get(&self, id: &str) -> DaytonaResult<DaytonaSandbox> {
        let value = self.read(self.of(id, &[])).await?;
        DaytonaSandbox::read_bounded(&value)?.ok_or_else(unreadable)
    }

    /// Creates a sandbox. A response with an id succeeds, whatever else it holds.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn create(&self, new: &NewSandbox) -> DaytonaResult<DaytonaSandbox> {
        let url = self.http.url(&["sandbox"]);
        let request = ApiRequest::to_api(Method::POST, url)
            .counting_for(Throttler::Create)
            .with_body(json!(new));
        let body = self.http.send(request).await?;
        let read =
            serde_json::from_slice(&body).ok().and_then(|value| DaytonaSandbox::read(&value));
        let from_id = || DaytonaSandbox::read(&json!({"id": id_in(&body)?, "name": new.name}));
        read.or_else(from_id).ok_or_else(unreadable)
    }

    /// Starts a sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn start(&self, id: &str) -> DaytonaResult<()> {
        self.post(id, &["start"], Throttler::Lifecycle).await
    }

    /// Stops a sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn stop(&self, id: &str, mode: StopMode) -> DaytonaResult<()> {
        let mut url = self.of(id, &["stop"]);
        let force = if mode == StopMode::Forced { "true" } else { "false" };
        url.query_pairs_mut().append_pair("force", force);
        let request = ApiRequest::to_api(Method::POST, url).counting_for(Throttler::Lifecycle);
        self.http.send(request).await.map(drop)
    }

    /// Recovers a failed sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn recover(&self, id: &str) -> DaytonaResult<()> {
        self.post(id, &["recover"], Throttler::Lifecycle).await
    }

    /// Requests the delete of a sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn delete(&self, id: &str) -> DaytonaResult<()> {
        let request =
            ApiRequest::to_api(Method::DELETE, self.of(id, &[])).counting_for(Throttler::Lifecycle);
        self.http.send(request).await.map(drop)
    }

    /// Moves a stopped sandbox to cheap storage.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn archive(&self, id: &str) -> DaytonaResult<()> {
        self.post(id, &["archive"], Throttler::Lifecycle).await
    }

    /// Replaces all labels of a sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn set_labels(&self, id: &str, labels: &Labels) -> DaytonaResult<()> {
        let request = ApiRequest::to_api(Method::PUT, self.of(id, &["labels"]))
            .with_body(json!({ "labels": labels }));
        self.http.send(request).await.map(drop)
    }

    /// Sets the idle minutes until it stops; 0 means never.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn set_auto_stop(&self, id: &str, minutes: u64) -> DaytonaResult<()> {
        self.post(id, &["autostop", &minutes.to_string()], Throttler::Authenticated).await
    }

    /// Sets the minutes at rest until it is archived.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn set_auto_archive(&self, id: &str, minutes: u64) -> DaytonaResult<()> {
        self.post(id, &["autoarchive", &minutes.to_string()], Throttler::Authenticated).await
    }

    /// Sets the minutes at rest until it is deleted; negative means never.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn set_auto_delete(&self, id: &str, minutes: i64) -> DaytonaResult<()> {
        self.post(id, &["autodelete", &minutes.to_string()], Throttler::Authenticated).await
    }

    /// Sets the minutes from now until it is destroyed, whatever its state.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn set_time_to_live(&self, id: &str, minutes: u64) -> DaytonaResult<()> {
        self.post(id, &["ttl", &minutes.to_string()], Throttler::Authenticated).await
    }

    /// Reports activity, so that the sandbox does not stop by itself.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn touch(&self, id: &str) -> DaytonaResult<()> {
        self.post(id, &["last-activity"], Throttler::Authenticated).await
    }

    /// Returns the permissions of our key.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn key_rights(&self) -> DaytonaResult<KeyRights> {
        let value = self.read(self.http.url(&["api-keys", "current"])).await?;
        Ok(KeyRights::read(&value))
    }

    /// Returns the toolbox address of new sandboxes, where the service publishes it.
    ///
    /// # Errors
    ///
    /// Fails when the API cannot be reached, or refuses the request.
    pub async fn toolbox_url(&self) -> DaytonaResult<Option<String>> {
        let value = self.read(self.http.url(&["config"])).await?;
        let url = value.get("proxyToolboxUrl").and_then(Value::as_str);
        Ok(url.filter(|url| !url.is_empty()).map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_row_by_row_and_a_hostile_one_is_refused() {
        let read = page(br#"{"items":[{"id":"a"},7,{"name":"b"}],"nextCursor":null}"#).unwrap();
        assert_eq!((read.items.len(), read.next), (1, None));
        let read = page(br#"{"items":[],"nextCursor":"c"}"#).unwrap();
        assert_eq!(read.next.as_deref(), Some("c"));
        let rows = vec!["{}"; bounds::PAGE_ROWS + 1].join(",");
        let refused = page(format!(r#"{{"items":[{rows}]}}"#).as_bytes()).unwrap_err();
        assert_eq!(refused.message, TooLarge::PageRows.to_string());
        for none in [&br#"{"rows":[]}"#[..], br#"{"items":7}"#, b"[]"] {
            assert!(page(none).unwrap_err().message.contains("DAYTONA_API_URL"));
        }
        assert_eq!(page(b"{\"items\":[").unwrap_err(), unreadable());
    }

    #[test]
    fn a_listing_is_ordered_by_creation_and_repeats_its_states() {
        let query = ListQuery {
            labels: [("a".to_owned(), "b c".to_owned())].into(),
            states: vec!["error".to_owned(), "build_failed".to_owned()],
            errored_deleted: true,
            ..ListQuery::default()
        };
        let url = list_url("http://h/api/sandbox".parse().unwrap(), &query, Some("c=1"));
        assert_eq!(
            url.query().unwrap(),
            "sort=createdAt&order=asc&limit=200&cursor=c%3D1&labels=%7B%22a%22%3A%22b+c%22%7D\
             &states=error&states=build_failed&includeErroredDeleted=true"
        );
    }
}
