//! Text generation: one token after another, with cached keys and values.
//!
//! **At the end of the context** (the positions of the cache) generation stops by default. With
//! [`ContextLimit::Slide`] it goes on: the most recent half of the tokens is decoded anew at positions 0, 1, ... and the
//! older half is forgotten, which costs half a context of decoding once per half a context, and puts text after a cut
//! that the model did not see in this form during training.

use crate::error::EvalError;
use crate::sampling::{Sampler, SamplingConfig, SamplingContext};
use crate::utf8_stream::Utf8Stream;
use bessemer_runtime::{Cache, Decoder};
use bessemer_tensor::Backend;
use bessemer_tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// What happens when the model's context is full.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextLimit {
    /// Generation ends.
    #[default]
    Stop,
    /// The older half of the tokens is forgotten.
    Slide,
}

/// How a text is generated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GenerateConfig {
    /// Tokens to generate at most.
    pub max_tokens: u64,
    /// "stop" when the model's context is full, or "slide": forget the older half and go on.
    pub context_limit: ContextLimit,
    /// Tokens before which neither the end of text nor a stop string or token ends the text.
    pub min_tokens: u64,
    /// Strings that end the text: it is cut before the first that occurs.
    pub stop: Vec<String>,
    /// Tokens that end the text as the end-of-text token does.
    pub stop_token_ids: Vec<u32>,
    /// Continue after the end-of-text token, which then is a token without text.
    pub ignore_eos: bool,
    /// How the next token is chosen.
    pub sampling: SamplingConfig,
}

/// Most stop strings.
const MOST_STOPS: usize = 64;
/// Longest stop string, in bytes.
const LONGEST_STOP: usize = 4096;
/// Most tokens that end a text.
const MOST_STOP_TOKENS: usize = 1024;

impl Default for GenerateConfig {
    fn default() -> Self {
        GenerateConfig {
            max_tokens: 128,
            context_limit: ContextLimit::Stop,
            min_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            sampling: SamplingConfig::default(),
        }
    }
}

impl GenerateConfig {
    /// Says which key has which value outside its allowed range, if any.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.max_tokens > 1 << 32 {
            return Err(format!("max_tokens = {}: wanted 0 to {}", self.max_tokens, 1u64 << 32));
        }
        if self.min_tokens > self.max_tokens {
            let (min, max) = (self.min_tokens, self.max_tokens);
            return Err(format!("min_tokens = {min}: wanted 0 to max_tokens = {max}"));
        }
        if self.stop_token_ids.len() > MOST_STOP_TOKENS {
            let found = self.stop_token_ids.len();
            return Err(format!("stop_token_ids: wanted at most {MOST_STOP_TOKENS} tokens, found {found}"));
        }
        let fits = |stop: &String| (1..=LONGEST_STOP).contains(&stop.len());
        if self.stop.len() > MOST_STOPS || !self.stop.iter().all(fits) {
            return Err(format!(
                "stop: wanted at most {MOST_STOPS} strings of 1 to {LONGEST_STOP} bytes, found {} of {} to {} bytes",
                self.stop.len(),
                self.stop.iter().map(String::len).min().unwrap_or(0),
                self.stop.iter().map(String::len).max().unwrap_or(0)
            ));
        }
        self.sampling.check().map_err(|e| format!("sampling.{e}"))
    }
}

/// A model that continues one sequence.
pub trait NextToken {
    /// Positions that the sequence may have.
    fn capacity(&self) -> usize;

    /// Positions that it has.
    fn held(&self) -> usize;

    /// Forgets the sequence from position `len` on.
    fn truncate(&mut self, len: usize);

    /// Appends tokens, at least one, and returns the logits of the next.
    ///
    /// # Errors
    /// Answers of a model.
    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError>;
}

/// A [`Decoder`] with its cache on its device.
pub struct CachedDecoder<'a> {
    decoder: &'a Decoder,
    backend: &'a mut dyn Backend,
    cache: &'a mut Cache,
}

impl<'a> CachedDecoder<'a> {
    /// A decoder that continues the sequence in `cache`.
    ///
    /// # Errors
    /// [`EvalError::CacheSequences`] for a cache of more than one sequence.
    pub fn new(
        decoder: &'a Decoder,
        backend: &'a mut dyn Backend,
        cache: &'a mut Cache,
    ) -> Result<CachedDecoder<'a>, EvalError> {
        match cache.slots() {
            1 => Ok(CachedDecoder { decoder, backend, cache }),
            n => Err(EvalError::CacheSequences(n)),
        }
    }
}

impl NextToken for CachedDecoder<'_> {
    fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    fn held(&self) -> usize {
        self.cache.len(0)
    }

    fn truncate(&mut self, len: usize) {
        self.cache.truncate(0, len);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
        Ok(self.decoder.decode(&mut *self.backend, self.cache, 0, ids)?)
    }
}

/// A model without the tokens past the tokenizer's: rows that only round its vocabulary up stand for no text.
struct KnownTokens<'a> {
    model: &'a mut dyn NextToken,
    /// Tokens that the tokenizer knows.
    size: usize,
}

impl NextToken for KnownTokens<'_> {
    fn capacity(&self) -> usize {
        self.model.capacity()
    }

    fn held(&self) -> usize {
        self.model.held()
    }

    fn truncate(&mut self, len: usize) {
        self.model.truncate(len);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
        let size = self.size;
        let logits = self.model.feed(ids)?;
        Ok(&logits[..size.min(logits.len())])
    }
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// The model ended it. The end-of-text token is not part of the result.
    EndOfText,
    /// It has as many tokens as were asked for.
    MaxTokens,
    /// The model's context is full.
    Context,
    /// One of the stop strings occurred. Its tokens are part of the result, its text is not.
    StopString,
    /// One of the stop tokens was chosen. It is not part of the result.
    StopToken,
    /// The callback asked to stop.
    Stopped,
}

/// A generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Tokens after the prompt, without the end of text.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
}

/// The tokens of a text while it is generated: what follows from the logits, and when the text ends. It knows no model, so
/// that a text has the same tokens whether it is generated alone or beside others.
#[derive(Debug)]
pub struct Continuation {
    sampler: Sampler,
    end_of_text: Option<u32>,
    /// Whether the end-of-text token ends the text.
    heeds_end: bool,
    /// Stop tokens and the end-of-text token, in ascending order.
    ends: Vec<u32>,
    min_tokens: u64,
    max_tokens: u64,
    sample: u64,
    prompt: usize,
    all: Vec<u32>,
}

/// The continuation of a text by one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A further token.
    Token(u32),
    /// The end.
    End(Finish),
}

impl Continuation {
    /// The continuation of `prompt`, at least one token. Token i of sample `sample` is a pure function of prompt, model,
    /// settings, i and `sample`.
    ///
    /// # Errors
    /// [`EvalError::Setting`], [`EvalError::EmptyPrompt`].
    pub fn new(
        prompt: &[u32],
        end_of_text: Option<u32>,
        config: &GenerateConfig,
        sample: u64,
    ) -> Result<Continuation, EvalError> {
        config.check().map_err(EvalError::Setting)?;
        if prompt.is_empty() {
            return Err(EvalError::EmptyPrompt);
        }
        let mut ends: Vec<u32> = config.stop_token_ids.iter().copied().chain(end_of_text).collect();
        ends.sort_unstable();
        ends.dedup();
        Ok(Continuation {
            sampler: Sampler::new(&config.sampling)?,
            end_of_text,
            heeds_end: !config.ignore_eos
                || end_of_text.is_some_and(|id| config.stop_token_ids.contains(&id)),
            ends,
            min_tokens: config.min_tokens,
            max_tokens: config.max_tokens,
            sample,
            prompt: prompt.len(),
            all: prompt.to_vec(),
        })
    }

    /// True if the text has as many tokens as were asked for.
    pub fn is_full(&self) -> bool {
        self.generated().len() as u64 >= self.max_tokens
    }

    /// Chooses the next token from the logits that follow the text, and appends it.
    ///
    /// # Errors
    /// [`EvalError::Logit`], [`EvalError::NoCandidate`].
    pub fn choose(&mut self, logits: &[f32]) -> Result<Next, EvalError> {
        if self.is_full() {
            return Ok(Next::End(Finish::MaxTokens));
        }
        let (prompt, generated) = self.all.split_at(self.prompt);
        let index = generated.len() as u64;
        let excluded = if index < self.min_tokens { &self.ends[..] } else { &[] };
        let context = SamplingContext { prompt, generated, excluded };
        let token = self.sampler.pick_nth(logits, context, self.sample, index)?;
        let is_end = Some(token) == self.end_of_text;
        match self.ends.binary_search(&token) {
            Ok(_) if is_end && self.heeds_end => return Ok(Next::End(Finish::EndOfText)),
            Ok(_) if !is_end => return Ok(Next::End(Finish::StopToken)),
            _ => {}
        }
        self.all.push(token);
        Ok(Next::Token(token))
    }

    /// Prompt and generated tokens.
    pub fn all(&self) -> &[u32] {
        &self.all
    }

    /// Tokens after the prompt.
    pub fn generated(&self) -> &[u32] {
        &self.all[self.prompt..]
    }

    fn finish(mut self, finish: Finish) -> Generated {
        Generated { tokens: self.all.split_off(self.prompt), finish }
    }
}

/// Continues `prompt`, at least one token (a document begins with the end-of-text token of the one before it).
/// `sample` tells samples of one prompt apart ([`Continuation::new`]).
/// Whatever `model` held before is forgotten. `on_token` is called for each token as soon as it is chosen, never for
/// the end of text.
///
/// # Errors
/// [`EvalError::Setting`], [`EvalError::EmptyPrompt`], [`EvalError::PromptTooLong`], [`EvalError::Logit`] from a broken
/// model, and what the model answers.
pub fn generate(
    model: &mut dyn NextToken,
    prompt: &[u32],
    end_of_text: Option<u32>,
    config: &GenerateConfig,
    sample: u64,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, EvalError> {
    let mut text = Continuation::new(prompt, end_of_text, config, sample)?;
    let capacity = model.capacity();
    let slides = config.context_limit == ContextLimit::Slide;
    if prompt.len() > capacity && !slides {
        return Err(EvalError::PromptTooLong { prompt: prompt.len(), capacity });
    }
    model.truncate(0);
    // Tokens that the model has not been given yet begin here.
    let mut fed = if prompt.len() > capacity { prompt.len() - kept(capacity) } else { 0 };
    let finish = loop {
        let all = text.all();
        if text.is_full() {
            break Finish::MaxTokens;
        }
        if model.held() + (all.len() - fed) > capacity {
            if !slides {
                break Finish::Context;
            }
            model.truncate(0);
            fed = all.len() - kept(capacity).min(all.len());
        }
        let logits = model.feed(&all[fed..])?;
        fed = all.len();
        match text.choose(logits)? {
            Next::Token(token) if on_token(token).is_break() => break Finish::Stopped,
            Next::Token(_) => {}
            Next::End(finish) => break finish,
        }
    };
    Ok(text.finish(finish))
}

/// A generated text with its characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedText {
    /// What follows the prompt. A character that the end cuts off, and bytes that are none, become U+FFFD.
    pub text: String,
    /// Its tokens, and why it ended.
    pub generated: Generated,
}

/// The tokens of a prompt as [`generate_text`] gives it to a model: as the beginning of a document.
///
/// Before it stands the end-of-text token that every training document follows. A tokenizer without one (of characters,
/// usually) puts nothing before a text, and a line feed, or else token 0, in the place of an empty one.
///
/// # Errors
/// [`EvalError::Tokenizer`] when the prompt cannot be encoded.
pub fn prompt_tokens(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, EvalError> {
    let mut ids: Vec<u32> = tokenizer.end_of_text().into_iter().collect();
    ids.extend(tokenizer.encode(prompt.as_bytes())?);
    if ids.is_empty() {
        ids = tokenizer.encode(b"\n").unwrap_or_else(|_| vec![0]);
    }
    Ok(ids)
}

/// As [`generate`], from text to text. `on_text` gets whole characters as soon as they are complete; a token that ends in
/// the middle of a character gives none.
///
/// # Errors
/// As [`generate`] and [`prompt_tokens`], and [`EvalError::Tokenizer`] for a token that the tokenizer does not know.
pub fn generate_text(
    model: &mut dyn NextToken,
    tokenizer: &Tokenizer,
    prompt: &str,
    config: &GenerateConfig,
    sample: u64,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<GeneratedText, EvalError> {
    let prompt = prompt_tokens(tokenizer, prompt)?;
    let model = &mut KnownTokens { model, size: tokenizer.vocab_size() };
    let (mut text, mut unknown) = (TextStream::new(config), None);
    let mut generated = generate(model, &prompt, tokenizer.end_of_text(), config, sample, &mut |token| {
        let Some(bytes) = tokenizer.token_bytes(token) else {
            unknown = Some(token);
            return ControlFlow::Break(());
        };
        // An end of text that is ignored has none.
        let bytes = if Some(token) == tokenizer.end_of_text() { &[] } else { bytes };
        let flow = match text.push(bytes) {
            "" => ControlFlow::Continue(()),
            piece => on_text(piece),
        };
        if text.ended() { ControlFlow::Break(()) } else { flow }
    })?;
    if let Some(id) = unknown {
        // The tokenizer's own words for it.
        tokenizer.decode(&[id])?;
    }
    if text.ended() {
        generated.finish = Finish::StopString;
    } else {
        let rest = text.finish();
        if !rest.is_empty() && generated.finish != Finish::Stopped {
            // Nothing is left to be stopped.
            let _ = on_text(rest);
        }
    }
    Ok(GeneratedText { text: text.into_text(), generated })
}

/// The text of tokens as they come: whole characters only, up to the first of some stop strings.
#[derive(Debug)]
pub struct TextStream {
    characters: Utf8Stream,
    text: StopText,
    /// Tokens yet to come that no stop string may end in.
    tokens_before_stop: u64,
    ended: bool,
}

impl TextStream {
    /// An empty text with the stop strings and `min_tokens` of a config.
    pub fn new(config: &GenerateConfig) -> TextStream {
        TextStream {
            characters: Utf8Stream::default(),
            text: StopText::new(config.stop.clone()),
            tokens_before_stop: config.min_tokens,
            ended: false,
        }
    }

    /// Appends the bytes of a token and returns the text that is new and certain: no part of a character, nothing that a stop
    /// string may begin with.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        if self.ended {
            return "";
        }
        let before = self.text.text.len();
        self.characters.push(bytes, &mut self.text.text);
        match self.tokens_before_stop.checked_sub(1) {
            Some(left) => self.tokens_before_stop = left,
            None => self.ended = self.text.cut(before),
        }
        self.text.release(self.ended)
    }

    /// True once a stop string has occurred.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Returns the rest at the end of the text.
    pub fn finish(&mut self) -> &str {
        if !self.ended {
            self.characters.finish(&mut self.text.text);
        }
        self.text.release(true)
    }

    /// The whole text, without a stop string and what followed it.
    pub fn into_text(self) -> String {
        self.text.text
    }
}

/// A growing text that ends before the first of some strings. What may be the beginning of one of them is held back.
#[derive(Debug)]
struct StopText {
    stops: Vec<String>,
    text: String,
    /// Bytes that were released.
    released: usize,
}

impl StopText {
    fn new(stops: Vec<String>) -> StopText {
        StopText { stops, text: String::new(), released: 0 }
    }

    /// Cuts the text before the first stop string that ends beyond the first `before` bytes; says whether there was one.
    fn cut(&mut self, before: usize) -> bool {
        let first = |stop: &String| {
            // No string begins in what was released: its beginning would have been held back.
            let mut from = (before + 1).saturating_sub(stop.len()).max(self.released);
            while !self.text.is_char_boundary(from) {
                from += 1;
            }
            self.text[from..].find(stop.as_str()).map(|at| from + at)
        };
        let first = self.stops.iter().filter_map(first).min();
        if let Some(at) = first {
            self.text.truncate(at);
        }
        first.is_some()
    }

    /// Returns what was not released before: all of it at the end of the text, else without a suffix that a stop string
    /// begins with.
    fn release(&mut self, at_end: bool) -> &str {
        let begins_here = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.text[at..]));
        let rest = self.text[self.released..].char_indices().map(|(at, _)| self.released + at);
        let held = if at_end { None } else { rest.into_iter().find(|at| begins_here(*at)) };
        let from = std::mem::replace(&mut self.released, held.unwrap_or(self.text.len()));
        &self.text[from..self.released]
    }
}

/// Tokens that a slide keeps.
fn kept(capacity: usize) -> usize {
    capacity.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer};

    /// Predicts the successor of the last token, modulo its vocabulary, and remembers what it was given.
    struct Successor {
        vocabulary: u32,
        capacity: usize,
        held: Vec<u32>,
        fed: usize,
        logits: Vec<f32>,
    }

    impl Successor {
        fn new(vocabulary: u32, capacity: usize) -> Successor {
            Successor { vocabulary, capacity, held: Vec::new(), fed: 0, logits: Vec::new() }
        }
    }

    impl NextToken for Successor {
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
            assert!(!ids.is_empty() && self.held.len() + ids.len() <= self.capacity, "the cache overflows");
            self.held.extend_from_slice(ids);
            self.fed += ids.len();
            self.logits = vec![0.0; self.vocabulary as usize];
            self.logits[((self.held[self.held.len() - 1] + 1) % self.vocabulary) as usize] = 9.0;
            Ok(&self.logits)
        }
    }

    fn greedy(max_tokens: u64, context_limit: ContextLimit) -> GenerateConfig {
        GenerateConfig {
            max_tokens,
            context_limit,
            sampling: SamplingConfig::greedy(),
            ..GenerateConfig::default()
        }
    }

    fn run(model: &mut Successor, prompt: &[u32], end: Option<u32>, config: &GenerateConfig) -> Generated {
        let mut told = Vec::new();
        let generated = generate(model, prompt, end, config, 0, &mut |t| {
            told.push(t);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(told, generated.tokens);
        generated
    }

    #[test]
    fn texts_end_at_the_end_of_text_at_the_wanted_length_or_at_the_context() {
        let mut model = Successor::new(10, 8);
        let stop = |max| greedy(max, ContextLimit::Stop);
        let ended = run(&mut model, &[4, 5], Some(9), &stop(100));
        assert_eq!(ended, Generated { tokens: vec![6, 7, 8], finish: Finish::EndOfText });
        let short = run(&mut model, &[4, 5], Some(9), &stop(2));
        assert_eq!(short, Generated { tokens: vec![6, 7], finish: Finish::MaxTokens });
        // 8 positions hold the prompt and 6 tokens, and the last logits give a seventh.
        let full = run(&mut model, &[4, 5], None, &stop(100));
        assert_eq!(full, Generated { tokens: vec![6, 7, 8, 9, 0, 1, 2], finish: Finish::Context });
        assert_eq!(run(&mut model, &[4], None, &stop(0)).finish, Finish::MaxTokens);
    }

    #[test]
    fn each_token_is_given_to_the_model_once() {
        let mut model = Successor::new(50, 64);
        run(&mut model, &[1, 2, 3], None, &greedy(20, ContextLimit::Stop));
        assert_eq!(model.fed, 3 + 19);
    }

    #[test]
    fn a_sliding_context_goes_on_at_a_bounded_price() {
        for capacity in [1, 2, 5, 8] {
            let mut model = Successor::new(7, capacity);
            let generated = run(&mut model, &[3, 4, 5], None, &greedy(200, ContextLimit::Slide));
            let wanted: Vec<u32> = (0..200).map(|i| (6 + i) % 7).collect();
            assert_eq!(generated, Generated { tokens: wanted, finish: Finish::MaxTokens }, "{capacity}");
            assert!(model.fed <= 3 + 200 * 3, "{} tokens were decoded", model.fed);
        }
    }

    #[test]
    fn the_callback_can_stop_the_text() {
        let mut model = Successor::new(50, 64);
        let config = greedy(20, ContextLimit::Stop);
        let generated = generate(&mut model, &[1], None, &config, 0, &mut |t| {
            if t == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(generated, Generated { tokens: vec![2, 3, 4], finish: Finish::Stopped });
    }

    #[test]
    fn samples_differ_and_repeat() {
        let config = GenerateConfig {
            max_tokens: 40,
            sampling: SamplingConfig { temperature: 8.0, top_p: 1.0, ..SamplingConfig::default() },
            ..GenerateConfig::default()
        };
        let text = |sample| {
            let mut model = Successor::new(50, 64);
            generate(&mut model, &[1], None, &config, sample, &mut |_| ControlFlow::Continue(()))
                .unwrap()
                .tokens
        };
        assert_eq!(text(0), text(0));
        assert_ne!(text(0), text(1));
    }

    fn tokenizer(kind: TokenizerKind, text: &str) -> Tokenizer {
        let mut trainer =
            Trainer::new(TokenizerConfig { kind, vocab_size: 257, ..TokenizerConfig::default() }).unwrap();
        trainer.feed(text);
        trainer.finish(|_| ()).unwrap()
    }

    /// Says a fixed text, then ends it.
    struct Recite {
        tokens: Vec<u32>,
        end: u32,
        logits: Vec<f32>,
        prompt: Option<Vec<u32>>,
        said: usize,
    }

    impl NextToken for Recite {
        fn capacity(&self) -> usize {
            1000
        }
        fn held(&self) -> usize {
            self.said
        }
        fn truncate(&mut self, _len: usize) {}
        fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
            self.prompt.get_or_insert_with(|| ids.to_vec());
            self.logits.fill(0.0);
            self.logits[self.tokens.get(self.said).copied().unwrap_or(self.end) as usize] = 5.0;
            self.said += 1;
            Ok(&self.logits)
        }
    }

    #[test]
    fn text_comes_in_whole_characters_after_a_document_s_beginning() {
        // A vocabulary of bytes only, so that characters are cut into tokens.
        let tokenizer = tokenizer(TokenizerKind::ByteBpe, "x");
        let end = tokenizer.end_of_text().unwrap();
        let mut tokens = tokenizer.encode("é🎉!".as_bytes()).unwrap();
        assert_eq!(tokens.len(), 7);
        tokens.extend(&tokenizer.encode("é".as_bytes()).unwrap()[..1]);
        let mut model = Recite { tokens: tokens.clone(), end, logits: vec![0.0; 257], prompt: None, said: 0 };
        let mut pieces = Vec::new();
        let result =
            generate_text(&mut model, &tokenizer, "hé", &greedy(50, ContextLimit::Stop), 0, &mut |t| {
                pieces.push(t.to_owned());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(pieces, ["é", "🎉", "!", "\u{fffd}"]);
        assert_eq!(result.text, "é🎉!\u{fffd}");
        assert_eq!(result.generated, Generated { tokens, finish: Finish::EndOfText });
        let prompt = [vec![end], tokenizer.encode("hé".as_bytes()).unwrap()].concat();
        assert_eq!(model.prompt.unwrap(), prompt);
    }

    /// The pieces that are released, the text and why it ended, of a text that is made byte by byte.
    fn recited(text: &str, stops: &[&str]) -> (Vec<String>, String, Finish) {
        let tokenizer = tokenizer(TokenizerKind::ByteBpe, "x");
        let tokens = tokenizer.encode(text.as_bytes()).unwrap();
        let end = tokenizer.end_of_text().unwrap();
        let mut model = Recite { tokens, end, logits: vec![0.0; 257], prompt: None, said: 0 };
        let stop = stops.iter().map(|s| s.to_string()).collect();
        let config = GenerateConfig { stop, ..greedy(500, ContextLimit::Stop) };
        let mut pieces = Vec::new();
        let result = generate_text(&mut model, &tokenizer, "", &config, 0, &mut |piece| {
            pieces.push(piece.to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(pieces.concat(), result.text);
        (pieces, result.text, result.generated.finish)
    }

    #[test]
    fn a_text_ends_before_the_first_stop_string_and_shows_nothing_of_it() {
        let (pieces, text, finish) = recited("one\n\ntwo", &["\n\n", "two"]);
        assert_eq!((text.as_str(), finish), ("one", Finish::StopString));
        assert_eq!(pieces, ["o", "n", "e"]);
        // What only began like a stop string comes when that is known, and at the end.
        let (pieces, text, finish) = recited("a\nb\n", &["\n\n"]);
        assert_eq!((text.as_str(), finish), ("a\nb\n", Finish::EndOfText));
        assert_eq!(pieces, ["a", "\nb", "\n"]);
        // A beginning within a beginning, and characters of several bytes.
        assert_eq!(recited("aaab!", &["aab"]).1, "a");
        assert_eq!(recited("é🎉é!", &["🎉é"]).1, "é");
        assert_eq!(recited("abc", &["abcd", "bc"]).1, "a");
        assert_eq!(recited("stop", &["stop"]), (vec![], String::new(), Finish::StopString));
    }

    #[test]
    fn min_tokens_stop_tokens_and_ignore_eos_decide_where_a_text_ends() {
        let mut model = Successor::new(10, 40);
        let base = || greedy(14, ContextLimit::Stop);
        let text = |tokens: &[u32], finish| Generated { tokens: tokens.to_vec(), finish };
        let stops = |ids: &[u32]| GenerateConfig { stop_token_ids: ids.to_vec(), ..base() };
        let mut run = |config: &GenerateConfig| run(&mut model, &[4, 5], Some(9), config);
        assert_eq!(run(&stops(&[3, 8])), text(&[6, 7], Finish::StopToken));
        // The end of text is a token as any other.
        let ignoring = GenerateConfig { ignore_eos: true, ..stops(&[2]) };
        assert_eq!(run(&ignoring), text(&[6, 7, 8, 9, 0, 1], Finish::StopToken));
        assert_eq!(
            run(&GenerateConfig { stop_token_ids: vec![9], ..ignoring }),
            text(&[6, 7, 8], Finish::EndOfText)
        );
        // With the end excluded all logits are equal, and the lowest token follows.
        let long = |min_tokens, ids: &[u32]| GenerateConfig { min_tokens, ..stops(ids) };
        assert_eq!(run(&long(3, &[])), text(&[6, 7, 8], Finish::EndOfText));
        assert_eq!(run(&long(4, &[])), text(&[6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8], Finish::EndOfText));
        assert_eq!(run(&long(2, &[7])), text(&[6, 0, 1, 2, 3, 4, 5, 6], Finish::StopToken));
        let wrong = generate(&mut Successor::new(5, 9), &[1], None, &long(15, &[]), 0, &mut |_| {
            ControlFlow::Continue(())
        });
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.contains("min_tokens = 15: wanted 0 to max_tokens = 14"), "{wrong}");
    }

    #[test]
    fn a_stop_string_counts_once_min_tokens_are_there_and_an_ignored_end_has_no_text() {
        let tokenizer = tokenizer(TokenizerKind::ByteBpe, "x");
        let end = tokenizer.end_of_text().unwrap();
        let mut tokens = tokenizer.encode(b"abcabc").unwrap();
        tokens.insert(4, end);
        let written = |min_tokens, ignore_eos, stop: &str| {
            let mut model =
                Recite { tokens: tokens.clone(), end, logits: vec![0.0; 257], prompt: None, said: 0 };
            let stop = vec![stop.to_owned()];
            let config = GenerateConfig { min_tokens, ignore_eos, stop, ..greedy(7, ContextLimit::Stop) };
            let text =
                generate_text(&mut model, &tokenizer, "", &config, 0, &mut |_| ControlFlow::Continue(()));
            text.unwrap().text
        };
        assert_eq!(written(0, true, "bc"), "a");
        // The third token completes it, and is one of the first three; a text that spans the border counts.
        assert_eq!(written(3, true, "bc"), "abca");
        assert_eq!(written(2, true, "abc"), "");
        assert_eq!(written(0, true, "none"), "abcabc");
        assert_eq!(written(0, false, "none"), "abca");
    }

    #[test]
    fn an_empty_prompt_begins_a_document_with_every_tokenizer() {
        let bytes = tokenizer(TokenizerKind::ByteBpe, "x");
        assert_eq!(prompt_tokens(&bytes, "").unwrap(), [bytes.end_of_text().unwrap()]);
        let lines = tokenizer(TokenizerKind::Char, "ab\ncd");
        assert_eq!(lines.end_of_text(), None);
        assert_eq!(prompt_tokens(&lines, "").unwrap(), lines.encode(b"\n").unwrap());
        assert_eq!(prompt_tokens(&lines, "ab").unwrap(), lines.encode(b"ab").unwrap());
        assert_eq!(prompt_tokens(&tokenizer(TokenizerKind::Char, "abc"), "").unwrap(), [0]);
        assert!(matches!(prompt_tokens(&lines, "é"), Err(EvalError::Tokenizer(_))));
    }

    #[test]
    fn impossible_prompts_and_settings_are_refused() {
        let mut model = Successor::new(5, 2);
        let mut on = |_| ControlFlow::Continue(());
        let stop = greedy(5, ContextLimit::Stop);
        assert!(matches!(generate(&mut model, &[], None, &stop, 0, &mut on), Err(EvalError::EmptyPrompt)));
        let e = generate(&mut model, &[1, 2, 3], None, &stop, 0, &mut on).unwrap_err();
        assert!(matches!(e, EvalError::PromptTooLong { prompt: 3, capacity: 2 }), "{e}");
        let mut bad = stop.clone();
        bad.sampling.top_p = 7.0;
        let e = generate(&mut model, &[1], None, &bad, 0, &mut on).unwrap_err().to_string();
        assert!(e.contains("sampling.top_p = 7"), "{e}");
        let empty = GenerateConfig { stop: vec![String::new()], ..stop };
        let e = generate(&mut model, &[1], None, &empty, 0, &mut on).unwrap_err().to_string();
        assert!(e.contains("stop: wanted") && e.contains("1 to 4096 bytes"), "{e}");
    }
}
