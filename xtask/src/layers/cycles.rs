//! A graph of modules, and the cycles in it.

use std::collections::{BTreeMap, BTreeSet};

/// How many lines are shown for each edge of a cycle.
const LINES_SHOWN: usize = 3;

/// Which modules depend on which, with the lines that say so.
#[derive(Debug, Default)]
pub(super) struct Graph {
    edges: BTreeMap<(String, String), Vec<String>>,
}

impl Graph {
    /// Adds a dependency; a module may depend on itself.
    pub(super) fn add(&mut self, from: &str, to: &str, line: String) {
        if from != to {
            self.edges.entry((from.to_owned(), to.to_owned())).or_default().push(line);
        }
    }

    /// Returns the sets of modules that all depend on each other.
    pub(super) fn cycles(&self) -> Vec<Vec<String>> {
        let modules: BTreeSet<&str> = self.edges.keys().map(|(from, _)| from.as_str()).collect();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            modules.iter().map(|module| (*module, self.reached_from(module))).collect();
        let mut cycles = BTreeSet::new();
        for (module, all) in &reached {
            let returns = |other: &&&str| {
                reached.get(**other).is_some_and(|from_there| from_there.contains(module))
            };
            let cycle: Vec<String> = all.iter().filter(returns).map(ToString::to_string).collect();
            if !cycle.is_empty() {
                cycles.insert(cycle);
            }
        }
        cycles.into_iter().collect()
    }

    fn reached_from<'a>(&'a self, start: &str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![start];
        while let Some(module) = waiting.pop() {
            for (_, to) in self.edges.keys().filter(|(from, _)| from == module) {
                if reached.insert(to.as_str()) {
                    waiting.push(to);
                }
            }
        }
        reached
    }

    /// Describes a cycle with the lines that make it.
    pub(super) fn explain(&self, cycle: &[String]) -> String {
        let mut text = cycle.join(", ");
        for ((from, to), lines) in &self.edges {
            if cycle.contains(from) && cycle.contains(to) {
                let lines: Vec<&str> = lines.iter().take(LINES_SHOWN).map(String::as_str).collect();
                text.push_str(&format!("\n  {from} → {to}: {}", lines.join(", ")));
            }
        }
        text
    }

    /// Lists what each module depends on.
    pub(super) fn listing(&self) -> String {
        let mut by_module: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (from, to) in self.edges.keys() {
            by_module.entry(from).or_default().push(to);
        }
        let lines = by_module.iter().map(|(from, to)| format!("  {from} → {}\n", to.join(", ")));
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in edges {
            graph.add(from, to, format!("{from}.rs:1"));
        }
        graph
    }

    #[test]
    fn a_chain_has_no_cycle() {
        assert!(graph(&[("a", "b"), ("b", "c"), ("a", "c"), ("a", "a")]).cycles().is_empty());
    }

    #[test]
    fn each_cycle_is_found_once_with_its_lines() {
        let graph =
            graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c")]);
        let cycles = graph.cycles();
        assert_eq!(cycles, [vec!["a", "b"], vec!["c", "d", "e"]]);
        assert_eq!(graph.explain(&cycles[0]), "a, b\n  a → b: a.rs:1\n  b → a: b.rs:1");
    }
}
