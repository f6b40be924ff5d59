//! Quoting for a POSIX shell.

use crate::sandbox::Pairs;

/// Finds the best available shell to feed commands to, as the real service does.
///
/// A plain `sh` may read ahead, so that a command would find its input already consumed.
pub(super) const SHELL: &str = "\"$(command -v bash || command -v sh)\"";

/// Quotes a string, so that a shell takes it literally.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns export statements for a shell. Names that are not valid in a shell are left out.
pub(super) fn exports(env: &Pairs) -> String {
    let good = env.iter().filter(|(name, _)| is_name(name));
    good.map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte == b'_' || byte.is_ascii_alphabetic());
    first && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_keeps_its_quotes() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn names_that_are_no_variables_are_left_out() {
        let env = [("A", "1"), ("B-C", "2"), ("", "3")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(exports(&env), "export A='1'\n");
    }
}
