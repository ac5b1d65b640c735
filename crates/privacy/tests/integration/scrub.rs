//! What is found, what is not, and that neither takes long.

use bessemer_corpus_config::privacy::{EmailRule, Ipv4Rule, PhoneRule, PrivacyRules};
use bessemer_privacy::{Finder, Kind, Scrubbed, Scrubber, luhn};
use proptest::prelude::*;

/// Every rule on, in its strict form.
fn strict() -> PrivacyRules {
    PrivacyRules {
        email: EmailRule::Strict,
        ipv4: Ipv4Rule::Strict,
        phone: PhoneRule::International,
        ..PrivacyRules::default()
    }
}

fn scrub(rules: &PrivacyRules, text: &str) -> String {
    match Scrubber::new(rules).scrub(text) {
        Scrubbed::Edited(text, _) => text,
        Scrubbed::Clean => text.into(),
        Scrubbed::Dropped(_) => "dropped".into(),
    }
}

fn found(rules: &PrivacyRules, text: &str) -> Vec<(Kind, String)> {
    Finder::new(rules)
        .find(text)
        .iter()
        .map(|span| (span.kind, text[span.start..span.end].to_string()))
        .collect()
}

fn only(rules: &PrivacyRules, text: &str) -> Option<(Kind, String)> {
    let mut all = found(rules, text);
    assert!(all.len() < 2, "{all:?}");
    all.pop()
}

/// Goldens of datatrove's test_pii_removal.
#[test]
fn goldens_of_datatrove() {
    let rules = PrivacyRules {
        email_replacements: vec!["EMAIL".into()],
        ipv4_replacements: vec!["IP".into()],
        ..PrivacyRules::datatrove()
    };
    for (text, wanted) in [
        ("email@[123.123.123.123]", "EMAIL"),
        ("\"email\"@example.com", "\"email\"@example.com"),
        ("email@example..com", "email@example..com"),
        ("email..email@example.com", "email..EMAIL"),
        ("108.0.0.01", "108.0.0.01"),
        ("0.1.2.3", "0.1.2.3"),
        ("172.16.0.9", "172.16.0.9"),
        ("192.168.254.0", "192.168.254.0"),
        (".3.3.3.0", ".IP"),
        ("a@b.c@d.e 1.1.1.1.1.1.1.1", "EMAIL@d.e IP.IP"),
    ] {
        assert_eq!(scrub(&rules, text), wanted, "{text}");
    }
}

/// datatrove's replacements, in its order; the turn passes only where something is replaced.
#[test]
fn replacements_of_datatrove_take_turns() {
    let rules = PrivacyRules::datatrove();
    assert_eq!(
        scrub(&rules, "a@b.cc d@e.ff g@h.ii"),
        "email@example.com firstname.lastname@example.org email@example.com"
    );
    assert_eq!(
        scrub(&rules, "1.1.1.1 10.0.0.1 1.1.1.2 1.1.1.3 1.1.1.4 192.168.0.1 1.1.1.5 1.1.1.6 1.1.1.7"),
        "22.214.171.124 10.0.0.1 126.96.36.199 188.8.131.52 184.108.40.206 192.168.0.1 220.127.116.11 \
         18.104.22.168 22.214.171.124"
    );
}

/// Goldens of Presidio's recognizer tests.
#[test]
fn goldens_of_presidio() {
    let rules = PrivacyRules { cards: true, ibans: true, ..PrivacyRules::none() };
    let spans =
        |text| Finder::new(&rules).find(text).iter().map(|span| (span.start, span.end)).collect::<Vec<_>>();
    assert_eq!(
        spans("4012888888881881 4012-8888-8888-1881 4012 8888 8888 1881"),
        [(0, 16), (17, 36), (37, 56)]
    );
    assert_eq!(spans("4012-8888-8888-1882"), []);
    assert_eq!(spans("AL47212110090000000235698741"), [(0, 28)]);
    assert_eq!(spans("AL47 2121 1009 0000 0002 3569 8740"), []);
    assert_eq!(spans("AL47 2121 1009 0000 0002 3569 8741"), [(0, 34)]);
}

#[test]
fn cards_and_accounts_need_their_shape() {
    assert!(luhn(b"79927398713") && !luhn(b"79927398710"));
    let rules = PrivacyRules { cards: true, ibans: true, ..PrivacyRules::none() };
    for card in [
        "378282246310005",
        "3782 822463 10005",
        "5555555555554444",
        "30569309025904",
        "6011111111111117",
        "3530111333300000",
    ] {
        assert_eq!(only(&rules, &format!("card {card}.")), Some((Kind::Card, card.into())), "{card}");
    }
    // No issuer, wrong length, part of a longer number, of a decimal number or of a name.
    for text in [
        "1234567812345670",
        "0000000000000000",
        "41111111111111111111",
        "x4111111111111111",
        "4111111111111111.5",
        "0.4111111111111111",
        "4111-1111 1111-1111",
        "4111 1111 1111 1111 1111 1111",
        "4111111111111111a",
    ] {
        assert_eq!(only(&rules, text), None, "{text}");
    }
    for iban in [
        "GB82 WEST 1234 5698 7654 32",
        "DE89370400440532013000",
        "NO9386011117947",
        "MT84MALT011000012345MTLCAST001S",
    ] {
        assert_eq!(only(&rules, &format!("to {iban}, please")), Some((Kind::Iban, iban.into())), "{iban}");
    }
    for text in [
        "GB82WEST12345698765433",
        "XX89370400440532013000",
        "DE8937040044053201300",
        "DE893704004405320130000",
        "SDE89370400440532013000",
    ] {
        assert_eq!(only(&rules, text), None, "{text}");
    }
}

#[test]
fn phones_of_dolma_and_of_the_world() {
    let dolma = PrivacyRules { phone: PhoneRule::Dolma, ..PrivacyRules::none() };
    for (text, wanted) in [
        ("call (555) 123-4567 now", "call [PHONE] now"),
        ("call 555 123 4567", "call [PHONE]"),
        ("5551234567", "5551234567"),
        (" 5551234567", " [PHONE]"),
        ("tel:555-123-4567", "tel:555-123-4567"),
        ("isbn 555-123-4567", "isbn 555-123-4567"),
        ("see # 555-123-4567", "see # 555-123-4567"),
    ] {
        assert_eq!(scrub(&dolma, text), wanted, "{text}");
    }
    let many = format!("{} 555 123 4567", "?".repeat(10_001));
    assert_eq!(scrub(&dolma, &many), many);
    let world = PrivacyRules { phone: PhoneRule::International, ..PrivacyRules::none() };
    for phone in [
        "+44 20 7946 0958",
        "+1 (415) 867-5309",
        "+4930123456789",
        "(415) 867-5309",
        "415-867-5309",
        "415.867.5309",
        "+86 138 0013 8000",
        "+7 495 123-45-67",
        "1-415-867-5309",
        "+1.415.555.2671",
        "+33 1 42 68 53 00",
        "+44 (0)20 7946 0958",
        "+353 1 679 6222",
        "+49 (0) 89 12345678",
        "+39 06 6982 0000",
        "+46-8-123 456 78",
    ] {
        assert_eq!(only(&world, &format!("Call {phone}!")), Some((Kind::Phone, phone.into())), "{phone}");
    }
    // No area code, kept for fiction, no country, too short, a date, a version, a sum, a part of something.
    for text in [
        "115-867-5309",
        "415-555-0123",
        "+999 123 4567",
        "+44 20",
        "2024-01-02",
        "1.2.3",
        "3+4930123456789x",
        "x415-867-5309",
        "415-867-53091",
        "415-867.5309",
        "10-415-867-5309",
        "+1.2.3.4567890",
        "+1 2 3 4567890",
        "+2147483647",
        "+3.14.15926535",
        "+33 000 000 000",
        "+49 30 1",
        "+1.415.555.2671.3",
        "++49 30 901820",
        "+44 2 0 7 9 4 6 0 9 5 8",
    ] {
        assert_eq!(only(&world, text), None, "{text}");
    }
}

#[test]
fn addresses_of_both_generations() {
    let rules = PrivacyRules { ipv4: Ipv4Rule::Strict, ipv6: true, ..PrivacyRules::none() };
    for (text, wanted) in [
        ("at 8.8.8.8.", Some((Kind::Ipv4, "8.8.8.8"))),
        ("http://8.8.4.4:80/", Some((Kind::Ipv4, "8.8.4.4"))),
        ("v8.8.8.8", None),
        ("1.8.8.8.8", None),
        ("lib-8.8.8.8", None),
        ("dns 2606:4700:4700::1111, then", Some((Kind::Ipv6, "2606:4700:4700::1111"))),
        ("[2a00:1450:4001:81b::200e]:443", Some((Kind::Ipv6, "2a00:1450:4001:81b::200e"))),
        ("is 2606:4700:4700::1111: yes", Some((Kind::Ipv6, "2606:4700:4700::1111"))),
        ("2001:db8::1", None),
        ("fe80::1 ::1 ::", None),
        ("std::fs a::b face::dead 12:34:56 de:ad:be:ef:00:01", None),
        ("2606:4700:4700::1111x", None),
    ] {
        assert_eq!(only(&rules, text), wanted.map(|(kind, text)| (kind, text.to_string())), "{text}");
    }
}

/// A token of random-looking characters; written in parts so that no scanner of repositories takes them for real.
fn token(prefix: &str, length: usize) -> String {
    let symbols = b"aB3dE5gH7jK9mN2pQ4sT6vW8yZ";
    let body = (0..length).map(|i| char::from(symbols[(i * 7 + i / 26) % symbols.len()]));
    body.fold(prefix.to_string(), |mut text, symbol| {
        text.push(symbol);
        text
    })
}

#[test]
fn keys_and_tokens_by_their_form() {
    let rules = PrivacyRules { secrets: true, ..PrivacyRules::none() };
    let upper = token("AKIA", 16).to_uppercase().replace(['8', '9'], "Q");
    let jwt = format!("{}.{}.{}", "eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0NTY3ODkwIn0", token("", 43));
    let block = format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", token("", 64));
    for (kind, secret) in [
        (Kind::AwsKey, upper),
        (Kind::GithubToken, token("ghp_", 36)),
        (Kind::GithubToken, token("github_pat_", 82)),
        (Kind::SlackToken, token("xoxb-", 40)),
        (Kind::SlackToken, token("hooks.slack.com/services/", 44)),
        (Kind::GoogleKey, token("AIza", 35)),
        (Kind::StripeKey, token("sk_live_", 24)),
        (Kind::ServiceToken, token("glpat-", 20)),
        (Kind::Jwt, jwt),
        (Kind::PrivateKey, block),
    ] {
        let text = format!("it is {secret} and ends");
        assert_eq!(only(&rules, &text), Some((kind, secret)), "{text}");
    }
    let almost = [
        token("ghp_", 35),
        token("ghp_", 37),
        token("xghp_", 36),
        format!("AKIA{}", "A".repeat(16)),
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----".into(),
        "-----BEGIN PUBLIC KEY-----".into(),
        "eyJhbGciOiJIUzI1NiJ9 eyJ. eyJh.eyJh.x".into(),
    ];
    for text in almost {
        assert_eq!(only(&rules, &text), None, "{text}");
    }
}

#[test]
fn assigned_secrets_look_drawn() {
    let rules = PrivacyRules { secrets: true, ..PrivacyRules::none() };
    let value = token("", 32);
    for text in [
        format!("API_KEY = \"{value}\""),
        format!("api_key: '{value}',"),
        format!("export MY_SECRET={value}\n"),
        format!("{{\"access_token\": \"{value}\"}}"),
        format!("clientSecret => '{value}'"),
        format!("password := `{value}`"),
        format!("os.environ[\"APP_TOKEN\"] = \"{value}\""),
    ] {
        assert_eq!(only(&rules, &text), Some((Kind::AssignedSecret, value.clone())), "{text}");
    }
    for text in [
        "token = tokenizer.next_token_id".to_string(),
        "secret: the quick brown fox".into(),
        "password = \"correct-horse-battery\"".into(),
        "api_key = \"your_api_key_1234567890\"".into(),
        "api_key = \"${API_KEY_FROM_ENV_12}\"".into(),
        "token: aaaaaaaaaaaaaaaaaaaa1111".into(),
        "secret_path = \"/usr/lib/x86_64-linux-gnu/a1/b2/c3\"".into(),
        "let token_count = 12345678901234567890;".into(),
        format!("the token {value} is not assigned"),
        format!("api_key = \"{value}"),
    ] {
        assert_eq!(only(&rules, &text), None, "{text}");
    }
}

#[test]
fn replacements_take_turns_by_kind_and_documents_with_too_much_are_dropped() {
    let rules = PrivacyRules { email_replacements: vec!["1".into(), "2".into()], ..strict() };
    let text = "a@b.cc 8.8.8.8 d@e.ff 10.0.0.1 g@h.ii";
    let Scrubbed::Edited(edited, counts) = Scrubber::new(&rules).scrub(text) else { panic!("edited") };
    assert_eq!(edited, "1 192.0.2.1 2 10.0.0.1 1");
    assert_eq!(counts.iter().collect::<Vec<_>>(), [(Kind::Email, 3), (Kind::Ipv4, 1)]);
    let dropping = PrivacyRules { drop_above: 3, ..rules.clone() };
    assert!(matches!(Scrubber::new(&dropping).scrub(text), Scrubbed::Dropped(counts) if counts.total() == 4));
    assert_eq!(Scrubber::new(&rules).scrub("nothing here"), Scrubbed::Clean);
}

#[test]
fn configuration_is_checked_and_unknown_keys_are_refused() {
    PrivacyRules::default().check("privacy").unwrap();
    PrivacyRules::dolma().check("privacy").unwrap();
    let bad = PrivacyRules { card_replacements: Vec::new(), ..PrivacyRules::default() };
    assert!(bad.check("corpus.privacy").unwrap_err().contains("corpus.privacy.card_replacements"));
    let message = serde_json::from_str::<PrivacyRules>(r#"{"emial": "off"}"#).unwrap_err().to_string();
    assert!(message.contains("emial"), "{message}");
}

/// Texts on which careless patterns take quadratic or exponential time.
#[test]
fn bait_takes_linear_time() {
    let size = 1 << 20;
    let finder =
        [Finder::new(&strict()), Finder::new(&PrivacyRules::dolma()), Finder::new(&PrivacyRules::default())];
    for piece in [
        "a",
        "@",
        "a@",
        "a.",
        "1",
        "1.",
        "1-",
        "+1 ",
        ":",
        "a:",
        "1:",
        "eyJ",
        "eyJ.",
        "-----BEGIN PRIVATE KEY-----",
        "secret=",
        "secret",
        "password:\"",
        "4111 ",
        "4111-",
        "GB82 ",
        "GB82WEST",
        " (555)",
        "555 ",
        "!a@b",
        "((((",
        "?",
        "AKIA",
        "ghp_a",
        "é@",
        "a@b.c-",
    ] {
        let text = piece.repeat(size / piece.len());
        for finder in &finder {
            let begun = std::time::Instant::now();
            finder.find(&text);
            // A mebibyte takes milliseconds; quadratic time would take hours.
            assert!(begun.elapsed().as_secs() < 20, "{piece:?}");
        }
    }
}

/// The word before an address decides about the next one. A placeholder decides as what it stands for.
#[test]
fn a_placeholder_changes_nothing_for_the_address_behind_it() {
    for text in ["V and 2606:4700::1111 and 8.8.8.8", "seen at 2606:4700::1111 and 8.8.8.8"] {
        let once = scrub(&strict(), text);
        assert_eq!(scrub(&strict(), &once), once, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Spans are ordered, apart, not empty, on character boundaries, and a scrubbed text is clean.
    #[test]
    fn spans_are_sound_and_scrubbing_twice_changes_nothing(
        parts in proptest::collection::vec(prop_oneof![
            Just("jane.doe@mail.example.net".to_string()), Just("8.8.8.8".into()), Just("+44 20 7946 0958".into()),
            Just("4012-8888-8888-1881".into()), Just("DE89370400440532013000".into()), Just("2606:4700::1111".into()),
            Just("api_key = \"q7Zr2Lw9Xv4Bn8Tm3Ks6\"".into()),
            "[a-zA-Z0-9@.:+ ()\"=_/é日-]{0,12}", Just(" ".into()), Just("\n".into()),
        ], 0..14)
    ) {
        let text = parts.join(" and ");
        let mut end = 0;
        for span in Finder::new(&strict()).find(&text) {
            prop_assert!(span.start >= end && span.end > span.start);
            prop_assert!(text.is_char_boundary(span.start) && text.is_char_boundary(span.end));
            end = span.end;
        }
        let once = scrub(&strict(), &text);
        let spans = found(&strict(), &once);
        // Documentation addresses stay valid e-mail addresses; nothing else may be left.
        let left: Vec<_> = spans.iter().filter(|(kind, _)| *kind != Kind::Email && *kind != Kind::AssignedSecret).collect();
        prop_assert!(left.is_empty(), "{left:?} in {once:?} of {text:?}");
    }
}
