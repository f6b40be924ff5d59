//! Words for a POSIX shell.

use crate::sandbox::Pairs;

/// Finds the shell that commands are fed to, as the real service does: the best there is.
///
/// It matters: a plain `sh` may read ahead, so that a command finds its input read already.
pub(super) const SHELL: &str = "\"$(command -v bash || command -v sh)\"";

/// Quotes a word, so that a shell takes it as it is.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Writes assignments that a shell exports; names that it could not take are left out.
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
    fn a_quoted_word_keeps_its_quotes() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn names_that_are_no_variables_are_left_out() {
        let env = [("A", "1"), ("B-C", "2"), ("", "3")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(exports(&env), "export A='1'\n");
    }
}
