//! Records when the command put names on images.
//!
//! An engine keeps one time for an image: when a name was last put on it. That time proves which
//! names belong to the command. So when the command puts a second name on the same image, the first
//! one is recorded with the new time. If another client named the image in between, nothing shows
//! any more which of its names are the command's. Then the earlier names stay as recorded, and are
//! kept at the end.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use creel_model::provider::{Identity, Kind};
use jiff::Timestamp;
use tracing::{info, warn};

use super::gate::DockerGate;

/// How long it may take until a name that was just put on an image is noted here.
const NOTED: Duration = Duration::from_millis(300);

/// Maps each image that the command named to the time when it last did so.
#[derive(Debug, Default)]
pub(super) struct TagTimes(Mutex<HashMap<String, Timestamp>>);

impl TagTimes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new time, and returns the previous one.
    fn note(&self, image: &str, at: Timestamp) -> Option<Timestamp> {
        self.lock().insert(image.to_owned(), at)
    }

    fn is_newest(&self, image: &str, at: Option<Timestamp>) -> bool {
        at.is_some() && self.lock().get(image).copied() == at
    }

    /// Returns when the command last named an image.
    pub(super) fn newest(&self, image: &str) -> Option<Timestamp> {
        self.lock().get(image).copied()
    }

    fn forget(&self, image: &str) {
        self.lock().remove(image);
    }

    fn images(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }
}

impl DockerGate {
    /// Forgets the times of images that another client has named since.
    pub(super) async fn check_tag_times(&self) {
        for image in self.tag_times.images() {
            if self.is_named_last_by_us(&image).await {
                continue;
            }
            tokio::time::sleep(NOTED).await;
            if !self.is_named_last_by_us(&image).await {
                info!(image, "another client named an image of the command");
                self.tag_times.forget(&image);
            }
        }
    }

    async fn is_named_last_by_us(&self, image: &str) -> bool {
        match self.engine.tagged_at(image).await {
            Ok(at) => self.tag_times.is_newest(image, at),
            Err(error) => {
                warn!(image, %error, "when an image was named is not known");
                false
            }
        }
    }

    /// Records the new time with the names of an image that the command named again.
    pub(super) async fn note_tag_time(&self, image: &str, at: Timestamp) {
        let before = self.tag_times.note(image, at);
        let Ok(records) = self.claims.open(Kind::Image).await else { return };
        for record in records {
            let Some(
                Identity::Tag { image: named, tagged_at, .. }
                | Identity::Image { id: named, tagged_at, .. },
            ) = &record.identity
            else {
                continue;
            };
            let is_current = tagged_at.is_some() && *tagged_at == before;
            if named != image || before == Some(at) || !is_current {
                continue;
            }
            if let Some(identity) = record.identity.clone() {
                self.claims.refresh(&record, identity.tagged_again(at)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_not_ours_is_not_the_newest() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let times = TagTimes::default();
        assert!(!times.is_newest("i1", None) && !times.is_newest("i1", Some(at(1))));
        assert_eq!((times.note("i1", at(1)), times.note("i1", at(2))), (None, Some(at(1))));
        assert!(times.is_newest("i1", Some(at(2))) && !times.is_newest("i1", Some(at(3))));
        times.forget("i1");
        assert!(!times.is_newest("i1", Some(at(2))));
    }
}
