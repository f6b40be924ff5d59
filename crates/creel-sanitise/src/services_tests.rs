//! Plants tokens of every service, and ordinary text, and writes the table of what was found.
//!
//! The test generates the values from pieces, so that none occurs in the source.

use std::fmt::Write as _;

use fastrand::Rng;

use super::tests::assert_page_has;
use super::{Masker, Secrets};

/// Tokens that are recognised by their format: the service, and a template.
///
/// `{an:8}` are eight letters and digits, `{hex:8}` lowercase hexadecimal digits, `{uc:8}` capitals
/// and digits, `{lc:8}` lowercase letters and digits, `{b64:8}` base64, `{url:8}` URL-safe base64,
/// `{d:8}` digits, `{uuid}` a UUID.
const SHAPES: &[(&str, &str)] = &[
    ("1Password secret key", "A3-{uc:6}-{uc:11}-{uc:5}-{uc:5}-{uc:5}"),
    ("1Password service account", "ops_eyJ{url:120}"),
    ("Adafruit IO", "aio_{an:28}"),
    ("age", "AGE-SECRET-KEY-1{uc:58}"),
    ("Airtable", "pat{an:14}.{hex:64}"),
    ("Alibaba Cloud key id", "LTAI{an:20}"),
    ("Anthropic", "sk-ant-api03-{url:93}AA"),
    ("Artifactory", "AKCp{an:69}"),
    ("Artifactory reference token", "cmVmdGtuO{an:55}"),
    ("Atlassian", "ATATT3{url:180}={uc:8}"),
    ("AWS access key id", "AKIA{uc:16}"),
    ("AWS Bedrock", "ABSK{b64:120}"),
    ("AWS temporary key id", "ASIA{uc:16}"),
    ("Azure AD client secret", "{an:3}8Q~{url:34}"),
    ("Azure storage account key", "AccountKey=«{b64:86}==»"),
    ("Bitbucket app password", "ATBB{an:32}"),
    ("Braintree", "access_token$production${lc:16}${hex:32}"),
    ("Brevo", "xkeysib-{hex:64}-{an:16}"),
    ("Buildkite", "bkua_{hex:40}"),
    ("CircleCI", "CCIPAT_{an:22}_{hex:40}"),
    ("Clojars", "CLOJARS_{hex:60}"),
    ("Cloudflare origin CA", "v1.0-{hex:24}-{hex:146}"),
    ("Contentful", "CFPAT-{url:43}"),
    ("crates.io", "cio{an:32}"),
    ("Databricks", "dapi{hex:32}"),
    ("Daytona", "dtn_{hex:64}"),
    ("Deno Deploy", "ddp_{an:36}"),
    ("DigitalOcean", "dop_v1_{hex:64}"),
    ("Discord bot", "MT{an:24}.{an:6}.{url:38}"),
    ("Docker Hub", "dckr_pat_{url:27}"),
    ("Doppler", "dp.pt.{an:43}"),
    ("Dropbox", "sl.u.{url:130}"),
    ("Duffel", "duffel_live_{url:43}"),
    ("Dynatrace", "dt0c01.{uc:24}.{uc:64}"),
    ("E2B", "e2b_{hex:40}"),
    ("EasyPost", "EZAK{an:54}"),
    ("ElevenLabs", "sk_{hex:48}"),
    ("Facebook", "EAA{an:150}"),
    ("Figma", "figd_{url:40}"),
    ("Firecrawl", "fc-{hex:32}"),
    ("Fireworks", "fw_{an:24}"),
    ("Flutterwave", "FLWSECK-{hex:32}-X"),
    ("Fly.io", "fm2_{b64:200}"),
    ("Frame.io", "fio-u-{url:64}"),
    ("GitHub classic", "ghp_{an:36}"),
    ("GitHub fine-grained", "github_pat_{an:22}_{an:59}"),
    ("GitHub app", "ghs_{an:36}"),
    ("GitLab", "glpat-{url:20}"),
    ("GitLab runner", "glrt-{url:20}"),
    ("Google API key", "AIza{url:35}"),
    ("Google OAuth secret", "GOCSPX-{url:28}"),
    ("Google OAuth token", "ya29.{url:120}"),
    ("Google refresh token", "1//0{url:60}"),
    ("Grafana service account", "glsa_{an:32}_{hex:8}"),
    ("Grafana Cloud", "glc_{b64:60}="),
    ("Groq", "gsk_{an:52}"),
    ("Heroku", "HRKU-AA{url:58}"),
    ("Honeycomb", "hcaik_{lc:58}"),
    ("HubSpot", "pat-na1-{uuid}"),
    ("Hugging Face", "hf_{an:34}"),
    ("Infracost", "ico-{an:32}"),
    ("Instagram", "IGQV{url:140}"),
    ("Intercom", "dG9rO{b64:55}="),
    ("Jina", "jina_{an:60}"),
    ("JSON web token", "eyJhbGci{url:20}.eyJ{url:60}.{url:43}"),
    ("LangSmith", "lsv2_pt_{hex:32}_{hex:10}"),
    ("LaunchDarkly", "sdk-{uuid}"),
    ("Linear", "lin_api_{an:40}"),
    ("Mailchimp", "{hex:32}-us12"),
    ("MailerSend", "mlsn.{hex:64}"),
    ("Mailgun", "key-{hex:32}"),
    ("Mapbox", "sk.eyJ{url:60}.{url:22}"),
    ("Modal", "as-{an:22}"),
    ("MongoDB Atlas", "mdb_sa_sk_{url:40}"),
    ("Neon", "napi_{lc:64}"),
    ("Netlify", "nfp_{an:36}"),
    ("New Relic", "NRAK-{uc:27}"),
    ("Notion", "ntn_{an:46}"),
    ("npm", "npm_{an:36}"),
    ("NuGet", "oy2{lc:43}"),
    ("OpenAI", "sk-{an:48}"),
    ("OpenAI project", "sk-proj-{url:140}"),
    ("OpenRouter", "sk-or-v1-{hex:64}"),
    ("Perplexity", "pplx-{an:48}"),
    ("Pinecone", "pcsk_{an:6}_{an:63}"),
    ("Plaid", "access-production-{uuid}"),
    ("PlanetScale", "pscale_tkn_{url:43}"),
    ("PostHog personal", "phx_{an:43}"),
    ("Postman", "PMAK-{hex:24}-{hex:34}"),
    ("Prefect", "pnu_{an:36}"),
    ("Pulumi", "pul-{hex:40}"),
    ("PyPI", "pypi-AgEIcHlwaS5vcmc{url:140}"),
    ("ReadMe", "rdme_{lc:70}"),
    ("Render", "rnd_{an:32}"),
    ("Replicate", "r8_{an:37}"),
    ("Resend", "re_{an:8}_{an:24}"),
    ("RubyGems", "rubygems_{hex:48}"),
    ("SendGrid", "SG.{url:22}.{url:43}"),
    ("Sentry organisation", "sntrys_{b64:140}_{b64:43}"),
    ("Sentry user", "sntryu_{hex:64}"),
    ("Shippo", "shippo_live_{hex:40}"),
    ("Shopify", "shpat_{hex:32}"),
    ("Slack app", "xapp-1-{uc:11}-{d:13}-{hex:64}"),
    ("Slack bot", "xoxb-{d:12}-{d:13}-{an:24}"),
    ("SonarQube", "squ_{hex:40}"),
    ("Sourcegraph", "sgp_{hex:16}_{hex:40}"),
    ("Square", "sq0atp-{url:22}"),
    ("Stripe", "sk_live_{an:99}"),
    ("Stripe restricted", "rk_live_{an:24}"),
    ("Stripe webhook", "whsec_{an:32}"),
    ("Supabase", "sbp_{hex:40}"),
    ("Supabase secret key", "sb_secret_{url:31}"),
    ("Tailscale", "tskey-auth-{an:17}-{an:32}"),
    ("Tavily", "tvly-dev-{an:32}"),
    ("Telegram bot", "{d:10}:AA{url:33}"),
    ("Tencent Cloud key id", "AKID{an:32}"),
    ("Terraform Cloud", "{an:14}.atlasv1.{url:67}"),
    ("Together", "tgp_v1_{url:43}"),
    ("Trello", "ATTA{hex:64}{uc:8}"),
    ("Twilio", "SK{hex:32}"),
    ("Twitter", "AAAAAAAAAAAAAAAAAAAAA{an:80}"),
    ("Typeform", "tfp_{an:59}"),
    ("Vault", "hvs.{url:95}"),
    ("Vercel", "vcp_{an:56}"),
    ("Weights & Biases", "wandb_v1_{an:77}"),
    ("xAI", "xai-{an:80}"),
    ("Yandex Cloud", "AQVN{url:36}"),
];
/// Values that are recognised by the text around them. The value is in `«»`.
const PLACES: &[(&str, &str)] = &[
    ("an environment variable", "DB_PASSWORD=«{an:9}»"),
    ("a password of words", "password=«correcthorse»"),
    ("a field of JSON", "{\"password\": \"«{an:9}»\"}"),
    ("JSON in JSON", "{\\\"client_secret\\\":\\\"«{url:30}»\\\"}"),
    ("YAML", "api_key: «{hex:32}»"),
    ("a flag", "tool --token «{hex:40}» run"),
    ("a query", "https://example.org/x?access_token=«{an:32}»&y=1"),
    ("a connection string", "Server=db;User Id=sa;Password=«{an:8}!x»;Database=x"),
    ("an address with a password", "postgres://me:«{an:7}»@db.example.org/x"),
    ("an address with a token", "https://«{an:40}»@example.org/app.git"),
    ("`Authorization: Bearer`", "Authorization: Bearer «{url:24}»"),
    ("`Authorization: Basic`", "authorization: basic «{b64:16}»"),
    ("`Authorization: Digest`", "Authorization: Digest «username=\"me\", response=\"{hex:32}\"»"),
    (
        "`Authorization` of AWS",
        "Authorization: AWS4-HMAC-SHA256 «Credential={uc:20}/x, Signature={hex:64}»",
    ),
    ("`Authorization` with a scheme of its own", "Authorization: GenieKey «{uuid}»"),
    ("`Proxy-Authorization`", "Proxy-Authorization: Basic «{b64:16}»"),
    ("`X-Api-Key`", "X-Api-Key: «{hex:32}»"),
    ("`Cookie`", "Cookie: «sid={an:16}; theme=dark»"),
    ("`Set-Cookie`", "Set-Cookie: sid=«{an:16}»; Path=/; HttpOnly"),
    ("`curl -u`", "curl -s -u me:«{an:8}» https://example.org"),
    ("`curl --user`", "curl --user 'me:«{an:8}»' https://example.org"),
    ("`curl -b`", "curl -b 'sid=«{an:8}»' https://example.org"),
    ("`sshpass`", "sshpass -p «{an:8}» ssh me@example.org"),
    ("`mysql -p`", "mysql -u root -p«{an:8}» app"),
    ("`redis-cli -a`", "redis-cli -h db -a «{an:8}» ping"),
    ("`docker login`", "docker login -u me -p «{an:12}» registry.example.org"),
    ("netrc", "machine example.org login me password «{an:8}»"),
    ("the file of Docker's logins", "\"auth\": \"«{b64:24}»\""),
    ("npmrc", "//registry.npmjs.org/:_authToken=«{uuid}»"),
    ("a signed address", "https://s3.example.org/x?X-Amz-Signature=«{hex:64}»"),
    ("a shared access signature", "https://x.example.org/y?sv=1&sig=«{an:43}%3D»"),
    ("a hash of a password", "me:«$6$rounds=5000${an:12}${an:86}»:19000:0"),
    ("Datadog, by name", "DD_API_KEY=«{hex:32}»"),
    ("Algolia, by name", "ALGOLIA_ADMIN_KEY=«{hex:32}»"),
    ("PagerDuty, by name", "PAGERDUTY_TOKEN=«{an:20}»"),
    ("Slack webhook", "https://hooks.slack.com/services/«T{uc:10}/B{uc:10}/{an:24}»"),
    ("Discord webhook", "https://discord.com/api/webhooks/{d:18}/«{url:68}»"),
];
/// Secrets that nothing reveals; the table lists them so that no one relies on their masking.
const UNSEEN: &[(&str, &str)] = &[
    ("hexadecimal without a name", "{hex:32}"),
    ("a UUID without a name", "{uuid}"),
    ("fewer than 20 random characters without a name", "{an:16}"),
    ("a pass phrase without a name", "correct horse battery staple"),
    ("a number without a name", "{d:16}"),
];
/// Text in which nothing is masked.
const ORDINARY: &[&str] = &[
    "commit {hex:40}\nMerge: {hex:7} {hex:7}",
    "{hex:12}   alpine   \"sh\"   2 minutes ago   Up 2 minutes   0.0.0.0:8080->80/tcp   web-1",
    "sha256:{hex:64}: Pulling from library/alpine",
    "request {uuid} took 12 ms",
    "<img src=\"data:image/png;base64,iVBORw0KGgo{b64:900}==\">",
    "{\"image\":\"/9j/{b64:600}\"}",
    "/home/agent/.cargo/registry/src/index.crates.io-{hex:16}/serde-1.0.228/src/lib.rs:42",
    "npm warn deprecated inflight@1.0.6: this module leaks memory, do not use it",
    "test result: ok. 212 passed; 0 failed; finished in 1.32s",
    "GET /api/v1/orders?page=3&limit=50&sort_key=created_at HTTP/1.1 200",
    "expected one of `,` or `}`, found `token`",
    "password: required; token: string; key: number",
    "The author must enter a password: it is checked against the list.",
    "let token = lexer.next_token()?; self.key = key.clone();",
    "Set the cookie: it keeps the session. cookie: accepted",
    "authorization: required, authorization failed",
    "cargo login now reads from standard input, mysql is not running",
    "http://localhost:8080/a@b ssh://git@example.org/app.git",
    "KEY_LENGTH=32 MAX_TOKENS=4096 PUBLIC_KEY_PATH=/etc/ssl/pub.pem PWD=/work",
    "Content-Security-Policy: script-src 'sha512-{b64:86}=='",
    "ssh-keygen wrote SHA256:{b64:43} to known_hosts",
];

/// Generates a value from its template.
fn make(template: &str, chance: &mut Rng) -> String {
    let mut sample_text = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        sample_text.push_str(before);
        let sample =
            behind.split_once('}').and_then(|(name, next)| Some((sample(name, chance)?, next)));
        match sample {
            Some((sample, next)) => {
                sample_text.push_str(&sample);
                rest = next;
            }
            None => {
                sample_text.push('{');
                rest = behind;
            }
        }
    }
    sample_text + rest
}

fn sample(name: &str, chance: &mut Rng) -> Option<String> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    if name == "uuid" {
        let groups = [8, 4, 4, 4, 12].map(|length| sample(&format!("hex:{length}"), chance));
        return Some(groups.map(Option::unwrap).join("-"));
    }
    let (kind, length) = name.split_once(':')?;
    let length: usize = length.parse().ok()?;
    let from = match kind {
        "an" => LETTERS.to_owned(),
        "hex" => "0123456789abcdef".to_owned(),
        "uc" => "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789".to_owned(),
        "lc" => "abcdefghijklmnopqrstuvwxyz0123456789".to_owned(),
        "d" => "0123456789".to_owned(),
        "b64" => format!("{LETTERS}+/"),
        "url" => format!("{LETTERS}-_"),
        _ => return None,
    };
    let letters: Vec<char> = from.chars().collect();
    let mut text: String = (0..length).map(|_| letters[chance.usize(..letters.len())]).collect();
    // A sign at the edge could be read as part of the surrounding text.
    if text.ends_with(['-', '_', '+', '/']) || text.starts_with(['-', '_', '+', '/']) {
        text = text.trim_matches(['-', '_', '+', '/']).to_owned();
        let missing = length - text.len();
        text.extend((0..missing).map(|_| letters[chance.usize(..10)]));
    }
    Some(text)
}

fn mask(text: &str) -> String {
    Masker::new(&Secrets::new()).mask(text).to_string()
}

/// How often each template is filled with new values.
const ROUNDS: u64 = 25;

/// Returns the first text in which part of a value of this template is still visible.
fn seen_in(template: &str) -> Option<String> {
    for seed in 0..ROUNDS {
        let mut chance = Rng::with_seed(seed);
        let planted = make(template, &mut chance);
        let value = match planted.split_once('«').and_then(|(_, rest)| rest.split_once('»')) {
            Some((value, _)) => value.to_owned(),
            None => planted.clone(),
        };
        let planted = planted.replace(['«', '»'], "");
        let text = format!("first line\n{planted}\nlast line");
        let masked = mask(&text);
        let rest = without_masks(&masked);
        let length = value.len().min(8);
        let mut pieces = value.as_bytes().windows(length);
        let is_seen =
            pieces.any(|sample| rest.as_bytes().windows(length).any(|seen| seen == sample));
        if is_seen || !masked.contains("[masked:") {
            return Some(masked);
        }
    }
    None
}

/// Returns a text without its `[masked:…]` marks.
fn without_masks(masked: &str) -> String {
    let mut pieces = masked.split("[masked:");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, sample| text + sample.split_once(']').map_or("", |(_, rest)| rest))
}

/// Returns the name that replaces a value of this template.
fn name_of(template: &str) -> String {
    let planted = make(template, &mut Rng::with_seed(0)).replace(['«', '»'], "");
    let masked = mask(&planted);
    let name = masked.split_once("[masked:").and_then(|(_, rest)| rest.split_once(']'));
    name.map(|(name, _)| name.to_owned()).unwrap_or_default()
}

/// Returns a template without its marks, escaped for a table.
fn shown(template: &str) -> String {
    let plain = template.replace(['«', '»'], "").replace('|', "\\|");
    let mut shown = String::new();
    let mut rest = plain.as_str();
    while let Some((before, behind)) = rest.split_once('{') {
        shown.push_str(before);
        match behind.split_once('}') {
            Some((name, next)) if name == "uuid" || name.contains(':') && !name.contains('"') => {
                shown.push('…');
                rest = next;
            }
            _ => {
                shown.push('{');
                rest = behind;
            }
        }
    }
    shown + rest
}

fn table() -> String {
    let mut text = String::from("| what | how it looks | found as |\n|---|---|---|\n");
    for (service, template) in SHAPES.iter().chain(PLACES) {
        let found = match seen_in(template) {
            None => format!("`{}`", name_of(template)),
            Some(_) => "**not found**".to_owned(),
        };
        writeln!(text, "| {service} | `{}` | {found} |", shown(template)).unwrap();
    }
    for (what, template) in UNSEEN {
        let found = if seen_in(template).is_some() { "**not found**" } else { "`random`" };
        writeln!(text, "| {what} | `{}` | {found} |", shown(template)).unwrap();
    }
    text
}

#[test]
fn the_tokens_of_every_service_are_found_whole() {
    let all = SHAPES.iter().chain(PLACES);
    let seen: Vec<String> = all
        .filter_map(|(service, template)| {
            seen_in(template).map(|text| format!("{service}: {text}"))
        })
        .collect();
    assert!(
        seen.is_empty(),
        "{} of {}:\n{}",
        seen.len(),
        SHAPES.len() + PLACES.len(),
        seen.join("\n")
    );
    assert!(SHAPES.len() >= 60);
}

#[test]
fn ordinary_text_stays_as_it_is() {
    for template in ORDINARY {
        for seed in 0..ROUNDS {
            let text = make(template, &mut Rng::with_seed(seed));
            assert_eq!(mask(&text), text);
        }
    }
}

#[test]
fn a_picture_comes_through_a_stream_unchanged() {
    let picture =
        make("data:image/png;base64,iVBORw0KGgo{b64:300000}== end\n", &mut Rng::with_seed(1));
    let masker = Masker::new(&Secrets::new());
    let mut stream = masker.stream();
    let mut seen = super::Masked::default();
    for sample in picture.as_bytes().chunks(1000) {
        seen.append(&stream.feed(sample));
    }
    seen.append(&stream.finish());
    assert_eq!(seen.as_str().len(), picture.len());
    assert_eq!(seen.as_str(), picture);
}

#[test]
fn the_page_has_the_table_of_what_is_found() {
    assert_page_has("found", &table());
}
