use super::*;
use bessemer_tensor::rng::RngKey;
use std::collections::{HashMap, HashSet};

const ALPHABET: u16 = 3;

/// Symbols of the toy corpus; `UNKNOWN` never occurs.
const A: u16 = 0;
const B: u16 = 1;
const UNKNOWN: u16 = 2;

fn trained(documents: &[Vec<u16>], alphabet: u16, order: u32, threads: usize) -> KneserNey {
    let mut trainer = KneserNeyTrainer::new(alphabet, order, threads, DEFAULT_MEMORY).unwrap();
    for document in documents {
        document.iter().for_each(|&s| trainer.push(s).unwrap());
        trainer.end_document().unwrap();
    }
    trainer.finish().unwrap()
}

/// Values of KenLM for the corpus "a a b a" / "b a a b" at order 3 with fallback discounts (log10, 8 decimals).
#[test]
fn toy_corpus_has_the_values_of_kenlm() {
    let model = trained(&[vec![A, A, B, A], vec![B, A, A, B]], ALPHABET, 3, 1);
    let (s, e) = (model.begin(), model.end());
    // `<unk>` is a type without an n-gram of its own here.
    assert_eq!(model.sizes().ngrams, [5 - 1, 7, 7]);
    let golden: [(&[u16], u16, f64); 18] = [
        (&[], UNKNOWN, -0.90308999),
        (&[], A, -0.46943443),
        (&[], B, -0.57209677),
        (&[], e, -0.57209677),
        (&[s], A, -0.37712016),
        (&[A], A, -0.37712016),
        (&[s], B, -0.41574957),
        (&[A], e, -0.58682002),
        (&[A], B, -0.58682002),
        (&[B], e, -0.52201790),
        (&[B], A, -0.29845257),
        (&[s, A], A, -0.14885089),
        (&[s, B], A, -0.12407789),
        (&[A, A], B, -0.20102891),
        (&[A, B], e, -0.39761699),
        (&[A, B], A, -0.29973937),
        (&[B, A], e, -0.42082909),
        (&[B, A], A, -0.33741079),
    ];
    for (context, symbol, log10) in golden {
        let found = model.probability(context, symbol).log10();
        assert!((found - log10).abs() < 1e-7, "{context:?} {symbol}: {found}, wanted {log10}");
    }
    // log10 -0.30103 and 0 in KenLM's file.
    for (context, weight) in
        [(vec![s], 0.5), (vec![A], 0.5), (vec![B, A], 0.5), (vec![e], 1.0), (vec![A, e], 1.0)]
    {
        let found = model.backoff_weight(&context);
        assert!((found - weight).abs() < 1e-12, "{context:?}: {found}, wanted {weight}");
    }
}

/// The plain judge: counts n-grams as vectors, evaluates the module's formulas as they are written.
struct Plain {
    alphabet: u16,
    order: usize,
    /// Adjusted counts by order from 1, by n-gram.
    counts: Vec<HashMap<Vec<u16>, u64>>,
    discounts: Vec<[f64; 3]>,
}

impl Plain {
    fn train(documents: &[Vec<u16>], alphabet: u16, order: usize) -> Plain {
        let (begin, end) = (alphabet + 1, alphabet);
        let whole = |d: &Vec<u16>| [begin].into_iter().chain(d.iter().copied()).chain([end]).collect();
        Plain::train_sequences(&documents.iter().map(whole).collect::<Vec<_>>(), alphabet, order)
    }

    /// Sequences with their boundary symbols.
    fn train_sequences(sequences: &[Vec<u16>], alphabet: u16, order: usize) -> Plain {
        let begins = |symbol: u16| symbol > alphabet;
        let mut counts = vec![HashMap::new(); order];
        for n in 1..=order {
            let mut before: HashMap<Vec<u16>, HashSet<u16>> = HashMap::new();
            for sequence in sequences {
                for at in 0..(sequence.len() + 1).saturating_sub(n) {
                    let ngram = &sequence[at..at + n];
                    if n == 1 && begins(ngram[0]) {
                        continue;
                    }
                    if n == order || begins(ngram[0]) {
                        *counts[n - 1].entry(ngram.to_vec()).or_insert(0) += 1;
                    } else {
                        before.entry(ngram.to_vec()).or_default().insert(sequence[at - 1]);
                    }
                }
            }
            counts[n - 1].extend(before.into_iter().map(|(g, left)| (g, left.len() as u64)));
        }
        let discounts = counts.iter().map(Self::estimate).collect();
        Plain { alphabet, order, counts, discounts }
    }

    fn estimate(counts: &HashMap<Vec<u16>, u64>) -> [f64; 3] {
        let t = |k: u64| counts.values().filter(|&&c| c == k).count() as f64;
        if (1..=4).any(|k| t(k) == 0.0) {
            return [0.5, 1.0, 1.5];
        }
        let y = t(1) / (t(1) + 2.0 * t(2));
        let d = [1u64, 2, 3].map(|k| k as f64 - (k + 1) as f64 * y * t(k + 1) / t(k));
        if (0..3).any(|i| d[i] <= 0.0 || d[i] > (i + 1) as f64) { [0.5, 1.0, 1.5] } else { d }
    }

    fn probability(&self, context: &[u16], symbol: u16) -> f64 {
        let context = &context[context.len().saturating_sub(self.order - 1)..];
        let lower = match context.is_empty() {
            true => 1.0 / f64::from(self.alphabet + 1),
            false => self.probability(&context[1..], symbol),
        };
        let (counts, discounts) = (&self.counts[context.len()], self.discounts[context.len()]);
        let discount = |c: u64| discounts[c.min(3) as usize - 1];
        let (mut sum, mut given_away, mut own) = (0, 0.0, 0.0);
        for w in 0..=self.alphabet {
            let ngram: Vec<u16> = context.iter().copied().chain([w]).collect();
            if let Some(&c) = counts.get(&ngram) {
                sum += c;
                given_away += discount(c);
                if w == symbol {
                    own = c as f64 - discount(c);
                }
            }
        }
        if sum == 0 { lower } else { (own + given_away * lower) / sum as f64 }
    }
}

/// Documents of geometric-ish lengths (some empty) over an uneven alphabet.
fn random_documents(seed: u64, documents: usize, alphabet: u16, mean: f32) -> Vec<Vec<u16>> {
    let key = RngKey::new(seed, 0, "documents");
    let mut at = 0;
    let mut draw = || {
        at += 1;
        key.uniform(at)
    };
    (0..documents)
        .map(|_| {
            let len = (-(1.0 - draw()).ln() * mean) as usize;
            (0..len).map(|_| (draw() * draw() * f32::from(alphabet)) as u16).collect()
        })
        .collect()
}

#[test]
fn random_texts_have_the_probabilities_of_the_plain_formulas() {
    let mut compared = 0;
    for (seed, alphabet, order, documents, mean) in [
        (1, 2, 1, 20, 9.0),
        (2, 3, 2, 40, 5.0),
        (3, 4, 3, 300, 12.0),
        (4, 6, 5, 200, 30.0),
        (5, 9, 4, 300, 2.0),
    ] {
        let text = random_documents(seed, documents, alphabet, mean);
        let plain = Plain::train(&text, alphabet, order);
        let model = trained(&text, alphabet, order as u32, 2);
        for n in 1..=order {
            assert_eq!(model.discounts(n as u32).unwrap(), plain.discounts[n - 1], "order {n} of {order}");
            let of_order = plain.counts[n - 1].len() as u64 + u64::from(n == 1);
            assert_eq!(model.sizes().ngrams[n - 1], of_order);
        }
        for document in random_documents(seed + 100, 30, alphabet, mean) {
            let mut history = vec![model.begin()];
            let mut nats = 0.0;
            for symbol in document.iter().copied().chain([model.end()]) {
                let (found, wanted) =
                    (model.probability(&history, symbol), plain.probability(&history, symbol));
                assert!((found - wanted).abs() <= 1e-12 * wanted, "{history:?} {symbol}: {found} {wanted}");
                nats -= wanted.ln();
                history.push(symbol);
                compared += 1;
            }
            let found = model.symbol_nats(document, true);
            assert!((found - nats).abs() <= 1e-10 * nats.max(1.0), "{found} {nats}");
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn fragments_are_counted_without_a_document_around_them() {
    let (alphabet, order) = (5, 4);
    let text = random_documents(21, 200, alphabet, 9.0);
    let (begin, end, fragment) = (alphabet + 1, alphabet, alphabet + 2);
    let mut trainer = KneserNeyTrainer::new(alphabet, order as u32, 2, DEFAULT_MEMORY).unwrap();
    let mut sequences = Vec::new();
    for (i, symbols) in text.iter().enumerate() {
        // Whole documents, pieces from the middle, ends, and beginnings that are cut off, in turn.
        let (starts, ends) = (i % 4 == 0 || i % 4 == 3, i % 4 == 0 || i % 4 == 2);
        let mut sequence = vec![if starts { begin } else { fragment }];
        if starts {
            trainer.begin_document()
        } else {
            trainer.begin_fragment()
        }
        symbols.iter().for_each(|&s| trainer.push(s).unwrap());
        sequence.extend(symbols);
        if ends {
            trainer.end_document().unwrap();
            sequence.push(end);
        }
        sequences.push(sequence);
    }
    let (model, plain) = (trainer.finish().unwrap(), Plain::train_sequences(&sequences, alphabet, order));
    assert_eq!(model.sizes().documents, 100);
    for document in random_documents(22, 30, alphabet, 9.0) {
        let mut history = vec![begin];
        for symbol in document.iter().copied().chain([end]) {
            let (found, wanted) = (model.probability(&history, symbol), plain.probability(&history, symbol));
            assert!((found - wanted).abs() <= 1e-12 * wanted, "{history:?} {symbol}: {found} {wanted}");
            history.push(symbol);
        }
        let sum: f64 = (0..=end).map(|w| model.probability(&history, w)).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    }
}

#[test]
fn probabilities_add_up_to_one_after_every_history() {
    let text = random_documents(9, 150, 200, 40.0);
    let model = trained(&text, BYTES, 5, 2);
    let (begin, end) = (model.begin(), model.end());
    // No discount may be a fallback at the orders where this text has counts enough, else half of this is untested.
    assert_ne!(model.discounts(2).unwrap(), [0.5, 1.0, 1.5]);
    let mut histories: Vec<Vec<u16>> = vec![vec![], vec![begin], vec![255], vec![7, 7, 7, 7], vec![end]];
    for document in text.iter().take(40) {
        for at in 0..document.len().min(8) {
            histories.push([begin].into_iter().chain(document[..at].iter().copied()).collect());
            histories.push(document[at..(at + 4).min(document.len())].to_vec());
            histories.push(document[at..(at + 2).min(document.len())].to_vec());
        }
    }
    assert!(histories.len() > 300);
    for history in histories {
        let sum: f64 = (0..=end).map(|w| model.probability(&history, w)).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{history:?}: {sum}");
        assert!((0..=end).all(|w| model.probability(&history, w) > 0.0));
    }
    assert_eq!(model.probability(&[1, 2], begin), 0.0);
}

#[test]
fn threads_folds_and_pieces_do_not_change_the_model() {
    let text: Vec<Vec<u8>> = random_documents(11, 200, 90, 60.0)
        .into_iter()
        .map(|d| d.into_iter().map(|s| s as u8).collect())
        .collect();
    let whole = KneserNey::train(&text, 5, 1, &mut |_| ()).unwrap();
    let mut pieces = KneserNeyTrainer::new(BYTES, 5, 3, DEFAULT_MEMORY).unwrap();
    for (i, document) in text.iter().enumerate() {
        document.chunks(7).for_each(|piece| pieces.push_bytes(piece).unwrap());
        pieces.end_document().unwrap();
        if i % 40 == 0 {
            pieces.fold_now();
        }
    }
    let pieces = pieces.finish().unwrap();
    assert_eq!(whole.sizes().ngrams, pieces.sizes().ngrams);
    assert_eq!(whole.score(&text), pieces.score(&text));
}

#[test]
fn score_counts_bytes_without_ends_and_bits_with_them() {
    let text = [b"abracadabra".to_vec(), b"".to_vec(), b"barbara".to_vec()];
    let mut told = Vec::new();
    let model = KneserNey::train(&text, 4, 2, &mut |bytes| told.push(bytes)).unwrap();
    assert_eq!(told, [18]);
    let score = model.score(&text);
    assert_eq!((score.bytes, score.documents), (18, 3));
    let sum: f64 = text.iter().map(|d| model.bits(d, true)).sum();
    assert_eq!(score.bits, sum);
    assert_eq!(score.bits_per_byte, sum / 18.0);
    let history: Vec<u16> =
        [model.begin()].into_iter().chain(b"barbara".iter().map(|&b| u16::from(b))).collect();
    let end = -model.probability(&history, model.end()).log2();
    assert!((model.bits(b"barbara", true) - model.bits(b"barbara", false) - end).abs() < 1e-12);
    assert_eq!(model.score::<&[u8]>([]).bits_per_byte, 0.0);
}

#[test]
fn a_long_document_does_not_underflow() {
    let model = KneserNey::train([b"ab"], 3, 1, &mut |_| ()).unwrap();
    let long = vec![b'z'; 100_000];
    let bits = model.bits(&long, false);
    let one = -model.probability(&[u16::from(b'z'); 2], u16::from(b'z')).log2();
    assert!((bits / 1e5 - one).abs() < 1e-2 && bits.is_finite(), "{bits} {one}");
}

#[test]
fn bad_requests_are_refused_with_their_values() {
    let order = |order, alphabet| KneserNeyTrainer::new(alphabet, order, 1, 0).err();
    assert_eq!(order(8, BYTES), Some(NgramError::Order { order: 8, max: 7, alphabet: BYTES }));
    assert_eq!(order(0, BYTES), Some(NgramError::Order { order: 0, max: 7, alphabet: BYTES }));
    assert_eq!(order(33, 1), Some(NgramError::Order { order: 33, max: 32, alphabet: 1 }));
    assert_eq!(order(22, 2), Some(NgramError::Order { order: 22, max: 21, alphabet: 2 }));
    assert_eq!(order(1, 0), Some(NgramError::Alphabet(0)));
    assert_eq!(order(1, u16::MAX - 2), Some(NgramError::Alphabet(u16::MAX - 2)));
    let mut trainer = KneserNeyTrainer::new(3, 2, 1, DEFAULT_MEMORY).unwrap();
    trainer.push(2).unwrap();
    let outside = NgramError::Symbol { symbol: 3, at: 1, document: 0, alphabet: 3 };
    assert_eq!(trainer.push(3), Err(outside.clone()));
    assert_eq!(trainer.push_bytes(&[3]), Err(outside));
    let none = KneserNeyTrainer::new(3, 2, 1, DEFAULT_MEMORY).unwrap();
    assert_eq!(none.finish().err(), Some(NgramError::NoText));
    let mut small = KneserNeyTrainer::new(BYTES, 5, 1, 1000).unwrap();
    small.push_bytes(b"far too much text for a thousand bytes of memory").unwrap();
    assert!(matches!(small.finish(), Err(NgramError::Memory { allowed: 1000, symbols: 48, .. })));
}

#[test]
fn documents_shorter_than_an_ngram_are_held_to_the_memory_bound() {
    let mut trainer = KneserNeyTrainer::new(BYTES, 7, 1, 1 << 20).unwrap();
    let refused = (0..1_000_000).find_map(|_| trainer.push_bytes(b"ab").and(trainer.end_document()).err());
    assert!(matches!(refused, Some(NgramError::Memory { .. })), "{refused:?}");
}

#[test]
fn extreme_alphabets_and_orders_work() {
    let model = trained(&[vec![0, 0, 0], vec![]], 1, 32, 1);
    assert!((model.probability(&[0, 0, 0], 0) + model.probability(&[0, 0, 0], 1) - 1.0).abs() < 1e-12);
    let widest = u16::MAX - 3;
    let model = trained(&[vec![widest - 1, 0]], widest, 4, 1);
    let sum: f64 = (0..=model.end()).map(|w| model.probability(&[widest - 1], w)).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
}

/// Not a test of right and wrong: prints how long training takes. Run with `--release -- --ignored --nocapture`
/// and NGRAM_TEXT naming a file.
#[test]
#[ignore = "a measurement on a text of one's own"]
fn measure_training() {
    let path = std::env::var("NGRAM_TEXT").expect("NGRAM_TEXT names a text file");
    let text = std::fs::read(path).unwrap();
    let cut = text.len() / 10 * 9;
    let documents = |t: &[u8]| t.chunks(20_000).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (train, rest) = (documents(&text[..cut]), documents(&text[cut..]));
    for threads in [1, 2] {
        let start = std::time::Instant::now();
        let model = KneserNey::train(&train, 5, threads, &mut |_| ()).unwrap();
        let trained = start.elapsed();
        let start = std::time::Instant::now();
        let score = model.score(&rest);
        println!(
            "{} bytes, {threads} threads: trained in {trained:.2?}, scored {} bytes in {:.2?}: {:.4} bits/byte; {:?}",
            cut,
            score.bytes,
            start.elapsed(),
            score.bits_per_byte,
            model.sizes()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
