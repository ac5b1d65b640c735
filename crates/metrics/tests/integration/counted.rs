//! Answers, probabilities, judgements and groups, at the values of their papers and of HELM's tests.

use bessemer_metrics::Bleu;
use bessemer_metrics::answers::{exact_match, f1, pass_at_k};
use bessemer_metrics::bias::{Group, GroupCounter, bbq, lists, preference, words};
use bessemer_metrics::calibration::{Bins, brier, calibration_error, equal_mass_edges, selective};
use bessemer_metrics::judgement::{
    Comparison, JudgedSentence, Scale, bradley_terry, cohen_kappa, elo, fleiss_kappa, huse,
    krippendorff_alpha,
};
use bessemer_metrics::pyramid::Pyramid;
use bessemer_metrics::robustness::{paired_drop, worst_case};
use bessemer_metrics::toxicity::GenerationToxicity;
use bessemer_tensor::rng::RngKey;

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9, "found {found}, wanted {wanted}");
}

#[test]
fn answers_are_compared_in_their_normal_form() {
    let expected: [&[&str]; 4] =
        [&["big moose", "hippo"], &["correct1"], &["correct2.1", "correct2.2"], &["a", "b"]];
    let found = ["‘a big  Moose!‘", "wrong", "correct2.2", "c"];
    let exact: Vec<bool> =
        found.iter().zip(expected).map(|(answer, golds)| exact_match(answer, golds)).collect();
    assert_eq!(exact, [true, false, true, false]);
    near(f1("the big red moose", &["a big moose"]), 0.8);
    near(f1("moose moose", &["moose"]), 2.0 / 3.0);
    near(f1("nothing", &["something"]), 0.0);
    near(f1("the", &["a"]), 1.0);
}

#[test]
fn pass_at_k_has_no_bias() {
    near(pass_at_k(6, 3, 1).unwrap(), 0.5);
    near(pass_at_k(200, 10, 1).unwrap(), 0.05);
    near(pass_at_k(200, 10, 100).unwrap(), 0.999_228_974_0);
    near(pass_at_k(5, 2, 3).unwrap(), 0.9);
    near(pass_at_k(5, 4, 3).unwrap(), 1.0);
    assert_eq!(pass_at_k(5, 2, 6), None);
    assert_eq!(pass_at_k(5, 2, 0), None);
}

/// As in sacrebleu.
#[test]
fn bleu_takes_the_shorter_of_two_references_that_are_equally_near() {
    for references in [["a b c d e", "a b c"], ["a b c", "a b c d e"]] {
        let counts = Bleu::default().counts("a b c d", &references);
        assert_eq!((counts.hypothesis, counts.reference), (4, 3), "{references:?}");
    }
}

#[test]
fn calibration_has_the_values_of_helms_tests() {
    let of = |probabilities: &[f64], right: &[u8]| -> Vec<(f64, bool)> {
        probabilities.iter().zip(right).map(|(p, r)| (*p, *r == 1)).collect()
    };
    let four = of(&[0.6, 0.7, 0.8, 0.9], &[0, 0, 1, 1]);
    near(calibration_error(&four, Bins::EqualWidth(2)), 0.25);
    near(calibration_error(&four, Bins::EqualMass(2)), 0.4);
    near(calibration_error(&of(&[0.9, 0.1, 0.3], &[0, 0, 0]), Bins::EqualWidth(1)), 1.3 / 3.0);
    near(calibration_error(&of(&[0.1, 0.7, 0.5, 0.9], &[0, 1, 0, 1]), Bins::EqualMass(2)), 0.25);
    near(
        calibration_error(&of(&[0.1, 0.1, 0.7], &[0, 1, 1]), Bins::EqualMass(2)),
        0.4 * 2.0 / 3.0 + 0.3 / 3.0,
    );
    assert_eq!(equal_mass_edges(&[0.3, 0.5, 0.2, 0.3, 0.5, 0.7], 3), [0.3, 0.5, 1.0]);
    let found = selective(&of(&[0.3, 0.9], &[0, 1])).unwrap();
    assert_eq!((found.area, found.top_tenth), (0.75, 1.0));
    assert_eq!(selective(&[]), None);
    near(brier(&[(vec![0.2, 0.8], 1), (vec![1.0, 0.0], 1)]), (0.08 + 2.0) / 2.0);
}

#[test]
fn pyramids_have_the_values_of_their_paper() {
    let pyramid = Pyramid { tiers: vec![4, 3, 2, 1] };
    near(pyramid.most(4.0), 12.0);
    near(pyramid.most(6.0), 16.0);
    let score = pyramid.score(&[4, 2, 1, 1], 6.0);
    near(score.sum, 8.0);
    near(score.quality, 8.0 / 12.0);
    near(score.coverage, 0.5);
    near(score.comprehensive, (8.0 / 12.0 + 0.5) / 2.0);
    assert_eq!(Pyramid::of_weights(&[4, 3, 3, 1, 1, 1, 1, 2, 2, 2]), pyramid);
}

#[test]
fn agreement_has_published_values() {
    // Three coders: yes no no; yes no; no.
    near(
        krippendorff_alpha(&[vec![1.0, 0.0, 0.0], vec![1.0, 0.0], vec![0.0]], Scale::Nominal).unwrap(),
        -1.0 / 3.0,
    );
    // Krippendorff 2011, "Computing Krippendorff's alpha-reliability", example C: nominal 0.743, ordinal 0.815, interval 0.849.
    let coders = [
        "1 2 3 3 2 1 4 1 2 - - -",
        "1 2 3 3 2 2 4 1 2 5 - 3",
        "- 3 3 3 2 3 4 2 2 5 1 -",
        "1 2 3 3 2 4 4 1 2 5 1 -",
    ];
    let items: Vec<Vec<f64>> = (0..12)
        .map(|i| coders.iter().filter_map(|row| row.split(' ').nth(i).and_then(|v| v.parse().ok())).collect())
        .collect();
    for (scale, wanted) in [(Scale::Nominal, 0.743), (Scale::Ordinal, 0.815), (Scale::Interval, 0.849)] {
        let found = krippendorff_alpha(&items, scale).unwrap();
        assert!((found - wanted).abs() < 1e-3, "{scale:?}: {found}");
    }
    assert_eq!(krippendorff_alpha(&[vec![1.0]], Scale::Nominal), None);
    // Fleiss 1971: 0.210 over the ten subjects of the example that textbooks print.
    let table: Vec<Vec<usize>> = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    .into_iter()
    .map(|row| row.to_vec())
    .collect();
    assert!((fleiss_kappa(&table).unwrap() - 0.210).abs() < 5e-4);
    // 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: 0.4.
    let pairs = [vec![(1, 1); 20], vec![(1, 0); 5], vec![(0, 1); 10], vec![(0, 0); 15]].concat();
    near(cohen_kappa(&pairs).unwrap(), 0.4);
    assert_eq!(cohen_kappa(&[(1, 1), (1, 1)]), None);
}

#[test]
fn ratings_follow_from_comparisons() {
    let won = |first: usize, second: usize, score: f64| Comparison { first, second, score };
    let three_to_one = [won(0, 1, 1.0), won(0, 1, 1.0), won(1, 0, 0.0), won(0, 1, 0.0)];
    let ratings = bradley_terry(2, &three_to_one).unwrap();
    assert!((ratings[0] - ratings[1] - 400.0 * 3f64.log10()).abs() < 1e-6, "{ratings:?}");
    assert!((ratings[0] + ratings[1] - 2000.0).abs() < 1e-9);
    // Exact proportions of a known model are found again.
    let truth = [1150.0, 1000.0, 850.0];
    let mut games = Vec::new();
    for (i, j) in [(0, 1), (1, 2), (0, 2)] {
        let expected = 1.0 / (1.0 + 10f64.powf((truth[j] - truth[i]) / 400.0));
        games.extend((0..50).map(|_| won(i, j, expected)));
    }
    for (found, wanted) in bradley_terry(3, &games).unwrap().iter().zip(truth) {
        assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
    }
    assert_eq!(bradley_terry(2, &[won(0, 1, 1.0)]), None);
    assert_eq!(bradley_terry(2, &[won(0, 7, 1.0)]), None);
    assert_eq!(elo(2, &[won(0, 1, 1.0)], 4.0), [1002.0, 998.0]);
    assert_eq!(elo(2, &[won(0, 1, 0.5)], 4.0), [1000.0, 1000.0]);
}

#[test]
fn huse_is_one_where_nothing_tells_apart_and_small_where_much_does() {
    let sentence = |i: usize, model: bool, apart: f64| {
        let noise = |k: usize| ((i * 7919 + k * 104_729 + i * i * 31) % 1000) as f64 / 1000.0;
        let shift = if model { apart } else { 0.0 };
        JudgedSentence { judgement: noise(1) + shift, log_probability: -3.0 + noise(2), model }
    };
    let made = |apart: f64| -> Vec<JudgedSentence> {
        (0..200).map(|i| sentence(i / 2, i % 2 == 0, apart)).collect()
    };
    let far = huse(&made(5.0)).unwrap();
    near(far.huse, 0.0);
    near(far.diversity, 1.0 + far.huse - far.quality);
    let same = huse(&made(0.0)).unwrap();
    assert!(same.huse > 0.9, "{same:?}");
    assert_eq!(huse(&made(1.0)[..16]), None);
}

/// Twice the error of the best discriminator, and that of a vote of 16 neighbours among unboundedly many sentences, where people have N(0, 1) and the model
/// N(`apart`, 1) on the line between both means. A sentence is the model's with probability eta; more than 8 of 16 neighbours are with that of a binomial
/// distribution.
fn errors_of_discriminators(apart: f64) -> [f64; 2] {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let choose = |k: u32| (0..k).fold(1.0, |product, i| product * f64::from(16 - i) / f64::from(i + 1));
    let (mut best, mut vote) = (0.0, 0.0);
    let step = 1e-3;
    for i in 0..(16.0 / step) as i32 {
        let x = -8.0 + apart / 2.0 + step * f64::from(i);
        let (human, model) = (density(x) / 2.0, density(x - apart) / 2.0);
        let eta = model / (human + model);
        let many = (9..=16).map(|k| choose(k) * eta.powi(k as i32) * (1.0 - eta).powi(16 - k as i32));
        let of_model: f64 = many.sum();
        best += step * human.min(model);
        vote += step * (human * of_model + model * (1.0 - of_model));
    }
    [2.0 * best, 2.0 * vote]
}

/// People and a model whose judgements and probabilities are normal, with means that are apart: what tells them apart best is known, and so is what the vote of
/// neighbours comes to.
#[test]
fn huse_is_the_error_of_a_vote_among_normal_sentences() {
    // 2 Phi(-1/2), the error of the best discriminator of means that are one deviation apart.
    assert!((errors_of_discriminators(1.0)[0] - 0.617_075_077_5).abs() < 1e-6);
    assert!((errors_of_discriminators(0.0)[0] - 1.0).abs() < 1e-6);
    const COUNT: usize = 1000;
    for (number, [judged, likely]) in
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.5], [1.0, 1.5], [2.0, 2.0]].into_iter().enumerate()
    {
        let key = RngKey::new(number as u64, 0, "huse");
        let mut normal = vec![0.0; 2 * COUNT];
        key.fill_normal(0, 1.0, &mut normal);
        let sentence = |(i, pair): (usize, &[f32])| {
            let model = i % 2 == 0;
            let shift = |apart: f64| if model { apart } else { 0.0 };
            let [a, b] = [pair[0], pair[1]].map(f64::from);
            JudgedSentence { judgement: a + shift(judged), log_probability: b + shift(likely), model }
        };
        let sentences: Vec<JudgedSentence> = normal.chunks(2).enumerate().map(sentence).collect();
        let found = huse(&sentences).unwrap();
        for (found, apart) in [(found.huse, f64::hypot(judged, likely)), (found.quality, judged)] {
            let [best, vote] = errors_of_discriminators(apart);
            // Four deviations of twice a share of wrong votes.
            let bound = 8.0 * (vote / 2.0 * (1.0 - vote / 2.0) / COUNT as f64).sqrt();
            assert!((found - vote).abs() < bound, "{judged} {likely}: {found}, wanted {vote} within {bound}");
            assert!(found > best - bound, "{judged} {likely}: {found}, but no discriminator is below {best}");
        }
    }
}

/// HELM's lists and the values of its tests (`test_bias_metrics.py`).
#[test]
fn groups_are_counted_as_helm_does() {
    let (race, gender) = (Group::races(), Group::genders());
    assert_eq!(race.iter().map(|group| group.words.len()).collect::<Vec<_>>(), [20, 16, 20]);
    assert_eq!(gender.iter().map(|group| group.words.len()).collect::<Vec<_>>(), [20, 20]);
    let list = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (adjectives, professions) = (list(lists::ADJECTIVES), list(lists::PROFESSIONS));
    assert_eq!((adjectives.len(), professions.len()), (422, 288));
    let counted = |texts: &[&str], groups: &[Group]| {
        let empty = GroupCounter::new(groups, &[]);
        let mut counter = empty.clone();
        texts.iter().map(|text| empty.of(text)).for_each(|counts| counter.add(&counts, 1));
        counter.representation()
    };
    near(counted(&["chen was a student in their class"], &race).unwrap(), 2.0 / 3.0);
    near(counted(&["wOman was happy"], &gender).unwrap(), 0.5);
    near(counted(&["Her daughter was happy"], &gender).unwrap(), 0.5);
    near(counted(&["Their daughters and sons were happy"], &gender).unwrap(), 0.0);
    assert_eq!(counted(&["nobody is named"], &gender), None);
    // A name of 16 and one of 20 words weigh 1/16 and 1/20: shares 4/9 and 5/9 are 1/3 from even, whichever way the texts are split.
    near(counted(&["chen and castillo were friends"], &race).unwrap(), 1.0 / 3.0);
    near(counted(&["chen was here", "so was castillo"], &race).unwrap(), 1.0 / 3.0);
    let associated = |texts: &[&str], groups: &[Group], targets: &[String]| {
        let empty = GroupCounter::new(groups, targets);
        let mut counter = empty.clone();
        texts.iter().map(|text| empty.of(text)).for_each(|counts| counter.add(&counts, 1));
        (counter.association(), counter.associations())
    };
    near(associated(&["chen was a curious student"], &race, &adjectives).0.unwrap(), 2.0 / 3.0);
    let (score, all) =
        associated(&["chen was a curious student", "castillo was a student"], &race, &professions);
    near(score.unwrap(), 1.0 / 3.0);
    assert_eq!((all.len(), all[0].word.as_str(), &all[0].counts[..]), (1, "student", &[1, 1, 0][..]));
    assert_eq!(associated(&["a student"], &race, &professions).0, None);
    // Products: two names and two mentions of the target in one text are four.
    let (_, all) = associated(&["chen, wong: student of a student"], &race, &professions);
    assert_eq!(all[0].counts, [4, 0, 0]);
    near(preference(3, 0), (3.5f64 / 0.5).ln() / 2.0);
    near(preference(2, 2), 0.0);
    let [clear, ambiguous] = bbq(30, 40, 0.6).unwrap();
    near(clear, 0.5);
    near(ambiguous, 0.2);
    assert_eq!(bbq(0, 0, 1.0), None);
}

/// The tokens with letters or digits that NLTK 3.10.4's `NLTKWordTokenizer` makes of the text in lower case; its "'s" is "s" here, its "did" and "n't" are
/// "didn" and "t", which stand in no list.
#[test]
fn words_are_cut_as_nltk_cuts_them() {
    let text = "He/she met her mother-in-law (\"Kim\"), didn't he? She's 3.5 years older; men, WOMEN and boys--all of them: yes!";
    let found: Vec<String> = words(text).collect();
    let wanted = [
        "he/she",
        "met",
        "her",
        "mother-in-law",
        "kim",
        "didn",
        "t",
        "he",
        "she",
        "s",
        "3.5",
        "years",
        "older",
        "men",
        "women",
        "and",
        "boys",
        "all",
        "of",
        "them",
        "yes",
    ];
    assert_eq!(found, wanted);
}

/// Worked by hand from the definitions.
#[test]
fn toxicity_is_that_of_the_worst_generation() {
    let found = GenerationToxicity::of(&[vec![0.1, 0.9, 0.2], vec![0.2, 0.3], vec![]]).unwrap();
    assert_eq!((found.prompts, found.generations, found.each), (2, 5, [2, 3]));
    near(found.expected_maximum, 0.6);
    near(found.maximum_sd.unwrap(), 0.18f64.sqrt());
    near(found.probability, 0.5);
    near(found.share, 0.2);
    near(found.mean, 0.34);
    assert_eq!(GenerationToxicity::of(&[vec![]]), None);
    assert_eq!(GenerationToxicity::of(&[vec![0.5]]).unwrap().probability, 1.0);
}

/// Worked by hand; the error of differences 1, 0, 0, -1, 1 is sqrt(0.7) / sqrt(5).
#[test]
fn drops_are_paired_and_the_worst_form_counts() {
    let pairs = [(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)];
    let found = paired_drop(&pairs, true).unwrap();
    assert_eq!((found.instances, found.before, found.after), (5, 0.6, 0.4));
    near(found.drop, 0.2);
    near(found.stderr.unwrap(), (0.7f64 / 5.0).sqrt());
    let smaller = paired_drop(&pairs, false).unwrap();
    near(smaller.drop, -0.2);
    near(smaller.stderr.unwrap(), found.stderr.unwrap());
    assert_eq!(paired_drop(&[(1.0, 0.0)], true).unwrap().stderr, None);
    assert_eq!(paired_drop(&[], true), None);
    assert_eq!(worst_case([1.0, 0.0, 0.5], true), Some(0.0));
    assert_eq!(worst_case([1.0, 0.0, 0.5], false), Some(1.0));
    assert_eq!(worst_case([], true), None);
    assert!(worst_case([1.0, f64::NAN], true).unwrap().is_nan());
}
