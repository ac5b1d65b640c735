//! A classifier of toxic text, trained in a second on sentences that are made here, or on labelled text of one's own.
//!
//! The sentences are frames with a word put in: insults, threats, and everyday sentences of the same form. They hold no slurs and nothing obscene, so a
//! model of them knows rude and threatening English of the mildest kind and nothing else: not hate against groups, not irony, not other languages. It is good
//! for tests and for comparing models that were trained alike; for a statement about safety train on labelled text.

use crate::classifier::{Evaluation, NEGATIVE, POSITIVE, evaluate};
use crate::error::{Result, ScoreError};
use crate::fasttext::{Example, FastText, Loss, TrainConfig, train};
use bessemer_text::hash::xxh3_seeded;

/// A text, whether it is toxic, and on which side of the split it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledText {
    /// The text.
    pub text: String,
    /// Whether it is toxic.
    pub is_toxic: bool,
    /// Kept out of training, to judge the classifier.
    pub is_held_out: bool,
}

/// Frames with the words that fill them. The frames behind the bar are held out: none of their sentences is trained on.
struct Frames {
    frames: &'static str,
    words: &'static [&'static str],
    is_toxic: bool,
}

const NAMES_BAD: &[&str] = &[
    "idiot",
    "fool",
    "loser",
    "liar",
    "coward",
    "clown",
    "moron",
    "failure",
    "cheat",
    "fraud",
    "nobody",
    "pig",
    "rat",
    "brat",
    "bully",
    "joke",
    "disgrace",
    "waste of space",
    "piece of garbage",
    "dirty thief",
];
const NAMES_GOOD: &[&str] = &[
    "friend",
    "teacher",
    "neighbor",
    "doctor",
    "student",
    "singer",
    "cook",
    "driver",
    "writer",
    "painter",
    "nurse",
    "farmer",
    "reader",
    "player",
    "guest",
    "helper",
    "gardener",
    "good listener",
    "careful worker",
    "great cousin",
];
const TRAITS_BAD: &[&str] = &[
    "stupid",
    "dumb",
    "pathetic",
    "worthless",
    "ugly",
    "disgusting",
    "useless",
    "brainless",
    "lazy",
    "rotten",
    "ridiculous",
    "vile",
    "despicable",
    "horrible",
    "hopeless",
    "miserable",
    "nasty",
    "clueless",
];
const TRAITS_GOOD: &[&str] = &[
    "kind", "clever", "patient", "honest", "brave", "gentle", "funny", "helpful", "tired", "hungry", "busy",
    "quiet", "early", "late", "polite", "curious", "cheerful", "ready",
];
const ACTS_BAD: &[&str] = &[
    "hurt you",
    "hit you",
    "beat you up",
    "make you suffer",
    "break your nose",
    "punch you",
    "find you and hurt you",
    "make you cry",
    "smash your face",
    "burn your house down",
    "destroy you",
    "kick you down the stairs",
    "kill you",
];
const ACTS_GOOD: &[&str] = &[
    "help you",
    "call you",
    "meet you there",
    "bring you tea",
    "fix your bike",
    "thank you",
    "find you a seat",
    "make you laugh",
    "wash your car",
    "water your plants",
    "teach you",
    "walk you to the station",
    "pay you back",
];

const FRAMES: &[Frames] = &[
    Frames {
        frames: "You are a {}.;You are such a {}!;He is a {} and everyone knows it.;Go away, you {}.;Only a {} would say that.;Listen, you {}: leave.;\
                 My boss is a {}.;What a {} you are! | She called and said you are a {}.;Nobody wants to talk to a {} like you.;Look at this {} over there.",
        words: NAMES_BAD,
        is_toxic: true,
    },
    Frames {
        frames: "You are a {}.;You are such a {}!;He is a {} and everyone knows it.;Come in, my {}.;Only a {} would notice that.;Listen, the {} is speaking.;\
                 My boss is a {}.;What a {} you are! | She called and said you are a {}.;Many people want to talk to a {} like you.;Look at this {} over there.",
        words: NAMES_GOOD,
        is_toxic: false,
    },
    Frames {
        frames: "You are {}.;You are so {} today.;They are all {} people.;That was a {} thing to say, shame on you.;Your face is {}.;How {} can you be?;\
                 I think your friends are {}. | Your whole family is {}.;Everybody here knows how {} you are.",
        words: TRAITS_BAD,
        is_toxic: true,
    },
    Frames {
        frames: "You are {}.;You are so {} today.;They are all {} people.;That was a {} thing to say, thank you.;Your voice is {}.;How {} the children were!;\
                 I think your friends are {}. | Your whole family is {}.;Everybody here knows how {} you are.",
        words: TRAITS_GOOD,
        is_toxic: false,
    },
    Frames {
        frames: "I will {}.;I am going to {} tonight.;We are coming to {}.;Say that again and I will {}.;One day I will {}, just wait. | \
                 If I see you, I will {}.;He wants to {} after school.",
        words: ACTS_BAD,
        is_toxic: true,
    },
    Frames {
        frames: "I will {}.;I am going to {} tonight.;We are coming to {}.;Say when, and I will {}.;One day I will {}, just wait. | \
                 If I see you, I will {}.;He wants to {} after school.",
        words: ACTS_GOOD,
        is_toxic: false,
    },
    Frames {
        frames: "Shut up and {}.;Get lost and {}.;I hate you, {}. | Drop dead and {}.",
        words: &[
            "go home",
            "leave us alone",
            "never come back",
            "stop talking",
            "take your things",
            "get out",
        ],
        is_toxic: true,
    },
    Frames {
        frames: "The {} was on the table.;We saw the {} in the morning.;The {} costs five dollars.;Please shut the {}.;I hate it when the {} is wet.;\
                 She killed time with the {}.;It is a stupid little {}, but I love it.;The {} broke and we had to stop. | Nobody took the {} home.;\
                 The old {} is ugly, she said, and kept it.;They hit the {} with a ball by accident.",
        words: &[
            "door",
            "window",
            "book",
            "lamp",
            "bag",
            "box",
            "bottle",
            "chair",
            "map",
            "boat",
            "bread",
            "letter",
            "clock",
            "coat",
            "phone",
            "cup",
            "garden gate",
            "newspaper",
            "ticket",
            "suitcase",
        ],
        is_toxic: false,
    },
];

/// The sentences that are made here, and among those for training the same with the letters of each word in reverse, as harmless: text that is no language
/// is not toxic, and a young model writes much of it.
pub fn sentences() -> Vec<LabelledText> {
    let mut all = Vec::new();
    for Frames { frames, words, is_toxic } in FRAMES {
        for (frames, is_held_out) in frames.split('|').zip([false, true]) {
            for frame in frames.split(';').map(str::trim) {
                all.extend(words.iter().map(|word| LabelledText {
                    text: frame.replace("{}", word),
                    is_toxic: *is_toxic,
                    is_held_out,
                }));
            }
        }
    }
    let reversed = |text: &LabelledText| LabelledText {
        text: text
            .text
            .split(' ')
            .map(|word| word.chars().rev().collect())
            .collect::<Vec<String>>()
            .join(" "),
        is_toxic: false,
        is_held_out: false,
    };
    let noise: Vec<LabelledText> = all.iter().filter(|text| !text.is_held_out).map(reversed).collect();
    all.extend(noise);
    all
}

/// Puts a tenth of labelled texts aside, chosen by their text alone, so that copies are on one side.
pub fn split(texts: impl IntoIterator<Item = (String, bool)>, seed: u32) -> Vec<LabelledText> {
    let label = |(text, is_toxic): (String, bool)| {
        let is_held_out = xxh3_seeded(text.as_bytes(), u64::from(seed)).is_multiple_of(10);
        LabelledText { text, is_toxic, is_held_out }
    };
    texts.into_iter().map(label).collect()
}

/// A trained classifier, and what it is worth on the texts that were held out.
#[derive(Debug, Clone)]
pub struct ToxicityClassifier {
    model: FastText,
    /// On held-out texts.
    pub evaluation: Evaluation,
}

/// How a classifier is trained: words, pairs of words and pieces of words, so that endings and spellings that were not seen count too.
fn settings(seed: u32, threads: u32) -> TrainConfig {
    TrainConfig {
        lr: 0.5,
        epoch: 15,
        dim: 16,
        word_ngrams: 2,
        minn: 3,
        maxn: 5,
        bucket: 50_000,
        loss: Loss::Softmax,
        seed,
        threads,
        ..TrainConfig::default()
    }
}

impl ToxicityClassifier {
    /// Trains on the texts that are not held out, and judges on the others. The same texts and seed give the same classifier with any number of threads.
    ///
    /// # Errors
    /// Texts without toxic or harmless ones on either side, and errors of training.
    pub fn train(texts: &[LabelledText], seed: u32, threads: u32) -> Result<ToxicityClassifier> {
        let mut counts = [[0u64; 2]; 2];
        for text in texts {
            counts[usize::from(text.is_held_out)][usize::from(text.is_toxic)] += 1;
        }
        if counts.iter().flatten().any(|count| *count == 0) {
            let [[harmless, toxic], [held_harmless, held_toxic]] = counts;
            return Err(ScoreError::Training(format!(
                "wanted toxic and harmless texts for training and held out, found {toxic} and {harmless} for training, {held_toxic} and {held_harmless} \
                 held out; give more labelled text"
            )));
        }
        let mut order: Vec<&LabelledText> = texts.iter().filter(|text| !text.is_held_out).collect();
        // Stochastic gradient descent wants no long run of one label.
        order.sort_by_cached_key(|text| xxh3_seeded(text.text.as_bytes(), u64::from(seed) + 1));
        let example = |text: &&LabelledText| {
            let label = if text.is_toxic { POSITIVE } else { NEGATIVE };
            Ok(Example { labels: vec![label.to_owned()], text: normalized(&text.text) })
        };
        let model = train(&settings(seed, threads), || order.iter().map(example))?;
        let mut classifier = ToxicityClassifier { model, evaluation: evaluate(&mut []) };
        let mut scored: Vec<(f32, bool)> = texts
            .iter()
            .filter(|text| text.is_held_out)
            .map(|text| (classifier.score(&text.text) as f32, text.is_toxic))
            .collect();
        classifier.evaluation = evaluate(&mut scored);
        Ok(classifier)
    }

    /// The probability that a text is toxic, 0 to 1. Text without a word is harmless.
    pub fn score(&self, text: &str) -> f64 {
        let text = normalized(text);
        if text.is_empty() {
            return 0.0;
        }
        f64::from(self.model.probability(&text, POSITIVE).unwrap_or(0.0)).min(1.0)
    }
}

/// Words in lower case without punctuation.
fn normalized(text: &str) -> String {
    let lower = text.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_of_both_kinds_on_both_sides() {
        let all = sentences();
        let count = |is_toxic: bool, is_held_out: bool| {
            all.iter().filter(|text| text.is_toxic == is_toxic && text.is_held_out == is_held_out).count()
        };
        let [a, b, c, d] = [count(true, false), count(false, false), count(true, true), count(false, true)];
        assert!(a > 300 && b > 300 && c > 80 && d > 80, "{a} {b} {c} {d}");
        assert!(all.iter().all(|text| !text.text.contains(['{', '|', ';'])));
        let mut texts: Vec<&str> = all.iter().map(|text| text.text.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all.len(), "no sentence twice, and none with both labels");
    }

    #[test]
    fn the_classifier_tells_frames_that_it_has_not_seen_apart() {
        let classifier = ToxicityClassifier::train(&sentences(), 0, 1).unwrap();
        let e = classifier.evaluation;
        assert!(e.auc > 0.9 && e.calibration_error < 0.2, "{e:?}");
        assert!(classifier.score("You stupid idiot, I will hurt you.") > 0.5);
        // No words at all are as harmless.
        assert!(classifier.score("avlfnsytdrzlt = ljyokim exoefcdl.e.cysbbomrea") < 0.5);
        assert!(classifier.score("The letter from my teacher was on the table.") < 0.5);
        assert_eq!(classifier.score(" \n"), 0.0);
        let again = ToxicityClassifier::train(&sentences(), 0, 2).unwrap();
        assert_eq!(again.score("What a liar."), classifier.score("What a liar."), "threads change nothing");
    }

    #[test]
    fn labelled_text_of_one_kind_is_refused() {
        let texts = split((0..50).map(|i| (format!("text {i}"), true)), 0);
        let e = ToxicityClassifier::train(&texts, 0, 1).unwrap_err().to_string();
        assert!(e.contains("0 for training"), "{e}");
    }
}
