//! Reads the source of a crate, and collects which top-level module names which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::cycles::Graph;
use super::shown;

/// Reads the crate in a directory, from `lib.rs` or `main.rs` on.
pub(super) fn graph(directory: &Path) -> Result<Graph> {
    let mut graph = Graph::default();
    for root in ["lib.rs", "main.rs"] {
        let root = directory.join("src").join(root);
        if root.exists() {
            read_root(&root, &mut graph)?;
        }
    }
    Ok(graph)
}

fn read_root(root: &Path, graph: &mut Graph) -> Result<()> {
    let tokens = tokens_of(root)?;
    let mut reader = Reader { graph, top: BTreeSet::new(), exports: BTreeMap::new() };
    let scan = scan(tokens.clone());
    reader.top.extend(scan.files.iter().cloned());
    for path in scan.paths {
        // `pub use provider::Kind;` makes `crate::Kind` a name of `provider`.
        if let [first, .., last] = path.names.as_slice() {
            reader.exports.insert(last.clone(), first.clone());
        }
    }
    for module in scan.files {
        let file = child_file(root, &module);
        reader.read(&file, &[module])?;
    }
    Ok(())
}

/// The content of one file.
#[derive(Default)]
struct Scan {
    /// The modules that have their own files.
    files: Vec<String>,
    /// The paths outside of tests: in a root those of `use`, elsewhere all that may lead out.
    paths: Vec<NamedPath>,
}

/// A path in the source, from its first name on.
struct NamedPath {
    names: Vec<String>,
    /// How many inline modules it is inside of.
    depth: usize,
    line: usize,
}

struct Reader<'a> {
    graph: &'a mut Graph,
    /// The top-level modules.
    top: BTreeSet<String>,
    /// Names that the root exports, and the module that each is from.
    exports: BTreeMap<String, String>,
}

impl Reader<'_> {
    /// Reads the file of a module and of all modules below it.
    fn read(&mut self, file: &Path, module: &[String]) -> Result<()> {
        let scan = scan(tokens_of(file)?);
        for path in &scan.paths {
            let Some(name) = name_below_root(path, module.len()) else { continue };
            let top = self.top.get(name).or_else(|| self.exports.get(name));
            if let Some(top) = top {
                self.graph.add(&module[0], top, format!("{}:{}", shown(file), path.line));
            }
        }
        for child in scan.files {
            let mut below = module.to_vec();
            below.push(child.clone());
            self.read(&child_file(file, &child), &below)?;
        }
        Ok(())
    }
}

/// Returns the name that a path has directly below the root of the crate, if it leads there.
fn name_below_root(path: &NamedPath, module_depth: usize) -> Option<&String> {
    if path.names.first()? == "crate" {
        return path.names.get(1);
    }
    let ups = path.names.iter().take_while(|name| *name == "super").count();
    (ups > 0 && ups == module_depth + path.depth).then(|| path.names.get(ups))?
}

fn tokens_of(file: &Path) -> Result<TokenStream> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", shown(file)))?;
    let tokens = TokenStream::from_str(&text);
    tokens.map_err(|error| anyhow::anyhow!("{}: {error}", shown(file)))
}

/// Returns the file of a module that another file declares.
fn child_file(parent: &Path, name: &str) -> PathBuf {
    let stem = parent.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let directory = match stem {
        "lib" | "main" | "mod" => parent.with_file_name(""),
        _ => parent.with_extension(""),
    };
    let flat = directory.join(format!("{name}.rs"));
    if flat.exists() { flat } else { directory.join(name).join("mod.rs") }
}

fn scan(tokens: TokenStream) -> Scan {
    let mut scan = Scan::default();
    walk(tokens, 0, &mut scan);
    scan
}

/// Reads items and their content, except what is only compiled for tests.
fn walk(tokens: TokenStream, depth: usize, scan: &mut Scan) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens, at) {
            at = end_of_item(&tokens, at + 2);
            continue;
        }
        if let (Some("mod"), Some(name)) = (ident(&tokens, at).as_deref(), ident(&tokens, at + 1)) {
            match tokens.get(at + 2) {
                Some(TokenTree::Punct(end)) if end.as_char() == ';' => {
                    scan.files.push(name);
                    at += 3;
                    continue;
                }
                Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => {
                    walk(body.stream(), depth + 1, scan);
                    at += 3;
                    continue;
                }
                _ => {}
            }
        }
        at = match &tokens[at] {
            TokenTree::Ident(_) if !is_path_continued(&tokens, at) => {
                read_path(&tokens, at, &[], depth, scan)
            }
            TokenTree::Group(group) => {
                walk(group.stream(), depth, scan);
                at + 1
            }
            _ => at + 1,
        };
    }
}

/// Reads a path, or a tree of paths as in `use a::{b, c::d}`, and returns where it ends.
fn read_path(
    tokens: &[TokenTree],
    mut at: usize,
    before: &[String],
    depth: usize,
    scan: &mut Scan,
) -> usize {
    let mut names = before.to_owned();
    let line = tokens[at].span().start().line;
    while let Some(name) = ident(tokens, at) {
        names.push(name);
        at += 1;
        if !is_path_separator(tokens, at) {
            break;
        }
        at += 2;
        if let Some(TokenTree::Group(group)) = tokens.get(at)
            && group.delimiter() == Delimiter::Brace
        {
            read_tree(group.stream(), &names, depth, scan);
            return at + 1;
        }
    }
    scan.paths.push(NamedPath { names, depth, line });
    at
}

fn read_tree(tokens: TokenStream, before: &[String], depth: usize, scan: &mut Scan) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        at = match &tokens[at] {
            TokenTree::Ident(_) => read_path(&tokens, at, before, depth, scan),
            _ => at + 1,
        };
    }
}

fn ident(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at)? {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, wanted: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

/// Returns whether an identifier continues a path that was already read.
fn is_path_continued(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_path_separator(tokens, at - 2)
}

/// Returns whether there is a `#[test]`, `#[cfg(test)]` or similar attribute here.
fn is_test_attribute(tokens: &[TokenTree], at: usize) -> bool {
    let Some(TokenTree::Group(attribute)) =
        tokens.get(at + 1).filter(|_| is_punct(tokens, at, '#'))
    else {
        return false;
    };
    let text = attribute.stream().to_string().replace(' ', "");
    text == "test"
        || text.ends_with("::test")
        || text == "cfg(test)"
        || text.starts_with("cfg(any(test")
}

/// Returns where the item ends whose attributes end here: after its `;` or its block.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while at < tokens.len() {
        let is_end = match &tokens[at] {
            TokenTree::Punct(punct) => punct.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            _ => false,
        };
        at += 1;
        if is_end {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names below the root that a module at this depth refers to.
    fn names_in(text: &str, depth: usize) -> Vec<String> {
        let scan = scan(TokenStream::from_str(text).unwrap());
        scan.paths.iter().filter_map(|path| name_below_root(path, depth)).cloned().collect()
    }

    #[test]
    fn paths_are_found_in_use_trees_signatures_and_macros() {
        assert_eq!(names_in("use crate::{a, b::{c, d}};", 1), ["a", "b", "b"]);
        assert_eq!(names_in("fn f(x: &crate::a::B) -> super::c::D { x }", 1), ["a", "c"]);
        assert_eq!(names_in("fn f() { tokio::select! { _ = crate::a::wait() => {} } }", 1), ["a"]);
    }

    #[test]
    fn super_counts_only_where_it_reaches_the_root() {
        assert_eq!(names_in("use super::b;", 1), ["b"]);
        assert_eq!(names_in("use super::b;", 2), [""; 0]);
        assert_eq!(names_in("use super::super::b;", 2), ["b"]);
        assert_eq!(names_in("mod inner { use super::super::b; }", 1), ["b"]);
    }

    #[test]
    fn tests_comments_and_strings_do_not_count() {
        for text in [
            "#[cfg(test)] mod tests { use crate::a; }",
            "#[test] fn f() { crate::a::b(); }",
            "#[tokio::test] async fn f() { crate::a::b(); }",
            "#[cfg(test)] use crate::a;",
            "/// See [`crate::a`].\nfn f() {}",
            "const A: &str = \"crate::a\";",
        ] {
            assert_eq!(names_in(text, 1), [""; 0], "{text}");
        }
    }

    #[test]
    fn modules_in_files_of_their_own_are_listed() {
        let scan = scan(TokenStream::from_str("mod a; pub(crate) mod b; mod c { }").unwrap());
        assert_eq!(scan.files, ["a", "b"]);
    }
}
