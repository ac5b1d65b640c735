//! Every built-in profile, every kind of personal data and every way of cutting text, on any text.

use bessemer_corpus_config::privacy::{EmailRule, Ipv4Rule, PhoneRule, PrivacyRules};
use bessemer_privacy::{Scrubbed, Scrubber};
use bessemer_rules::{DocumentView, Profile, Scratch};
use bessemer_text::split::english::Tokenizer;
use bessemer_text::split::lines::{newlines, splitlines};
use bessemer_text::split::sentences;
use std::sync::LazyLock;

static PROFILES: LazyLock<Vec<Profile>> =
    LazyLock::new(|| Profile::names().into_iter().filter_map(|name| Profile::named(name).ok()).collect());

static SCRUBBERS: LazyLock<[Scrubber; 3]> = LazyLock::new(|| {
    let strict = PrivacyRules {
        email: EmailRule::Strict,
        ipv4: Ipv4Rule::Strict,
        phone: PhoneRule::International,
        ..PrivacyRules::default()
    };
    [strict, PrivacyRules::dolma(), PrivacyRules::default()].map(|rules| Scrubber::new(&rules))
});

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut scratch = Scratch::new();
    for profile in PROFILES.iter() {
        profile.evaluate_with(&DocumentView::of(&text), &mut scratch);
        profile.explain(&DocumentView::of(&text), &mut scratch);
    }
    for scrubber in SCRUBBERS.iter() {
        if let Scrubbed::Edited(_, counts) = scrubber.scrub(&text) {
            assert!(counts.total() > 0);
        }
    }
    Tokenizer::new().tokenize(&text, &mut Vec::new());
    let _ = (sentences(&text).count(), splitlines(&text).count(), newlines(&text).count());
}
