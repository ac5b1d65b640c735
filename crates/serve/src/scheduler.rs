//! Continuous batching (Yu et al. 2022, Orca): sequences of many requests share the slots of a model, and each pass
//! decodes one position of all of them; a sequence that ends frees its slot at once.
//!
//! One step of the scheduler
//! 1. drops the sequences whose client is gone,
//! 2. gives free slots to waiting sequences: one of each request in turn, so that a request of a thousand prompts does not
//!    keep out one that came after it,
//! 3. brings one piece of one prompt, of each sequence in turn, so that a long prompt does not stop the others; what a slot holds of it already is not
//!    computed again,
//! 4. decodes one position of every sequence whose prompt is complete.
//!
//! It knows no clock, thread or socket. The text of a sequence is a function of its own settings alone, because the model's
//! logits are ([`Engine`]) and every sequence draws its own random numbers.

use crate::engine::Engine;
use crate::prefixes::{HeldPrompts, Source};
use crate::score::TokenScore;
use bessemer_eval::EvalError;
use bessemer_eval::generate::{Continuation, Finish, GenerateConfig, Next, TextStream};
use bessemer_runtime::{ModelError, NextPosition};
use bessemer_tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::sync::Arc;

/// One text that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceRequest {
    /// Number of the engine's model that continues the prompt.
    pub model: usize,
    /// Tokens to continue, at least one.
    pub prompt: Arc<[u32]>,
    /// How many of them were put before what the client gave: they are context only.
    pub prefix: usize,
    /// How the text is continued.
    pub generate: Arc<GenerateConfig>,
    /// Number of the sample among those of one prompt.
    pub sample: u64,
    /// Whether the tokens of the prompt are scored.
    pub score_prompt: bool,
    /// Score every token, with so many most probable ones in its place.
    pub scores: Option<usize>,
    /// Added to the logits of tokens before one is chosen.
    pub bias: Arc<[(u32, f32)]>,
}

/// News of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Scores of the next tokens of the prompt, if they were asked for.
    Prompt(Vec<TokenScore>),
    /// So many more tokens of the prompt were there already.
    Cached(usize),
    /// A token, the text that it completes (often none), and its score, if that was asked for.
    Token {
        /// Its id.
        id: u32,
        /// Whole characters only, nothing of a stop string.
        text: String,
        /// Its score.
        score: Option<TokenScore>,
    },
    /// There is no more.
    End {
        /// Why.
        finish: Finish,
        /// The text that was held back.
        text: String,
    },
    /// The model failed.
    Failed(String),
}

/// Receiver of the news of a request.
pub trait Client {
    /// Takes news of sequence number `sequence`. Must not block.
    fn news(&mut self, sequence: usize, event: Event);

    /// True once nobody wants to know.
    fn gone(&self) -> bool;
}

/// A request whose sequences have not all begun.
struct Waiting<C> {
    sequences: VecDeque<(usize, SequenceRequest)>,
    client: Arc<std::sync::Mutex<C>>,
}

/// A sequence in a slot.
struct Active<C> {
    slot: usize,
    number: usize,
    client: Arc<std::sync::Mutex<C>>,
    request: SequenceRequest,
    continuation: Continuation,
    text: TextStream,
    /// Tokens of the prompt that the model has.
    fed: usize,
}

impl<C: Client> Active<C> {
    fn in_prompt(&self) -> bool {
        self.fed < self.request.prompt.len()
    }

    fn tell(&self, event: Event) {
        lock(&self.client).news(self.number, event);
    }
}

fn lock<C>(client: &std::sync::Mutex<C>) -> std::sync::MutexGuard<'_, C> {
    client.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Work of a step.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Tokens of prompts that went through the model.
    pub prompt_tokens: usize,
    /// Tokens of prompts that a slot held already.
    pub cached_tokens: usize,
    /// Tokens that were chosen.
    pub tokens: usize,
}

/// Sequences in slots and requests before them.
pub struct Scheduler<C> {
    tokenizer: Arc<Tokenizer>,
    waiting: VecDeque<Waiting<C>>,
    active: VecDeque<Active<C>>,
    /// The one that is free for longest first.
    free: VecDeque<usize>,
    held: HeldPrompts,
    rows: Vec<NextPosition>,
    biased: Vec<f32>,
}

impl<C> std::fmt::Debug for Scheduler<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, active) = (self.waiting.len(), self.active.len());
        f.debug_struct("Scheduler").field("waiting", &waiting).field("active", &active).finish()
    }
}

impl<C: Client> Scheduler<C> {
    /// For a model with so many slots.
    pub fn new(tokenizer: Arc<Tokenizer>, slots: usize) -> Scheduler<C> {
        Scheduler {
            tokenizer,
            waiting: VecDeque::new(),
            active: VecDeque::new(),
            free: (0..slots).collect(),
            held: HeldPrompts::new(slots),
            rows: Vec::with_capacity(slots),
            biased: Vec::new(),
        }
    }

    /// Requests of which a sequence waits for a slot.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences in slots.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// True if there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// Appends a request. Sequence i of it is number i to its client.
    pub fn push(&mut self, sequences: Vec<SequenceRequest>, client: C) {
        let sequences: VecDeque<(usize, SequenceRequest)> = sequences.into_iter().enumerate().collect();
        if !sequences.is_empty() {
            self.waiting.push_back(Waiting { sequences, client: Arc::new(std::sync::Mutex::new(client)) });
        }
    }

    /// Makes one step.
    pub fn step(&mut self, engine: &mut dyn Engine) -> Step {
        self.admit();
        self.advance(engine)
    }

    /// Drops the sequences whose client is gone and gives free slots to waiting ones.
    pub fn admit(&mut self) {
        self.drop_abandoned();
        self.fill_slots();
    }

    /// Brings a piece of a prompt and decodes a position of the other sequences. What the model answers to one sequence ends
    /// that sequence, what it answers to a pass of all of them ends all that were in it.
    pub fn advance(&mut self, engine: &mut dyn Engine) -> Step {
        let mut step = Step::default();
        self.prefill(engine, &mut step);
        self.decode(engine, &mut step);
        step
    }

    /// Ends everything with a failure.
    pub fn abort(&mut self, why: &str) {
        for active in self.active.drain(..) {
            active.tell(Event::Failed(why.to_owned()));
            self.free.push_back(active.slot);
        }
        for waiting in self.waiting.drain(..) {
            for (number, _) in waiting.sequences {
                lock(&waiting.client).news(number, Event::Failed(why.to_owned()));
            }
        }
    }

    fn drop_abandoned(&mut self) {
        self.waiting.retain(|w| !lock(&w.client).gone());
        let free = &mut self.free;
        self.active.retain(|a| {
            let stays = !lock(&a.client).gone();
            if !stays {
                free.push_back(a.slot);
            }
            stays
        });
    }

    /// Gives free slots to waiting sequences, one of each request in turn.
    fn fill_slots(&mut self) {
        while !self.free.is_empty() {
            let Some(mut waiting) = self.waiting.pop_front() else { return };
            let Some((number, request)) = waiting.sequences.pop_front() else { continue };
            let client = Arc::clone(&waiting.client);
            if !waiting.sequences.is_empty() {
                self.waiting.push_back(waiting);
            }
            let end = self.tokenizer.end_of_text();
            match Continuation::new(&request.prompt, end, &request.generate, request.sample) {
                Ok(continuation) => {
                    // What a slot held stays until the first piece of the prompt.
                    let Some(slot) = self.held.take_slot(&mut self.free, request.model, &request.prompt)
                    else {
                        return;
                    };
                    let text = TextStream::new(&request.generate);
                    let active = Active { slot, number, client, request, continuation, text, fed: 0 };
                    self.active.push_back(active);
                }
                Err(e) => lock(&client).news(number, Event::Failed(e.to_string())),
            }
        }
    }

    /// Brings one piece of the prompt whose turn it is.
    fn prefill(&mut self, engine: &mut dyn Engine, step: &mut Step) {
        let Some(at) = self.active.iter().position(Active::in_prompt) else { return };
        let Some(mut active) = self.active.remove(at) else { return };
        let known = self.tokenizer.vocab_size();
        let cached = self.reuse(engine, &mut active);
        let fed = active.fed;
        let brought = cached.and_then(|cached| {
            step.cached_tokens += cached;
            bring_piece(engine, &mut active, known)
        });
        // The end of a prompt that nothing follows does not go through the model.
        let went = active.in_prompt() || active.request.score_prompt || !active.continuation.is_full();
        match &brought {
            Ok(_) if went => {
                let prompt = &active.request.prompt[..active.fed];
                self.held.brought(active.slot, active.request.model, prompt, fed, engine.free_piece());
            }
            Ok(_) => {}
            Err(_) => self.held.forget(active.slot),
        }
        let ended = match brought {
            Ok(Some(logits)) => choose(&mut active, &self.tokenizer, &logits, &mut self.biased, step),
            Ok(None) if active.in_prompt() => Ok(None),
            // Nothing is to follow.
            Ok(None) => Ok(Some(Finish::MaxTokens)),
            Err(e) => Err(e.into()),
        };
        step.prompt_tokens += active.fed - fed;
        // Behind the others whose prompts are on their way.
        let stays = self.settle(active, ended, engine.capacity());
        self.active.extend(stays);
    }

    /// Takes over what a slot holds of a prompt beyond what its own slot has; returns the number of tokens.
    fn reuse(&mut self, engine: &mut dyn Engine, active: &mut Active<C>) -> Result<usize, ModelError> {
        let (slot, fed) = (active.slot, active.fed);
        // Scores of a prompt want all of its logits.
        let free_piece = engine.free_piece().filter(|_| !active.request.score_prompt);
        let found = free_piece.and_then(|piece| {
            self.held.longest(
                (active.request.model, &active.request.prompt),
                slot,
                fed,
                (engine.chunk(), piece),
            )
        });
        if fed == 0 {
            let len = found.filter(|found| found.slot == slot).map_or(0, |found| found.len);
            engine.begin(slot, active.request.model, len);
            self.held.forget(slot);
        }
        let Some(Source { slot: from, len }) = found else { return Ok(0) };
        if from != slot {
            engine.copy(from, slot, len)?;
        }
        self.held.hold(slot, active.request.model, &active.request.prompt[..len]);
        active.fed = len;
        active.tell(Event::Cached(len - fed));
        Ok(len - fed)
    }

    /// Decodes one position of every sequence whose prompt is complete.
    fn decode(&mut self, engine: &mut dyn Engine, step: &mut Step) {
        self.rows.clear();
        for active in self.active.iter().filter(|a| !a.in_prompt()) {
            if let Some(&id) = active.continuation.generated().last() {
                self.rows.push(NextPosition { slot: active.slot, id });
            }
        }
        if self.rows.is_empty() {
            return;
        }
        let capacity = engine.capacity();
        let logits = match engine.decode_rows(&self.rows) {
            Ok(logits) => logits,
            Err(e) => {
                let why = e.to_string();
                let (failed, kept): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(&mut self.active).into_iter().partition(|a| !a.in_prompt());
                self.active = kept;
                for active in failed {
                    self.held.forget(active.slot);
                    active.tell(Event::Failed(why.clone()));
                    self.free.push_back(active.slot);
                }
                return;
            }
        };
        let mut rows = logits.chunks_exact(logits.len() / self.rows.len());
        let mut kept = VecDeque::with_capacity(self.active.len());
        for mut active in std::mem::take(&mut self.active) {
            let row = match active.in_prompt() {
                true => None,
                false => rows.next(),
            };
            let Some(row) = row else {
                kept.push_back(active);
                continue;
            };
            let ended = choose(&mut active, &self.tokenizer, row, &mut self.biased, step);
            kept.extend(self.settle(active, ended, capacity));
        }
        self.active = kept;
    }

    /// Returns the sequence if it goes on, else tells its client and frees its slot.
    fn settle(
        &mut self,
        mut active: Active<C>,
        ended: Result<Option<Finish>, EvalError>,
        capacity: usize,
    ) -> Option<Active<C>> {
        let held = active.fed + active.continuation.generated().len().saturating_sub(1);
        let full = !active.in_prompt() && held >= capacity;
        let end = match ended {
            Ok(None) if full => Event::End { finish: Finish::Context, text: active.text.finish().to_owned() },
            Ok(None) => return Some(active),
            Ok(Some(finish)) => Event::End { finish, text: active.text.finish().to_owned() },
            Err(e) => Event::Failed(e.to_string()),
        };
        active.tell(end);
        self.free.push_back(active.slot);
        None
    }
}

/// Brings the next piece of a prompt; returns the logits that follow the prompt once it is complete and tokens are to follow.
fn bring_piece<C: Client>(
    engine: &mut dyn Engine,
    active: &mut Active<C>,
    known: usize,
) -> Result<Option<Vec<f32>>, ModelError> {
    let (from, prompt) = (active.fed, &active.request.prompt);
    let chunk = engine.chunk();
    let to = (from + chunk - from % chunk).min(prompt.len());
    let last = to == prompt.len();
    let (piece, follows) = (&prompt[from..to], last && !active.continuation.is_full());
    let mut logits = None;
    if active.request.score_prompt {
        let (top, prefix) = (active.request.scores.unwrap_or(0), active.request.prefix);
        let mut scores = Vec::with_capacity(piece.len());
        if from == 0 && prefix == 0 {
            scores.push(TokenScore::first(prompt[0]));
        }
        engine.decode_each(active.slot, piece, &mut |i, row| {
            let next = from + i + 1;
            if next >= prefix && next < prompt.len() {
                scores.push(TokenScore::of(row, prompt[next], top, known));
            }
            if follows && next == prompt.len() {
                logits = Some(row.to_vec());
            }
        })?;
        active.tell(Event::Prompt(scores));
    } else if follows {
        logits = Some(engine.decode(active.slot, piece)?.to_vec());
    } else if !last {
        engine.prefill(active.slot, piece)?;
    }
    active.fed = to;
    Ok(logits)
}

/// Chooses the next token of a sequence and tells its client; says why the text has ended, if it has.
fn choose<C: Client>(
    active: &mut Active<C>,
    tokenizer: &Tokenizer,
    logits: &[f32],
    biased: &mut Vec<f32>,
    step: &mut Step,
) -> Result<Option<Finish>, EvalError> {
    // Rows that only round the vocabulary up stand for no text.
    let known = tokenizer.vocab_size().min(logits.len());
    let mut candidates = &logits[..known];
    if !active.request.bias.is_empty() {
        biased.clear();
        biased.extend_from_slice(candidates);
        for &(id, bias) in active.request.bias.iter().filter(|b| (b.0 as usize) < known) {
            biased[id as usize] += bias;
        }
        candidates = biased;
    }
    let id = match active.continuation.choose(candidates)? {
        Next::Token(id) => id,
        Next::End(finish) => return Ok(Some(finish)),
    };
    step.tokens += 1;
    // An end of text that is ignored has none.
    let is_text = Some(id) != tokenizer.end_of_text();
    let bytes = tokenizer.token_bytes(id).filter(|_| is_text).unwrap_or_default();
    let text = active.text.push(bytes).to_owned();
    let score = active.request.scores.map(|top| TokenScore::of(logits, id, top, known));
    active.tell(Event::Token { id, text, score });
    Ok(match active.text.ended() {
        true => Some(Finish::StopString),
        false => active.continuation.is_full().then_some(Finish::MaxTokens),
    })
}
