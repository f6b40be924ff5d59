//! Files in and out.

use bytes::Bytes;
use reqwest::Method;
use reqwest::multipart::{Form, Part};

use crate::provider::ProviderError;

use super::super::http::Request;
use super::{TRANSFER_TIMEOUT, Toolbox};

impl Toolbox {
    /// Writes a file; directories above it are made, and an old one is replaced.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be written.
    pub async fn upload(&self, path: &str, content: impl Into<Bytes>) -> Result<(), ProviderError> {
        let content: Bytes = content.into();
        let size = content.len() as u64;
        let file = Part::stream_with_length(content, size).file_name(path.to_owned());
        let form = Form::new().text("files[0].path", path.to_owned()).part("files[0].file", file);
        let url = self.url(&["files", "bulk-upload"]);
        let answer = self.http.send_form(url, form, TRANSFER_TIMEOUT).await;
        answer.map(drop).map_err(|refusal| self.during(refusal, &format!("write {path}")))
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Fails when it cannot be read; one that does not exist is `Gone`.
    pub async fn download(&self, path: &str) -> Result<Bytes, ProviderError> {
        let mut url = self.url(&["files", "download"]);
        url.query_pairs_mut().append_pair("path", path);
        let request =
            Request { timeout: TRANSFER_TIMEOUT, ..Request::to_toolbox(Method::GET, url) };
        let answer = self.http.send(request).await;
        answer.map_err(|refusal| self.during(refusal, &format!("read {path}")))
    }
}
