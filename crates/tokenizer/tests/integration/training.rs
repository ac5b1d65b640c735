//! Training: independence of threads and batches, agreement with Hugging Face, bounds.

use bessemer_tokenizer::{Pretokenizer, Tokenizer, TokenizerConfig, TokenizerError, TokenizerKind, Trainer};

/// Prose and code from this crate itself.
const SOURCES: [&str; 4] = [
    include_str!("../../src/learn_merges.rs"),
    include_str!("../../src/json/read.rs"),
    include_str!("../../src/tokenizer.rs"),
    include_str!("../../src/pretokenize/mod.rs"),
];

fn config(vocab_size: u64, pretokenizer: Pretokenizer) -> TokenizerConfig {
    TokenizerConfig { vocab_size, pretokenizer, ..TokenizerConfig::default() }
}

fn train(config: TokenizerConfig, texts: &[&str]) -> Tokenizer {
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed_batch(texts, 1);
    trainer.finish(|_| {}).unwrap()
}

#[test]
fn the_result_does_not_depend_on_threads_or_batches() {
    // Longer than one part, so that a document is really cut.
    let long = SOURCES.concat().repeat(12);
    for pretokenizer in Pretokenizer::ALL {
        let whole = train(config(700, pretokenizer), &[&long, SOURCES[0]]);
        for threads in [2, 3] {
            let mut trainer = Trainer::new(config(700, pretokenizer)).unwrap();
            trainer.feed_batch(&[SOURCES[0]], threads);
            trainer.feed_batch(&[&long], threads);
            assert_eq!(trainer.bytes_seen(), (long.len() + SOURCES[0].len()) as u64);
            assert_eq!(trainer.finish(|_| {}).unwrap().to_json(), whole.to_json());
        }
    }
}

#[test]
fn special_tokens_come_first_then_the_bytes_then_merges() {
    let special = vec!["<|endoftext|>".to_owned(), "<|pad|>".to_owned()];
    let tokenizer =
        train(TokenizerConfig { special_tokens: Some(special), ..config(300, Pretokenizer::Gpt2) }, &SOURCES);
    assert_eq!(tokenizer.vocab_size(), 300);
    assert_eq!(tokenizer.token_bytes(0), Some(&b"<|endoftext|>"[..]));
    assert_eq!(tokenizer.token_bytes(2), Some(&b"!"[..]));
    assert_eq!(tokenizer.token_bytes(257), Some(&[0xAD][..]));
    assert!(tokenizer.token_bytes(258).unwrap().len() >= 2);
    assert_eq!(tokenizer.token_bytes(300), None);
    assert_eq!(tokenizer.byte_lengths()[..3], [0, 0, 1]);
    assert_eq!(tokenizer.end_of_text(), Some(0));
}

#[test]
fn training_stops_where_no_pair_is_frequent_enough() {
    let tokenizer = train(config(4096, Pretokenizer::Gpt2), &["abab abab xy"]);
    // "ab", "abab", " abab" occurs once only.
    assert_eq!(tokenizer.vocab_size(), 257 + 2);
}

#[test]
fn progress_rises_to_the_size_reached() {
    let mut trainer = Trainer::new(config(900, Pretokenizer::Gpt2)).unwrap();
    trainer.feed_batch(&SOURCES, 2);
    let mut seen = Vec::new();
    let tokenizer = trainer.finish(|p| seen.push((p.vocabulary, p.wanted))).unwrap();
    assert!(seen.len() > 3 && seen.is_sorted() && seen.iter().all(|p| p.1 == 900));
    assert_eq!(seen.last().unwrap().0, tokenizer.vocab_size());
}

#[test]
fn a_special_token_that_is_an_ordinary_word_is_refused_by_name() {
    let special = Some(vec!["lower".to_owned()]);
    let mut trainer =
        Trainer::new(TokenizerConfig { special_tokens: special, ..TokenizerConfig::default() }).unwrap();
    trainer.feed("lower lower\nlower\nlower\nlower");
    let error = trainer.finish(|_| {}).unwrap_err();
    assert!(
        matches!(error, TokenizerError::Training(_)) && error.to_string().contains("\"lower\""),
        "{error}"
    );
}

#[test]
fn nothing_to_learn_from_is_an_error() {
    for kind in [TokenizerKind::ByteBpe, TokenizerKind::Char] {
        let trainer = Trainer::new(TokenizerConfig { kind, ..TokenizerConfig::default() }).unwrap();
        assert!(matches!(trainer.finish(|_| {}), Err(TokenizerError::Training(_))));
    }
}

/// Files written by Hugging Face `tokenizers` after training on `hf_text.txt`; see
/// `bench/peers/tokenizer/regenerate_goldens.py`.
#[test]
fn training_gives_the_very_file_that_hugging_face_writes() {
    let text = include_str!("../data/hf_text.txt");
    let goldens = [
        (Pretokenizer::Gpt2, include_str!("../data/hf_gpt2.json")),
        (Pretokenizer::Llama3, include_str!("../data/hf_llama3.json")),
        (Pretokenizer::Qwen2, include_str!("../data/hf_qwen2.json")),
    ];
    for (pretokenizer, golden) in goldens {
        let documents: Vec<&str> = text.split_inclusive("\n\n").collect();
        let tokenizer = train(config(600, pretokenizer), &documents);
        assert_eq!(tokenizer.to_json(), golden, "{}", pretokenizer.name());
    }
}

#[test]
fn a_character_tokenizer_orders_its_alphabet_by_code_point() {
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config.clone()).unwrap();
    trainer.feed_batch(&["hello\nworld", "é漢"], 2);
    let tokenizer = trainer.finish(|_| {}).unwrap();
    assert_eq!(tokenizer.vocab_size(), 10);
    assert_eq!(tokenizer.decode(&(0..10).collect::<Vec<u32>>()).unwrap(), "\ndehlorwé漢".as_bytes());
    assert_eq!(tokenizer.end_of_text(), None);
    assert_eq!(tokenizer.encode("hé".as_bytes()).unwrap(), [3, 8]);

    let small = TokenizerConfig { vocab_size: 9, ..config };
    let mut trainer = Trainer::new(small).unwrap();
    trainer.feed("hello\nworldé漢");
    assert!(trainer.finish(|_| {}).unwrap_err().to_string().contains("vocab_size = 10 or more"));
}

/// nanoGPT's `data/shakespeare_char/readme.md` prints this alphabet: 65 characters, no special token.
#[test]
fn the_alphabet_of_tiny_shakespeare_has_65_tokens_in_the_published_order() {
    let alphabet = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    let shuffled: String =
        alphabet.chars().rev().chain("First Citizen:\nBefore we proceed".chars()).collect();
    trainer.feed(&shuffled);
    let tokenizer = trainer.finish(|_| {}).unwrap();
    assert_eq!(tokenizer.vocab_size(), 65);
    assert_eq!(tokenizer.encode(alphabet.as_bytes()).unwrap(), (0..65).collect::<Vec<u32>>());
    assert!(tokenizer.special_tokens().is_empty());
}
