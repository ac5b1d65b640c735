//! Profiles: named lists of rules, written in TOML.

use crate::edit::{C4Lines, C4Options, Correction, CorrectionOptions};
use crate::error::{Error, Result, named};
use crate::evaluate::Step;
use crate::fineweb2;
use crate::measures::Measure;
use crate::predicate::Predicate;
use crate::read::{read_list, read_text};
use crate::words::WordSegmenter;
use bessemer_corpus_config::is_profile_path;
use bessemer_text::Words;
use bessemer_units::{did_you_mean, with_suggestion};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How deep profiles may include profiles.
const MAX_DEPTH: usize = 8;

/// A profile as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// Its name.
    pub name: String,
    /// Description in one line.
    #[serde(default)]
    pub about: String,
    /// Papers and programs that its rules and thresholds come from.
    #[serde(default)]
    pub source: String,
    /// Kind of words that its rules count unless they say otherwise.
    #[serde(default = "default_words")]
    pub words: String,
    /// The rules, in order.
    #[serde(default)]
    pub step: Vec<StepFile>,
}

fn default_words() -> String {
    Words::default().name().to_owned()
}

/// One step: exactly one of `rule`, `where`, `c4-lines`, `correct` and `profile`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct StepFile {
    /// A measure with limits.
    pub rule: Option<String>,
    /// The least value that is kept.
    pub min: Option<f64>,
    /// The most that is kept.
    pub max: Option<f64>,
    /// Reason of a drop.
    pub label: Option<String>,
    /// Reason of a drop below `min`, where it is another one.
    pub below: Option<String>,
    /// Reason of a drop above `max`, where it is another one.
    pub above: Option<String>,
    /// Kind of words; the profile's, if left out. This and the keys up to `syntax` are parameters of the measure.
    pub words: Option<String>,
    /// Kind of lines.
    pub lines: Option<String>,
    /// Project whose way of counting repeated windows is used: datatrove, dolma, dclm or rpv2.
    pub variant: Option<String>,
    /// Words in a window.
    pub n: Option<usize>,
    /// A length in characters.
    pub length: Option<u64>,
    /// Strings to count, or to find at an end of a line.
    pub marks: Option<Vec<String>>,
    /// White space at the ends of a line is passed over.
    pub trim: Option<bool>,
    /// Words to count.
    pub list: Option<Vec<String>>,
    /// A file with one entry of `list` a line, beside the profile.
    pub list_file: Option<String>,
    /// Upper and lower case are the same.
    pub ignore_case: Option<bool>,
    /// A word of the list counts inside of longer words too.
    pub anywhere: Option<bool>,
    /// Share of the texts with a word of the list that count as if they had none.
    pub keep: Option<f64>,
    /// A family of programming languages: c, hash, python, sql.
    pub syntax: Option<String>,
    /// A predicate over columns; a document for which it is not true is dropped.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// The line rules of C4.
    pub c4_lines: Option<C4Options>,
    /// A line-wise correction.
    pub correct: Option<CorrectionOptions>,
    /// Every step of another profile.
    pub profile: Option<String>,
}

/// Profiles that the program carries.
const EMBEDDED: &[(&str, &str)] = &[
    ("c4", include_str!("../profiles/c4.toml")),
    ("c4-paragraphs", include_str!("../profiles/c4-paragraphs.toml")),
    ("code", include_str!("../profiles/code.toml")),
    ("dolma", include_str!("../profiles/dolma.toml")),
    ("dolma-v2", include_str!("../profiles/dolma-v2.toml")),
    ("fineweb", include_str!("../profiles/fineweb.toml")),
    ("fineweb-quality", include_str!("../profiles/fineweb-quality.toml")),
    ("fineweb2", include_str!("../profiles/fineweb2.toml")),
    ("gopher-quality", include_str!("../profiles/gopher-quality.toml")),
    ("gopher-repetition", include_str!("../profiles/gopher-repetition.toml")),
    ("nemo", include_str!("../profiles/nemo.toml")),
    ("refinedweb", include_str!("../profiles/refinedweb.toml")),
    ("rpv2", include_str!("../profiles/rpv2.toml")),
    ("santacoder", include_str!("../profiles/santacoder.toml")),
    ("santacoder-python", include_str!("../profiles/santacoder-python.toml")),
    ("ziya2", include_str!("../profiles/ziya2.toml")),
];

/// A profile, ready to evaluate documents. Cheap to share between threads.
#[derive(Debug, Clone)]
pub struct Profile {
    file: ProfileFile,
    /// `file` with the entries of its list files.
    complete: ProfileFile,
    pub(crate) segmenter: WordSegmenter,
    pub(crate) steps: Vec<Step>,
    /// Words that `removed-words` counts, if some rule asks for them.
    pub(crate) removed_words: Option<WordSegmenter>,
}

impl Profile {
    /// Names of the profiles that the program carries, in order. `fineweb2` exists besides as `fineweb2-LANGUAGE` for each of
    /// [`Self::fineweb2_languages`].
    pub fn names() -> Vec<&'static str> {
        EMBEDDED.iter().map(|&(name, _)| name).collect()
    }

    /// Languages for which the program carries the values of FineWeb-2, as in `fra_Latn`, in order.
    pub fn fineweb2_languages() -> Vec<&'static str> {
        fineweb2::languages()
    }

    /// The carried profile of this name.
    ///
    /// # Errors
    /// If there is none: the message names the nearest.
    pub fn named(name: &str) -> Result<Profile> {
        Profile::compile(embedded(name)?, None)
    }

    /// The profile written in this text. `folder` is where the files that it names lie.
    ///
    /// # Errors
    /// If it is no profile: the message says where and what was wanted.
    pub fn parse(toml: &str, folder: Option<&Path>) -> Result<Profile> {
        let file: ProfileFile = toml::from_str(toml)
            .map_err(|error| Error::new(with_suggestion(error.to_string().trim_end())))?;
        Profile::compile(file, folder)
    }

    /// The profile in this file.
    ///
    /// # Errors
    /// If the file cannot be read or is no profile.
    pub fn load(path: &Path) -> Result<Profile> {
        let text = read_text(path)?;
        Profile::parse(&text, path.parent()).map_err(|error| error.at(path.display()))
    }

    /// A carried profile, or the one in the file of this path: what a user writes on a command line. See
    /// [`is_profile_path`].
    ///
    /// # Errors
    /// As [`Self::named`] and [`Self::load`].
    pub fn find(name_or_path: &str) -> Result<Profile> {
        if is_profile_path(name_or_path) {
            Profile::load(Path::new(name_or_path))
        } else {
            Profile::named(name_or_path)
        }
    }

    /// Compiles what is written.
    ///
    /// # Errors
    /// If some step cannot be: the message says which and why.
    pub fn compile(file: ProfileFile, folder: Option<&Path>) -> Result<Profile> {
        let segmenter = words_of(&file)?;
        let mut complete = file.clone();
        for (index, step) in complete.step.iter_mut().enumerate() {
            step.read_list_file(folder).map_err(|error| file.at_step(index, error))?;
        }
        let mut profile =
            Profile { file, complete: complete.clone(), segmenter, steps: Vec::new(), removed_words: None };
        profile.append(&complete, segmenter, 0)?;
        Ok(profile)
    }

    fn append(&mut self, file: &ProfileFile, segmenter: WordSegmenter, depth: usize) -> Result<()> {
        for (index, step) in file.step.iter().enumerate() {
            let at = |error: Error| file.at_step(index, error);
            if let Some(other) = &step.profile {
                if depth >= MAX_DEPTH {
                    return Err(at(Error::new(format!(
                        "profiles include each other more than {MAX_DEPTH} deep"
                    ))));
                }
                step.only("profile").map_err(at)?;
                let other = embedded(other).map_err(at)?;
                let segmenter = words_of(&other)?;
                self.append(&other, segmenter, depth + 1)?;
            } else {
                let compiled = step.compile(segmenter).map_err(at)?;
                if let Step::Rule { measure, .. } = &compiled
                    && measure.name() == "removed-words"
                {
                    self.removed_words = Some(measure.words());
                }
                self.steps.push(compiled);
            }
        }
        Ok(())
    }

    /// As it is written.
    pub fn file(&self) -> &ProfileFile {
        &self.file
    }

    /// With the entries of its list files in their place: everything that decides its verdicts, beside [`crate::VERSION`].
    pub fn complete_file(&self) -> &ProfileFile {
        &self.complete
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// Description in one line.
    pub fn about(&self) -> &str {
        &self.file.about
    }

    /// Papers and programs that its rules come from.
    pub fn source(&self) -> &str {
        &self.file.source
    }

    /// Kind of words.
    pub fn words(&self) -> WordSegmenter {
        self.segmenter
    }

    /// Number of compiled steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has no step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Every column that its predicates read.
    pub fn columns(&self) -> Vec<&str> {
        let predicates = self.steps.iter().filter_map(|step| match step {
            Step::Where { predicate, .. } => Some(predicate.columns()),
            _ => None,
        });
        let mut names: Vec<&str> = predicates.flatten().collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Adds a predicate as the last step.
    pub(crate) fn push_where(&mut self, source: &str, label: &str) -> Result<()> {
        self.steps.push(Step::Where { predicate: Predicate::parse(source)?, label: label.to_owned() });
        Ok(())
    }

    /// Adds C4's rule about bad words as the last step.
    pub(crate) fn push_bad_words(&mut self, list: Vec<String>, anywhere: bool, keep: f64) -> Result<()> {
        let step = StepFile {
            rule: Some("bad-words".into()),
            max: Some(0.0),
            label: Some("document_removed_with_badwords".into()),
            list: Some(list),
            anywhere: Some(anywhere),
            keep: Some(keep),
            ..StepFile::default()
        };
        self.steps.push(step.compile(self.segmenter)?);
        Ok(())
    }
}

impl ProfileFile {
    /// The text of its file.
    ///
    /// # Errors
    /// A value that TOML does not have.
    pub fn toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::new(format!("profile {:?}: {error}", self.name)))
    }

    /// An error of step `index`, with its place.
    fn at_step(&self, index: usize, error: Error) -> Error {
        error.at(format!("profile {:?}, step {}", self.name, index + 1))
    }
}

impl StepFile {
    fn compile(&self, segmenter: WordSegmenter) -> Result<Step> {
        let label = |fallback: &str| self.label.clone().unwrap_or_else(|| fallback.to_owned());
        if let Some(name) = &self.rule {
            self.only("rule")?;
            if self.min.zip(self.max).is_some_and(|(min, max)| min > max)
                || self.min.is_some_and(f64::is_nan)
                || self.max.is_some_and(f64::is_nan)
            {
                let (min, max) = (self.min.unwrap_or(f64::NAN), self.max.unwrap_or(f64::NAN));
                return Err(Error::new(format!("{name:?}: min = {min}, max = {max}: nothing could be kept")));
            }
            let measure = Measure::new(name, self, segmenter)?;
            let title = label(&measure.title());
            let below = self.below.clone().unwrap_or_else(|| title.clone());
            let above = self.above.clone().unwrap_or(title);
            return Ok(Step::Rule { measure, min: self.min, max: self.max, below, above });
        }
        if let Some(source) = &self.condition {
            self.only("where")?;
            return Ok(Step::Where { predicate: Predicate::parse(source)?, label: label(source) });
        }
        if let Some(options) = &self.c4_lines {
            self.only("c4-lines")?;
            let words = match segmenter {
                WordSegmenter::Words(words) => words,
                other => {
                    let found = other.name();
                    return Err(Error::new(format!(
                        "c4-lines counts whitespace, uax29 or english words, not {found:?}"
                    )));
                }
            };
            return Ok(Step::C4(C4Lines::new(options.clone(), words)?));
        }
        if let Some(options) = &self.correct {
            self.only("correct")?;
            return Ok(Step::Correct(Correction::new(options.clone())?));
        }
        Err(Error::new("a step needs one of rule, where, c4-lines, correct and profile"))
    }

    /// Refuses keys that do not belong to this kind of step.
    fn only(&self, kind: &str) -> Result<()> {
        let kinds = [
            ("rule", self.rule.is_some()),
            ("where", self.condition.is_some()),
            ("c4-lines", self.c4_lines.is_some()),
            ("correct", self.correct.is_some()),
            ("profile", self.profile.is_some()),
        ];
        if let Some((other, _)) = kinds.iter().find(|(name, given)| *given && *name != kind) {
            return Err(Error::new(format!("a step has both {kind} and {other}; wanted one of them")));
        }
        let of_rule = [
            ("min", self.min.is_some()),
            ("max", self.max.is_some()),
            ("below", self.below.is_some()),
            ("above", self.above.is_some()),
            ("list-file", self.list_file.is_some()),
        ];
        let mut of_rule = of_rule.into_iter().chain(self.parameters_given());
        match of_rule.find(|(_, given)| *given && kind != "rule") {
            Some((key, _)) => Err(Error::new(format!("{key} belongs to a rule, not to {kind}"))),
            None if self.label.is_some() && !matches!(kind, "rule" | "where") => Err(Error::new(format!(
                "{kind} has the labels of its origin; label belongs to rule and where"
            ))),
            None => Ok(()),
        }
    }

    /// The keys that are parameters of a measure, and whether each is given.
    pub(crate) fn parameters_given(&self) -> [(&'static str, bool); 12] {
        [
            ("words", self.words.is_some()),
            ("lines", self.lines.is_some()),
            ("variant", self.variant.is_some()),
            ("n", self.n.is_some()),
            ("length", self.length.is_some()),
            ("marks", self.marks.is_some()),
            ("trim", self.trim.is_some()),
            ("list", self.list.is_some()),
            ("ignore-case", self.ignore_case.is_some()),
            ("anywhere", self.anywhere.is_some()),
            ("keep", self.keep.is_some()),
            ("syntax", self.syntax.is_some()),
        ]
    }

    /// Moves the entries of `list_file` into `list`.
    fn read_list_file(&mut self, folder: Option<&Path>) -> Result<()> {
        // Elsewhere than in a rule the key is refused when the step is compiled.
        if self.rule.is_some()
            && let Some(file) = self.list_file.take()
        {
            let path = folder.map_or_else(|| Path::new(&file).to_path_buf(), |folder| folder.join(&file));
            self.list.get_or_insert_default().extend(read_list(&path)?);
        }
        Ok(())
    }
}

fn embedded(name: &str) -> Result<ProfileFile> {
    if let Some(language) = name.strip_prefix(fineweb2::PREFIX) {
        return fineweb2::profile(language, embedded("fineweb2")?)?.ok_or_else(|| {
            let near = did_you_mean(language, fineweb2::languages());
            let all = fineweb2::languages().join(", ");
            Error::new(format!(
                "no values of FineWeb-2 for {language:?}{near}; there are {all}; others: the profile fineweb2"
            ))
        });
    }
    let Some((_, text)) = EMBEDDED.iter().find(|(known, _)| *known == name) else {
        let near = did_you_mean(name, Profile::names());
        let all = Profile::names().join(", ");
        let each = format!("{}LANGUAGE", fineweb2::PREFIX);
        return Err(Error::new(format!("no profile has the name {name:?}{near}; there are {all}, {each}")));
    };
    toml::from_str(text).map_err(|error| Error::new(format!("profile {name:?}: {error}")))
}

fn words_of(file: &ProfileFile) -> Result<WordSegmenter> {
    named("words", &file.words, &WordSegmenter::ALL, WordSegmenter::name)
        .map_err(|error| error.at(format!("profile {:?}", file.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_carried_profile_compiles_under_its_name() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(profile.name(), name);
            assert!(
                !profile.is_empty() && !profile.about().is_empty() && !profile.source().is_empty(),
                "{name}"
            );
        }
    }

    #[test]
    fn errors_say_what_to_try() {
        let of = |toml: &str| Profile::parse(&format!("name = \"x\"\n{toml}"), None).unwrap_err().to_string();
        assert!(Profile::named("finweb").unwrap_err().to_string().contains("did you mean \"fineweb\""));
        assert!(of("words = \"englsh\"").contains("did you mean \"english\""));
        for (toml, says) in [
            (
                "[[step]]\nrule = \"wrds\"",
                "step 1: no measure has the name \"wrds\" (did you mean \"words\"?)",
            ),
            ("[[step]]\nrule = \"words\"\nn = 2", "\"words\" takes no n; it takes words"),
            ("[[step]]\nrule = \"top-ngram-chars\"", "needs n"),
            ("[[step]]\nrule = \"top-ngram-chars\"\nn = 0", "wanted 1 to 64"),
            ("[[step]]\nrule = \"words\"\nmin = 3\nmax = 2", "nothing could be kept"),
            ("[[step]]\nrule = \"lines\"\nlines = \"splitline\"", "did you mean \"splitlines\""),
            ("[[step]]\nlabel = \"x\"", "needs one of rule, where"),
            ("[[step]]\nrule = \"words\"\nprofile = \"c4\"", "both"),
            ("[[step]]\nwhere = \"a > 1\"\nmin = 1", "min belongs to a rule"),
            ("[[step]]\nwhere = \"a >\"", "wanted"),
            ("[[step]]\nprofile = \"c5\"", "did you mean \"c4\""),
            ("[[step]]\nruel = \"words\"", "ruel"),
            ("words = \"rpv2-normalized\"\n[[step]]\nc4-lines = {}", "c4-lines counts"),
            ("[[step]]\nrule = \"bad-words\"\nlist-file = \"/nowhere/x\"", "/nowhere/x"),
            ("[[step]]\nrule = \"lines-ending\"\nmarks = [\"\"]", "an empty mark"),
            ("[[step]]\nrule = \"comment-chars\"", "needs syntax"),
            ("[[step]]\nrule = \"comment-chars\"\nsyntax = \"pyton\"", "did you mean \"python\""),
            ("[[step]]\nrule = \"bad-words\"\nlist = [\"x\"]\nkeep = 1.5", "keep = 1.5"),
            ("[[step]]\nprofile = \"fineweb2-fra_latn\"", "did you mean \"fra_Latn\""),
        ] {
            let message = of(toml);
            assert!(message.contains(says), "{toml}: {message}");
        }
    }
}
