//! Finds the known name that is nearest to an unknown one.
//!
//! A file may contain any number of names that its users chose. So the number of
//! names that are compared and listed is limited.

/// The maximum number of names to compare.
const COMPARED: usize = 100;
/// The maximum number of names to list.
const LISTED: usize = 20;

/// Returns a suggestion: the name that was probably meant, or the known names.
pub(super) fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().take(COMPARED).collect();
    match nearest(given, &known) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None if known.len() > LISTED => format!("known are {}, …", known[..LISTED].join(", ")),
        None => format!("known are {}", known.join(", ")),
    }
}

/// Returns the name that is most similar to the given one, if one is similar at all.
pub(super) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (likeness(given, name), *name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Returns how similar two names are, from 0 to 1.
///
/// A single typo hardly lowers the similarity, even of a short name.
fn likeness(given: &str, name: &str) -> f64 {
    let slip = name.len() >= 3 && strsim::osa_distance(given, name) == 1;
    strsim::jaro_winkler(given, name).max(if slip { 0.9 } else { 0.0 })
}
