//! Sets of texts: sums, intervals, and tests of a difference.

use bessemer_metrics::{Bleu, ChrF, CorpusMetric, MeanMetric, Rouge, SegmentSums, Ter};

/// Texts of a system that is right in so many of a hundred segments.
fn system(right: usize) -> Vec<String> {
    (0..100)
        .map(|i| match i * 37 % 100 < right {
            true => format!("the converter blew air through iron number {i} for twenty minutes"),
            false => format!("a converter blows some air in iron {i} for minutes twenty"),
        })
        .collect()
}

#[test]
fn sums_of_rows_are_the_score_of_the_set() {
    let (texts, truth) = (system(60), system(100));
    let references: Vec<[&str; 1]> = truth.iter().map(|text| [text.as_str()]).collect();
    let segments = || texts.iter().zip(&references).map(|(t, r)| (t.as_str(), r.as_slice()));
    let metrics: [&dyn CorpusMetric; 5] = [
        &Bleu::default(),
        &ChrF::default(),
        &Ter::default(),
        &MeanMetric::Rouge { variant: Rouge::L, stemmed: true },
        &MeanMetric::ExactMatch,
    ];
    for metric in metrics {
        let sums = SegmentSums::of(metric, segments());
        let score = sums.score(metric);
        let [mean, half] = sums.interval(metric, 400, 1).unwrap();
        assert!(
            (mean - score).abs() < half && half > 0.5 && half < 25.0,
            "{}: {score} {mean} {half}",
            metric.name()
        );
        assert_eq!(sums.interval(metric, 400, 1), sums.interval(metric, 400, 1));
        assert_eq!(metric.larger_is_better(), metric.name() != "TER");
    }
    assert!((MeanMetric::ExactMatch.corpus(segments()) - 60.0).abs() < 1e-9);
    // The interval of a share of 60 % over 100 segments: 1.96 standard errors of 4.9 %.
    let sums = SegmentSums::of(&MeanMetric::ExactMatch, segments());
    let [_, half] = sums.interval(&MeanMetric::ExactMatch, 4000, 1).unwrap();
    assert!((half - 9.6).abs() < 0.8, "{half}");
    assert_eq!(SegmentSums::of(&Bleu::default(), []).interval(&Bleu::default(), 10, 1), None);
}

#[test]
fn tests_find_differences_and_only_these() {
    let truth = system(100);
    let references: Vec<[&str; 1]> = truth.iter().map(|text| [text.as_str()]).collect();
    let bleu = Bleu::default();
    let of = |right: usize| {
        let texts = system(right);
        SegmentSums::of(&bleu, texts.iter().zip(&references).map(|(t, r)| (t.as_str(), r.as_slice())))
    };
    let (good, better, same) = (of(40), of(70), of(41));
    for p in [better.paired_bootstrap(&good, &bleu, 1000, 1), better.randomisation(&good, &bleu, 1000, 1)] {
        assert!(p < 0.01, "{p}");
    }
    for p in [same.paired_bootstrap(&good, &bleu, 1000, 1), same.randomisation(&good, &bleu, 1000, 1)] {
        assert!(p > 0.2, "{p}");
    }
    // A system and itself.
    assert_eq!(good.randomisation(&good, &bleu, 100, 1), 1.0);
    assert_eq!(good.paired_bootstrap(&good, &bleu, 100, 1), 1.0);
}
