//! Changes of rules and thresholds that follow from verdicts.

use super::Side;
use super::estimate::{FilterQuality, Row};
use super::limits::{DropLimit, KeptRow, NewLimit, Support, drop_limit, learn, widen};
use super::sample::{Feature, ReviewSample};
use bessemer_corpus_config::CorpusConfig;
use bessemer_rules::{Profile, ProfileFile, StepFile};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Parts of the verdicts, each of which is left out once to check the changes.
const FOLDS: usize = 5;

/// Limits of `[corpus.clean]` by reason: the key, and whether it is a whole number.
const KEYS: [(&str, &str, bool); 6] = [
    ("too-short", "min_bytes", true),
    ("too-large", "max_bytes", true),
    ("numeric-table", "max_numeric_share", false),
    ("long-line", "max_line_chars", true),
    ("long-mean-line", "max_mean_line_chars", true),
    ("low-alphanumeric", "min_alphanumeric_share", false),
];

/// Support that a change needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionSettings {
    /// Fewest verdicts for a change.
    pub least: usize,
    /// Share of the documents that a change moves for which reviewers must agree with it, 0 to 1.
    pub agreement: f64,
}

/// A change of the filters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A new limit, which drops kept documents.
    Drop {
        /// Name of the measure or score.
        measure: String,
        /// The limit.
        #[serde(flatten)]
        limit: NewLimit,
    },
    /// A wider limit, which keeps dropped documents.
    Widen {
        /// Reason of the drops.
        reason: String,
        /// Profile and measure; none for a limit of `[corpus.clean]`.
        rule: Option<[String; 2]>,
        /// Side on which documents are dropped.
        side: Side,
        /// The old limit.
        from: f64,
        /// The new one.
        to: f64,
        /// Reviewed documents that it keeps and reviewers would drop.
        junk: usize,
        /// Reviewed documents that it keeps and reviewers would keep.
        good: usize,
    },
    /// A predicate or a rule without a limit is removed.
    Remove {
        /// Reason of the drops.
        reason: String,
        /// Reviewed documents that it keeps and reviewers would drop.
        junk: usize,
        /// Reviewed documents that it keeps and reviewers would keep.
        good: usize,
    },
}

impl Change {
    /// Description in one line.
    pub fn in_words(&self) -> String {
        let sign = |side: &Side| if *side == Side::Above { '>' } else { '<' };
        match self {
            Change::Drop { measure, limit: NewLimit { side, limit, junk, good, .. } } => format!(
                "drop documents with {measure} {} {limit} ({junk} junk, {good} good of the reviewed ones)",
                sign(side)
            ),
            Change::Widen { reason, rule, side, from, to, junk, good } => {
                let of =
                    rule.as_ref().map_or(String::new(), |[profile, rule]| format!(", {rule} of {profile}"));
                format!(
                    "{reason}{of}: drop documents {} {to}, not {} {from} (keeps {good} good, {junk} junk of the reviewed ones)",
                    sign(side),
                    sign(side)
                )
            }
            Change::Remove { reason, junk, good } => {
                format!("remove the rule {reason:?} (keeps {good} good, {junk} junk of the reviewed ones)")
            }
        }
    }
}

/// How often reviewers agree with the drops of a reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReasonPrecision {
    /// The reason.
    pub reason: String,
    /// Reviewed documents.
    pub reviewed: usize,
    /// Those that reviewers would drop too.
    pub junk: usize,
}

/// Consequences of the verdicts on a sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Documents with a verdict.
    pub reviewed: usize,
    /// Those that reviewers would drop.
    pub junk: usize,
    /// Strata without a verdict; estimates do not hold for their documents.
    pub without_verdicts: Vec<String>,
    /// By reason of a drop.
    pub reasons: Vec<ReasonPrecision>,
    /// The changes.
    pub changes: Vec<Change>,
    /// Quality of the filters as they are.
    pub before: FilterQuality,
    /// Quality with the changes, on the verdicts that they were made from: too good by chance.
    pub after: FilterQuality,
    /// Quality with changes that were each made from four fifths of the verdicts, on the last fifth.
    pub held_out: FilterQuality,
}

/// A key of a recipe and its new value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecipeEdit {
    /// The key, as in `corpus.clean.min_bytes`.
    pub key: String,
    /// The value.
    pub value: Value,
}

impl RecipeEdit {
    /// The line of a recipe.
    pub fn line(&self) -> String {
        // Strings, numbers and lists of JSON are values of TOML.
        format!("{} = {}", self.key, self.value)
    }
}

/// A reviewed document: its position in the sample, and whether reviewers would drop it.
type Verdict = (usize, bool);

fn changes(sample: &ReviewSample, verdicts: &[Verdict], support: Support) -> Vec<Change> {
    let mut reviewed = vec![0.0f64; sample.strata.len()];
    verdicts.iter().for_each(|(at, _)| reviewed[sample.documents[*at].stratum] += 1.0);
    let of = |at: usize| &sample.documents[at];
    let kept: Vec<KeptRow<'_>> = verdicts
        .iter()
        .filter(|(at, _)| of(*at).reason.is_none())
        .map(|&(at, junk)| {
            let stratum = of(at).stratum;
            let weight = sample.strata[stratum].documents / reviewed[stratum];
            KeptRow { weight, junk, values: &of(at).values }
        })
        .collect();
    let mut found: Vec<Change> = learn(&kept, support)
        .into_iter()
        .map(|limit| Change::Drop { measure: sample.features[limit.feature].name().to_owned(), limit })
        .collect();
    // Drops of a reason, each with its limit where it has one.
    type OfReason<'a> =
        BTreeMap<(&'a str, Option<(Option<(String, String)>, Side)>), Vec<(Option<DropLimit>, bool)>>;
    let mut reasons: OfReason<'_> = BTreeMap::new();
    for &(at, junk) in verdicts {
        let Some(reason) = &of(at).reason else { continue };
        let limit = of(at).detail.as_deref().and_then(drop_limit);
        let key = limit.as_ref().map(|limit| (limit.rule.clone(), limit.side));
        reasons.entry((reason, key)).or_default().push((limit, junk));
    }
    for ((reason, limit), rows) in reasons {
        let reason = reason.to_owned();
        let Some((rule, side)) = limit else {
            let junk = rows.iter().filter(|(_, junk)| *junk).count();
            let good = rows.len() - junk;
            if good >= support.least && good as f64 >= support.agreement * rows.len() as f64 {
                found.push(Change::Remove { reason, junk, good });
            }
            continue;
        };
        let from = rows.iter().find_map(|(limit, _)| Some(limit.as_ref()?.limit)).unwrap_or(0.0);
        let values = rows.iter().filter_map(|(limit, junk)| Some((limit.as_ref()?.value, *junk))).collect();
        let Some((to, good, junk)) = widen(values, side, support) else { continue };
        let is_whole = KEYS.iter().any(|(of, _, whole)| *of == reason && *whole);
        let to = match (is_whole, side) {
            (true, Side::Below) => to.ceil(),
            (true, Side::Above) => to.floor(),
            (false, _) => to,
        };
        let rule = rule.map(|(profile, rule)| [profile, rule]);
        found.push(Change::Widen { reason, rule, side, from, to, junk, good });
    }
    found
}

/// Whether filters with these changes drop a document.
fn drops(sample: &ReviewSample, changes: &[Change], at: usize) -> bool {
    let document = &sample.documents[at];
    let Some(reason) = &document.reason else {
        return changes
            .iter()
            .any(|change| matches!(change, Change::Drop { limit, .. } if limit.drops(&document.values)));
    };
    let limit = document.detail.as_deref().and_then(drop_limit);
    let is_kept = changes.iter().any(|change| match (change, &limit) {
        (Change::Remove { reason: removed, .. }, None) => removed == reason,
        (Change::Widen { reason: of, rule, side, to, .. }, Some(limit)) => {
            let same = rule.as_ref().map(|[profile, rule]| (profile, rule))
                == limit.rule.as_ref().map(|(profile, rule)| (profile, rule));
            let within = if *side == Side::Below { limit.value >= *to } else { limit.value <= *to };
            of == reason && *side == limit.side && same && within
        }
        _ => false,
    });
    !is_kept
}

/// The fold of a document.
fn fold_of(id: &str) -> usize {
    (xxh3_64(id.as_bytes()) % FOLDS as u64) as usize
}

impl Decision {
    /// Consequences of verdicts; `junk`: for each document of the sample, whether reviewers would drop it, if any has judged it.
    pub fn of(sample: &ReviewSample, junk: &[Option<bool>], settings: DecisionSettings) -> Decision {
        let support = Support { least: settings.least.max(1), agreement: settings.agreement };
        let verdicts: Vec<Verdict> = junk
            .iter()
            .take(sample.documents.len())
            .enumerate()
            .filter_map(|(at, junk)| Some((at, (*junk)?)))
            .collect();
        let sizes: Vec<f64> = sample.strata.iter().map(|stratum| stratum.documents).collect();
        let quality = |dropped: &dyn Fn(usize) -> bool| {
            let rows = verdicts.iter().map(|&(at, junk)| Row {
                stratum: sample.documents[at].stratum,
                junk,
                dropped: dropped(at),
            });
            FilterQuality::of(&rows.collect::<Vec<Row>>(), &sizes)
        };
        let all = changes(sample, &verdicts, support);
        let folds: Vec<Vec<Change>> = (0..FOLDS)
            .map(|fold| {
                let rest = verdicts.iter().filter(|(at, _)| fold_of(&sample.documents[*at].id) != fold);
                changes(sample, &rest.copied().collect::<Vec<_>>(), support)
            })
            .collect();
        let mut reasons: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        for &(at, junk) in &verdicts {
            if let Some(reason) = &sample.documents[at].reason {
                let counts = reasons.entry(reason).or_default();
                counts[0] += 1;
                counts[1] += usize::from(junk);
            }
        }
        let has_verdict =
            |stratum: usize| verdicts.iter().any(|(at, _)| sample.documents[*at].stratum == stratum);
        let strata = sample.strata.iter().enumerate();
        Decision {
            reviewed: verdicts.len(),
            junk: verdicts.iter().filter(|(_, junk)| *junk).count(),
            without_verdicts: strata
                .filter(|(stratum, _)| !has_verdict(*stratum))
                .map(|(_, stratum)| stratum.name.clone())
                .collect(),
            reasons: reasons
                .into_iter()
                .map(|(reason, [reviewed, junk])| ReasonPrecision { reason: reason.into(), reviewed, junk })
                .collect(),
            before: quality(&|at| sample.documents[at].reason.is_some()),
            after: quality(&|at| drops(sample, &all, at)),
            held_out: quality(&|at| drops(sample, &folds[fold_of(&sample.documents[at].id)], at)),
            changes: all,
        }
    }

    /// The changes as keys of a recipe, as profile files with the path that the recipe names, and as sentences where neither is possible.
    /// `path` gives the path of the file of a profile.
    ///
    /// # Errors
    /// A profile of the configuration that is none.
    pub fn edits(
        &self,
        sample: &ReviewSample,
        config: &CorpusConfig,
        path: &dyn Fn(&str) -> String,
    ) -> crate::Result<(Vec<RecipeEdit>, Vec<ProfileFile>, Vec<String>)> {
        let mut edits = Vec::new();
        let (mut files, mut notes) = (Vec::<ProfileFile>::new(), Vec::new());
        let mut profiles = config.rules.profiles.clone();
        let mut keep = config.rules.keep.clone();
        let mut keep_first = config.rules.keep_first.clone();
        let mut steps = Vec::new();
        for change in &self.changes {
            match change {
                Change::Drop { limit, .. } => steps.push(step(&sample.features[limit.feature], limit)),
                Change::Widen { reason, rule: None, to, .. } => {
                    match KEYS.iter().find(|(of, ..)| of == reason) {
                        Some((_, key, whole)) => edits.push(RecipeEdit {
                            key: format!("corpus.clean.{key}"),
                            value: if *whole { json!(*to as u64) } else { json!(to) },
                        }),
                        None => notes.push(change.in_words()),
                    }
                }
                Change::Widen { reason, rule: Some([profile, rule]), side, to, .. } => {
                    let changed = format!("{profile}-reviewed");
                    let at = match files.iter().position(|file| file.name == changed) {
                        Some(at) => Some(at),
                        None => copy(profile, &mut profiles, path)?.map(|file| {
                            files.push(file);
                            files.len() - 1
                        }),
                    };
                    let step =
                        at.and_then(|at| files[at].step.iter_mut().find(|step| is_step(step, rule, reason)));
                    match (step, side) {
                        (Some(step), Side::Below) => step.min = Some(*to),
                        (Some(step), Side::Above) => step.max = Some(*to),
                        (None, _) => notes.push(change.in_words()),
                    }
                }
                Change::Remove { reason, .. } if reason == "generated" => {
                    edits.push(RecipeEdit { key: "corpus.clean.drop_generated".into(), value: json!(false) });
                }
                Change::Remove { reason, .. } => {
                    let before = keep.len() + keep_first.len();
                    keep.retain(|predicate| predicate != reason);
                    keep_first.retain(|predicate| predicate != reason);
                    if keep.len() + keep_first.len() == before {
                        notes.push(change.in_words());
                    }
                }
            }
        }
        if !steps.is_empty() {
            let name = "review";
            profiles.push(path(name));
            files.push(ProfileFile {
                name: name.into(),
                about: "Limits from the verdicts of reviewers".into(),
                source: String::new(),
                words: "uax29".into(),
                step: steps,
            });
        }
        let lists = [
            ("keep_first", keep_first, &config.rules.keep_first),
            ("profiles", profiles, &config.rules.profiles),
            ("keep", keep, &config.rules.keep),
        ];
        for (key, list, before) in lists {
            if list != *before {
                edits.push(RecipeEdit { key: format!("corpus.rules.{key}"), value: json!(list) });
            }
        }
        Ok((edits, files, notes))
    }
}

/// The step that drops documents beyond a new limit.
fn step(feature: &Feature, limit: &NewLimit) -> StepFile {
    let label = format!("review: {}", feature.name());
    match feature {
        Feature::Rule { step, .. } => StepFile {
            min: (limit.side == Side::Below).then_some(limit.limit),
            max: (limit.side == Side::Above).then_some(limit.limit),
            label: Some(label),
            ..(**step).clone()
        },
        Feature::Score { column } => {
            let sign = if limit.side == Side::Above { "<=" } else { ">=" };
            StepFile {
                condition: Some(format!("`{column}` == null || `{column}` {sign} {}", limit.limit)),
                label: Some(label),
                ..StepFile::default()
            }
        }
    }
}

/// A copy of a profile of the configuration, whose place it takes; none if the configuration does not have it, or if its steps count
/// other kinds of words than those of a profile that it includes.
fn copy(
    name: &str,
    profiles: &mut [String],
    path: &dyn Fn(&str) -> String,
) -> crate::Result<Option<ProfileFile>> {
    fn flat(file: &ProfileFile, words: &str, to: &mut Vec<StepFile>) -> bessemer_rules::Result<bool> {
        let mut same = file.words == words;
        for step in &file.step {
            match &step.profile {
                Some(other) => same &= flat(Profile::named(other)?.complete_file(), words, to)?,
                None => to.push(step.clone()),
            }
        }
        Ok(same)
    }

    let wrong =
        |error: bessemer_rules::Error| crate::Error::Config(format!("corpus.rules.profiles: {error}"));
    for entry in profiles {
        let profile = Profile::find(entry).map_err(wrong)?;
        if profile.name() != name {
            continue;
        }
        let file = profile.complete_file();
        let mut steps = Vec::new();
        if !flat(file, &file.words, &mut steps).map_err(wrong)? {
            return Ok(None);
        }
        let name = format!("{name}-reviewed");
        *entry = path(&name);
        return Ok(Some(ProfileFile { name, step: steps, ..file.clone() }));
    }
    Ok(None)
}

/// Whether a step drops documents by the measure of this title for this reason.
fn is_step(step: &StepFile, title: &str, reason: &str) -> bool {
    let of = step.rule.as_ref().map(|rule| match step.n {
        Some(n) => format!("{rule}({n})"),
        None => rule.clone(),
    });
    let labels = [&step.label, &step.below, &step.above];
    let same_reason = labels.into_iter().flatten().any(|label| label == reason)
        || labels.into_iter().all(Option::is_none) && title == reason;
    of.as_deref() == Some(title) && same_reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::{ReviewDocument, Stratum};

    /// 60 kept documents, of which every tenth is junk with a high score, and 20 that gopher-quality drops for 31 to 50 words, most of
    /// them good.
    fn reviewed() -> (ReviewSample, Vec<Option<bool>>) {
        let document = |id: String, stratum, reason: Option<&str>, detail, values| ReviewDocument {
            id,
            stratum,
            reason: reason.map(str::to_owned),
            detail,
            values,
            text: String::new(),
        };
        let kept = (0..60).map(|i| {
            let spam = if i % 10 == 0 { 0.9 } else { f64::from(i % 7) / 100.0 };
            document(format!("k{i}"), 0, None, None, vec![Some(spam)])
        });
        let dropped = (0..20).map(|i| {
            let detail = format!("gopher-quality: nonsymbol-words is {}, allowed 50 to 100000", 30 + i);
            document(format!("d{i}"), 1, Some("gopher_short_doc"), Some(detail), Vec::new())
        });
        let sample = ReviewSample {
            corpus: "f".into(),
            features: vec![Feature::Score { column: "spam".into() }],
            strata: vec![
                Stratum { name: "kept: usual".into(), documents: 600.0 },
                Stratum { name: "dropped: gopher_short_doc".into(), documents: 100.0 },
            ],
            documents: kept.chain(dropped).collect(),
        };
        let junk = (0..80).map(|i| Some(if i < 60 { i % 10 == 0 } else { i < 65 })).collect();
        (sample, junk)
    }

    #[test]
    fn verdicts_become_changes_edits_and_estimates() {
        let (sample, junk) = reviewed();
        let settings = DecisionSettings { least: 4, agreement: 0.9 };
        let found = Decision::of(&sample, &junk, settings);
        assert_eq!((found.reviewed, found.junk, found.changes.len()), (80, 11, 2), "{found:#?}");
        let value =
            |quality: &FilterQuality| (quality.precision.unwrap().value, quality.recall.unwrap().value);
        // 25 of 100 dropped documents are junk, and 60 of 600 kept ones.
        let (precision, recall) = value(&found.before);
        assert!((precision - 0.25).abs() < 1e-12 && (recall - 25.0 / 85.0).abs() < 1e-12);
        assert_eq!(value(&found.after), (1.0, 1.0));
        // Changes from four fifths of 11 junk documents are fewer, and better than none.
        let held_out = value(&found.held_out);
        assert!(held_out.0 > precision + 0.3 && held_out.1 > recall + 0.2, "{held_out:?}");

        let config = CorpusConfig {
            rules: bessemer_corpus_config::RulesConfig {
                profiles: vec!["gopher-repetition".into(), "gopher-quality".into()],
                ..Default::default()
            },
            ..CorpusConfig::default()
        };
        let (edits, files, notes) =
            found.edits(&sample, &config, &|name| format!("out/{name}.toml")).unwrap();
        let lines: Vec<String> = edits.iter().map(RecipeEdit::line).collect();
        let wanted = r#"corpus.rules.profiles = ["gopher-repetition","out/gopher-quality-reviewed.toml","out/review.toml"]"#;
        assert_eq!((lines, notes), (vec![wanted.to_string()], Vec::<String>::new()));
        assert_eq!(files[0].step[0].min, Some(34.5));
        let written = files[1].toml().unwrap();
        let read = Profile::parse(&written, None).unwrap();
        assert!(written.contains("`spam` == null || `spam` <= 0.5"), "{written}");
        assert_eq!(read.len(), 1);
        Profile::parse(&files[0].toml().unwrap(), None).unwrap();
    }

    #[test]
    fn limits_and_predicates_of_the_recipe_are_changed_in_place() {
        let (mut sample, _) = reviewed();
        for (i, document) in sample.documents.iter_mut().enumerate().skip(60) {
            (document.reason, document.detail) = match i % 2 {
                0 => (Some("too-short".into()), Some(format!("{i} bytes, at least 100"))),
                _ => (Some("lang == 'en'".into()), Some("own: lang = \"de\"".into())),
            };
        }
        let junk: Vec<Option<bool>> = (0..80).map(|_| Some(false)).collect();
        let found = Decision::of(&sample, &junk, DecisionSettings { least: 4, agreement: 0.9 });
        let mut config = CorpusConfig::default();
        config.rules.keep = vec!["lang == 'en'".into(), "len(text) > 3".into()];
        let (edits, files, notes) = found.edits(&sample, &config, &str::to_owned).unwrap();
        let lines: Vec<String> = edits.iter().map(RecipeEdit::line).collect();
        assert_eq!(lines, ["corpus.clean.min_bytes = 60", "corpus.rules.keep = [\"len(text) > 3\"]"]);
        assert!(files.is_empty() && notes.is_empty());
        // Another configuration does not have the predicate.
        let (edits, _, notes) = found.edits(&sample, &CorpusConfig::default(), &str::to_owned).unwrap();
        assert_eq!((edits.len(), notes.len()), (1, 1), "{notes:?}");
        // Without verdicts there is nothing to change, and no figure.
        let found = Decision::of(&sample, &[None; 80], DecisionSettings { least: 4, agreement: 0.9 });
        assert_eq!((found.reviewed, found.changes.len(), found.before.precision), (0, 0, None));
        assert_eq!(found.without_verdicts.len(), 2);
    }
}
