use super::*;
use bessemer_shards::{DEFAULT_FILE_BYTES, Fingerprint, ShardSet, ShardSetWriter, SplitMeta};
use std::sync::Arc;

const VOCABULARY: u32 = 50;
/// Separator of documents, which stands for no byte.
const END: u32 = 0;

/// Documents of the given lengths, each with its separator, in a set of small files. Token t stands for t % 5 bytes.
fn split(lengths: &[u32]) -> (tempfile::TempDir, Arc<ShardSet>) {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "valid".into(), vocab_size: VOCABULARY, tokenizer: Fingerprint([1; 32]) };
    let mut writer = ShardSetWriter::create(dir.path(), meta, DEFAULT_FILE_BYTES).unwrap();
    for (i, &len) in lengths.iter().enumerate() {
        let mut tokens: Vec<u32> = (0..len).map(|t| 1 + (t * 7 + i as u32 * 3) % (VOCABULARY - 1)).collect();
        let bytes = tokens.iter().map(|&t| u64::from(byte_lengths()[t as usize])).sum();
        tokens.push(END);
        writer.push_document([i as u8; 16], bytes, &tokens).unwrap();
    }
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "valid").unwrap());
    (dir, set)
}

fn byte_lengths() -> Vec<u32> {
    (0..VOCABULARY).map(|t| if t == END { 0 } else { 1 + t % 5 }).collect()
}

/// The loss of a target is a number made of everything before it in its window.
struct Hashed {
    sequences: usize,
    seq: usize,
    batches: usize,
}

impl TokenLosses for Hashed {
    fn shape(&self) -> (usize, usize) {
        (self.sequences, self.seq)
    }

    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        assert!([inputs.len(), targets.len(), losses.len()] == [self.sequences * self.seq; 3]);
        self.batches += 1;
        for row in 0..self.sequences {
            let mut hash = 17u64;
            for at in row * self.seq..(row + 1) * self.seq {
                hash = (hash ^ u64::from(inputs[at])).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = (hash ^ u64::from(targets[at])).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                losses[at] = if targets[at] == IGNORED { 0.0 } else { (mixed >> 40) as f32 / 1e6 };
            }
        }
        Ok(())
    }
}

fn hashed(sequences: usize, seq: usize) -> Hashed {
    Hashed { sequences, seq, batches: 0 }
}

#[test]
fn reports_do_not_depend_on_the_batch() {
    let (_dir, set) = split(&[40, 3, 0, 71, 18, 25]);
    let windows = EvaluationWindows::new(set, 8, Some(END)).unwrap();
    for max_tokens in [None, Some(50)] {
        let report = |sequences| {
            let mut model = hashed(sequences, 8);
            score(&mut model, &windows, &byte_lengths(), max_tokens, &mut |_, _| ()).unwrap()
        };
        let one = report(1);
        for sequences in [2, 7, 1000] {
            assert_eq!(report(sequences), one);
        }
    }
}

#[test]
fn every_token_is_scored_once_and_every_byte_counted_once() {
    let (_dir, set) = split(&[40, 3, 0, 71, 18, 25]);
    for seq in [1, 8, 13, 500] {
        let windows = EvaluationWindows::new(set.clone(), seq, Some(END)).unwrap();
        let mut told = Vec::new();
        let mut model = hashed(3, seq);
        let report =
            score(&mut model, &windows, &byte_lengths(), None, &mut |done, all| told.push((done, all)))
                .unwrap();
        assert_eq!((report.tokens, report.bytes), (set.token_count(), set.text_bytes()));
        assert_eq!(told.last(), Some(&(report.windows, report.windows_in_split)));
        assert!(report.is_complete());
        assert_eq!(model.batches as u64, windows.windows().div_ceil(3));
        assert_eq!(report.loss, report.nats / report.tokens as f64);
        assert_eq!(report.perplexity, report.loss.exp());
        assert!(
            (report.bits_per_byte * report.bytes as f64 * std::f64::consts::LN_2 / report.nats - 1.0).abs()
                < 1e-12
        );
    }
}

#[test]
fn visited_windows_are_the_split_in_order() {
    let (_dir, set) = split(&[40, 3, 0, 71]);
    let windows = EvaluationWindows::new(set.clone(), 8, Some(END)).unwrap();
    let mut seen = Vec::new();
    let all = Spread::new(windows.windows(), 8, None);
    score_windows(&mut hashed(4, 8), &windows, all, &mut |w| {
        assert_eq!(w.window, seen.len() as u64 / 8);
        assert_eq!(w.targets.len(), w.losses.len());
        seen.extend_from_slice(w.targets);
        Ok(())
    })
    .unwrap();
    let mut wanted = vec![0; set.token_count() as usize];
    set.read(0, &mut wanted).unwrap();
    assert_eq!(seen, wanted);
}

#[test]
fn a_bounded_evaluation_scores_the_same_windows_each_time() {
    let (_dir, set) = split(&[200, 90, 150]);
    let windows = EvaluationWindows::new(set, 16, Some(END)).unwrap();
    let run = || score(&mut hashed(2, 16), &windows, &byte_lengths(), Some(100), &mut |_, _| ()).unwrap();
    let report = run();
    assert_eq!((report.tokens, report.windows, report.windows_in_split), (96, 6, 28));
    assert!(!report.is_complete());
    assert_eq!(report, run());
    let least = score(&mut hashed(2, 16), &windows, &byte_lengths(), Some(1), &mut |_, _| ()).unwrap();
    assert_eq!(least.windows, 1);
}

#[test]
fn tables_and_lengths_that_do_not_belong_together_are_refused() {
    let (_dir, set) = split(&[20]);
    let windows = EvaluationWindows::new(set, 8, Some(END)).unwrap();
    let e = score(&mut hashed(1, 9), &windows, &byte_lengths(), None, &mut |_, _| ()).unwrap_err();
    assert!(matches!(e, EvalError::SequenceLength { windows: 8, model: 9 }), "{e}");
    let e = score(&mut hashed(1, 8), &windows, &[1; 3], None, &mut |_, _| ()).unwrap_err();
    assert!(matches!(e, EvalError::ByteLength { known: 3, .. }), "{e}");
}

/// Checks what a rolling window gives the model: p(target) is wrong unless the input ends with its predecessor.
struct Chained {
    seq: usize,
    sequences: usize,
    shortest: usize,
}

impl TokenLosses for Chained {
    fn shape(&self) -> (usize, usize) {
        (self.sequences, self.seq)
    }
    fn token_losses(&mut self, inputs: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        losses.fill(0.0);
        for row in 0..self.sequences {
            let range = row * self.seq..(row + 1) * self.seq;
            let scored = targets[range.clone()].iter().position(|&t| t != IGNORED);
            if let Some(first) = scored {
                let at_start = inputs[range.start] == 99;
                if !at_start {
                    self.shortest = self.shortest.min(first + 1);
                }
                for at in range.filter(|&at| targets[at] != IGNORED) {
                    let before = if inputs[at] == 99 { 0 } else { inputs[at] + 1 };
                    assert_eq!(targets[at], before, "the successor of its input");
                    losses[at] = 0.25;
                }
            }
        }
        Ok(())
    }
}

#[test]
fn rolling_scores_every_target_once_after_its_predecessor_with_enough_context() {
    for n in [0u32, 1, 7, 34, 50] {
        let tokens: Vec<u32> = (0..n).collect();
        for (seq, context) in [(10, 1), (10, 8), (10, 10), (64, 3)] {
            for sequences in [1, 2, 7] {
                let mut model = Chained { seq, sequences, shortest: usize::MAX };
                let sum = score_rolling(&mut model, 99, &tokens, context).unwrap();
                assert_eq!(
                    sum,
                    LossSum { nats: 0.25 * f64::from(n), scored: u64::from(n), ..LossSum::default() }
                );
                assert!(model.shortest as u64 >= context);
            }
        }
    }
    assert!(matches!(score_rolling(&mut hashed(1, 8), 0, &[1], 9), Err(EvalError::Windows(_))));
}

#[test]
fn components_share_the_losses_of_the_split() {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "valid".into(), vocab_size: VOCABULARY, tokenizer: Fingerprint([1; 32]) };
    let mut writer = ShardSetWriter::create(dir.path(), meta, DEFAULT_FILE_BYTES).unwrap();
    for (name, lengths) in [("a", vec![20, 3]), ("b", vec![]), ("c", vec![1, 30])] {
        writer.begin_component(name).unwrap();
        for len in lengths {
            let tokens: Vec<u32> = (0..len).map(|t| 1 + (t * 7) % (VOCABULARY - 1)).chain([END]).collect();
            writer.push_document([len as u8; 16], 0, &tokens).unwrap();
        }
    }
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "valid").unwrap());
    for context in [Some(END), None] {
        let windows = EvaluationWindows::new(set.clone(), 8, context).unwrap();
        // Every target by itself.
        let mut by_offset = Vec::new();
        let spread = Spread::new(windows.windows(), 8, None);
        score_windows(&mut hashed(3, 8), &windows, spread, &mut |window| {
            by_offset.extend(window.losses.iter().map(|&loss| f64::from(loss)));
            Ok(())
        })
        .unwrap();
        let first = windows.target_of(0) as usize;
        let mut model = hashed(2, 8);
        let (whole, parts) =
            score_components(&mut model, &windows, &byte_lengths(), None, &mut |_, _| ()).unwrap();
        assert_eq!(parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        let (a, c) = (parts[0].1, parts[1].1);
        // 20 + 1 + 3 + 1 tokens, then 1 + 1 + 30 + 1.
        assert_eq!((a.tokens, c.tokens), (25 - first as u64, 33));
        assert_eq!(a.nats, by_offset[..25 - first].iter().sum::<f64>());
        assert_eq!(c.nats, by_offset[25 - first..].iter().sum::<f64>());
        assert_eq!((a.bytes + c.bytes, a.tokens + c.tokens), (whole.bytes, whole.tokens));
        assert!(a.is_complete() && c.is_complete() && whole.is_complete());
        assert_eq!(a.loss, a.nats / a.tokens as f64);
    }
}

/// Of a split with a mask, the loss is that of the scored targets, with the contexts that they have without a mask.
#[test]
fn only_scored_targets_count() {
    let scored = |token: usize| token % 9 > 5 || (40..60).contains(&token);
    let of = |masked: bool| {
        let dir = tempfile::tempdir().unwrap();
        let meta =
            SplitMeta { split: "valid".into(), vocab_size: VOCABULARY, tokenizer: Fingerprint([1; 32]) };
        let mut writer = ShardSetWriter::create(dir.path(), meta, DEFAULT_FILE_BYTES).unwrap();
        let mut at = 0;
        for (name, lengths) in [("a", vec![20, 3, 40]), ("b", vec![7]), ("c", vec![30])] {
            writer.begin_component(name).unwrap();
            for len in lengths {
                let tokens: Vec<u32> =
                    (0..len).map(|t| 1 + (t * 7) % (VOCABULARY - 1)).chain([END]).collect();
                // Component b is not scored.
                let is = |i: usize| !masked || (scored(at + i) && name != "b");
                let ranges: Vec<_> = (0..tokens.len()).filter(|i| is(*i)).map(|i| i..i + 1).collect();
                writer.push_scored([len as u8; 16], 0, &tokens, &ranges).unwrap();
                at += tokens.len();
            }
        }
        writer.finish().unwrap();
        let set = Arc::new(ShardSet::open(dir.path(), "valid").unwrap());
        (dir, set)
    };
    let ((_whole_dir, whole), (_masked_dir, masked)) = (of(false), of(true));
    let b = whole.components()[1].tokens.clone();
    let is_scored = |token: u64| scored(token as usize) && !b.contains(&token);
    for context in [Some(END), None] {
        let windows = |set: &Arc<ShardSet>| EvaluationWindows::new(set.clone(), 8, context).unwrap();
        let (mut wanted, mut token) = (EvalReport::default(), windows(&whole).target_of(0));
        let spread = Spread::new(windows(&whole).windows(), 8, None);
        // The hashed loss of a target does not depend on the targets before it.
        score_windows(&mut hashed(3, 8), &windows(&whole), spread, &mut |window| {
            for (target, loss) in window.targets.iter().zip(window.losses) {
                if is_scored(token) {
                    wanted.nats += f64::from(*loss);
                    wanted.tokens += 1;
                    wanted.bytes += u64::from(byte_lengths()[*target as usize]);
                }
                token += 1;
            }
            Ok(())
        })
        .unwrap();
        for sequences in [1, 3] {
            let mut model = hashed(sequences, 8);
            let windows = windows(&masked);
            let (found, parts) =
                score_components(&mut model, &windows, &byte_lengths(), None, &mut |_, _| ()).unwrap();
            assert_eq!((found.nats, found.tokens, found.bytes), (wanted.nats, wanted.tokens, wanted.bytes));
            assert_eq!(found.loss, wanted.nats / wanted.tokens as f64);
            assert!(found.tokens < whole.token_count() / 2 && found.is_complete());
            assert_eq!(parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
            assert_eq!(parts.iter().map(|part| part.1.tokens).sum::<u64>(), found.tokens);
        }
    }
}

/// An evaluation of a part of a split in which no target is scored has no loss, and says so instead of 0 / 0.
#[test]
fn an_evaluation_without_a_scored_target_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let meta = SplitMeta { split: "valid".into(), vocab_size: VOCABULARY, tokenizer: Fingerprint([1; 32]) };
    let mut writer = ShardSetWriter::create(dir.path(), meta, DEFAULT_FILE_BYTES).unwrap();
    writer.push_scored([0; 16], 1, &[3; 200], &[150..151, 151..152]).unwrap();
    writer.finish().unwrap();
    let set = Arc::new(ShardSet::open(dir.path(), "valid").unwrap());
    let windows = EvaluationWindows::new(set, 8, Some(END)).unwrap();
    let run = |most| score(&mut hashed(2, 8), &windows, &byte_lengths(), most, &mut |_, _| ());
    assert_eq!(run(None).unwrap().tokens, 2);
    assert!(check_scored(&windows, None).is_ok());
    let error = run(Some(16)).unwrap_err();
    assert!(matches!(error, EvalError::NothingScored { windows: 2, all: 25, .. }), "{error}");
    assert!(error.to_string().contains("raise eval.max_tokens"), "{error}");
    assert!(check_scored(&windows, Some(16)).is_err());
}
