//! Finds tokens by their shape: what well-known services hand out, headers, addresses.
//!
//! One pass finds the anchors of all rules at once; the expression of a rule is tried only where
//! one of its anchors stands.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::bytes::Regex;

use super::keys;
use super::span::Span;

/// How a token looks.
struct Rule {
    /// What stands in its place.
    name: &'static str,
    /// What it begins with; one of them.
    anchors: &'static [&'static str],
    /// The whole of it, from the anchor on; the first group, where there is one, is the secret.
    expression: &'static str,
    /// Whether the anchor may stand in the middle of a word.
    in_word: bool,
}

const RULES: &[Rule] = &[
    Rule {
        name: "github-token",
        anchors: &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        expression: "gh[pousr]_[A-Za-z0-9]{20,}",
        in_word: true,
    },
    Rule {
        name: "github-token",
        anchors: &["github_pat_"],
        expression: "github_pat_[A-Za-z0-9_]{20,}",
        in_word: true,
    },
    Rule {
        name: "gitlab-token",
        anchors: &[
            "glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glft-", "glimt-", "glsoat-",
            "glagent-", "gloas-",
        ],
        expression: "gl(?:pat|ptt|dt|rt|cbt|ft|imt|soat|agent|oas)-[A-Za-z0-9_.-]{16,}",
        in_word: false,
    },
    Rule {
        name: "slack-token",
        anchors: &["xox", "xapp-"],
        expression: "(?:xox[a-z](?:\\.xox[a-z])?|xapp)-[A-Za-z0-9-]{10,}",
        in_word: false,
    },
    Rule {
        name: "slack-webhook",
        anchors: &["hooks.slack.com/"],
        expression: "hooks\\.slack\\.com/[a-z]+/([A-Za-z0-9/_-]{20,})",
        in_word: true,
    },
    Rule {
        name: "aws-key-id",
        anchors: &["AKIA", "ASIA", "ABIA", "ACCA"],
        expression: "A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",
        in_word: false,
    },
    Rule {
        name: "aws-secret-key",
        anchors: &["ecret_access_key", "ECRET_ACCESS_KEY", "ecretAccessKey"],
        expression: "(?:ecret_access_key|ECRET_ACCESS_KEY|ecretAccessKey)\
                     [\"'\\\\]{0,4}[ \t]{0,8}[:=>]{0,2}[ \t]{0,8}[\"'\\\\]{0,4}([A-Za-z0-9/+=]{30,})",
        in_word: true,
    },
    Rule {
        name: "google-key",
        anchors: &["AIza"],
        expression: "AIza[A-Za-z0-9_-]{30,}",
        in_word: false,
    },
    Rule {
        name: "google-token",
        anchors: &["ya29.", "GOCSPX-"],
        expression: "(?:ya29\\.|GOCSPX-)[A-Za-z0-9_-]{20,}",
        in_word: false,
    },
    Rule {
        name: "anthropic-key",
        anchors: &["sk-ant-"],
        expression: "sk-ant-[A-Za-z0-9_-]{16,}",
        in_word: false,
    },
    Rule {
        name: "openrouter-key",
        anchors: &["sk-or-"],
        expression: "sk-or-[A-Za-z0-9_-]{16,}",
        in_word: false,
    },
    Rule {
        name: "openai-key",
        anchors: &["sk-"],
        expression: "sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{16,}|[A-Za-z0-9]{20,}[A-Za-z0-9_-]*)",
        in_word: false,
    },
    Rule {
        name: "daytona-key",
        anchors: &["dtn_"],
        expression: "dtn_[A-Za-z0-9_-]{16,}",
        in_word: false,
    },
    Rule {
        name: "jwt",
        anchors: &["eyJ"],
        expression: "eyJ[A-Za-z0-9_-]{8,}\\.[A-Za-z0-9_-]{8,}(?:\\.[A-Za-z0-9_-]*)*",
        in_word: false,
    },
    Rule {
        name: "url-password",
        anchors: &["://"],
        expression: "://(?:[^\\s/:@\"'<>]{0,256}:([^\\s/\"'<>]{1,512})|([^\\s/:@\"'<>]{20,512}))@",
        in_word: true,
    },
    Rule {
        name: "authorization",
        anchors: &["uthorization", "UTHORIZATION"],
        expression: "(?:uthorization|UTHORIZATION)[\"'\\\\]{0,4}[ \t]{0,8}[:=][ \t]{0,8}[\"'\\\\]{0,4}\
                     (?:(?i:bearer|basic|token|digest|negotiate|apikey|key|bot)[ \t]{1,8}([^\\s\"'\\\\]{4,})\
                     |([A-Za-z0-9._~+/=:-]{16,}))",
        in_word: true,
    },
    Rule {
        name: "authorization",
        anchors: &["earer ", "EARER "],
        expression: "(?:earer|EARER)[ \t]{1,8}([A-Za-z0-9._~+/=-]*[0-9][A-Za-z0-9._~+/=-]*)",
        in_word: true,
    },
    Rule {
        name: "api-key",
        anchors: &["api-key", "Api-Key", "API-KEY", "rivate-token", "rivate-Token", "RIVATE-TOKEN"],
        expression: "(?:api-key|Api-Key|API-KEY|rivate-token|rivate-Token|RIVATE-TOKEN)\
                     [\"'\\\\]{0,4}[ \t]{0,8}[:=][ \t]{0,8}[\"'\\\\]{0,4}([A-Za-z0-9._~+/=-]{8,})",
        in_word: true,
    },
];

/// A value that begins so was masked before.
const MASK: &[u8] = b"[masked:";
/// A token without a header's name has at least so many characters.
const BARE_BEARER: usize = 16;

/// Returns the names of all rules and their expressions.
pub fn patterns() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().map(|rule| (rule.name, rule.expression))
}

/// The rules, ready to be searched for.
struct Ready {
    /// Finds the anchors, those of key blocks last.
    anchors: AhoCorasick,
    /// The number of the rule of each anchor.
    rules: Vec<usize>,
    /// The expression of each rule.
    expressions: Vec<Regex>,
}

static READY: LazyLock<Ready> = LazyLock::new(|| {
    let of_rules = RULES.iter().enumerate();
    let (mut anchors, rules): (Vec<&str>, Vec<usize>) = of_rules
        .flat_map(|(number, rule)| rule.anchors.iter().map(move |anchor| (*anchor, number)))
        .unzip();
    anchors.extend([keys::BEGIN, keys::END]);
    let anchors = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(anchors);
    let expression = |rule: &Rule| Regex::new(&format!("(?-u)\\A(?:{})", rule.expression));
    let expressions: Result<_, _> = RULES.iter().map(expression).collect();
    Ready {
        anchors: anchors.expect("there are few anchors"),
        rules,
        expressions: expressions.expect("a test compiles the rules"),
    }
});

/// Finds everything that has the shape of a token.
pub(super) fn find(text: &[u8], spans: &mut Vec<Span<'_>>) {
    let ready = &*READY;
    for anchor in ready.anchors.find_iter(text) {
        let start = anchor.start();
        match ready.rules.get(anchor.pattern().as_usize()) {
            Some(number) => {
                let rule = &RULES[*number];
                let is_word = |at: usize| text[at].is_ascii_alphanumeric();
                if rule.in_word || !start.checked_sub(1).is_some_and(is_word) {
                    spans.extend(fit(rule, &ready.expressions[*number], text, start));
                }
            }
            None if text[start..].starts_with(keys::BEGIN.as_bytes()) => {
                keys::find_block(text, start, spans);
            }
            None => keys::find_rest(text, start, spans),
        }
    }
}

fn fit<'a>(rule: &'a Rule, expression: &Regex, text: &[u8], start: usize) -> Option<Span<'a>> {
    let groups = expression.captures(&text[start..])?;
    let found = groups.iter().skip(1).flatten().next().or_else(|| groups.get(0))?;
    let is_bare_bearer = rule.anchors.contains(&"earer ");
    if found.as_bytes().starts_with(MASK) || (is_bare_bearer && found.len() < BARE_BEARER) {
        return None;
    }
    Some(Span::by_rule(start + found.start(), start + found.end(), rule.name))
}
