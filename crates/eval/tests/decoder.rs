//! Evaluation and generation with a real decoder on the CPU backend.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use bessemer_arch::{Model, ModelConfig};
use bessemer_eval::generate::{CachedDecoder, ContextLimit, Finish, GenerateConfig, NextToken, generate};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_eval::score::rows::{LengthDecoders, Row, RowModel, RowScore, score_rows};
use bessemer_eval::score::shared::PrefixModel;
use bessemer_eval::score::{DecoderLosses, EvalReport, TokenLosses, score, score_rolling, score_windows};
use bessemer_eval::windows::Spread;
use bessemer_eval::{EvalConfig, EvalError};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_loader::EvaluationWindows;
use bessemer_runtime::{Cache, CacheShape, Decoder, Purpose, Shape, TokenBatch};
use bessemer_shards::{DEFAULT_FILE_BYTES, Fingerprint, ShardSet, ShardSetWriter, SplitMeta};
use std::ops::ControlFlow;
use std::sync::Arc;

const VOCABULARY: u32 = 101;
const CONTEXT: usize = 24;

fn model(architecture: &str) -> Model {
    let config = ModelConfig {
        architecture: architecture.into(),
        layers: Some(2),
        width: Some(48),
        heads: Some(4),
        kv_heads: Some(4),
        head_dim: Some(12),
        ffn_width: Some(72),
        context: Some(CONTEXT as u64),
        // Wide, so that an untrained model has opinions.
        init_std: 0.3,
        ..ModelConfig::default()
    };
    config.resolve(Some(VOCABULARY as usize)).unwrap()
}

fn decoder(architecture: &str, sequences: usize) -> (CpuBackend, Decoder) {
    let mut backend = CpuBackend::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let shape = Shape { sequences, seq: CONTEXT, purpose: Purpose::Score };
    let decoder = Decoder::new(&mut backend, &model(architecture), shape).unwrap();
    decoder.init(&mut backend, 7).unwrap();
    (backend, decoder)
}

fn validation() -> (tempfile::TempDir, EvaluationWindows) {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "valid".into(), vocab_size: VOCABULARY, tokenizer: Fingerprint([1; 32]) };
    let mut writer = ShardSetWriter::create(dir.path(), meta, DEFAULT_FILE_BYTES).unwrap();
    for i in 0..9u32 {
        let mut tokens: Vec<u32> =
            (0..i * 17 % 60).map(|t| 1 + (t * t * 7 + i * 3 + t) % (VOCABULARY - 1)).collect();
        tokens.push(0);
        writer.push_document([i as u8; 16], tokens.len() as u64 - 1, &tokens).unwrap();
    }
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "valid").unwrap());
    let windows = EvaluationWindows::new(set, CONTEXT, Some(0)).unwrap();
    (dir, windows)
}

fn one_byte_each() -> Vec<u32> {
    (0..VOCABULARY).map(|t| u32::from(t > 0)).collect()
}

#[test]
fn token_losses_have_the_same_bits_for_any_batch() {
    let (_dir, windows) = validation();
    assert_ne!(windows.target_tokens() % CONTEXT as u64, 0, "the last window is filled up");
    for architecture in ["gpt2", "llama"] {
        let run = |sequences| -> (Vec<u32>, EvalReport) {
            let (mut backend, mut decoder) = decoder(architecture, sequences);
            let mut model = DecoderLosses { decoder: &mut decoder, backend: &mut backend };
            let all = Spread::new(windows.windows(), CONTEXT as u64, None);
            let mut bits = Vec::new();
            score_windows(&mut model, &windows, all, &mut |window| {
                bits.extend(window.losses.iter().map(|l| l.to_bits()));
                Ok(())
            })
            .unwrap();
            (bits, score(&mut model, &windows, &one_byte_each(), None, &mut |_, _| ()).unwrap())
        };
        let (bits, report) = run(1);
        assert_eq!(bits.len() as u64, windows.target_tokens());
        assert_eq!(report.bytes, windows.shards().text_bytes());
        assert!(report.loss > 1.0 && report.loss.is_finite(), "{report:?}");
        for sequences in [2, 7] {
            let (other, other_report) = run(sequences);
            let differing = bits.iter().zip(&other).filter(|(a, b)| a != b).count();
            assert_eq!(
                differing, 0,
                "{architecture}: tokens that differ between batches of 1 and {sequences}"
            );
            assert_eq!(report, other_report);
        }
    }
}

#[test]
fn a_model_without_opinions_has_the_perplexity_of_its_vocabulary() {
    let (_dir, windows) = validation();
    let (mut backend, mut decoder) = decoder("llama", 3);
    let names: Vec<(String, usize)> =
        decoder.params().iter().map(|p| (p.spec.name.clone(), p.spec.len())).collect();
    for (name, len) in names {
        decoder.write_param(&mut backend, &name, &vec![0.0; len]).unwrap();
    }
    let mut model = DecoderLosses { decoder: &mut decoder, backend: &mut backend };
    let config = EvalConfig { max_tokens: 100, ..EvalConfig::default() };
    let report = score(&mut model, &windows, &one_byte_each(), config.max_tokens(), &mut |_, _| ()).unwrap();
    assert!((report.perplexity - f64::from(VOCABULARY)).abs() < 1e-3, "{report:?}");
    let wanted = report.tokens as f64 / report.bytes as f64 * f64::from(VOCABULARY).log2();
    assert!((report.bits_per_byte - wanted).abs() < 1e-5);
    assert!(!report.is_complete() && report.tokens <= 100);
}

#[test]
fn rolling_windows_of_a_short_text_agree_with_one_pass() {
    let (mut backend, mut decoder) = decoder("gpt2", 2);
    let tokens: Vec<u32> = (0..CONTEXT as u32).map(|t| 1 + t * 13 % 90).collect();
    let mut ids = vec![0];
    ids.extend(&tokens[..CONTEXT - 1]);
    let two = |row: &[u32]| [row, row].concat();
    let (inputs, targets) = (two(&ids), two(&tokens));
    let batch = TokenBatch { ids: &inputs, targets: &targets, positions: None };
    let direct = decoder.loss(&mut backend, &batch, None).unwrap();
    let mut model = DecoderLosses { decoder: &mut decoder, backend: &mut backend };
    let rolled = score_rolling(&mut model, 0, &tokens, 5).unwrap();
    assert_eq!(rolled.scored, CONTEXT as u64);
    assert!((rolled.nats - direct.nats / 2.0).abs() < 1e-9);
    let longer: Vec<u32> = (0..100).map(|t| 1 + t * 13 % 90).collect();
    assert_eq!(score_rolling(&mut model, 0, &longer, 12).unwrap().scored, 100);
}

/// Rows of many lengths, short ones and one that fills the context.
fn rows() -> Vec<Row> {
    let row = |i: u32| {
        let len = 2 + i as usize * 7 % CONTEXT;
        let tokens = (0..len as u32).map(|t| (t * t * 5 + i * 11 + t) % VOCABULARY).collect();
        Row { tokens, scored: 1 + i as usize % (len - 1).min(5) }
    };
    (0..40).map(row).collect()
}

fn bits(scores: &[RowScore]) -> Vec<(u64, Option<bool>)> {
    scores.iter().map(|score| (score.log_likelihood.to_bits(), score.greedy)).collect()
}

#[test]
fn rows_have_the_same_bits_for_any_batch_and_order() {
    for architecture in ["gpt2", "llama"] {
        let run = |sequences, rows: &[Row]| {
            let (mut backend, decoder) = decoder(architecture, sequences);
            let mut model = LengthDecoders::new(&mut backend, decoder);
            assert_eq!([1, 16, 17, CONTEXT].map(|len| model.length_for(len)), [16, 16, CONTEXT, CONTEXT]);
            bits(&score_rows(&mut model, rows, true, &mut |_, _| ()).unwrap())
        };
        let (rows, backwards) = (rows(), rows().into_iter().rev().collect::<Vec<_>>());
        let alone: Vec<_> = rows.iter().flat_map(|row| run(1, std::slice::from_ref(row))).collect();
        for sequences in [1, 2, 7] {
            assert_eq!(run(sequences, &rows), alone, "{architecture}: batches of {sequences}");
            let mut other = run(sequences, &backwards);
            other.reverse();
            assert_eq!(other, alone, "{architecture}: batches of {sequences}, the other way round");
        }
    }
}

/// Questions with several choices, and questions behind common examples.
fn choices() -> Vec<Row> {
    let token = |seed: u32, t: u32| (t * t * 5 + seed * 11 + t) % VOCABULARY;
    let mut rows = Vec::new();
    for question in 0..60 {
        let context: Vec<u32> =
            (0..9 + question % 8).map(|t| token(if t < 6 { 1 } else { question }, t)).collect();
        for choice in 0..1 + question % 4 {
            let rest = (0..1 + (question + choice) % 5).map(|t| token(50 + question * 7 + choice, t));
            let tokens: Vec<u32> = context.iter().copied().chain(rest).collect();
            rows.push(Row { scored: tokens.len() - context.len(), tokens });
        }
    }
    rows
}

/// Decoders that count the passes behind common beginnings.
struct Counting<'a> {
    decoders: LengthDecoders<'a>,
    passes: usize,
}

impl RowModel for Counting<'_> {
    fn longest(&self) -> usize {
        self.decoders.longest()
    }
    fn length_for(&self, len: usize) -> usize {
        self.decoders.length_for(len)
    }
    fn at_length(&mut self, length: usize) -> Result<Box<dyn TokenLosses + '_>, EvalError> {
        self.decoders.at_length(length)
    }
    fn prefixes(&mut self) -> Option<&mut dyn PrefixModel> {
        if self.decoders.prefixes().is_some() { Some(self) } else { None }
    }
}

impl PrefixModel for Counting<'_> {
    fn sequences(&self, capacity: usize) -> usize {
        self.decoders.sequences(capacity)
    }
    fn behind(
        &mut self,
        capacity: usize,
        past: usize,
        length: usize,
    ) -> Result<Box<dyn TokenLosses + '_>, EvalError> {
        self.passes += 1;
        self.decoders.behind(capacity, past, length)
    }
}

#[test]
fn rows_with_a_common_beginning_have_the_bits_of_whole_rows() {
    for architecture in ["gpt2", "llama"] {
        let run = |sequences, shares: bool, rows: &[Row]| {
            let (mut backend, decoder) = decoder(architecture, sequences);
            let mut decoders = LengthDecoders::new(&mut backend, decoder);
            if !shares {
                decoders = decoders.whole_rows();
            }
            let (mut model, mut told) = (Counting { decoders, passes: 0 }, 0);
            let found = bits(&score_rows(&mut model, rows, true, &mut |done, _| told = done).unwrap());
            assert_eq!(told, rows.len() as u64);
            (found, model.passes)
        };
        let rows = choices();
        let (whole, none) = run(7, false, &rows);
        assert_eq!(none, 0);
        for sequences in [1, 2, 7] {
            let (shared, passes) = run(sequences, true, &rows);
            assert_eq!(shared, whole, "{architecture}: batches of {sequences}");
            assert!(passes > 3, "{architecture}: batches of {sequences}: no row was shared");
        }
        let backwards: Vec<Row> = rows.iter().rev().cloned().collect();
        let (mut other, _) = run(2, true, &backwards);
        other.reverse();
        assert_eq!(other, whole, "{architecture}: the other way round");
        let alone: Vec<_> = rows.iter().flat_map(|row| run(1, true, std::slice::from_ref(row)).0).collect();
        assert_eq!(alone, whole, "{architecture}: each row by itself");
    }
}

/// Against logits: ll = sum of ln softmax, greedy = each target is the largest.
#[test]
fn rows_are_scored_as_their_logits_say() {
    let (mut backend, decoder) = decoder("llama", 2);
    let shape = Shape { sequences: 1, seq: CONTEXT, purpose: Purpose::Score };
    let mut plain = Decoder::with_params(
        &mut backend,
        decoder.model(),
        shape,
        Default::default(),
        decoder.params().to_vec(),
    )
    .unwrap();
    let mut rows = rows();
    let mut wanted = Vec::new();
    for (number, row) in rows.iter_mut().enumerate() {
        // Every third row continues as the model would, so that some are greedy.
        let first = row.tokens.len() - row.scored;
        let (mut ll, mut greedy) = (0.0, true);
        for at in first..row.tokens.len() {
            let mut ids = row.tokens[..at].to_vec();
            ids.resize(CONTEXT, 0);
            let targets = vec![bessemer_loader::IGNORED; CONTEXT];
            let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let mut logits = Vec::new();
            plain
                .logits(&mut backend, &batch, |n, row| {
                    if n == at - 1 {
                        logits = row.iter().map(|l| f64::from(*l)).collect();
                    }
                })
                .unwrap();
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            if number % 3 == 0 {
                row.tokens[at] = best as u32;
            }
            let most = logits[best];
            let lse = most + logits.iter().map(|l| (l - most).exp()).sum::<f64>().ln();
            ll += logits[row.tokens[at] as usize] - lse;
            greedy &= row.tokens[at] as usize == best;
        }
        wanted.push((ll, greedy));
    }
    let mut model = LengthDecoders::new(&mut backend, decoder);
    let scores = score_rows(&mut model, &rows, true, &mut |_, _| ()).unwrap();
    assert!(wanted.iter().any(|row| row.1) && wanted.iter().any(|row| !row.1));
    for (score, (ll, greedy)) in scores.iter().zip(wanted) {
        assert!((score.log_likelihood - ll).abs() < 1e-4 * (1.0 + ll.abs()), "{score:?}, wanted {ll}");
        assert_eq!(score.greedy, Some(greedy));
    }
    let wrong = |row: Row, model: &mut LengthDecoders<'_>| {
        score_rows(model, &[row], false, &mut |_, _| ()).unwrap_err()
    };
    for (len, scored) in [(5, 0), (5, 5), (CONTEXT + 2, 1)] {
        let e = wrong(Row { tokens: vec![1; len], scored }, &mut model).to_string();
        assert!(e.contains("wanted a token to score"), "{e}");
    }
}

fn greedy(max_tokens: u64) -> GenerateConfig {
    GenerateConfig { max_tokens, sampling: SamplingConfig::greedy(), ..GenerateConfig::default() }
}

fn go_on(_: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn greedy_text_is_the_most_probable_token_of_a_full_pass_each_time() {
    for architecture in ["gpt2", "llama"] {
        let (mut backend, mut decoder) = decoder(architecture, 1);
        let mut cache = Cache::new(&mut backend, &decoder, CacheShape::one(CONTEXT)).unwrap();
        let prompt = [0, 5, 9];
        let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache).unwrap();
        let text = generate(&mut model, &prompt, None, &greedy(100), 0, &mut go_on).unwrap();
        assert_eq!(text.finish, Finish::Context);
        assert_eq!(text.tokens.len(), CONTEXT - prompt.len() + 1);
        // A second text from the same cache is the same: nothing is left of the first.
        let again = generate(&mut model, &prompt, None, &greedy(100), 0, &mut go_on).unwrap();
        assert_eq!(text, again);
        let all: Vec<u32> = prompt.iter().chain(&text.tokens).copied().collect();
        let ids = &all[..CONTEXT];
        let mut best = Vec::new();
        let batch = TokenBatch { ids, targets: ids, positions: None };
        decoder
            .logits(&mut backend, &batch, |_, row| {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                best.push(row.iter().position(|&l| l == largest).unwrap() as u32);
            })
            .unwrap();
        assert_eq!(text.tokens, best[prompt.len() - 1..]);
    }
}

#[test]
fn sliding_generation_goes_on_and_sampling_repeats_with_its_seed() {
    let (mut backend, decoder) = decoder("llama", 1);
    let mut cache = Cache::new(&mut backend, &decoder, CacheShape::one(CONTEXT)).unwrap();
    let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache).unwrap();
    let config = GenerateConfig {
        max_tokens: 80,
        context_limit: ContextLimit::Slide,
        stop: Vec::new(),
        sampling: SamplingConfig { temperature: 1.0, top_k: 20, top_p: 0.9, ..SamplingConfig::default() },
        ..GenerateConfig::default()
    };
    let mut text = |sample| generate(&mut model, &[0], None, &config, sample, &mut go_on).unwrap();
    let first = text(0);
    assert_eq!((first.tokens.len(), first.finish), (80, Finish::MaxTokens));
    assert_eq!(first, text(0));
    assert_ne!(first, text(1));
    assert!(first.tokens.iter().all(|&t| t < VOCABULARY));
}

#[test]
fn broken_weights_and_wrong_caches_are_errors() {
    let (mut backend, decoder) = decoder("gpt2", 1);
    let mut two = Cache::new(&mut backend, &decoder, CacheShape::slots(2, 4)).unwrap();
    let e = CachedDecoder::new(&decoder, &mut backend, &mut two).err().unwrap();
    assert!(matches!(e, EvalError::CacheSequences(2)), "{e}");
    let mut cache = Cache::new(&mut backend, &decoder, CacheShape::one(4)).unwrap();
    let len = decoder.params().iter().find(|p| p.spec.name == "final_norm.weight").unwrap().spec.len();
    decoder.write_param(&mut backend, "final_norm.weight", &vec![f32::NAN; len]).unwrap();
    let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache).unwrap();
    let e = generate(&mut model, &[1], None, &greedy(3), 0, &mut go_on).unwrap_err();
    assert!(matches!(e, EvalError::Logit { token: 0, .. }) && e.to_string().contains("checkpoint"), "{e}");
    assert_eq!(model.held(), 1);
}
