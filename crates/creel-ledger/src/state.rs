//! The lifecycle of a resource: one total transition function.

use creel_sanitise::Masked;

use crate::event::Event;

/// The lifecycle state of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceState {
    /// The intent is recorded; an object may exist or may yet appear.
    Intended,
    /// The object exists under this provider id.
    Created {
        /// The provider's id.
        object: String,
    },
    /// Its release was requested.
    Releasing {
        /// The provider's id, unless the response to the create never arrived.
        object: Option<String>,
    },
    /// Its absence was verified.
    Gone,
    /// It cannot be removed.
    Quarantined {
        /// The provider's id, unless the response to the create never arrived.
        object: Option<String>,
        /// Why it cannot be removed.
        reason: Masked,
    },
    /// It vanished although we did not release it.
    Lost {
        /// The provider's id that it had.
        object: String,
    },
}

creel_model::named_enum! {
    /// A state without its data, as ledger rows and users name it.
    pub enum StateName: "ledger state" {
        /// See [`ResourceState::Intended`].
        Intended = "intended",
        /// See [`ResourceState::Created`].
        Created = "created",
        /// See [`ResourceState::Releasing`].
        Releasing = "releasing",
        /// See [`ResourceState::Gone`].
        Gone = "gone",
        /// See [`ResourceState::Quarantined`].
        Quarantined = "quarantined",
        /// See [`ResourceState::Lost`].
        Lost = "lost",
    }
}

impl StateName {
    /// Returns whether the resource may still need a release.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Intended | Self::Created | Self::Releasing | Self::Quarantined => true,
            Self::Gone | Self::Lost => false,
        }
    }
}

/// An event that is not legal in this state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a resource that is {} cannot be {event}", from.map_or("not recorded", StateName::name))]
pub struct IllegalTransition {
    /// The state it was in; `None` before its intent.
    pub from: Option<StateName>,
    /// The event, as a past participle.
    pub event: &'static str,
}

impl ResourceState {
    /// Returns the state without its data.
    pub fn name(&self) -> StateName {
        match self {
            Self::Intended => StateName::Intended,
            Self::Created { .. } => StateName::Created,
            Self::Releasing { .. } => StateName::Releasing,
            Self::Gone => StateName::Gone,
            Self::Quarantined { .. } => StateName::Quarantined,
            Self::Lost { .. } => StateName::Lost,
        }
    }

    /// Returns the provider's id, where it is known and still relevant.
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Intended | Self::Gone => None,
            Self::Created { object } | Self::Lost { object } => Some(object),
            Self::Releasing { object } | Self::Quarantined { object, .. } => object.as_deref(),
        }
    }

    /// Returns why it is quarantined.
    pub fn reason(&self) -> Option<&Masked> {
        match self {
            Self::Quarantined { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns the state after an event. This is the only place where states change.
    ///
    /// Events that repeat the current state are legal and change nothing, because every operation
    /// may happen twice.
    ///
    /// # Errors
    ///
    /// Fails when the event is not legal in this state.
    pub fn next(current: Option<&Self>, event: &Event) -> Result<Self, IllegalTransition> {
        let illegal =
            || IllegalTransition { from: current.map(Self::name), event: event.past_participle() };
        match (current, event) {
            (None, Event::Intended { .. }) => Ok(Self::Intended),
            (None, _) | (Some(_), Event::Intended { .. }) => Err(illegal()),
            (Some(state), Event::Created { object, .. } | Event::Found { object, .. }) => {
                state.with_object(object).ok_or_else(illegal)
            }
            (Some(state), Event::NeverCreated { .. }) => match state {
                Self::Intended | Self::Releasing { object: None } | Self::Gone => Ok(Self::Gone),
                _ => Err(illegal()),
            },
            (Some(state), Event::ReleaseRequested { .. }) => match state {
                Self::Intended => Ok(Self::Releasing { object: None }),
                Self::Created { object } => Ok(Self::Releasing { object: Some(object.clone()) }),
                Self::Releasing { object } | Self::Quarantined { object, .. } => {
                    Ok(Self::Releasing { object: object.clone() })
                }
                Self::Gone | Self::Lost { .. } => Err(illegal()),
            },
            (Some(state), Event::VerifiedGone) => match state {
                Self::Releasing { .. } | Self::Quarantined { .. } | Self::Gone => Ok(Self::Gone),
                Self::Intended | Self::Created { .. } | Self::Lost { .. } => Err(illegal()),
            },
            (Some(state), Event::Replaced { .. }) => match state {
                Self::Created { .. }
                | Self::Releasing { .. }
                | Self::Quarantined { .. }
                | Self::Gone => Ok(Self::Gone),
                Self::Intended | Self::Lost { .. } => Err(illegal()),
            },
            (Some(state), Event::Quarantined { reason }) => match state {
                Self::Gone | Self::Lost { .. } => Err(illegal()),
                open => Ok(Self::Quarantined {
                    object: open.object().map(str::to_owned),
                    reason: reason.clone(),
                }),
            },
            (Some(state), Event::Vanished) => match state {
                Self::Created { object } | Self::Lost { object } => {
                    Ok(Self::Lost { object: object.clone() })
                }
                _ => Err(illegal()),
            },
            (Some(state), Event::SearchRestarted { .. }) => match state {
                Self::Intended
                | Self::Releasing { object: None }
                | Self::Quarantined { object: None, .. } => Ok(state.clone()),
                _ => Err(illegal()),
            },
            (
                Some(state),
                Event::OwnerChanged { .. }
                | Event::LeaseGranted { .. }
                | Event::Kept { .. }
                | Event::Reused { .. },
            ) => {
                if state.name().is_open() {
                    Ok(state.clone())
                } else {
                    Err(illegal())
                }
            }
        }
    }

    /// Returns the state after the object of this record appeared in a response or a search.
    ///
    /// A closed record opens again, because a create may complete late and a late object must never
    /// be untracked. Returns `None` for an object other than the recorded one.
    fn with_object(&self, found: &str) -> Option<Self> {
        let fits = self.object().is_none_or(|known| known == found);
        let found = found.to_owned();
        fits.then(|| match self {
            Self::Intended | Self::Created { .. } | Self::Gone | Self::Lost { .. } => {
                Self::Created { object: found }
            }
            Self::Releasing { .. } => Self::Releasing { object: Some(found) },
            Self::Quarantined { reason, .. } => {
                Self::Quarantined { object: Some(found), reason: reason.clone() }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::tests::{any_event, some_intent};

    fn replay(events: &[Event]) -> Option<ResourceState> {
        events
            .iter()
            .fold(None, |state, event| ResourceState::next(state.as_ref(), event).ok().or(state))
    }

    proptest! {
        #[test]
        fn a_record_is_gone_only_after_a_verification(
            events in proptest::collection::vec(any_event(), 0..30),
        ) {
            let mut state = None;
            for event in &events {
                let after = ResourceState::next(state.as_ref(), event);
                if let Ok(ResourceState::Gone) = &after && state != Some(ResourceState::Gone) {
                    let verified =
                        matches!(
                            event,
                            Event::VerifiedGone
                                | Event::NeverCreated { .. }
                                | Event::Replaced { .. }
                        );
                    prop_assert!(verified, "closed by {:?}", event);
                }
                state = after.ok().or(state);
            }
        }

        #[test]
        fn any_prefix_of_a_log_recovers_to_an_end(
            events in proptest::collection::vec(any_event(), 0..30),
            cut in 0usize..30,
        ) {
            let mut log = vec![some_intent()];
            log.extend(events);
            let state = replay(&log[..log.len().min(cut + 1)]).expect("the intent was recorded");
            // Recovery knows only the state, and must always find a legal sequence of events to an
            // end.
            let rest: &[Event] = match state.name() {
                StateName::Gone | StateName::Lost => &[],
                _ => &[Event::ReleaseRequested { why: Masked::default() }, Event::VerifiedGone],
            };
            let end = rest.iter().try_fold(state, |s, event| ResourceState::next(Some(&s), event));
            let ended = matches!(end, Ok(ResourceState::Gone | ResourceState::Lost { .. }));
            prop_assert!(ended, "ended in {:?}", end);
        }

        #[test]
        fn every_legal_event_may_happen_twice(
            events in proptest::collection::vec(any_event(), 0..30),
        ) {
            let mut state = None;
            for event in &events {
                if let Ok(after) = ResourceState::next(state.as_ref(), event) {
                    if !matches!(event, Event::Intended { .. }) {
                        prop_assert_eq!(ResourceState::next(Some(&after), event), Ok(after.clone()));
                    }
                    state = Some(after);
                }
            }
        }

        #[test]
        fn an_id_once_known_is_never_exchanged_while_the_record_is_open(
            events in proptest::collection::vec(any_event(), 0..30),
        ) {
            let mut state: Option<ResourceState> = None;
            for event in &events {
                let after = ResourceState::next(state.as_ref(), event).ok().or(state.clone());
                if let (Some(before), Some(after)) = (&state, &after)
                    && before.name().is_open()
                    && after.name().is_open()
                    && let Some(object) = before.object()
                {
                    prop_assert_eq!(after.object(), Some(object));
                }
                state = after;
            }
        }
    }

    #[test]
    fn a_late_create_opens_a_closed_record() {
        let late = Event::Created { object: "c1".to_owned(), identity: None };
        let state = ResourceState::next(Some(&ResourceState::Gone), &late);
        assert_eq!(state, Ok(ResourceState::Created { object: "c1".to_owned() }));
    }

    #[test]
    fn an_illegal_event_names_state_and_event() {
        let error = ResourceState::next(Some(&ResourceState::Intended), &Event::VerifiedGone);
        let error = error.expect_err("an intent is closed by NeverCreated alone");
        assert_eq!(error.to_string(), "a resource that is intended cannot be verified gone");
    }
}
