//! File transfers and usage.

use bytes::Bytes;
use creel_model::provider::{ErrorClass, ProviderError, Usage};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::Value;

use super::super::bounds;
use super::super::classify::DaytonaError;
use super::super::http::ApiRequest;
use super::{TRANSFER_TIMEOUT, Toolbox};

impl Toolbox {
    /// Writes a file; creates its parent directories and replaces an existing file.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be written.
    pub async fn upload(&self, path: &str, content: impl Into<Bytes>) -> Result<(), ProviderError> {
        self.upload_all(vec![(path.to_owned(), content.into())]).await
    }

    /// Writes several files with one request, each like [`Toolbox::upload`].
    ///
    /// # Errors
    ///
    /// Fails when one of them cannot be written.
    pub async fn upload_all(&self, files: Vec<(String, Bytes)>) -> Result<(), ProviderError> {
        let names: Vec<String> = files.iter().map(|(path, _)| path.clone()).collect();
        let mut form = Form::new();
        for (number, (path, content)) in files.into_iter().enumerate() {
            let size = content.len() as u64;
            let file = Part::stream_with_length(content, size).file_name(path.clone());
            form = form
                .text(format!("files[{number}].path"), path)
                .part(format!("files[{number}].file"), file);
        }
        let url = self.url(&["files", "bulk-upload"]);
        let result = self.http.send_form(url, form, TRANSFER_TIMEOUT).await;
        let operation = || format!("write {}", names.join(" and "));
        result.map(drop).map_err(|refusal| self.during(refusal, &operation()))
    }

    /// Removes a file; succeeds if it is already gone.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be removed.
    pub async fn remove(&self, path: &str) -> Result<(), ProviderError> {
        let mut url = self.url(&["files"]);
        url.query_pairs_mut().append_pair("path", path);
        match self.http.send(ApiRequest::to_toolbox(Method::DELETE, url)).await {
            Err(refusal) if !refusal.is_absence() => {
                Err(self.during(refusal, &format!("remove {path}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the home directory of the user in the sandbox.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not report it.
    pub async fn home(&self) -> Result<String, ProviderError> {
        let home = async {
            let url = self.url(&["user-home-dir"]);
            let response = self.read(ApiRequest::to_toolbox(Method::GET, url)).await?;
            let directory = response.get("dir").and_then(Value::as_str);
            directory.filter(|path| path.starts_with('/')).map(str::to_owned).ok_or_else(|| {
                DaytonaError::new(
                    ErrorClass::Transient,
                    "its toolbox did not name the home directory",
                )
            })
        };
        home.await.map_err(|refusal| self.during(refusal, "find the home directory"))
    }

    /// Returns the resource usage of the sandbox; older toolboxes do not report it.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not respond.
    pub async fn usage(&self) -> Result<Usage, ProviderError> {
        let url = self.url(&["system", "metrics"]);
        match self.read(ApiRequest::to_toolbox(Method::GET, url)).await {
            Ok(metrics) => {
                let memory = metrics.get("memUsed").and_then(Value::as_u64);
                Ok(Usage { memory, ..Usage::default() })
            }
            Err(refusal) if refusal.is_absence() => Ok(Usage::default()),
            Err(refusal) => Err(self.during(refusal, "measure it")),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read, or is larger than 512 MiB; a missing file is `Gone`.
    pub async fn download(&self, path: &str) -> Result<Bytes, ProviderError> {
        let mut url = self.url(&["files", "download"]);
        url.query_pairs_mut().append_pair("path", path);
        let request = ApiRequest {
            timeout: TRANSFER_TIMEOUT,
            most_bytes: bounds::FILE,
            ..ApiRequest::to_toolbox(Method::GET, url)
        };
        let result = self.http.send(request).await;
        result.map_err(|refusal| self.during(refusal, &format!("read {path}")))
    }
}
