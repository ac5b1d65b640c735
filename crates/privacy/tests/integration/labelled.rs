//! Precision and recall on labelled lines of code, changelogs, standards, papers, mails, logs, tables, configurations and prose.
//!
//! A line of `labelled.jsonl` has a text, what a person would find in it, and where such a line comes from. All names and numbers are
//! made up; about half of the lines hold what only looks like personal data.

use bessemer_corpus_config::privacy::{PhoneRule, PrivacyRules};
use bessemer_privacy::{Finder, Kind};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Line {
    from: String,
    text: String,
    finds: Vec<(Kind, String)>,
}

/// Finds that are right, finds that are wrong, and what was missed.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    right: u32,
    wrong: u32,
    missed: u32,
}

impl Score {
    fn precision(self) -> f64 {
        f64::from(self.right) / f64::from(self.right + self.wrong).max(1.0)
    }

    fn recall(self) -> f64 {
        f64::from(self.right) / f64::from(self.right + self.missed).max(1.0)
    }
}

/// Scores by kind and by origin, and the lines that are not as labelled.
fn scores(rules: &PrivacyRules) -> (BTreeMap<String, Score>, Vec<String>) {
    let finder = Finder::new(rules);
    let (mut scores, mut differences): (BTreeMap<String, Score>, _) = (BTreeMap::new(), Vec::new());
    for line in include_str!("../labelled.jsonl").lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        let mut left = line.finds.clone();
        let spans = finder.find(&line.text);
        let found: Vec<(Kind, &str)> =
            spans.iter().map(|span| (span.kind, &line.text[span.start..span.end])).collect();
        for (kind, text) in &found {
            let place = left.iter().position(|(wanted, spelled)| wanted == kind && spelled == text);
            for key in [kind.name(), line.from.as_str(), "all"] {
                let score = scores.entry(key.to_string()).or_default();
                *(if place.is_some() { &mut score.right } else { &mut score.wrong }) += 1;
            }
            place.map(|place| left.remove(place));
        }
        for (kind, _) in &left {
            for key in [kind.name(), line.from.as_str(), "all"] {
                scores.entry(key.to_string()).or_default().missed += 1;
            }
        }
        if found.len() != line.finds.len() || !left.is_empty() {
            differences.push(format!("{:?}: found {found:?}, labelled {:?}", line.text, line.finds));
        }
    }
    (scores, differences)
}

#[test]
fn precision_and_recall_on_labelled_lines() {
    assert!(include_str!("../labelled.jsonl").lines().count() >= 400);
    let strict = PrivacyRules { phone: PhoneRule::International, ..PrivacyRules::default() };
    let (scores, differences) = self::scores(&strict);
    let (loose, _) = self::scores(&PrivacyRules::datatrove());
    for (rules, scores) in [("default", &scores), ("datatrove", &loose)] {
        for (key, score) in scores {
            println!(
                "{rules} {key}: precision {:.3}, recall {:.3}, {score:?}",
                score.precision(),
                score.recall()
            );
        }
    }
    differences.iter().for_each(|line| println!("{line}"));
    for kind in ["email", "ipv4", "phone"] {
        let score = scores[kind];
        assert!(
            score.precision() >= 0.98 && score.recall() >= 0.95,
            "{kind}: {score:?}\n{}",
            differences.join("\n")
        );
    }
    // Folders hold code, changelogs, standards, logs, tables and configurations: the search is on there by default only with this.
    for origin in ["code", "changelog", "rfc", "log", "table", "config"] {
        assert!(
            scores[origin].precision() >= 0.98,
            "{origin}: {:?}\n{}",
            scores[origin],
            differences.join("\n")
        );
    }
    // The set tells patterns apart.
    assert!(loose["ipv4"].precision() < 0.8 && loose["email"].precision() < 0.9, "{loose:?}");
}
