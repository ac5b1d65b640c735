//! Time of finding personal data and secrets in a file of text; prints one JSON line for each set of rules.
//!
//! `cargo run --release -p bessemer-privacy --example privacy_speed -- FILE [ROUNDS]`

// An example prints what it measured.
#![allow(clippy::print_stdout)]

use bessemer_corpus_config::privacy::{EmailRule, Ipv4Rule, PhoneRule, PrivacyRules};
use bessemer_privacy::Finder;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("expected the path of a text file")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    let all = PrivacyRules {
        email: EmailRule::Strict,
        ipv4: Ipv4Rule::Strict,
        phone: PhoneRule::International,
        ..PrivacyRules::default()
    };
    let sets = [
        ("datatrove", PrivacyRules::datatrove()),
        ("dolma", PrivacyRules::dolma()),
        ("default", PrivacyRules::default()),
        ("everything", all),
    ];
    for (name, rules) in sets {
        let finder = Finder::new(&rules);
        let mut times = Vec::with_capacity(rounds);
        let mut spans = 0;
        for _ in 0..rounds.max(1) {
            let begun = Instant::now();
            spans = finder.find(&text).len();
            times.push(begun.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let speed = text.len() as f64 / 1e6 / median;
        println!(
            "{{\"rules\": \"{name}\", \"bytes\": {}, \"spans\": {spans}, \"mb_per_s\": {speed:.1}}}",
            text.len()
        );
    }
    Ok(())
}
