//! Preferences of a run: the reference, made before the first step and stored, and the weights of a step; the evaluation of held-out chats.

use super::Trainer;
use super::samples::Samples;
use crate::TrainError;
use crate::held_out::{DocumentScorer, stopped};
use crate::input::TrainerInput;
use crate::observer::Observer;
use crate::preferences::{PairSums, PairWeights};
use crate::runner::Runner;
use bessemer_memory_checkpoint::stable_hash;
use bessemer_recipe::PreferencesConfig;
use bessemer_runlog::{Eval, Record, Task};
use bessemer_tensor::Backend;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// File in the run directory: a line of JSON ([`ReferenceHeader`]), then nll of every document of both splits, f64 little-endian.
pub(super) const REFERENCE_FILE: &str = "reference.nll";

/// Beginning of [`REFERENCE_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferenceHeader {
    /// Version of the form.
    version: u32,
    /// Checksums of the splits for training and validation; empty for none.
    splits: [String; 2],
    /// Documents of the splits.
    documents: [u64; 2],
    /// Checksum of the numbers.
    checksum: String,
}

impl ReferenceHeader {
    fn of(input: &TrainerInput, numbers: &[u8]) -> ReferenceHeader {
        let splits = [Some(&input.train), input.validation.as_ref()];
        ReferenceHeader {
            version: 1,
            splits: splits.map(|set| set.map_or_else(String::new, |set| format!("{:016x}", set.checksum()))),
            documents: splits.map(|set| set.map_or(0, |set| set.document_count())),
            checksum: format!("{:032x}", stable_hash(&[numbers])),
        }
    }
}

/// What a run on pairs has besides a trainer's.
pub(super) struct Preferences {
    config: PreferencesConfig,
    scorer: DocumentScorer,
    /// nll under the reference of the documents of the training split and of the validation split; empty until they are made or read.
    reference: [Vec<f64>; 2],
    pub(super) weights: PairWeights,
}

impl Preferences {
    /// Of a recipe that trains on pairs.
    pub(super) fn of(input: &TrainerInput, runner: &Runner) -> Result<Option<Preferences>, TrainError> {
        let recipe = &input.recipe;
        if !recipe.train.preferences.is_on() {
            return Ok(None);
        }
        Ok(Some(Preferences {
            config: recipe.train.preferences.clone(),
            scorer: DocumentScorer::new(runner),
            reference: Default::default(),
            weights: PairWeights::default(),
        }))
    }
}

/// The pair whose chosen answer is this document.
fn pair_of(nll: &[f64], chosen: u64) -> [f64; 2] {
    [nll[chosen as usize], nll[chosen as usize + 1]]
}

impl Samples<'_> {
    /// Scores the pairs of the step, with the parameters before it, and makes the weights of their tokens. All ranks call this.
    pub(super) fn weigh_pairs(
        &mut self,
        preferences: &mut Preferences,
        runner: &mut Runner,
        backend: &mut dyn Backend,
    ) -> Result<(), TrainError> {
        let place = self.place();
        let mine = runner.worker.plan().data_index(runner.worker.coord());
        let pairs = place.sequences_of_step() / 2;
        let share = self.scored() as f64 / pairs as f64;
        let loader = self.loader();
        let Preferences { config, scorer, reference: [reference, _], weights, .. } = preferences;
        weights.begin(place.micro_batches());
        for micro in 0..place.micro_batches() {
            let first = |rank: usize| place.request_of(rank, micro).first;
            let length = |rank: usize| {
                let request = place.request_of(rank, micro);
                Ok(loader.padded_length(request.first, request.sequences)?)
            };
            let here = length(mine)?;
            let batch = self.batch(micro)?;
            let mut chosen = 0.0;
            let mut unknown = None;
            let mut take = |rank: usize, at: usize, nll: f64| {
                if at.is_multiple_of(2) {
                    chosen = nll;
                    return;
                }
                // After a span of skipped samples a step may begin in the middle of a pair.
                let begin = first(rank) + at as u64 - 1;
                let Some(document) = loader.document_of(begin).filter(|document| document % 2 == 0) else {
                    unknown = Some(begin);
                    return;
                };
                let reference = pair_of(reference, document);
                let place = (rank == mine).then_some((micro, at - 1, here));
                weights.add(config, ([chosen, nll], reference), place, share);
            };
            DocumentScorer::score(&mut scorer.losses, runner, backend, batch, &length, &mut take)?;
            if let Some(sample) = unknown {
                return Err(TrainError::Recipe(format!(
                    "sample {sample}: wanted the chosen answer of a pair, found the rejected one; spans of skipped samples (train.skip_samples) must begin and \
                     end with even numbers"
                )));
            }
        }
        Ok(())
    }
}

impl Trainer {
    /// Makes the reference of a new run, and stores it; reads that of a run that goes on.
    pub(super) fn prepare_reference(
        &mut self,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), TrainError> {
        let Some(preferences) = &mut self.preferences else { return Ok(()) };
        if !preferences.reference[0].is_empty() {
            return Ok(());
        }
        if self.resumed.is_some() {
            preferences.reference = read_reference(&self.input)?;
            return Ok(());
        }
        let recipe = &self.input.recipe;
        let micro_batch = self.plan.micro_batch as usize;
        for (at, set) in [Some(&self.input.train), self.input.validation.as_ref()].into_iter().enumerate() {
            let Some(set) = set else { continue };
            let (loader, documents) =
                (DocumentScorer::loader(recipe, set, micro_batch)?, set.document_count());
            let mut step = |runner: &mut Runner, done: u64| {
                observer.progress("reference", done, documents);
                stopped(runner, stop)
            };
            let (runner, backend) = (&mut self.runner, &mut *self.backend);
            preferences.reference[at] =
                preferences.scorer.split(runner, backend, &loader, documents, &mut step)?;
        }
        if let Some(number) = preferences.reference.iter().flatten().position(|nll| !nll.is_finite()) {
            return Err(TrainError::Recipe(format!(
                "document {number} has a log-probability under the reference that is not finite; wanted a model in train.init.from whose \
                 parameters are finite"
            )));
        }
        if self.records.is_some() {
            let numbers: Vec<u8> =
                preferences.reference.iter().flatten().flat_map(|nll| nll.to_le_bytes()).collect();
            let header = serde_json::to_string(&ReferenceHeader::of(&self.input, &numbers))
                .map_err(|e| TrainError::Recipe(format!("{REFERENCE_FILE}: {e}")))?;
            let bytes = [header.as_bytes(), b"\n", &numbers].concat();
            self.input.directory.write(REFERENCE_FILE, &bytes).map_err(|e| {
                let path = self.input.directory.path().join(REFERENCE_FILE);
                TrainError::Recipe(format!("{}: {e}", path.display()))
            })?;
        }
        Ok(())
    }

    /// Scores held-out chats, each by itself: all of them, or about as many tokens as evaluation while training may take.
    pub(super) fn evaluate_chats(
        &mut self,
        whole: bool,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Vec<Record>, TrainError> {
        let (step, tokens, begun) = (self.state.step, self.state.tokens, Instant::now());
        let (Some((held_out, scorer)), Some(set)) = (&mut self.held_out, &self.input.validation) else {
            return Ok(Vec::new());
        };
        let limit = self.input.recipe.eval.max_tokens().filter(|_| !whole);
        let ranks = (&mut self.runner, &mut *self.backend as &mut dyn Backend);
        let mut progress = |done, all| observer.progress("validation", done, all);
        let nll = held_out.score(scorer, ranks, limit, stop, &mut progress)?;
        let (mut nats, mut scored, mut bytes) = (0.0, 0, 0);
        // Of pairs the chosen answers.
        let each = if self.preferences.is_some() { 2 } else { 1 };
        for (nll, size) in nll.iter().zip(&held_out.sizes).step_by(each) {
            (nats, scored, bytes) = (nats + nll, scored + size[0], bytes + size[1]);
        }
        let pairs = self.preferences.as_ref().map(|preferences| {
            let mut sums = PairSums::default();
            for (pair, nll) in nll.as_chunks::<2>().0.iter().enumerate() {
                sums.add(&preferences.config, *nll, pair_of(&preferences.reference[1], 2 * pair as u64));
            }
            sums
        });
        let mean = nats / scored as f64;
        let eval = Eval {
            step,
            tokens,
            split: set.split().into(),
            loss: pairs.map_or(mean, |sums| sums.loss / sums.pairs as f64),
            perplexity: mean.exp(),
            bits_per_byte: nats / std::f64::consts::LN_2 / bytes as f64,
            tokens_scored: scored,
            bytes_scored: bytes,
            seconds: Some(begun.elapsed().as_secs_f64()),
            components: Vec::new(),
        };
        let task = pairs.zip(self.preferences.as_ref()).map(|(sums, preferences)| {
            let accuracy = sums.means().get("accuracy").copied().unwrap_or_default();
            Task {
                step,
                tokens,
                task: "preferences".into(),
                metric: "accuracy".into(),
                value: accuracy,
                stderr: Some((accuracy * (1.0 - accuracy) / sums.pairs as f64).sqrt()),
                interval: None,
                larger_is_better: true,
                documents: sums.pairs,
                signature: format!("preferences beta {}", preferences.config.beta),
                worst: None,
            }
            .into()
        });
        Ok(std::iter::once(eval.into()).chain(task).collect())
    }
}

/// The reference that an earlier session stored.
fn read_reference(input: &TrainerInput) -> Result<[Vec<f64>; 2], TrainError> {
    let path = input.directory.path().join(REFERENCE_FILE);
    let wrong = |found: &str| {
        TrainError::Recipe(format!(
            "{}: wanted the log-probabilities of the reference for these shards, made before the first step, found {found}; copy the file \
             from where the run began, or begin the run again in another directory",
            path.display()
        ))
    };
    let bytes = input.directory.read(REFERENCE_FILE).map_err(|e| wrong(&e.to_string()))?;
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| wrong("a file without a header"))?;
    let header: ReferenceHeader =
        serde_json::from_slice(&bytes[..end]).map_err(|e| wrong(&format!("another header: {e}")))?;
    let (numbers, rest) = bytes[end + 1..].as_chunks::<8>();
    let wanted = ReferenceHeader::of(input, &bytes[end + 1..]);
    if header != wanted {
        let damaged = header.checksum != wanted.checksum;
        return Err(wrong(if damaged { "a damaged file" } else { "numbers for other shards" }));
    }
    let (train, validation) = (header.documents[0] as usize, header.documents[1] as usize);
    if !rest.is_empty() || numbers.len() != train + validation {
        return Err(wrong("a file of another length"));
    }
    let all: Vec<f64> = numbers.iter().map(|number| f64::from_le_bytes(*number)).collect();
    Ok([all[..train].to_vec(), all[train..].to_vec()])
}
