//! A model whose logits are a function of the sequence alone, and a client that collects its news.

use bessemer_eval::EvalError;
use bessemer_eval::generate::{Finish, NextToken};
use bessemer_runtime::{ModelError, NextPosition};
use bessemer_serve::engine::Engine;
use bessemer_serve::scheduler::{Client, Event};
use bessemer_tensor::rng::RngKey;
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, TokenizerKind, Trainer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Tokens: all bytes, and the end of text.
pub(crate) const VOCABULARY: usize = 257;

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let config = TokenizerConfig {
        kind: TokenizerKind::ByteBpe,
        vocab_size: VOCABULARY as u64,
        ..TokenizerConfig::default()
    };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed("x");
    Arc::new(trainer.finish(|_| ()).unwrap())
}

/// Logits of model 0 that follow a sequence; the last of them are rows that only round the vocabulary up, and are large.
pub(crate) fn logits_after(ids: &[u32]) -> Vec<f32> {
    logits_of(0, ids)
}

fn logits_of(model: usize, ids: &[u32]) -> Vec<f32> {
    let hash = ids.iter().fold(7 + model as u64, |h, id| {
        h.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(*id) + 1)
    });
    let mut logits = vec![0.0; VOCABULARY + 3];
    RngKey::new(hash, 0, "logits").fill_normal(0, 2.0, &mut logits);
    logits[VOCABULARY..].fill(30.0);
    logits
}

#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) slots: Vec<Vec<u32>>,
    /// Model of each slot.
    model_of: Vec<usize>,
    pub(crate) capacity: usize,
    pub(crate) chunk: usize,
    logits: Vec<f32>,
    /// Sequences of each pass of several rows.
    pub(crate) passes: Vec<usize>,
    /// Tokens that make a pass fail.
    pub(crate) poison: Option<u32>,
    /// Tokens of a piece that may begin anywhere.
    pub(crate) free_piece: Option<usize>,
    /// Prompts that were copied from slot to slot.
    pub(crate) copied: usize,
}

impl Fake {
    pub(crate) fn new(slots: usize, capacity: usize, chunk: usize) -> Fake {
        Fake {
            slots: vec![Vec::new(); slots],
            model_of: vec![0; slots],
            capacity,
            chunk,
            free_piece: Some(3),
            ..Fake::default()
        }
    }

    fn append(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError> {
        if ids.iter().any(|id| Some(*id) == self.poison) {
            let (wanted, found) = ("no poison".into(), "poison".into());
            return Err(ModelError::Shape { what: "ids", wanted, found });
        }
        self.slots[slot].extend(ids);
        assert!(self.slots[slot].len() <= self.capacity, "a slot overflows");
        Ok(())
    }
}

impl Engine for Fake {
    fn slots(&self) -> usize {
        self.slots.len()
    }
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn chunk(&self) -> usize {
        self.chunk
    }
    fn free_piece(&self) -> Option<usize> {
        self.free_piece
    }
    fn begin(&mut self, slot: usize, model: usize, len: usize) {
        assert!(len == 0 || self.model_of[slot] == model, "positions of another model stay");
        self.slots[slot].truncate(len);
        self.model_of[slot] = model;
    }
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<(), ModelError> {
        let (source, target) = (&self.slots[from], &self.slots[to]);
        assert_eq!(self.model_of[from], self.model_of[to]);
        assert!(from != to && target.len() < len && source[..target.len()] == target[..]);
        self.slots[to] = source[..len].to_vec();
        self.copied += 1;
        Ok(())
    }
    fn prefill(&mut self, slot: usize, ids: &[u32]) -> Result<(), ModelError> {
        assert!(ids.len() <= self.chunk && !ids.is_empty());
        self.append(slot, ids)
    }
    fn decode(&mut self, slot: usize, ids: &[u32]) -> Result<&[f32], ModelError> {
        self.prefill(slot, ids)?;
        self.logits = logits_of(self.model_of[slot], &self.slots[slot]);
        Ok(&self.logits)
    }
    fn decode_each(
        &mut self,
        slot: usize,
        ids: &[u32],
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ModelError> {
        for (i, id) in ids.iter().enumerate() {
            self.append(slot, &[*id])?;
            visit(i, &logits_of(self.model_of[slot], &self.slots[slot]));
        }
        Ok(())
    }
    fn decode_rows(&mut self, rows: &[NextPosition]) -> Result<&[f32], ModelError> {
        self.passes.push(rows.len());
        for row in rows {
            self.append(row.slot, &[row.id])?;
        }
        self.logits =
            rows.iter().flat_map(|row| logits_of(self.model_of[row.slot], &self.slots[row.slot])).collect();
        Ok(&self.logits)
    }
}

/// A view of that model for one sequence.
#[derive(Default)]
pub(crate) struct Alone {
    model: usize,
    pub(crate) capacity: usize,
    held: Vec<u32>,
    logits: Vec<f32>,
}

impl Alone {
    pub(crate) fn new(model: usize, capacity: usize) -> Alone {
        Alone { model, capacity, ..Alone::default() }
    }
}

impl NextToken for Alone {
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn held(&self) -> usize {
        self.held.len()
    }
    fn truncate(&mut self, len: usize) {
        self.held.truncate(len);
    }
    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
        self.held.extend(ids);
        self.logits = logits_of(self.model, &self.held);
        Ok(&self.logits[..VOCABULARY])
    }
}

/// News of one sequence, collected.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) prompt_scores: Vec<bessemer_serve::score::TokenScore>,
    pub(crate) scores: Vec<bessemer_serve::score::TokenScore>,
    pub(crate) finish: Option<Finish>,
    pub(crate) failed: Option<String>,
    pub(crate) cached: usize,
}

/// A client in the same thread.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ear {
    pub(crate) told: Arc<Mutex<BTreeMap<usize, Told>>>,
    pub(crate) gone: Arc<AtomicBool>,
}

impl Ear {
    pub(crate) fn of(&self, sequence: usize) -> Told {
        self.told.lock().unwrap().get(&sequence).cloned().unwrap_or_default()
    }

    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

impl Client for Ear {
    fn news(&mut self, sequence: usize, event: Event) {
        let mut told = self.told.lock().unwrap();
        let told = told.entry(sequence).or_default();
        assert!(told.finish.is_none() && told.failed.is_none(), "news after the end");
        match event {
            Event::Prompt(scores) => told.prompt_scores.extend(scores),
            Event::Cached(tokens) => told.cached += tokens,
            Event::Token { id, text, score } => {
                told.tokens.push(id);
                told.text.push_str(&text);
                told.scores.extend(score);
            }
            Event::End { finish, text } => {
                told.text.push_str(&text);
                told.finish = Some(finish);
            }
            Event::Failed(why) => told.failed = Some(why),
        }
    }

    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
