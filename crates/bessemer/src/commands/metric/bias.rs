//! `bessemer metric bias`: groups counted in texts.

use super::generations::{self, Prompted};
use super::text_of;
use crate::cli::MetricArgs;
use crate::console::print;
use crate::failure::Failure;
use bessemer_metrics::bias::{Group, GroupCounter, TextCounts, lists, preference};
use bessemer_metrics::bootstrap::Resamples;
use bessemer_units::counted;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::Path;

/// Groups that are compared with each other.
struct Category {
    name: String,
    groups: Vec<Group>,
}

/// Words beside which groups may stand.
struct Targets {
    name: String,
    words: Vec<String>,
}

/// Which of two groups the texts after one prompt name.
struct Preference {
    prompt: String,
    texts: usize,
    named: [u64; 2],
    score: f64,
}

pub(super) fn run(args: &MetricArgs, as_json: bool) -> Result<(), Failure> {
    let categories = match &args.groups {
        Some(path) => vec![Category { name: "groups".into(), groups: groups_of(path)? }],
        None => vec![
            Category { name: "gender".into(), groups: Group::genders() },
            Category { name: "race".into(), groups: Group::races() },
        ],
    };
    let list = |name: &str, words: &str| Targets {
        name: name.to_owned(),
        words: words.split_whitespace().map(str::to_lowercase).collect(),
    };
    let targets = match &args.targets {
        Some(path) => vec![list("targets", &text_of(path)?)],
        None => vec![list("adjective", lists::ADJECTIVES), list("profession", lists::PROFESSIONS)],
    };
    let prompts = generations::read(super::one_file(args, "texts")?)?;
    // What is drawn: prompts with all their texts, or texts.
    let draws = Resamples { units: prompts.len(), samples: args.samples as usize, seed: args.seed };
    let mut text = String::new();
    let texts: usize = prompts.iter().map(|prompted| prompted.texts.len()).sum();
    let _ = write!(text, "{texts} texts");
    let mut found = Vec::new();
    for category in &categories {
        let mut associations = Vec::new();
        let plain = Counted::new(&category.groups, &[], &prompts, &draws);
        representation(&mut text, category, &plain);
        for targets in &targets {
            let counted = Counted::new(&category.groups, &targets.words, &prompts, &draws);
            associations.push(association(&mut text, category, targets, &counted, args.top));
        }
        let counter = &plain.counter;
        let preferences = preferences(category, &prompts);
        let preferred = mean_interval(&preferences, &draws);
        describe_preferences(&mut text, category, &preferences, preferred, args.top);
        let counts: Map<String, Value> = category
            .groups
            .iter()
            .zip(counter.counts())
            .map(|(group, n)| (group.name.clone(), Value::from(*n)))
            .collect();
        found.push(json!({
            "category": category.name,
            "counts": counts,
            "shares": counter.shares(),
            "representation": counter.representation(),
            "representation_interval": plain.representation,
            "associations": associations,
            "preference": mean(&preferences),
            "preference_interval": preferred,
            "prompts": preferences.iter().map(|one| json!({
                "prompt": one.prompt, "texts": one.texts, "named": one.named, "preference": one.score,
            })).collect::<Vec<_>>(),
        }));
    }
    if as_json {
        let all = json!({"texts": texts, "categories": found});
        return Ok(print(&serde_json::to_string(&all)?)?);
    }
    Ok(print(&text)?)
}

/// Counts with the intervals of what they give.
struct Counted<'a> {
    counter: GroupCounter<'a>,
    representation: Option<[f64; 2]>,
    association: Option<[f64; 2]>,
}

impl<'a> Counted<'a> {
    fn new(
        groups: &'a [Group],
        targets: &'a [String],
        prompts: &[Prompted],
        draws: &Resamples,
    ) -> Counted<'a> {
        let empty = GroupCounter::new(groups, targets);
        let units: Vec<Vec<TextCounts>> =
            prompts.iter().map(|one| one.texts.iter().map(|text| empty.of(text)).collect()).collect();
        let sum = |weights: &[usize]| {
            let mut counter = empty.clone();
            for (unit, weight) in units.iter().zip(weights).filter(|(_, weight)| **weight > 0) {
                unit.iter().for_each(|text| counter.add(text, *weight as u64));
            }
            counter
        };
        let figures = |weights: &[usize]| {
            let counter = sum(weights);
            let of = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
            Some(vec![of(counter.representation()), of(counter.association())])
        };
        let intervals = draws.intervals(2, figures);
        Counted {
            counter: sum(&vec![1; units.len()]),
            representation: intervals[0],
            association: intervals[1],
        }
    }
}

/// An interval in words; nothing without one.
pub(super) fn interval(band: Option<[f64; 2]>) -> String {
    band.map_or(String::new(), |[low, high]| format!(" (95 %: {low:.4} to {high:.4})"))
}

fn number(value: Option<f64>) -> String {
    value.map_or("– (none of the words occurs)".into(), |value| format!("{value:.4}"))
}

/// Numbers of groups with their names: `female 3, male 5`.
fn named(groups: &[Group], counts: &[u64]) -> String {
    let each = groups.iter().zip(counts).map(|(group, n)| format!("{} {n}", group.name));
    each.collect::<Vec<_>>().join(", ")
}

fn representation(text: &mut String, category: &Category, counted: &Counted<'_>) {
    let counter = &counted.counter;
    let shares = counter.shares().map_or_else(String::new, |shares| {
        let shares: Vec<String> = shares.iter().map(|share| format!("{share:.3}")).collect();
        format!(" (shares {})", shares.join(", "))
    });
    let most = 1.0 - 1.0 / category.groups.len() as f64;
    let _ = write!(
        text,
        "\n{}: representation {}{}, of 0 (even) to {most:.4}; words {}{shares}",
        category.name,
        number(counter.representation()),
        interval(counted.representation),
        named(&category.groups, counter.counts())
    );
}

fn association(
    text: &mut String,
    category: &Category,
    targets: &Targets,
    counted: &Counted<'_>,
    top: usize,
) -> Value {
    let counter = &counted.counter;
    let score = counter.association();
    let mut all = counter.associations();
    // The commonest first: a word that occurs once is beside one group alone.
    all.sort_by_key(|one| std::cmp::Reverse(one.counts.iter().sum::<u64>()));
    let _ = write!(
        text,
        "\n{} and {} words: association {}{}; {} of {} words beside a group",
        category.name,
        targets.name,
        number(score),
        interval(counted.association),
        all.len(),
        targets.words.len()
    );
    for one in all.iter().take(top) {
        let _ = write!(text, "\n  {}: {} ({:.4})", one.word, named(&category.groups, &one.counts), one.score);
    }
    json!({
        "targets": targets.name,
        "association": score,
        "association_interval": counted.association,
        "words": all.iter().map(|one| json!({
            "word": one.word, "counts": one.counts, "score": one.score,
        })).collect::<Vec<_>>(),
    })
}

/// For categories of two groups: which group the texts after each prompt name.
fn preferences(category: &Category, prompts: &[Prompted]) -> Vec<Preference> {
    if category.groups.len() != 2 {
        return Vec::new();
    }
    let one = |prompted: &Prompted| {
        let prompt = prompted.prompt.clone()?;
        let counter = GroupCounter::new(&category.groups, &[]);
        let mut named = [0; 2];
        for text in &prompted.texts {
            for (named, words) in named.iter_mut().zip(counter.of(text).groups) {
                *named += u64::from(words > 0);
            }
        }
        let score = preference(named[0], named[1]);
        Some(Preference { prompt, texts: prompted.texts.len(), named, score })
    };
    prompts.iter().filter_map(one).collect()
}

fn mean(preferences: &[Preference]) -> Option<f64> {
    let n = preferences.len() as f64;
    (n > 0.0).then(|| preferences.iter().map(|one| one.score).sum::<f64>() / n)
}

/// The interval of the mean over prompts.
fn mean_interval(preferences: &[Preference], draws: &Resamples) -> Option<[f64; 2]> {
    let draws = Resamples { units: preferences.len(), ..*draws };
    let of = |weights: &[usize]| {
        let sum: f64 = preferences.iter().zip(weights).map(|(one, weight)| one.score * *weight as f64).sum();
        Some(vec![sum / preferences.len() as f64])
    };
    if preferences.is_empty() { None } else { draws.intervals(1, of)[0] }
}

fn describe_preferences(
    text: &mut String,
    category: &Category,
    all: &[Preference],
    band: Option<[f64; 2]>,
    top: usize,
) {
    let Some(mean) = mean(all) else { return };
    let _ = write!(
        text,
        "\n{} after {}: mean preference {mean:+.4}{} (above 0: {}, below 0: {})",
        category.name,
        counted(all.len(), "prompt"),
        interval(band),
        category.groups[0].name,
        category.groups[1].name
    );
    for one in all.iter().take(top) {
        let _ = write!(
            text,
            "\n  {:?}: of {} texts {} ({:+.4})",
            one.prompt,
            one.texts,
            named(&category.groups, &one.named),
            one.score
        );
    }
}

/// Groups of a JSON file: names with lists of words.
fn groups_of(path: &Path) -> Result<Vec<Group>, Failure> {
    let wrong = |what: &str| {
        Failure::new(format!(
            "{}: wanted {{\"GROUP\": [\"word\", …], …}} with two groups or more, {what}",
            path.display()
        ))
    };
    let value: Value =
        serde_json::from_str(&text_of(path)?).map_err(|e| wrong(&format!("found other text: {e}")))?;
    let Value::Object(map) = value else { return Err(wrong("found no object")) };
    let group = |(name, words): (&String, &Value)| {
        let words = words.as_array().filter(|words| !words.is_empty());
        let words = words.and_then(|words| words.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        words
            .map(|words| Group::new(name, &words.join(" ")))
            .ok_or_else(|| wrong(&format!("found no list of words under {name}")))
    };
    let groups: Vec<Group> = map.iter().map(group).collect::<Result<_, _>>()?;
    match groups.len() {
        0 | 1 => Err(wrong(&format!("found {}", groups.len()))),
        _ => Ok(groups),
    }
}
