//! Files in and out.

use bytes::Bytes;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::Value;

use crate::provider::{ErrorClass, ProviderError, Usage};

use super::super::bounds;
use super::super::classify::Refusal;
use super::super::http::Request;
use super::{TRANSFER_TIMEOUT, Toolbox};

impl Toolbox {
    /// Writes a file; directories above it are made, and an old one is replaced.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be written.
    pub async fn upload(&self, path: &str, content: impl Into<Bytes>) -> Result<(), ProviderError> {
        self.upload_all(vec![(path.to_owned(), content.into())]).await
    }

    /// Writes several files with one request, as [`Toolbox::upload`] does with one.
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
        let answer = self.http.send_form(url, form, TRANSFER_TIMEOUT).await;
        let words = || format!("write {}", names.join(" and "));
        answer.map(drop).map_err(|refusal| self.during(refusal, &words()))
    }

    /// Removes a file; one that is gone already is fine.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be removed.
    pub async fn remove(&self, path: &str) -> Result<(), ProviderError> {
        let mut url = self.url(&["files"]);
        url.query_pairs_mut().append_pair("path", path);
        match self.http.send(Request::to_toolbox(Method::DELETE, url)).await {
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
    /// Fails when the toolbox does not tell it.
    pub async fn home(&self) -> Result<String, ProviderError> {
        let told = async {
            let url = self.url(&["user-home-dir"]);
            let answer = self.read(Request::to_toolbox(Method::GET, url)).await?;
            let directory = answer.get("dir").and_then(Value::as_str);
            directory.filter(|path| path.starts_with('/')).map(str::to_owned).ok_or_else(|| {
                Refusal::new(ErrorClass::Transient, "its toolbox did not name the home directory")
            })
        };
        told.await.map_err(|refusal| self.during(refusal, "find the home directory"))
    }

    /// Tells what the sandbox uses; older toolboxes do not tell it.
    ///
    /// # Errors
    ///
    /// Fails when the toolbox does not answer.
    pub async fn usage(&self) -> Result<Usage, ProviderError> {
        let url = self.url(&["system", "metrics"]);
        match self.read(Request::to_toolbox(Method::GET, url)).await {
            Ok(told) => {
                let memory = told.get("memUsed").and_then(Value::as_u64);
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
    /// Fails when it cannot be read, or is larger than 512 MiB; one that does not exist is `Gone`.
    pub async fn download(&self, path: &str) -> Result<Bytes, ProviderError> {
        let mut url = self.url(&["files", "download"]);
        url.query_pairs_mut().append_pair("path", path);
        let request = Request {
            timeout: TRANSFER_TIMEOUT,
            most_bytes: bounds::FILE,
            ..Request::to_toolbox(Method::GET, url)
        };
        let answer = self.http.send(request).await;
        answer.map_err(|refusal| self.during(refusal, &format!("read {path}")))
    }
}
