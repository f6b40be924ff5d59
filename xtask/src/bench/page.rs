//! The page of results: every benchmark owns the section between its two marks.
//!
//! Text outside of the marks is written by hand and stays.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

/// Writes a benchmark's section into the page, in place of its previous one.
pub(crate) fn write(bench: &str, section: &str) -> Result<()> {
    let path = workspace::root().join("docs/benchmarks.md");
    let page = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    fs::write(&path, with_section(&page, bench, section))
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("xtask: wrote the section of {bench} in {}", path.display());
    Ok(())
}

/// Returns when and at which commit a section was measured.
pub(crate) fn origin(bench: &str) -> String {
    measured_by(&format!("cargo xtask bench {bench}"))
}

/// Like [`origin`], for another command.
pub(crate) fn measured_by(command: &str) -> String {
    let date = jiff::Zoned::now().strftime("%Y-%m-%d");
    format!("`{command}`, {date}, commit {}.", workspace::commit())
}

fn with_section(page: &str, bench: &str, section: &str) -> String {
    let (begin, end) = (format!("<!-- bench {bench} -->"), format!("<!-- end of {bench} -->"));
    let section = format!("{begin}\n{}\n{end}", section.trim());
    let old = page.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    match old {
        Some((before, after)) => format!("{before}{section}{after}"),
        None => format!("{}\n\n{section}\n", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_its_own_and_leaves_the_rest() {
        let page = "# Page\n\nBy hand.\n";
        let page = with_section(page, "a", "one");
        let page = with_section(&page, "b", "two");
        let page = with_section(&page, "a", "three\n");
        let expected = "# Page\n\nBy hand.\n\n<!-- bench a -->\nthree\n<!-- end of a -->\n\n\
                        <!-- bench b -->\ntwo\n<!-- end of b -->\n";
        assert_eq!(page, expected);
    }
}
