//! What the verdicts of a model say, and how far they are to be believed.

use super::JudgeTemplate;
use crate::assign::{Task, TaskKey};
use crate::results::{Likert, Rating, longer_won, standings};
use crate::store::Judgement;
use crate::study::{Question, Study};
use crate::verdicts::{ModelJudge, Verdict};
use bessemer_metrics::judgement::{Scale, cohen_kappa, krippendorff_alpha};
use bessemer_units::stats;
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of a judge that is a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFacts {
    /// Name of the judge.
    pub judge: String,
    /// The model.
    pub model: String,
    /// How its verdicts were obtained.
    pub method: String,
    /// Name of the template.
    pub template: String,
    /// Tasks with a verdict, of comparisons in both orders.
    pub tasks: usize,
    /// Answers in which no verdict could be read.
    pub unparsed: usize,
    /// Share of comparisons in which both orders said the same (position consistency, Zheng et al. 2023).
    pub consistent: Option<f64>,
    /// Share of comparisons in which both times the text that stood first won, and the same of the second.
    pub always_first: Option<f64>,
    /// See `always_first`.
    pub always_second: Option<f64>,
    /// Share of comparisons with a winner in which the longer text won.
    pub longer: Option<f64>,
    /// Systems compared, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratings: Vec<Rating>,
    /// Systems rated, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scale: Vec<Likert>,
    /// Agreement with people, if both have judged a task.
    pub agreement: Option<Agreement>,
}

/// Agreement of a model with people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Tasks that both have judged.
    pub tasks: usize,
    /// Mean over tasks of the share of people who say what the model says; of points, to the whole one. (Zheng et al. 2023, setup S1.)
    pub same: f64,
    /// The same among winners alone, ties and inconsistent verdicts left out (setup S2).
    pub same_winner: Option<f64>,
    /// Share of tasks in which the model's mean log-odds over both orders leans to the side that most people with a winner chose. It holds what the model knows when its
    /// preference for a place outweighs it. Of likelihoods alone.
    pub leaning: Option<f64>,
    /// Cohen's kappa of the pairs of one person and the model, of comparisons.
    pub kappa: Option<f64>,
    /// Krippendorff's alpha (interval) of each person and the model, of a scale.
    pub alpha: Option<f64>,
    /// Mean distance between the model's point and the mean of people's, of a scale.
    pub distance: Option<f64>,
    /// The same shares of people among each other, where two judged a task.
    pub people: Option<PeopleAgreement>,
}

/// Agreement of people among each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeopleAgreement {
    /// Tasks that two people or more have judged.
    pub tasks: usize,
    /// Mean over tasks of the share of pairs of people who say the same.
    pub same: f64,
    /// The same among winners alone.
    pub same_winner: Option<f64>,
}

/// The verdict on each task: of a comparison 1 or 0 if both orders say so, else 0.5; the point of a scale. Tasks without readable verdicts in both orders
/// are left out. `verdicts`: of one judge.
pub fn combined(verdicts: &[&Verdict]) -> BTreeMap<TaskKey, f64> {
    both_orders(verdicts)
        .into_iter()
        .filter_map(|(key, [straight, turned])| {
            let choice = match (key.second, straight?.choice?) {
                (None, choice) => choice,
                (Some(_), choice) if turned?.choice? == choice => choice,
                (Some(_), _) => 0.5,
            };
            Some((key, choice))
        })
        .collect()
}

fn both_orders<'a>(verdicts: &[&'a Verdict]) -> BTreeMap<TaskKey, [Option<&'a Verdict>; 2]> {
    let mut orders: BTreeMap<TaskKey, [Option<&Verdict>; 2]> = BTreeMap::new();
    for one in verdicts {
        orders.entry(one.key).or_default()[usize::from(one.turned)] = Some(one);
    }
    orders
}

/// Figures of each judge that is a model, with intervals from `samples` samples of the items.
pub fn model_facts(
    study: &Study,
    judges: &[ModelJudge],
    verdicts: &[Verdict],
    people: &[Judgement],
    samples: usize,
    seed: u64,
) -> Vec<ModelFacts> {
    let mut said: BTreeMap<TaskKey, Vec<f64>> = BTreeMap::new();
    for one in people.iter().filter(|one| !one.task.repeated) {
        said.entry(one.task.key).or_default().push(one.choice);
    }
    judges
        .iter()
        .map(|judge| {
            let own: Vec<&Verdict> = verdicts.iter().filter(|one| one.judge == judge.name).collect();
            let choices = combined(&own);
            let judgements: Vec<Judgement> =
                choices.iter().map(|(key, choice)| as_judgement(&judge.name, *key, *choice)).collect();
            let (ratings, scale) = standings(study, &judgements, samples, seed);
            let [consistent, always_first, always_second] = places(&own);
            ModelFacts {
                judge: judge.name.clone(),
                model: judge.model.clone(),
                method: judge.method.clone(),
                template: JudgeTemplate::parse(&judge.name, &judge.template)
                    .map_or_else(|_| "unreadable".into(), |template| template.name().to_owned()),
                tasks: choices.len(),
                unparsed: own.iter().filter(|one| one.choice.is_none()).count(),
                consistent,
                always_first,
                always_second,
                longer: longer_won(study, judgements.iter()),
                ratings,
                scale,
                agreement: agreement(study, &own, &choices, &said),
            }
        })
        .collect()
}

fn as_judgement(judge: &str, key: TaskKey, choice: f64) -> Judgement {
    let task = Task { key, turned: false, repeated: false };
    Judgement { judge: judge.to_owned(), task, choice, seconds: None, at: 0 }
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Shares of the comparisons in which both orders say the same, in which both times the first text shown won, and the second.
fn places(own: &[&Verdict]) -> [Option<f64>; 3] {
    let pairs: Vec<(f64, f64)> = both_orders(own)
        .into_iter()
        .filter(|(key, _)| key.second.is_some())
        .filter_map(|(_, [straight, turned])| Some((straight?.choice?, turned?.choice?)))
        .collect();
    let of = |wanted: &dyn Fn(&&(f64, f64)) -> bool| share(pairs.iter().filter(wanted).count(), pairs.len());
    [of(&|(a, b)| a == b), of(&|pair| **pair == (1.0, 0.0)), of(&|pair| **pair == (0.0, 1.0))]
}

/// Mean of shares; none of none.
fn mean(shares: &[f64]) -> Option<f64> {
    (!shares.is_empty()).then(|| stats::mean(shares))
}

fn is_winner(choice: f64) -> bool {
    choice == 0.0 || choice == 1.0
}

fn agreement(
    study: &Study,
    own: &[&Verdict],
    choices: &BTreeMap<TaskKey, f64>,
    said: &BTreeMap<TaskKey, Vec<f64>>,
) -> Option<Agreement> {
    let pairs = matches!(study.question, Question::Pairs { .. });
    let both: Vec<(f64, &Vec<f64>)> =
        choices.iter().filter_map(|(key, choice)| Some((*choice, said.get(key)?))).collect();
    let as_said = |choice: f64| if pairs { choice } else { choice.round() };
    let alike = |choice: f64, people: &[f64]| {
        share(people.iter().filter(|one| **one == as_said(choice)).count(), people.len())
    };
    let same: Vec<f64> = both.iter().filter_map(|(choice, people)| alike(*choice, people)).collect();
    let same_winner: Vec<f64> = both
        .iter()
        .filter(|(choice, _)| pairs && is_winner(*choice))
        .filter_map(|(choice, people)| {
            let winners: Vec<f64> = people.iter().copied().filter(|one| is_winner(*one)).collect();
            alike(*choice, &winners)
        })
        .collect();
    let each: Vec<(f64, f64)> =
        both.iter().flat_map(|(choice, people)| people.iter().map(|one| (*one, *choice))).collect();
    let number = |choice: f64| (2.0 * choice) as usize;
    let rows: Vec<Vec<f64>> = each.iter().map(|(person, model)| vec![*person, *model]).collect();
    let distances: Vec<f64> =
        both.iter().filter_map(|(choice, people)| Some((choice - mean(people)?).abs())).collect();
    Some(Agreement {
        tasks: both.len(),
        same: mean(&same)?,
        same_winner: mean(&same_winner),
        leaning: leaning(own, said).filter(|_| pairs),
        kappa: cohen_kappa(&each.iter().map(|(a, b)| (number(*a), number(*b))).collect::<Vec<_>>())
            .filter(|_| pairs),
        alpha: krippendorff_alpha(&rows, Scale::Interval).filter(|_| !pairs),
        distance: mean(&distances).filter(|_| !pairs),
        people: people_agreement(pairs, said),
    })
}

/// Share of tasks in which the mean log-odds over both orders leans to the side that more people chose.
fn leaning(own: &[&Verdict], said: &BTreeMap<TaskKey, Vec<f64>>) -> Option<f64> {
    let odds = |one: &Verdict| {
        let scores = one.scores.as_ref()?;
        let shown = scores.first()? - scores.get(1)?;
        Some(if one.turned { -shown } else { shown })
    };
    let mut right = Vec::new();
    for (key, [straight, turned]) in both_orders(own) {
        let (Some(straight), Some(turned), Some(people)) =
            (straight.and_then(odds), turned.and_then(odds), said.get(&key))
        else {
            continue;
        };
        let balance: f64 = people.iter().map(|one| one - 0.5).sum();
        let lean = straight + turned;
        if balance != 0.0 && lean != 0.0 && lean.is_finite() {
            right.push(f64::from(u8::from((balance > 0.0) == (lean > 0.0))));
        }
    }
    mean(&right)
}

fn people_agreement(pairs: bool, said: &BTreeMap<TaskKey, Vec<f64>>) -> Option<PeopleAgreement> {
    // Of n people who said the same, n (n - 1) ordered pairs agree.
    let alike = |people: &[f64]| {
        let agreeing: usize =
            people.iter().map(|one| people.iter().filter(|other| *other == one).count() - 1).sum();
        share(agreeing, people.len() * people.len().saturating_sub(1))
    };
    let same: Vec<f64> = said.values().filter_map(|people| alike(people)).collect();
    let winners = said.values().filter_map(|people| {
        alike(&people.iter().copied().filter(|one| is_winner(*one)).collect::<Vec<_>>())
    });
    let same_winner = if pairs { mean(&winners.collect::<Vec<_>>()) } else { None };
    Some(PeopleAgreement { tasks: same.len(), same: mean(&same)?, same_winner })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::tests::study;

    fn verdict(item: usize, turned: bool, choice: Option<f64>, scores: Option<[f64; 2]>) -> Verdict {
        Verdict {
            judge: "m".into(),
            key: TaskKey { item, first: 0, second: Some(1) },
            turned,
            choice,
            scores: scores.map(Vec::from),
            answer: None,
            at: 0,
        }
    }

    fn person(judge: &str, item: usize, choice: f64) -> Judgement {
        as_judgement(judge, TaskKey { item, first: 0, second: Some(1) }, choice)
    }

    fn judge() -> ModelJudge {
        let template = JudgeTemplate::shipped("pair").unwrap().text().to_owned();
        ModelJudge { name: "m".into(), model: "tiny".into(), method: "likelihood".into(), template }
    }

    #[test]
    fn a_win_takes_both_orders_and_places_are_counted() {
        let mut study = study(6, &["a", "b"], 1);
        for item in &mut study.items {
            item.texts[1].text += " and longer";
        }
        // Item 0: b in both; 1: a in both; 2: the first shown; 3: the second shown; 4: one tie; 5: one not read.
        let all: Vec<Verdict> = [
            (0, Some(0.0), Some(0.0)),
            (1, Some(1.0), Some(1.0)),
            (2, Some(1.0), Some(0.0)),
            (3, Some(0.0), Some(1.0)),
            (4, Some(0.5), Some(1.0)),
            (5, Some(1.0), None),
        ]
        .into_iter()
        .flat_map(|(item, straight, turned)| {
            [verdict(item, false, straight, None), verdict(item, true, turned, None)]
        })
        .collect();
        let facts = &model_facts(&study, &[judge()], &all, &[], 0, 1)[0];
        assert_eq!((facts.tasks, facts.unparsed, facts.template.as_str()), (5, 1, "pair"));
        assert_eq!(
            (facts.consistent, facts.always_first, facts.always_second),
            (Some(0.4), Some(0.2), Some(0.2))
        );
        assert_eq!(facts.longer, Some(0.5), "of the two with a winner");
        assert_eq!((facts.ratings[0].won, facts.ratings[0].comparisons), (0.5, 5));
        assert_eq!(facts.agreement, None);
    }

    /// Cohen's kappa of the same lists by scikit-learn: `cohen_kappa_score([2,2,2,0,0,1,2,0], [2,2,2,2,0,1,1,0])` = 0.6.
    #[test]
    fn agreement_with_people_counts_all_verdicts_or_winners_alone() {
        let study = study(5, &["a", "b"], 3);
        let model = [1.0, 1.0, 0.0, 0.5, 0.5];
        let all: Vec<Verdict> = model
            .iter()
            .enumerate()
            .flat_map(|(item, choice)| [false, true].map(|turned| verdict(item, turned, Some(*choice), None)))
            .collect();
        let people = [
            person("ann", 0, 1.0),
            person("bob", 0, 1.0),
            person("ann", 1, 1.0),
            person("bob", 1, 0.0),
            person("ann", 2, 0.0),
            person("ann", 3, 0.5),
            person("bob", 3, 1.0),
            person("bob", 2, 0.0),
        ];
        let facts = &model_facts(&study, &[judge()], &all, &people, 0, 1)[0];
        let agreement = facts.agreement.as_ref().unwrap();
        assert_eq!(agreement.tasks, 4);
        assert_eq!(agreement.same, (1.0 + 0.5 + 1.0 + 0.5) / 4.0);
        assert_eq!(agreement.same_winner, Some((1.0 + 0.5 + 1.0) / 3.0));
        let kappa = agreement.kappa.unwrap();
        assert!((kappa - 0.6).abs() < 1e-12, "{kappa}");
        let among = agreement.people.as_ref().unwrap();
        assert_eq!((among.tasks, among.same), (4, 0.5));
        assert_eq!(among.same_winner, Some(2.0 / 3.0));
    }

    #[test]
    fn log_odds_over_both_orders_see_past_a_preference_for_the_first() {
        let study = study(2, &["a", "b"], 1);
        // The first shown always wins by 3 nats, less or more by 1 for the better text: a in item 0, b in item 1.
        let scores = |sign: f64| [(false, [-1.0, -4.0 - sign]), (true, [-1.0, -4.0 + sign])];
        let all: Vec<Verdict> = [(0, 1.0), (1, -1.0)]
            .into_iter()
            .flat_map(|(item, sign)| {
                scores(sign)
                    .map(|(turned, s)| verdict(item, turned, Some(f64::from(u8::from(!turned))), Some(s)))
            })
            .collect();
        let people = [person("ann", 0, 1.0), person("ann", 1, 0.0)];
        let facts = &model_facts(&study, &[judge()], &all, &people, 0, 1)[0];
        assert_eq!((facts.always_first, facts.consistent), (Some(1.0), Some(0.0)));
        let agreement = facts.agreement.as_ref().unwrap();
        assert_eq!((agreement.same, agreement.same_winner, agreement.leaning), (0.0, None, Some(1.0)));
    }

    #[test]
    fn points_agree_to_the_whole_one_and_by_distance() {
        let mut study = study(2, &["a"], 1);
        study.question =
            Question::Scale { text: "?".into(), labels: (1..=5).map(|i| i.to_string()).collect() };
        let key = |item| TaskKey { item, first: 0, second: None };
        let all: Vec<Verdict> = [(0, 3.8), (1, 2.0)]
            .into_iter()
            .map(|(item, choice)| Verdict { key: key(item), ..verdict(item, false, Some(choice), None) })
            .collect();
        let people = [as_judgement("ann", key(0), 4.0), as_judgement("ann", key(1), 3.0)];
        let facts = &model_facts(&study, &[judge()], &all, &people, 0, 1)[0];
        assert_eq!((facts.tasks, facts.consistent, facts.scale[0].mean), (2, None, 2.9));
        assert_eq!(facts.scale[0].counts, [0, 1, 0, 1, 0]);
        let agreement = facts.agreement.as_ref().unwrap();
        assert_eq!((agreement.same, agreement.same_winner, agreement.kappa), (0.5, None, None));
        assert!((agreement.distance.unwrap() - 0.6).abs() < 1e-12);
        assert!(agreement.alpha.is_some());
    }
}
