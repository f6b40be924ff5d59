//! Finds tokens by their format: tokens of well-known services, headers, URLs, commands.
//!
//! One pass finds the anchors of all rules and names at once. The expression of a rule is tried
//! only where one of its anchors occurs.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::bytes::Regex;

use super::mask_rule::MaskRule;
use super::services::SERVICES;
use super::span::MaskSpan;
use super::{keys, named_values};

/// A token with its anchor in the middle.
struct Split {
    name: &'static str,
    anchor: &'static str,
    /// Minimum number of letters and digits before the anchor.
    before: usize,
    /// The rest of the token, from the anchor on.
    expression: &'static str,
}

const SPLITS: &[Split] = &[
    Split { name: "azure-secret", anchor: "Q~", before: 4, expression: "Q~[A-Za-z0-9_~.-]{31,34}" },
    Split { name: "mailchimp-key", anchor: "-us", before: 32, expression: "-us\\d{1,2}\\b" },
    Split {
        name: "telegram-token",
        anchor: ":AA",
        before: 8,
        expression: ":AA[A-Za-z0-9_-]{32,35}\\b",
    },
    Split {
        name: "terraform-token",
        anchor: ".atlasv1.",
        before: 14,
        expression: "\\.atlasv1\\.[A-Za-z0-9_=-]{60,}",
    },
];

/// Headers, URLs and commands that carry a secret.
const RULES: &[MaskRule] = &[
    MaskRule {
        name: "jwt",
        anchors: &["eyJ"],
        expression: "eyJ[A-Za-z0-9_-]{8,}\\.[A-Za-z0-9_-]{8,}(?:\\.[A-Za-z0-9_-]*)*",
        in_word: false,
    },
    MaskRule {
        name: "grafana-token",
        anchors: &["eyJrIjoi"],
        expression: "eyJrIjoi[A-Za-z0-9+/]{30,}={0,2}",
        in_word: false,
    },
    MaskRule {
        name: "discord-token",
        anchors: &["MD", "MT", "MZ", "Mj", "Mz", "ND", "NT", "NZ", "Nj", "Nz", "OD", "OT", "Oz"],
        expression: "[MNO][A-Za-z0-9_-]{22,27}\\.[A-Za-z0-9_-]{6}\\.[A-Za-z0-9_-]{27,}",
        in_word: false,
    },
    MaskRule {
        name: "url-password",
        anchors: &["://"],
        expression: "://(?:[^\\s/:@\"'<>]{0,256}:([^\\s/\"'<>]{1,512})|([^\\s/:@\"'<>]{20,512}))@",
        in_word: true,
    },
    MaskRule {
        name: "authorization",
        anchors: &["uthorization", "UTHORIZATION"],
        expression: "(?:uthorization|UTHORIZATION)[\"'\\\\]{0,4}[ \t]{0,8}[:=,][ \t]{0,8}[\"'\\\\]{0,4}\
                     (?:(?i:digest|aws4-hmac-sha256|oauth|hawk|snowflake|signature|mac|dpop|googlelogin)[ \t]{1,8}\
                     ([^\\s][^\\r\\n]{3,4096})\
                     |[A-Za-z][A-Za-z0-9_-]{1,40}[ \t]{1,8}([A-Za-z0-9._~+/=:%@$!-]{16,})\
                     |(?i:bearer|basic|token|negotiate|ntlm|apikey|api-key|key|bot|ssws|splunk|geniekey|zoho-oauthtoken)\
                     [ \t]{1,8}([^\\s\"'\\\\]{4,})\
                     |([A-Za-z0-9._~+/=:-]{16,}))",
        in_word: true,
    },
    MaskRule {
        name: "authorization",
        anchors: &["earer ", "EARER "],
        expression: "(?:earer|EARER)[ \t]{1,8}([A-Za-z0-9._~+/=-]*[0-9][A-Za-z0-9._~+/=-]*)",
        in_word: true,
    },
    MaskRule {
        name: "api-key",
        anchors: &["api-key", "Api-Key", "API-KEY", "rivate-token", "rivate-Token", "RIVATE-TOKEN"],
        expression: "(?:api-key|Api-Key|API-KEY|rivate-token|rivate-Token|RIVATE-TOKEN)\
                     [\"'\\\\]{0,4}[ \t]{0,8}[:=][ \t]{0,8}[\"'\\\\]{0,4}([A-Za-z0-9._~+/=-]{8,})",
        in_word: true,
    },
    MaskRule {
        name: "aws-secret-key",
        anchors: &["secret_access_key", "SECRET_ACCESS_KEY", "SecretAccessKey", "secretAccessKey"],
        expression: "(?:secret_access_key|SECRET_ACCESS_KEY|[Ss]ecretAccessKey)\
                     [\"'\\\\]{0,4}[ \t]{0,8}[:=>]{0,2}[ \t]{0,8}[\"'\\\\]{0,4}([A-Za-z0-9/+=]{30,})",
        in_word: true,
    },
    MaskRule {
        name: "cookie",
        anchors: &["ookie:", "OOKIE:", "ookie\"", "ookie'"],
        expression: "(?:ookie|OOKIE)[\"'\\\\]{0,4}[ \t]{0,8}[:=,][ \t]{0,8}[\"'\\\\]{0,4}\
                     ([A-Za-z0-9_.$%-]{1,128}=[^\\r\\n\"'\\\\]{1,4096})",
        in_word: true,
    },
    MaskRule {
        name: "cookie",
        anchors: &["et-cookie", "et-Cookie", "ET-COOKIE"],
        expression: "(?i:et-cookie)[\"'\\\\]{0,4}[ \t]{0,8}[:=,][ \t]{0,8}[\"'\\\\]{0,4}\
                     [A-Za-z0-9_.$%-]{1,128}=([^\\s;\"'\\\\]{1,4096})",
        in_word: true,
    },
    MaskRule {
        name: "password",
        anchors: &["curl "],
        expression: "curl [^\\n]{0,1024}?(?:(?:-[A-Za-z]{0,6}[uU]|--user|--proxy-user)[ =]{0,2}[\"'\\\\]{0,2}\
                     [^\\s:\"']{0,128}:([^\\s\"'\\\\]{1,256})|(?:-b|--cookie)[ =][\"'\\\\]{0,2}([^\\s\"'=]{1,64}=[^\"'\\s]{1,512}))",
        in_word: false,
    },
    MaskRule {
        name: "password",
        anchors: &["login "],
        expression: "login (?:\\S{1,128}\\s{1,4}password\\s{1,4}([^\\s]{1,256})\
                     |[^\\n]{0,256}?-p[ ]?[\"']?([^\\s\"']{3,256}))",
        in_word: false,
    },
    MaskRule {
        name: "password",
        anchors: &["sshpass ", "redis-cli ", "mysql ", "mysqldump ", "mysqladmin "],
        expression: "(?:sshpass (?:[^\\n]{0,64}? )??-p[ ]?[\"']?([^\\s\"']{1,256})\
                     |redis-cli (?:[^\\n]{0,256}? )??-a [\"']?([^\\s\"']{1,256})\
                     |mysql[a-z]{0,5} (?:[^\\n]{0,512}? )??-p[\"']?([^\\s\"'-][^\\s\"']{0,128}))",
        in_word: false,
    },
    MaskRule {
        name: "signature",
        anchors: &[
            "X-Amz-Signature=",
            "X-Goog-Signature=",
            "X-Amz-Security-Token=",
            "?sig=",
            "&sig=",
        ],
        expression: "(?:X-[A-Za-z-]{1,32}|[?&]sig)=([A-Za-z0-9%+/=_-]{16,})",
        in_word: true,
    },
    MaskRule {
        name: "registry-auth",
        anchors: &["\"auth\""],
        expression: "\"auth\"\\s{0,8}:\\s{0,8}\"([A-Za-z0-9+/=]{8,})\"",
        in_word: true,
    },
    MaskRule {
        name: "password-hash",
        anchors: &["$2a$", "$2b$", "$2y$", "$5$", "$6$", "$y$", "$argon2"],
        expression: "\\$(?:2[aby]\\$\\d\\d\\$[A-Za-z0-9./]{53}|[56y]\\$[^\\s:]{8,64}\\$[A-Za-z0-9./]{40,}\
                     |argon2(?:id|i|d)\\$[^\\s:\"']{30,})",
        in_word: true,
    },
];

/// The prefix of a value that is masked already.
const MASK: &[u8] = b"[masked:";
/// Minimum length of a bearer token without the name of a header.
const BARE_BEARER: usize = 16;
/// Minimum length of a private key, its first line included.
const SHORTEST_KEY: usize = 64;
/// Maximum length of the part of a token before its anchor.
const LONGEST_BEFORE: usize = 64;

/// Returns the names of all rules and their expressions.
pub fn patterns() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rules = RULES.iter().chain(SERVICES).map(|rule| (rule.name, rule.expression));
    rules.chain(SPLITS.iter().map(|split| (split.name, split.expression)))
}

/// What is tried at an anchor.
#[derive(Clone, Copy)]
enum Trial {
    Rule(&'static MaskRule, usize),
    Split(&'static Split, usize),
    Name,
    KeyBegins,
    KeyEnds,
}

/// The rules, compiled for the search.
struct Ready {
    /// Finds the anchors.
    anchors: AhoCorasick,
    /// What is tried for each anchor.
    trials: Vec<Vec<Trial>>,
    /// The expressions that trials refer to by index.
    expressions: Vec<Expression>,
}

/// One expression, compiled at the first match of its anchor.
///
/// Most commands match few anchors, and compiling all expressions would delay the first line of
/// output.
struct Expression {
    pattern: &'static str,
    compiled: OnceLock<Regex>,
}

impl Expression {
    fn new(pattern: &'static str) -> Self {
        Self { pattern, compiled: OnceLock::new() }
    }

    fn regex(&self) -> &Regex {
        self.compiled.get_or_init(|| {
            let compiled = Regex::new(&format!("(?-u)\\A(?:{})", self.pattern));
            compiled.expect("a test compiles the rules")
        })
    }
}

impl Ready {
    fn new() -> Self {
        let mut expressions = Vec::new();
        let mut number = |pattern: &'static str| {
            expressions.push(Expression::new(pattern));
            expressions.len() - 1
        };
        let mut trials: BTreeMap<&str, Vec<Trial>> = BTreeMap::new();
        for rule in RULES.iter().chain(SERVICES) {
            let trial = Trial::Rule(rule, number(rule.expression));
            rule.anchors.iter().for_each(|anchor| trials.entry(anchor).or_default().push(trial));
        }
        for split in SPLITS {
            let trial = Trial::Split(split, number(split.expression));
            trials.entry(split.anchor).or_default().push(trial);
        }
        for anchor in named_values::ANCHORS {
            trials.entry(anchor).or_default().push(Trial::Name);
        }
        trials.entry(keys::BEGIN).or_default().push(Trial::KeyBegins);
        trials.entry(keys::END).or_default().push(Trial::KeyEnds);
        let (anchors, trials): (Vec<&str>, Vec<Vec<Trial>>) = trials.into_iter().unzip();
        let anchors = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::DFA))
            .build(anchors);
        Self { anchors: anchors.expect("there are few anchors"), trials, expressions }
    }
}

static READY: LazyLock<Ready> = LazyLock::new(Ready::new);

/// Finds everything that has the format of a token.
pub(super) fn find(text: &[u8], spans: &mut Vec<MaskSpan<'_>>) {
    let ready = &*READY;
    for anchor in ready.anchors.find_iter(text) {
        let start = anchor.start();
        for trial in &ready.trials[anchor.pattern().as_usize()] {
            match trial {
                Trial::Rule(rule, number) => {
                    spans.extend(fit(rule, ready.expressions[*number].regex(), text, start));
                }
                Trial::Split(split, number) => {
                    spans.extend(fit_split(split, ready.expressions[*number].regex(), text, start));
                }
                Trial::Name => spans.extend(named_values::find(text, start)),
                Trial::KeyBegins => keys::find_block(text, start, spans),
                Trial::KeyEnds => keys::find_rest(text, start, spans),
            }
        }
    }
}

/// Returns where service tokens and private keys begin in a text, with their names.
///
/// Values that only a name before them marks as secret are not included.
pub fn tokens(text: &str) -> Vec<(usize, &'static str)> {
    let mut spans: Vec<MaskSpan<'static>> = Vec::new();
    find(text.as_bytes(), &mut spans);
    spans.retain(|span| match span.name {
        // The begin mark alone may occur in ordinary text.
        keys::NAME => span.end - span.start >= SHORTEST_KEY,
        name => SERVICES.iter().any(|service| service.name == name),
    });
    spans.into_iter().map(|span| (span.start, span.name)).collect()
}

fn fit(
    rule: &'static MaskRule,
    expression: &Regex,
    text: &[u8],
    start: usize,
) -> Option<MaskSpan<'static>> {
    let is_word = |at: usize| text[at].is_ascii_alphanumeric();
    if !rule.in_word && start.checked_sub(1).is_some_and(is_word) {
        return None;
    }
    let groups = expression.captures(&text[start..])?;
    let found = groups.iter().skip(1).flatten().next().or_else(|| groups.get(0))?;
    let is_bare_bearer = rule.anchors.contains(&"earer ");
    if found.as_bytes().starts_with(MASK) || (is_bare_bearer && found.len() < BARE_BEARER) {
        return None;
    }
    Some(MaskSpan::by_rule(start + found.start(), start + found.end(), rule.name))
}

fn fit_split(
    split: &'static Split,
    expression: &Regex,
    text: &[u8],
    start: usize,
) -> Option<MaskSpan<'static>> {
    let before = text[..start].iter().rev().take(LONGEST_BEFORE);
    let before = before.take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let found = expression.find(&text[start..]).filter(|_| before >= split.before)?;
    Some(MaskSpan::by_rule(start - before, start + found.end(), split.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expression_compiles() {
        assert!(READY.expressions.len() > 60);
        READY.expressions.iter().for_each(|expression| {
            expression.regex();
        });
    }
}
