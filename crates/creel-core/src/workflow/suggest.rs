//! The nearest known name to one that is not known.
//!
//! Files have names of their users' own, any number of them; no more are looked at than people
//! would read.

/// So many names are compared.
const COMPARED: usize = 100;
/// So many names are listed.
const LISTED: usize = 20;

/// Says which name may have been meant, or which there are.
pub(super) fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().take(COMPARED).collect();
    match nearest(given, &known) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None if known.len() > LISTED => format!("known are {}, …", known[..LISTED].join(", ")),
        None => format!("known are {}", known.join(", ")),
    }
}

/// Returns the name that is most like the given one, if one is like it at all.
pub(super) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (likeness(given, name), *name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Says how much alike two names are, from 0 to 1. In short names, a single slip of the finger
/// counts for little.
fn likeness(given: &str, name: &str) -> f64 {
    let slip = name.len() >= 3 && strsim::osa_distance(given, name) == 1;
    strsim::jaro_winkler(given, name).max(if slip { 0.9 } else { 0.0 })
}
