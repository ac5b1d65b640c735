//! The records with which a session begins.

use super::Trainer;
use crate::TrainError;
use crate::observer::Observer;
use bessemer_arch::ParamClass;
use bessemer_runlog as runlog;
use bessemer_runtime::LengthPlan;
use bessemer_units::Offload;

impl Trainer {
    /// Records the model, data and configuration of this session.
    pub(super) fn announce(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        if let Some(resume) = self.resumed.clone() {
            self.append(resume.into(), observer)?;
        } else {
            let model = self.model().clone();
            let tables = model.params().into_iter().filter(|p| p.class() == ParamClass::Embedding);
            let tables: usize = tables.map(|p| p.len()).sum();
            let record = runlog::Model {
                name: self.input.recipe.model.architecture.clone(),
                parameters: model.parameters() as u64,
                parameters_without_embedding: (model.parameters() - tables) as u64,
                layers: model.layers as u64,
                width: model.width as u64,
                heads: model.heads as u64,
                kv_heads: model.kv_heads as u64,
                vocab_size: model.vocab_size as u64,
                seq_len: self.plan.seq_len,
                flops_per_token: model.train_flops_per_token(self.plan.seq_len as usize).0,
                initial: self.initial.clone(),
            };
            self.append(record.into(), observer)?;
        }
        self.append_change(observer)?;
        // A continued run may have been given more steps.
        let optim = &self.input.recipe.optim;
        let record = runlog::Training {
            steps: self.plan.steps,
            tokens: self.plan.tokens.0,
            batch_tokens: self.plan.tokens_per_step.0,
            micro_batch: self.plan.micro_batch,
            seq_len: self.plan.seq_len,
            // In sequences of `seq_len` tokens, whatever the documents.
            samples_per_epoch: self.loader.tokens_per_epoch() / self.plan.seq_len,
            mixture: self.shares(),
            optimizer: optim.describe(),
            schedule: format!("{}, {} warm-up steps", optim.schedule.name(), optim.warmup(self.plan.steps)),
            ranks: self.layout().ranks() as u64,
            layout: self.layout_text(),
            sequences: self.sequences_text(),
        };
        self.append(record.into(), observer)?;
        if let Some(text) = self.memory_text().filter(|_| self.records.is_some()) {
            observer.message(&text);
        }
        for text in std::mem::take(&mut self.warnings) {
            self.warn(text, observer)?;
        }
        Ok(())
    }

    /// Sequences of several lengths, the tokens that a mask scores, and the layers that recompute at each length.
    fn sequences_text(&self) -> String {
        let worker = &self.runner.worker;
        let mut text = Vec::new();
        if self.loader.has_documents() {
            let mut lengths: Vec<String> = worker.decoder().lengths().map(|seq| seq.to_string()).collect();
            lengths.reverse();
            text.push(format!(
                "{} documents a step, {:.1} tokens each on average, in lengths of {}",
                self.plan.sequences_per_step,
                self.loader.mean_tokens(),
                lengths.join(", ")
            ));
        }
        let train = &self.input.train;
        if train.has_mask() {
            let (scored, tokens) = (train.scored_count(), train.token_count());
            let percent = 100.0 * scored as f64 / tokens as f64;
            text.push(format!(
                "{scored} of {tokens} tokens of the training split are scored ({percent:.1} %)"
            ));
        }
        let plans = worker.plans_by_length();
        let mut counts = |verb: &str, layers: &dyn Fn(&LengthPlan) -> usize| {
            let counts: Vec<String> =
                plans.iter().map(|plan| format!("{} at {} tokens", layers(plan), plan.seq)).collect();
            if !counts.is_empty() {
                text.push(format!("layers that {verb}: {}", counts.join(", ")));
            }
        };
        counts("recompute", &|plan| plan.recomputed.len());
        if self.input.recipe.train.offload != Offload::None {
            counts("offload", &|plan| plan.offloaded.len());
        }
        text.join("; ")
    }

    /// Shares that the run reads of each component of its mixture, for its log.
    fn shares(&self) -> Vec<runlog::MixtureShare> {
        let taken = self.loader.taken(self.samples_at_end());
        let share = |taken: bessemer_loader::Taken| runlog::MixtureShare {
            name: taken.name,
            tokens: taken.tokens,
            weight: taken.weight,
            epochs: taken.epochs,
        };
        taken.into_iter().map(share).collect()
    }
}
