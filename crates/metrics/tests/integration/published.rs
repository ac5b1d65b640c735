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

/// Standardised scores of 21 models in 19 tasks, 1-1 to 4-2, with one decimal: `analyse/dataset_final_scores.csv` of github.com/THU-KEG/KoLA (commit 5813eae). GPT-4 is row
/// 18, InstructGPT davinci v2 row 16.
const KOLA: [[f64; 19]; 21] = [
    [
        44.1, 39.9, 49.6, 57.0, 42.1, 43.6, 13.4, 18.6, 13.2, 16.3, 18.6, 39.8, 44.6, 26.5, 49.3, 34.1, 9.0,
        15.0, 17.0,
    ],
    [
        17.6, 19.0, 10.9, 14.6, 10.3, 10.7, 12.8, 18.6, 13.2, 16.3, 18.6, 17.9, 20.1, 19.3, 33.6, 9.0, 9.0,
        22.5, 23.7,
    ],
    [
        41.3, 31.9, 53.0, 52.7, 41.2, 47.8, 10.7, 18.6, 13.2, 16.3, 18.6, 44.9, 43.0, 33.3, 49.3, 38.1, 51.5,
        24.1, 15.2,
    ],
    [
        11.5, 10.7, 9.2, 14.6, 10.3, 10.7, 14.0, 18.6, 29.9, 16.3, 18.6, 24.8, 32.0, 16.2, 26.9, 11.5, 12.3,
        16.1, 0.0,
    ],
    [
        12.4, 10.6, 8.9, 14.6, 10.3, 10.7, 17.0, 18.6, 24.0, 16.3, 18.6, 33.0, 33.4, 20.2, 47.0, 10.5, 12.0,
        26.6, 1.4,
    ],
    [
        11.6, 12.3, 9.0, 14.6, 10.3, 10.7, 20.6, 18.6, 25.1, 16.3, 18.6, 5.5, 3.7, 10.1, 8.9, 16.0, 12.4,
        28.5, 4.0,
    ],
    [
        12.6, 13.4, 11.2, 14.6, 10.3, 10.7, 25.0, 21.9, 22.1, 16.3, 18.6, 10.7, 13.8, 10.1, 11.2, 21.0, 16.9,
        12.4, 3.4,
    ],
    [
        31.3, 28.2, 25.3, 23.3, 32.7, 20.9, 10.7, 18.6, 13.2, 16.3, 18.6, 14.9, 14.3, 17.1, 4.5, 34.1, 9.0,
        12.6, 24.7,
    ],
    [
        15.5, 16.7, 9.9, 14.6, 10.3, 10.7, 50.8, 25.7, 23.0, 19.6, 18.6, 8.2, 28.8, 35.7, 17.9, 15.0, 18.1,
        42.6, 32.3,
    ],
    [
        13.0, 16.4, 11.0, 14.6, 10.3, 11.3, 20.2, 20.2, 24.3, 16.3, 18.6, 6.7, 9.9, 14.0, 8.9, 40.2, 25.6,
        32.5, 23.7,
    ],
    [
        23.0, 24.0, 17.6, 20.1, 15.8, 24.5, 32.1, 26.3, 25.7, 45.2, 22.0, 40.1, 24.4, 25.2, 33.6, 22.0, 14.3,
        41.5, 42.6,
    ],
    [
        46.6, 42.6, 56.8, 33.1, 41.2, 40.6, 21.4, 33.5, 13.2, 40.9, 18.6, 30.1, 36.1, 39.5, 47.0, 49.9, 53.8,
        11.4, 35.4,
    ],
    [
        41.7, 47.6, 42.0, 37.5, 43.8, 44.8, 49.2, 47.2, 44.1, 50.5, 25.5, 54.7, 37.2, 48.5, 42.5, 24.7, 24.3,
        51.1, 54.6,
    ],
    [
        9.2, 9.6, 8.5, 14.6, 10.3, 10.7, 16.3, 18.6, 18.4, 18.0, 18.6, 15.0, 5.1, 13.6, 8.9, 12.2, 9.2, 18.9,
        6.5,
    ],
    [
        10.0, 9.8, 8.5, 14.6, 10.7, 10.7, 25.1, 18.6, 22.5, 16.4, 18.6, 10.3, 3.2, 16.0, 11.2, 14.8, 10.7,
        28.6, 17.6,
    ],
    [
        19.0, 33.1, 33.1, 22.3, 34.9, 35.9, 17.1, 19.1, 14.6, 19.9, 18.6, 25.0, 30.8, 17.5, 22.4, 25.0, 25.9,
        23.5, 22.6,
    ],
    [
        30.8, 37.2, 32.4, 26.6, 42.5, 36.5, 36.8, 53.1, 56.7, 34.6, 31.2, 23.9, 33.8, 38.4, 15.7, 45.3, 43.9,
        53.6, 53.3,
    ],
    [
        13.4, 16.3, 9.4, 14.6, 10.3, 10.7, 44.7, 27.6, 22.6, 16.3, 27.6, 16.1, 2.5, 11.4, 13.4, 39.6, 39.6,
        25.2, 15.7,
    ],
    [
        51.4, 55.5, 54.6, 63.5, 42.9, 46.0, 62.3, 100.0, 72.3, 72.8, 59.5, 56.2, 58.3, 72.4, 26.9, 56.5,
        55.6, 47.0, 52.5,
    ],
    [
        27.8, 44.5, 36.1, 23.3, 42.1, 46.6, 10.7, 18.6, 15.9, 24.4, 18.6, 30.3, 27.2, 21.5, 31.3, 30.8, 9.0,
        19.7, 17.8,
    ],
    [
        22.3, 23.3, 19.5, 15.7, 39.5, 26.3, 10.7, 18.6, 14.6, 16.9, 18.6, 13.5, 19.6, 15.3, 11.2, 12.6, 18.3,
        12.1, 13.7,
    ],
];

/// Standardised scores are linear in the raw ones for tasks of one group of siblings, so the published table standardised again is the same table. That holds only if mean and
/// deviation are those of all siblings, the deviation is that of a population, and the scale is that of all tasks.
#[test]
fn kola_standardises_the_published_table_to_itself() {
    // 1-1 to 1-3 are siblings, DocRED (2-5) and its new part (2-8), KoRC (3-5) and its new part (3-6), and 4-1 and 4-2.
    let siblings = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 5, 8, 9, 10, 11, 12, 12, 13, 13];
    let level = |task: usize| match task {
        0..3 => 1,
        3..11 => 2,
        11..17 => 3,
        _ => 4,
    };
    let columns = |siblings: &[usize; 19]| -> Vec<TaskColumn> {
        let scores = |task: usize| KOLA.iter().map(|model| model[task]).collect();
        (0..19)
            .map(|task| TaskColumn { level: level(task), siblings: siblings[task], scores: scores(task) })
            .collect()
    };
    let furthest = |siblings: &[usize; 19]| {
        let found = standardise(&columns(siblings)).unwrap();
        let distance = |(task, scores): (usize, &Vec<f64>)| {
            scores.iter().zip(&KOLA).map(|(score, model)| (score - model[task]).abs()).fold(0.0, f64::max)
        };
        found.scores.iter().enumerate().map(distance).fold(0.0, f64::max)
    };
    // A rounding of 0.05 in the score, in those of the smallest and the largest, and in means.
    assert!(furthest(&siblings) < 0.15, "{}", furthest(&siblings));
    let mut alone = siblings;
    alone[1] = 14;
    assert!(furthest(&alone) > 1.0, "another group of siblings gives another table: {}", furthest(&alone));
    // The overall scores of the authors' program on these models: 2.06 and 1.02.
    let overall = standardise(&columns(&siblings)).unwrap().overall;
    near(overall[18], 2.06, 0.01);
    near(overall[16], 1.02, 0.01);
    assert!(overall.iter().all(|z| *z <= overall[18]));
}

#[test]
fn self_contrast_is_the_mean_of_three_overlaps() {
    // "a b c d", "a b x y" and "a b": longest common subsequences of 2 words each, F1 of 2/4, 2/3 and 2/3.
    let found = self_contrast("a b c d", "a b x y", "a b");
    assert!((found - (0.5 + 2.0 / 3.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12, "{found}");
    assert_eq!(self_contrast("same", "same", "same"), 1.0);
}
