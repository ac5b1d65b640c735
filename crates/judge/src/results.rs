//! Results of judgements.
//!
//! Intervals hold 95 % of the samples of items, drawn with replacement: items differ, and other items would have been judged otherwise.

use crate::store::Judgement;
use crate::study::{Question, Study};
use bessemer_metrics::bootstrap::Resamples;
use bessemer_metrics::judgement::{
    Comparison, Huse, JudgedSentence, Scale, bradley_terry, elo, huse, krippendorff_alpha,
};
use bessemer_units::stats::upper_median;
use serde::Serialize;
use std::collections::BTreeMap;

/// Step of Elo's update.
const ELO_STEP: f64 = 4.0;

/// A system's standing in comparisons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rating {
    /// Name of the system.
    pub system: String,
    /// Comparisons that it was in.
    pub comparisons: usize,
    /// Share of them that it won, a tie counted half.
    pub won: f64,
    /// Rating by Bradley and Terry, 1000 in the mean, 400 points for odds of ten to one; none where no finite rating is best.
    pub rating: Option<f64>,
    /// Interval of the rating.
    pub interval: Option<[f64; 2]>,
    /// Rating by Elo's update in the order of the judgements.
    pub elo: f64,
}

/// A system's standing on a scale.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Likert {
    /// Name of the system.
    pub system: String,
    /// Judgements.
    pub judgements: usize,
    /// Mean over items of the mean over judges.
    pub mean: f64,
    /// Interval of the mean.
    pub interval: Option<[f64; 2]>,
    /// Judgements of each point.
    pub counts: Vec<usize>,
}

/// A judge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgeFacts {
    /// Name.
    pub judge: String,
    /// Judgements, repetitions left out.
    pub judgements: usize,
    /// Tasks that came again.
    pub repeated: usize,
    /// Share of these that were judged as before.
    pub constancy: Option<f64>,
    /// Share of comparisons with a winner in which that stood left.
    pub left: Option<f64>,
    /// Share of comparisons with a winner in which that was the longer text.
    pub longer: Option<f64>,
    /// Median time of a judgement, seconds.
    pub seconds: Option<f64>,
}

/// Results of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Results {
    /// Tasks of the study.
    pub tasks: usize,
    /// Judgements that are wanted.
    pub wanted: usize,
    /// Judgements, repetitions left out.
    pub judgements: usize,
    /// Systems compared, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratings: Vec<Rating>,
    /// Wins of the system of a row over that of a column, in the order of the ratings, ties counted half.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wins: Vec<Vec<f64>>,
    /// Systems rated, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scale: Vec<Likert>,
    /// Krippendorff's alpha: nominal for comparisons, ordinal for a scale. None where nobody judged what another has judged.
    pub agreement: Option<f64>,
    /// Judges, by name.
    pub judges: Vec<JudgeFacts>,
    /// HUSE of each system against the reference system, if one was named and both have probabilities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub huse: Vec<(String, HuseFigures)>,
}

/// HUSE and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HuseFigures {
    /// 1 if no classifier that sees judgement and probability tells system and reference apart.
    pub huse: f64,
    /// Twice the error of a classifier that sees the judgement alone.
    pub quality: f64,
    /// `1 + HUSE - quality`.
    pub diversity: f64,
}

impl From<Huse> for HuseFigures {
    fn from(h: Huse) -> HuseFigures {
        HuseFigures { huse: h.huse, quality: h.quality, diversity: h.diversity }
    }
}

impl Results {
    /// Results of judgements, with intervals from `samples` samples of the items. `human`: the system whose texts people wrote, for HUSE.
    pub fn of(
        study: &Study,
        judgements: &[Judgement],
        human: Option<&str>,
        samples: usize,
        seed: u64,
    ) -> Results {
        let first: Vec<&Judgement> = judgements.iter().filter(|one| !one.task.repeated).collect();
        let tasks = crate::assign::tasks(study).len();
        let mut results = Results {
            tasks,
            wanted: tasks * study.judgements as usize,
            judgements: first.len(),
            ratings: Vec::new(),
            wins: Vec::new(),
            scale: Vec::new(),
            agreement: agreement(study, &first),
            judges: judges(study, judgements),
            huse: Vec::new(),
        };
        let sampled = Resamples { units: study.items.len(), samples, seed };
        match study.question {
            Question::Pairs { .. } => (results.ratings, results.wins) = ratings(study, &first, &sampled),
            Question::Scale { ref labels, .. } => {
                results.scale = scale(study, &first, labels.len(), &sampled);
                results.huse = human.map_or_else(Vec::new, |human| huse_of(study, &first, human));
            }
        }
        results
    }
}

/// Systems' ratings, or their means on a scale, by judgements that came once.
pub(crate) fn standings(
    study: &Study,
    judgements: &[Judgement],
    samples: usize,
    seed: u64,
) -> (Vec<Rating>, Vec<Likert>) {
    let first: Vec<&Judgement> = judgements.iter().collect();
    let sampled = Resamples { units: study.items.len(), samples, seed };
    match study.question {
        Question::Pairs { .. } => (ratings(study, &first, &sampled).0, Vec::new()),
        Question::Scale { ref labels, .. } => (Vec::new(), scale(study, &first, labels.len(), &sampled)),
    }
}

/// Share of comparisons with a winner, of texts that differ in length, in which the longer text won.
pub(crate) fn longer_won<'a>(study: &Study, judgements: impl Iterator<Item = &'a Judgement>) -> Option<f64> {
    let (mut longer, mut all) = (0, 0);
    for one in judgements.filter(|one| one.choice != 0.5) {
        let key = one.task.key;
        let length = |text: usize| study.items[key.item].texts[text].text.chars().count();
        let Some((first, second)) = key.second.map(|second| (length(key.first), length(second))) else {
            continue;
        };
        if first != second {
            all += 1;
            longer += usize::from((first > second) == (one.choice == 1.0));
        }
    }
    (all > 0).then(|| longer as f64 / f64::from(all))
}

/// Place of the system of a text among the sorted names.
fn system(study: &Study, systems: &[&str], item: usize, text: usize) -> usize {
    let name = study.items[item].texts[text].system.as_str();
    systems.binary_search(&name).unwrap_or(0)
}

fn ratings(study: &Study, first: &[&Judgement], samples: &Resamples) -> (Vec<Rating>, Vec<Vec<f64>>) {
    let systems = study.systems();
    let comparisons: Vec<(usize, Comparison)> = first
        .iter()
        .filter_map(|one| {
            let key = one.task.key;
            let of = |text| system(study, &systems, key.item, text);
            Some((key.item, Comparison { first: of(key.first), second: of(key.second?), score: one.choice }))
        })
        .collect();
    let all: Vec<Comparison> = comparisons.iter().map(|(_, comparison)| *comparison).collect();
    let rated = bradley_terry(systems.len(), &all);
    let intervals = samples.intervals(systems.len(), |weights| {
        let sample = comparisons.iter().flat_map(|(item, one)| std::iter::repeat_n(*one, weights[*item]));
        bradley_terry(systems.len(), &sample.collect::<Vec<_>>())
    });
    let by_elo = elo(systems.len(), &all, ELO_STEP);
    let mut wins = vec![vec![0.0; systems.len()]; systems.len()];
    let mut counts = vec![0; systems.len()];
    for one in &all {
        wins[one.first][one.second] += one.score;
        wins[one.second][one.first] += 1.0 - one.score;
        counts[one.first] += 1;
        counts[one.second] += 1;
    }
    let won = |i: usize| wins[i].iter().sum::<f64>() / counts[i].max(1) as f64;
    let mut order: Vec<usize> = (0..systems.len()).collect();
    let standing = |i: usize| rated.as_ref().map_or_else(|| won(i), |rated| rated[i]);
    order.sort_by(|a, b| standing(*b).total_cmp(&standing(*a)));
    let rows = order.iter().map(|&i| Rating {
        system: systems[i].to_owned(),
        comparisons: counts[i],
        won: won(i),
        rating: rated.as_ref().map(|rated| rated[i]),
        interval: rated.as_ref().and(intervals[i]),
        elo: by_elo[i],
    });
    let table = order.iter().map(|&i| order.iter().map(|&j| wins[i][j]).collect());
    (rows.collect(), table.collect())
}

/// Mean judgement of each judged text.
fn means(first: &[&Judgement]) -> BTreeMap<(usize, usize), f64> {
    let mut sums: BTreeMap<(usize, usize), (f64, usize)> = BTreeMap::new();
    for one in first {
        let sum = sums.entry((one.task.key.item, one.task.key.first)).or_default();
        *sum = (sum.0 + one.choice, sum.1 + 1);
    }
    sums.into_iter().map(|(key, (sum, count))| (key, sum / count as f64)).collect()
}

fn scale(study: &Study, first: &[&Judgement], points: usize, samples: &Resamples) -> Vec<Likert> {
    let systems = study.systems();
    let mut counts = vec![vec![0; points]; systems.len()];
    for one in first {
        let point = (one.choice.round() as usize).clamp(1, points) - 1;
        counts[system(study, &systems, one.task.key.item, one.task.key.first)][point] += 1;
    }
    let texts: Vec<(usize, usize, f64)> = means(first)
        .into_iter()
        .map(|((item, text), mean)| (item, system(study, &systems, item, text), mean))
        .collect();
    let of = |weights: &[usize]| {
        let mut sums = vec![(0.0, 0); systems.len()];
        for (item, system, mean) in &texts {
            let weight = weights[*item];
            sums[*system] = (sums[*system].0 + weight as f64 * mean, sums[*system].1 + weight);
        }
        Some(sums.into_iter().map(|(sum, count)| sum / count as f64).collect::<Vec<f64>>())
    };
    let all = of(&vec![1; study.items.len()]).unwrap_or_default();
    let intervals = samples.intervals(systems.len(), of);
    let mut rows: Vec<Likert> = systems
        .iter()
        .enumerate()
        .filter(|(i, _)| all[*i].is_finite())
        .map(|(i, name)| Likert {
            system: (*name).to_owned(),
            judgements: counts[i].iter().sum(),
            mean: all[i],
            interval: intervals[i],
            counts: counts[i].clone(),
        })
        .collect();
    rows.sort_by(|a, b| b.mean.total_cmp(&a.mean));
    rows
}

fn agreement(study: &Study, first: &[&Judgement]) -> Option<f64> {
    let mut values: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for one in first {
        values.entry(one.task.key).or_default().push(one.choice);
    }
    let scale = match study.question {
        Question::Pairs { .. } => Scale::Nominal,
        Question::Scale { .. } => Scale::Ordinal,
    };
    krippendorff_alpha(&values.into_values().collect::<Vec<_>>(), scale)
}

fn judges(study: &Study, judgements: &[Judgement]) -> Vec<JudgeFacts> {
    let mut by_judge: BTreeMap<&str, Vec<&Judgement>> = BTreeMap::new();
    for one in judgements {
        by_judge.entry(&one.judge).or_default().push(one);
    }
    let facts = by_judge.into_iter().map(|(judge, all)| {
        let (again, first): (Vec<&Judgement>, Vec<&Judgement>) =
            all.into_iter().partition(|one| one.task.repeated);
        let alike = again.iter().filter(|one| {
            first.iter().any(|before| before.task.key == one.task.key && before.choice == one.choice)
        });
        let won: Vec<bool> = first
            .iter()
            .filter(|one| one.task.key.second.is_some() && one.choice != 0.5)
            .map(|one| (one.choice == 1.0) != one.task.turned)
            .collect();
        let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
        let mut seconds: Vec<f64> = first.iter().filter_map(|one| one.seconds).collect();
        JudgeFacts {
            judge: judge.to_owned(),
            judgements: first.len(),
            repeated: again.len(),
            constancy: share(alike.count(), again.len()),
            left: share(won.iter().filter(|left| **left).count(), won.len()),
            longer: longer_won(study, first.iter().copied()),
            seconds: (!seconds.is_empty()).then(|| upper_median(&mut seconds)),
        }
    });
    facts.collect()
}

fn huse_of(study: &Study, first: &[&Judgement], human: &str) -> Vec<(String, HuseFigures)> {
    let means = means(first);
    let sentences = |name: &str, model: bool| -> Vec<JudgedSentence> {
        let texts = study.items.iter().enumerate().flat_map(|(i, item)| {
            item.texts
                .iter()
                .enumerate()
                .filter(|(_, text)| text.system == name)
                .map(move |(j, text)| (i, j, text))
        });
        texts
            .filter_map(|(i, j, text)| {
                Some(JudgedSentence {
                    judgement: *means.get(&(i, j))?,
                    log_probability: text.log_probability?,
                    model,
                })
            })
            .collect()
    };
    let reference = sentences(human, false);
    let systems = study.systems();
    let others = systems.iter().filter(|name| **name != human);
    others
        .filter_map(|name| {
            let both = [reference.clone(), sentences(name, true)].concat();
            Some(((*name).to_owned(), huse(&both)?.into()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::tests::study;
    use crate::assign::{Task, TaskKey};

    fn judgement(judge: &str, item: usize, choice: f64, turned: bool, repeated: bool) -> Judgement {
        let key = TaskKey { item, first: 0, second: Some(1) };
        Judgement {
            judge: judge.into(),
            task: Task { key, turned, repeated },
            choice,
            seconds: Some(item as f64),
            at: 0,
        }
    }

    #[test]
    fn three_wins_to_one_are_191_points_and_the_interval_holds_them() {
        let study = study(40, &["a", "b"], 1);
        let all: Vec<Judgement> = (0..40)
            .map(|item| judgement("ann", item, f64::from(u8::from(item % 4 != 0)), item % 2 == 0, false))
            .collect();
        let results = Results::of(&study, &all, None, 200, 1);
        let [a, b] = &results.ratings[..] else { panic!("two systems") };
        assert_eq!((a.system.as_str(), a.comparisons, a.won), ("a", 40, 0.75));
        let apart = a.rating.unwrap() - b.rating.unwrap();
        assert!((apart - 190.848_501_887_864_96).abs() < 1e-6, "{apart}");
        let [low, high] = a.interval.unwrap();
        assert!(low < a.rating.unwrap() && a.rating.unwrap() < high && high - low < 250.0, "{low} {high}");
        assert_eq!(results.wins, [[0.0, 30.0], [10.0, 0.0]]);
        assert_eq!((results.tasks, results.wanted, results.judgements), (40, 40, 40));
        assert_eq!(results.agreement, None, "each task was judged once");
        // All items with a multiple of four stand turned and were won by b, who stood left there; of the others half are turned.
        let left = results.judges[0].left.unwrap();
        assert_eq!(left, 30.0 / 40.0);
        assert_eq!(results, Results::of(&study, &all, None, 200, 1));
    }

    #[test]
    fn judges_are_constant_or_not_and_agree_or_not() {
        let study = study(4, &["a", "b"], 2);
        let mut all: Vec<Judgement> = (0..4).map(|i| judgement("ann", i, 1.0, false, false)).collect();
        all.extend((0..4).map(|i| judgement("bob", i, f64::from(u8::from(i != 3)), false, false)));
        all.push(judgement("ann", 0, 1.0, true, true));
        all.push(judgement("ann", 1, 0.5, true, true));
        let results = Results::of(&study, &all, None, 0, 1);
        assert_eq!(results.judges[0].constancy, Some(0.5));
        assert_eq!((results.judges[0].judgements, results.judges[0].repeated), (4, 2));
        assert_eq!(results.judges[1].constancy, None);
        // Of 4 pairs one differs: D_o = 2/8; values 7 and 1: D_e = 2 * 7 / (8 * 7); alpha = 1 - D_o / D_e = 0.
        assert!(results.agreement.unwrap().abs() < 1e-12);
        assert_eq!(results.ratings[0].interval, None, "no samples were asked for");
    }

    #[test]
    fn a_system_that_always_wins_has_no_rating_and_comes_first() {
        let study = study(3, &["a", "b"], 1);
        let all: Vec<Judgement> = (0..3).map(|i| judgement("ann", i, 0.0, false, false)).collect();
        let results = Results::of(&study, &all, None, 10, 1);
        assert_eq!((results.ratings[0].system.as_str(), results.ratings[0].rating), ("b", None));
        assert_eq!(results.ratings[0].won, 1.0);
    }

    #[test]
    fn a_scale_has_means_by_item_and_huse() {
        let mut study = study(40, &["human", "model"], 2);
        study.question =
            Question::Scale { text: "?".into(), labels: (1..=5).map(|i| i.to_string()).collect() };
        for (i, item) in study.items.iter_mut().enumerate() {
            item.texts[0].log_probability = Some(-3.0 - (i % 7) as f64 / 10.0);
            item.texts[1].log_probability = Some(-1.0 - (i % 7) as f64 / 10.0);
        }
        let mut all = Vec::new();
        for item in 0..40 {
            for (text, points) in [(0, [5.0, 4.0]), (1, [2.0, 3.0])] {
                for (judge, choice) in ["ann", "bob"].iter().zip(points) {
                    let key = TaskKey { item, first: text, second: None };
                    let task = Task { key, turned: false, repeated: false };
                    all.push(Judgement { judge: (*judge).into(), task, choice, seconds: None, at: 0 });
                }
            }
        }
        let results = Results::of(&study, &all, Some("human"), 50, 1);
        assert_eq!(
            (results.scale[0].system.as_str(), results.scale[0].mean, results.scale[1].mean),
            ("human", 4.5, 2.5)
        );
        assert_eq!(results.scale[0].counts, [0, 0, 0, 40, 40]);
        assert_eq!(results.scale[0].interval, Some([4.5, 4.5]), "all items are alike");
        // Judgement and probability tell the two apart without an error.
        assert_eq!(
            results.huse,
            [("model".to_owned(), HuseFigures { huse: 0.0, quality: 0.0, diversity: 1.0 })]
        );
    }
}
