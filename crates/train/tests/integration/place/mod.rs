//! A small text as shards, and a recipe for it.

use bessemer_recipe::{Recipe, parse_recipe};
use bessemer_shards::{ShardSet, ShardSetWriter, SplitMeta};
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, TokenizerKind, Trainer as TokenizerTrainer};
use std::path::Path;
use std::sync::Arc;

pub(crate) const STEPS: u64 = 24;

/// Characters.
pub(crate) fn tokenizer() -> Tokenizer {
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = TokenizerTrainer::new(config).unwrap();
    trainer.feed("abcdefghijklmnopqrstuvwxyz .\n");
    trainer.finish(|_| {}).unwrap()
}

/// Characters, and a split of sentences over them. From document 60 on every third one is noise, on which a model that
/// has learned the sentences stumbles.
pub(crate) fn data(dir: &Path, split: &str, noisy: bool) -> (Arc<Tokenizer>, Arc<ShardSet>) {
    let tokenizer = tokenizer();
    let meta = SplitMeta {
        split: split.into(),
        vocab_size: tokenizer.vocab_size() as u32,
        tokenizer: tokenizer.fingerprint().parse().unwrap(),
    };
    let mut writer = ShardSetWriter::create(dir, meta, 1 << 20).unwrap();
    let words = ["the ", "cat ", "sat ", "on ", "a ", "mat. "];
    for i in 0..160u128 {
        let text: String = (0..12)
            .map(|w| match noisy && i >= 60 && i % 3 == 0 {
                true => (0..4).map(|k| char::from(b'a' + ((i * 31 + w * 17 + k * 11) % 26) as u8)).collect(),
                false => words[((i / 3 + w) % 6) as usize].to_owned(),
            })
            .collect();
        let tokens = tokenizer.encode(text.as_bytes()).unwrap();
        writer.push_document(i.to_le_bytes(), text.len() as u64, &tokens).unwrap();
    }
    writer.finish().unwrap();
    (Arc::new(tokenizer), Arc::new(ShardSet::open(dir, split).unwrap()))
}

pub(crate) fn recipe(sets: &[&str]) -> Recipe {
    let text = "[model]\narchitecture = \"llama\"\nlayers = 2\nwidth = 16\nheads = 2\nkv_heads = 1\ncontext = 16\n\
                [train]\nbatch_tokens = 128\nseq_len = 16\nmicro_batch = 4\nsteps = 24\n\
                [tokenizer]\nkind = \"char\"\n\
                [optim]\nlr = 1e-2\n\
                [eval]\nat_end = false\n[eval.samples]\nat_end = false\n[eval.ngram]\nenabled = false\n\
                [save]\nevery_steps = 8\nkeep_last = 50\n";
    let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
    parse_recipe("recipe.toml", text, &sets).unwrap().value
}
