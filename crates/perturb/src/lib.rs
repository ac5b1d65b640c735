//! Perturbations of text: what should not change the answer of a model, or should change it in a known way.
//!
//! Transformations of NL-Augmenter (Dhole et al. 2021) and HELM (Liang et al. 2022) that need no model and no network. Each is a line of one table ([`Perturbation::all`]); where
//! they draw, they draw the numbers of CPython's `random` (one of them NumPy's), so that they make of a text and a seed what the originals make.
//! A function of text, rate and random numbers: no files, no clocks.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod characters;
mod lists;
mod numbers;
mod words;

pub use bessemer_mersenne::PythonRandom;
pub use numbers::cardinal;

/// Property that a perturbation tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aspect {
    /// Noise and spelling, which people read without effort.
    Robustness,
    /// Another group of persons, or another dialect.
    Fairness,
    /// A code, which a person deciphers.
    Cipher,
}

impl Aspect {
    /// All of them.
    pub const ALL: [Aspect; 3] = [Aspect::Robustness, Aspect::Fairness, Aspect::Cipher];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Aspect::Robustness => "robustness",
            Aspect::Fairness => "fairness",
            Aspect::Cipher => "cipher",
        }
    }
}

/// How a text is changed.
#[derive(Clone, Copy)]
enum Change {
    /// The same each time.
    Fixed(fn(&str) -> String),
    /// With a rate, and random numbers.
    Random(f64, fn(&str, f64, &mut PythonRandom) -> String),
}

/// An entry of the table.
struct Entry {
    name: &'static str,
    aspect: Aspect,
    origin: &'static str,
    does: &'static str,
    change: Change,
}

const NL: &str = "NL-Augmenter";
const HELM: &str = "HELM";

/// Shortens the table.
const fn fixed(
    name: &'static str,
    aspect: Aspect,
    origin: &'static str,
    does: &'static str,
    change: fn(&str) -> String,
) -> Entry {
    Entry { name, aspect, origin, does, change: Change::Fixed(change) }
}

/// Shortens the table.
const fn random(
    name: &'static str,
    origin: &'static str,
    does: &'static str,
    rate: f64,
    change: fn(&str, f64, &mut PythonRandom) -> String,
) -> Entry {
    Entry { name, aspect: Aspect::Robustness, origin, does, change: Change::Random(rate, change) }
}

/// The table. One more perturbation is one more line.
const TABLE: &[Entry] = &[
    random("butter_fingers", NL, "keys near the right one", 0.05, characters::butter_fingers),
    random("typos", HELM, "keys beside the right one", 0.1, characters::typos),
    random("misspelling", HELM, "common misspellings of common words", 0.1, words::misspelling),
    random("swap_characters", NL, "neighbours change places", 0.05, |text, rate, random| {
        characters::swap_characters(text, rate, random.bits())
    }),
    random("change_char_case", NL, "letters in the other case", 0.1, characters::change_char_case),
    random("random_upper", NL, "letters in upper case", 0.1, characters::random_upper),
    fixed("lowercase", Aspect::Robustness, HELM, "all in lower case", |text| text.to_lowercase()),
    random("whitespace", NL, "blanks removed and inserted", 0.1, characters::whitespace),
    random("space", HELM, "one to RATE spaces for each run", 3.0, |text, most, random| {
        characters::space(text, most as usize, random)
    }),
    fixed("extra_space", Aspect::Robustness, HELM, "two spaces for one", characters::extra_space),
    random("leet_letters", NL, "characters that look alike", 0.5, characters::leet_letters),
    random("underscore_trick", NL, "underscores for spaces", 0.05, characters::underscore_trick),
    fixed("diacritic_removal", Aspect::Robustness, NL, "ASCII alone", characters::diacritic_removal),
    fixed("contraction", Aspect::Robustness, HELM, "she is: she's", words::contraction),
    fixed("expansion", Aspect::Robustness, HELM, "she's: she is", words::expansion),
    fixed(
        "weekday_month_abbreviation",
        Aspect::Robustness,
        NL,
        "Monday: Mon., and back",
        words::weekday_month_abbreviation,
    ),
    fixed("number_to_word", Aspect::Robustness, NL, "numbers in words", numbers::number_to_word),
    random("filler_words", HELM, "phrases that say nothing", 0.333, |text, rate, random| {
        words::filler_words(text, rate, lists::FILLERS, random)
    }),
    random("mild_mix", HELM, "lowercase, contraction, misspelling, space", 0.1, words::mild_mix),
    fixed("american_british", Aspect::Fairness, NL, "the other country's words", words::american_british),
    fixed("gender_swap", Aspect::Fairness, NL, "he: she, and back", words::gender_swap),
    fixed("gender_pronouns", Aspect::Fairness, HELM, "he: she", words::gender_pronouns),
    fixed("gender_terms", Aspect::Fairness, HELM, "father: mother", words::gender_terms),
    fixed("pig_latin", Aspect::Cipher, NL, "igpay atinlay", words::pig_latin),
];

/// A perturbation with its rate.
#[derive(Clone, Copy)]
pub struct Perturbation {
    entry: &'static Entry,
    rate: f64,
}

impl std::fmt::Debug for Perturbation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label())
    }
}

/// A name or a rate that is not one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct PerturbationError(String);

impl Perturbation {
    /// All perturbations, with their usual rates.
    pub fn all() -> impl Iterator<Item = Perturbation> {
        TABLE.iter().map(Perturbation::of)
    }

    fn of(entry: &'static Entry) -> Perturbation {
        let rate = match entry.change {
            Change::Fixed(_) => 1.0,
            Change::Random(rate, _) => rate,
        };
        Perturbation { entry, rate }
    }

    /// The perturbations of a list: names, `NAME:RATE`, `all`, or the name of an [`Aspect`]. Each stands once.
    ///
    /// # Errors
    /// Names that are not there, with those that are; rates that are out of range.
    pub fn list(names: &[String]) -> Result<Vec<Perturbation>, PerturbationError> {
        let mut list: Vec<Perturbation> = Vec::new();
        for name in names {
            let aspect = Aspect::ALL.into_iter().find(|aspect| aspect.name() == name);
            let found: Vec<Perturbation> = match aspect {
                Some(aspect) => Perturbation::all().filter(|one| one.aspect() == aspect).collect(),
                None if name == "all" => Perturbation::all().collect(),
                None => vec![Perturbation::named(name)?],
            };
            for one in found {
                if list.iter().all(|other| other.label() != one.label()) {
                    list.push(one);
                }
            }
        }
        Ok(list)
    }

    fn named(text: &str) -> Result<Perturbation, PerturbationError> {
        let (name, rate) = match text.split_once(':') {
            Some((name, rate)) => (name, Some(rate)),
            None => (text, None),
        };
        let entry = TABLE.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
            PerturbationError(format!(
                "there is no perturbation {name}{}: wanted all, robustness, fairness, cipher, or some of {}",
                bessemer_units::did_you_mean(
                    name,
                    known.iter().copied().chain(["all", "robustness", "fairness", "cipher"])
                ),
                known.join(", ")
            ))
        })?;
        let usual = Perturbation::of(entry);
        let Some(rate) = rate else { return Ok(usual) };
        let most = if usual.rate > 1.0 { 100.0 } else { 1.0 };
        let wrong = |wanted: String| PerturbationError(format!("{text}: wanted {wanted}, found {rate:?}"));
        if matches!(entry.change, Change::Fixed(_)) {
            return Err(wrong(format!("{name} without a rate, which it does not have")));
        }
        let least = if usual.rate > 1.0 { 1.0 } else { 0.0 };
        match rate.parse::<f64>() {
            Ok(rate) if (least..=most).contains(&rate) => Ok(Perturbation { entry, rate }),
            _ => Err(wrong(format!("a rate of {least} to {most} (usual: {})", usual.rate))),
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Its name, and its rate where it has one: `typos:0.1`.
    pub fn label(&self) -> String {
        match self.entry.change {
            Change::Fixed(_) => self.entry.name.to_owned(),
            Change::Random(..) => format!("{}:{}", self.entry.name, self.rate),
        }
    }

    /// Property that it tests.
    pub fn aspect(&self) -> Aspect {
        self.entry.aspect
    }

    /// The program that has it.
    pub fn origin(&self) -> &'static str {
        self.entry.origin
    }

    /// Effect, in a few words.
    pub fn does(&self) -> &'static str {
        self.entry.does
    }

    /// The perturbed text.
    pub fn apply(&self, text: &str, random: &mut PythonRandom) -> String {
        match self.entry.change {
            Change::Fixed(change) => change(text),
            Change::Random(_, change) => change(text, self.rate, random),
        }
    }
}

/// The random numbers of a document: those of HELM for an instance with the identifier `id` and its number. A seed of 0 is HELM's run without one.
pub fn of_document(seed: u64, number: usize) -> PythonRandom {
    let seed = if seed == 0 { String::new() } else { seed.to_string() };
    PythonRandom::of_text(&format!("{seed}id{number}"))
}

#[cfg(test)]
mod tests;
