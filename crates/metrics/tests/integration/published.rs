//! Values of papers and of the tests of other programs.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use bessemer_metrics::kola::{TaskColumn, self_contrast, standardise};
use bessemer_metrics::{Bleu, ChrF, CorpusMetric, Meteor, Rouge, Smoothing, Ter, Tokens};

fn near(found: f64, wanted: f64, by: f64) {
    assert!((found - wanted).abs() <= by, "found {found}, wanted {wanted}");
}

#[test]
fn bleu_has_the_values_of_sacrebleus_tests() {
    let hypotheses = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."];
    let first = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."];
    let second = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."];
    let pairs: Vec<[&str; 2]> = first.into_iter().zip(second).map(|(a, b)| [a, b]).collect();
    let all = || hypotheses.iter().zip(&pairs).map(|(h, r)| (*h, r.as_slice()));
    near(Bleu::default().corpus(all()), 48.530_827, 1e-6);
    near(Bleu { tokens: Tokens::Blanks, ..Bleu::default() }.corpus(all()), 49.191_956_6, 1e-6);
    let mut sum = bessemer_metrics::BleuCounts::default();
    for (hypothesis, references) in all() {
        sum += Bleu::default().counts(hypothesis, references);
    }
    assert_eq!((sum.matches, sum.totals), ([14, 7, 5, 3], [17, 14, 11, 8]));
    assert_eq!((sum.hypothesis, sum.reference), (17, 18));

    let floor = Bleu {
        tokens: Tokens::Blanks,
        smoothing: Smoothing::Floor(0.01),
        effective_order: true,
        ..Bleu::default()
    };
    near(floor.corpus([("this is a fest", ["this is a test"].as_slice())]), 22.360_679_774_997_9, 1e-9);
    near(floor.corpus([("test", ["a test"].as_slice())]), 36.787_944_117_144_25, 1e-9);

    let system = "Producția de zahăr primă va fi exprimată în ceea ce privește zahărul alb;";
    let reference = ["producţia de zahăr brut se exprimă în zahăr alb;"];
    let of = |bleu: Bleu| bleu.corpus([(system, reference.as_slice())]);
    let sentence = Bleu { effective_order: true, ..Bleu::default() };
    near(of(sentence), 8.493, 1e-3);
    near(of(Bleu { smoothing: Smoothing::Off, ..sentence }), 0.0, 1e-3);
    near(of(Bleu { smoothing: Smoothing::Floor(0.1), ..sentence }), 4.516_88, 1e-3);
    near(of(Bleu { smoothing: Smoothing::Add(1.0), ..sentence }), 14.882, 1e-3);
    near(of(Bleu { tokens: Tokens::Blanks, ..sentence }), 7.347, 1e-3);
}

#[test]
fn chrf_and_ter_have_the_values_of_sacrebleus_tests() {
    let of =
        |chrf: ChrF, hypothesis: &str, reference: &str| chrf.corpus([(hypothesis, [reference].as_slice())]);
    let beta3 = ChrF { beta: 3.0, ..ChrF::default() };
    let eps = ChrF { eps: true, ..beta3 };
    near(of(eps, "aa", "ab"), 8.3333, 1e-4);
    near(of(beta3, "aa", "ab"), 25.0, 1e-9);
    near(of(eps, "a", "a"), 16.6667, 1e-4);
    near(of(beta3, "a", "a"), 100.0, 1e-9);
    let czech = [
        "Co nás nejvíc trápí, protože lékaři si vybírají, kdo bude žít a kdo zemře.",
        "Nejvíce smutní jsme z toho, že musíme rozhodovat o tom, kdo bude žít a kdo zemře.",
    ];
    near(of(ChrF { eps: true, ..ChrF::default() }, czech[0], czech[1]), 39.140_785_09, 1e-7);

    let of =
        |hypothesis: &str, reference: &str| Ter::default().corpus([(hypothesis, [reference].as_slice())]);
    near(of("a b c", "a b c"), 0.0, 0.0);
    near(of("x y z", "a b c"), 100.0, 0.0);
    near(of("", "a b c"), 100.0, 0.0);
    near(of("", ""), 0.0, 0.0);
    near(of("a", ""), 100.0, 0.0);
    near(of("d e f g h a b c", "a b c d e f g h"), 12.5, 0.0);
}

#[test]
fn rouge_has_the_values_of_its_tests() {
    let found = Rouge::N(1).score("testing", "testing one two", false);
    near(found.precision, 1.0, 0.0);
    near(found.recall, 1.0 / 3.0, 1e-12);
    near(found.f1, 0.5, 1e-12);
    let found = Rouge::L.score("testing two", "testing one two", false);
    near(found.f1, 0.8, 1e-12);
    // The reference has one line; its union with both lines of the summary has four of five words.
    let found = Rouge::Lsum.score("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", false);
    near(found.recall, 0.8, 1e-12);
    near(found.precision, 0.4, 1e-12);
    near(found.f1, 8.0 / 15.0, 1e-12);
    assert_eq!(Rouge::Lsum.score("", "a", true).f1, 0.0);
    let several = Rouge::L.best("a b c", &["x y", "a b", "a b c d"], false);
    near(several.recall, 0.75, 1e-12);
}

#[test]
fn meteor_has_the_values_of_nltks_guide() {
    let meteor = Meteor::default();
    near(meteor.score("THIS Is a tEST", "this is a test", None), 0.992_187_5, 1e-12);
    near(meteor.score("The cat was sat on the mat", "The cat sat on the mat", None), 0.9654, 1e-4);
    let hypothesis =
        "It is a guide to action which ensures that the military always obeys the commands of the party";
    let reference = "It is a guide to action that ensures that the military will forever heed Party commands";
    near(meteor.score(hypothesis, reference, None), 0.6944, 1e-4);
    let synonyms = |word: &str| if word == "car" { vec!["auto".to_string()] } else { Vec::new() };
    near(meteor.score("a car", "a bus", Some(&synonyms)), meteor.score("a car", "a bus", None), 0.0);
    near(meteor.score("a car", "an auto", Some(&synonyms)), meteor.score("x car", "y car", None), 1e-12);
    near(meteor.score("none", "of it", None), 0.0, 0.0);
}

/// The toy table of the notes on KoLA: two tasks, three models.
#[test]
fn kola_standardises_over_models() {
    let task = |level, siblings, scores: [f64; 3]| TaskColumn { level, siblings, scores: scores.to_vec() };
    let found = standardise(&[task(1, 0, [10.0, 20.0, 30.0]), task(2, 1, [50.0, 50.0, 80.0])]).unwrap();
    let close = |found: &[f64], wanted: [f64; 3], bound: f64| {
        assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < bound), "{found:?} {wanted:?}");
    };
    close(&found.z[0], [-1.224745, 0.0, 1.224745], 1e-6);
    close(&found.z[1], [-FRAC_1_SQRT_2, -FRAC_1_SQRT_2, SQRT_2], 1e-6);
    close(&found.scores[0], [0.0, 46.4102, 92.8203], 1e-4);
    close(&found.scores[1], [19.6152, 19.6152, 100.0], 1e-4);
    let half = |a: f64, b: f64| (a + b) / 2.0;
    close(
        &found.overall,
        [half(-1.224745, -FRAC_1_SQRT_2), half(0.0, -FRAC_1_SQRT_2), half(1.224745, SQRT_2)],
        1e-6,
    );
    // Siblings share mean and deviation, and a level is the mean of its tasks.
    let shared = standardise(&[task(4, 7, [0.0, 2.0, 4.0]), task(4, 7, [6.0, 8.0, 10.0])]).unwrap();
    let sigma = (35.0f64 / 3.0).sqrt();
    close(&shared.z[1], [1.0 / sigma, 3.0 / sigma, 5.0 / sigma], 1e-12);
    assert_eq!(shared.levels.len(), 1);
    close(&shared.overall, [-2.0 / sigma, 0.0, 2.0 / sigma], 1e-12);
    assert!(standardise(&[]).is_none());
    let constant = standardise(&[task(1, 0, [3.0; 3])]).unwrap();
    assert_eq!((constant.z[0].clone(), constant.scores[0].clone()), (vec![0.0; 3], vec![0.0; 3]));
}

#[test]
fn self_contrast_is_the_mean_of_three_overlaps() {
    // "a b c d", "a b x y" and "a b": longest common subsequences of 2 words each, F1 of 2/4, 2/3 and 2/3.
    let found = self_contrast("a b c d", "a b x y", "a b");
    assert!((found - (0.5 + 2.0 / 3.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12, "{found}");
    assert_eq!(self_contrast("same", "same", "same"), 1.0);
}
