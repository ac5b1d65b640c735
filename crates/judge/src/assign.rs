//! Choice of the next task of a judge.

use crate::store::Judgement;
use crate::study::{Question, Study};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Of so many tasks of a judge one is a repetition.
const REPEAT_EVERY: usize = 10;
/// Tasks that lie between a task and its repetition at least.
const REPEAT_AFTER: usize = 5;

/// Subject of a judgement: an item and one or two of its texts, by their places in the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskKey {
    /// Place of the item.
    pub item: usize,
    /// Place of the text, or of the first of two, in the item's.
    pub first: usize,
    /// Place of the second text, if two are compared; behind the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<usize>,
}

/// A task as a judge gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Subject of the judgement.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Whether the second text stands left.
    pub turned: bool,
    /// Whether the judge has judged this before.
    pub repeated: bool,
}

/// A judgement that was made, for the choice of the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged<'a> {
    /// Name of the judge.
    pub judge: &'a str,
    /// Subject of the judgement.
    pub key: TaskKey,
    /// Whether the second text stood left.
    pub turned: bool,
    /// Whether it was a repetition.
    pub repeated: bool,
}

impl<'a> From<&'a Judgement> for Judged<'a> {
    fn from(one: &'a Judgement) -> Judged<'a> {
        let Task { key, turned, repeated } = one.task;
        Judged { judge: &one.judge, key, turned, repeated }
    }
}

/// All tasks of a study.
pub(crate) fn tasks(study: &Study) -> Vec<TaskKey> {
    let mut all = Vec::new();
    for (item, texts) in study.items.iter().map(|item| item.texts.len()).enumerate() {
        for first in 0..texts {
            match study.question {
                Question::Scale { .. } => all.push(TaskKey { item, first, second: None }),
                Question::Pairs { .. } => {
                    all.extend((first + 1..texts).map(|second| TaskKey {
                        item,
                        first,
                        second: Some(second),
                    }));
                }
            }
        }
    }
    all
}

/// A number that looks random, of a seed, a judge and a task.
fn draw(study: &Study, judge: &str, key: TaskKey) -> u64 {
    let mut bytes = study.seed.to_le_bytes().to_vec();
    for part in [key.item, key.first, key.second.unwrap_or(usize::MAX)] {
        bytes.extend((part as u64).to_le_bytes());
    }
    bytes.extend(judge.as_bytes());
    xxh3_64(&bytes)
}

/// The next task of a judge: of those that the judge has not had and that need judgements, one with the fewest, drawn by the seed; now
/// and then one that the judge has had, turned round. None once nothing is left. `judged`: all judgements, the oldest first.
pub fn next_task(study: &Study, judge: &str, judged: &[Judged<'_>]) -> Option<Task> {
    let own: Vec<&Judged<'_>> = judged.iter().filter(|one| one.judge == judge).collect();
    if own.len() % REPEAT_EVERY == REPEAT_EVERY - 1
        && let Some(task) = repetition(study, judge, &own)
    {
        return Some(task);
    }
    let had: BTreeSet<TaskKey> = own.iter().map(|one| one.key).collect();
    let mut counts: BTreeMap<TaskKey, u32> = BTreeMap::new();
    for one in judged.iter().filter(|one| !one.repeated) {
        *counts.entry(one.key).or_default() += 1;
    }
    let count = |key: &TaskKey| counts.get(key).copied().unwrap_or(0);
    let open = tasks(study).into_iter().filter(|key| !had.contains(key) && count(key) < study.judgements);
    let key = open.min_by_key(|key| (count(key), draw(study, judge, *key)))?;
    let turned = key.second.is_some() && draw(study, judge, key).count_ones() % 2 == 1;
    Some(Task { key, turned, repeated: false })
}

/// A task that the judge had some time ago and that has not come again.
fn repetition(study: &Study, judge: &str, own: &[&Judged<'_>]) -> Option<Task> {
    let again: BTreeSet<TaskKey> = own.iter().filter(|one| one.repeated).map(|one| one.key).collect();
    let old = &own[..own.len().saturating_sub(REPEAT_AFTER)];
    let open = old.iter().filter(|one| !one.repeated && !again.contains(&one.key));
    let one = open.min_by_key(|one| draw(study, judge, one.key))?;
    Some(Task { key: one.key, turned: one.key.second.is_some() && !one.turned, repeated: true })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::study::{Item, SystemText};

    pub(crate) fn study(items: usize, systems: &[&str], judgements: u32) -> Study {
        let text = |item: usize, system: &&str| SystemText {
            system: (*system).into(),
            text: format!("{system} {item}"),
            log_probability: None,
            turns: Vec::new(),
        };
        let item = |i: usize| Item {
            id: i.to_string(),
            prompt: format!("prompt {i}"),
            turns: Vec::new(),
            references: Vec::new(),
            texts: systems.iter().map(|system| text(i, system)).collect(),
        };
        Study {
            question: Question::Pairs { text: "Which is better?".into() },
            judgements,
            seed: 7,
            items: (0..items).map(item).collect(),
        }
    }

    /// All tasks that judges get if they take turns until nothing is left for them.
    fn all<'a>(study: &Study, judges: &[&'a str]) -> Vec<Judged<'a>> {
        let mut judged: Vec<Judged<'a>> = Vec::new();
        loop {
            let before = judged.len();
            for judge in judges {
                if let Some(task) = next_task(study, judge, &judged) {
                    judged.push(Judged {
                        judge,
                        key: task.key,
                        turned: task.turned,
                        repeated: task.repeated,
                    });
                }
            }
            if judged.len() == before {
                return judged;
            }
        }
    }

    #[test]
    fn every_task_gets_its_judgements_from_different_judges() {
        let study = study(20, &["a", "b", "c"], 2);
        let judged = all(&study, &["ann", "bob", "cem"]);
        let mut counts: BTreeMap<TaskKey, BTreeSet<&str>> = BTreeMap::new();
        for one in judged.iter().filter(|one| !one.repeated) {
            assert!(counts.entry(one.key).or_default().insert(one.judge), "nobody judges twice: {one:?}");
        }
        assert_eq!(counts.len(), 60);
        assert!(counts.values().all(|judges| judges.len() == 2));
        // Half stand turned, give or take three deviations of 120 tosses.
        let turned = judged.iter().filter(|one| !one.repeated && one.turned).count();
        assert!((44..=76).contains(&turned), "{turned}");
    }

    #[test]
    fn one_in_ten_comes_again_turned_round() {
        let study = study(100, &["a", "b"], 1);
        let judged = all(&study, &["ann"]);
        let repeated: Vec<_> = judged.iter().enumerate().filter(|(_, one)| one.repeated).collect();
        assert_eq!(judged.len(), 111, "100 and 11 repetitions");
        for (place, one) in repeated {
            let first = judged.iter().position(|other| other.key == one.key).unwrap();
            assert!(place - first > REPEAT_AFTER && judged[first].turned != one.turned, "{first} {place}");
        }
    }

    #[test]
    fn the_order_differs_between_judges_and_not_between_runs() {
        let study = study(30, &["a", "b"], 2);
        let order = |judge| all(&study, &[judge]).into_iter().map(|one| one.key).collect::<Vec<_>>();
        assert_eq!(order("ann"), order("ann"));
        assert_ne!(order("ann"), order("bob"));
    }
}
