//! Encoding: round trips, agreement with Hugging Face, special tokens, worst cases.

use bessemer_tokenizer::{
    Pretokenizer, Scratch, Tokenizer, TokenizerConfig, TokenizerError, TokenizerKind, Trainer,
};
use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

static TRAINED: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    Pretokenizer::ALL
        .iter()
        .map(|&pretokenizer| {
            let config = TokenizerConfig { vocab_size: 600, pretokenizer, ..TokenizerConfig::default() };
            let mut trainer = Trainer::new(config).unwrap();
            trainer.feed(include_str!("../data/hf_text.txt"));
            trainer.finish(|_| {}).unwrap()
        })
        .collect()
});

fn characters(text: &str) -> Tokenizer {
    let config = TokenizerConfig { kind: TokenizerKind::Char, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed(text);
    trainer.finish(|_| {}).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_byte_string_decodes_to_itself(text in prop::collection::vec(any::<u8>(), 0..400)) {
        for tokenizer in TRAINED.iter() {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), &text[..]);
            let lengths = tokenizer.byte_lengths();
            prop_assert_eq!(ids.iter().map(|id| lengths[*id as usize] as usize).sum::<usize>(), text.len());
        }
    }

    #[test]
    fn every_text_decodes_to_itself_and_a_used_memory_changes_nothing(texts in prop::collection::vec("\\PC{0,60}", 1..8)) {
        for tokenizer in TRAINED.iter() {
            let mut scratch = Scratch::new();
            for text in &texts {
                let mut ids = Vec::new();
                tokenizer.encode_into(&mut scratch, text.as_bytes(), &mut ids).unwrap();
                prop_assert_eq!(&ids, &tokenizer.encode(text.as_bytes()).unwrap());
                let mut fresh = Vec::new();
                tokenizer.encode_into(&mut Scratch::new(), text.as_bytes(), &mut fresh).unwrap();
                prop_assert_eq!(&ids, &fresh);
                prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
            }
        }
    }
}

#[test]
fn a_memory_handed_from_one_tokenizer_to_another_forgets() {
    let text = include_str!("../data/hf_text.txt").as_bytes();
    let mut scratch = Scratch::new();
    for _ in 0..2 {
        for tokenizer in TRAINED.iter() {
            let mut ids = Vec::new();
            tokenizer.encode_into(&mut scratch, text, &mut ids).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
            assert_eq!(ids, tokenizer.encode(text).unwrap());
        }
    }
}

#[test]
fn a_batch_gives_what_single_calls_give_on_any_number_of_threads() {
    let text = include_str!("../data/hf_text.txt");
    let mut texts: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    texts.push(String::new());
    texts.push(text.repeat(900_000 / text.len() + 1));
    for tokenizer in TRAINED.iter() {
        let want: Vec<Vec<u32>> = texts.iter().map(|t| tokenizer.encode(t.as_bytes()).unwrap()).collect();
        for threads in [0, 1, 2, 5] {
            assert_eq!(tokenizer.encode_batch(&texts, threads).unwrap(), want);
        }
        assert_eq!(tokenizer.encode_batch::<&str>(&[], 2).unwrap(), Vec::<Vec<u32>>::new());
    }
}

/// `{"text": [[ids by gpt2], [by llama3], [by qwen2]], ...}` from Hugging Face with the golden files.
#[test]
fn ids_equal_those_of_hugging_face() {
    let goldens = [
        include_str!("../data/hf_gpt2.json"),
        include_str!("../data/hf_llama3.json"),
        include_str!("../data/hf_qwen2.json"),
    ];
    let tokenizers = goldens.map(|text| Tokenizer::from_json(text).unwrap());
    let cases: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(include_str!("../data/hf_ids.json")).unwrap();
    assert!(cases.len() > 30);
    for (text, ids) in &cases {
        for (i, tokenizer) in tokenizers.iter().enumerate() {
            let want: Vec<u32> = serde_json::from_value(ids[i].clone()).unwrap();
            let got = tokenizer.encode_with_special(text.as_bytes()).unwrap();
            assert_eq!(got, want, "{text:?} by {}", Pretokenizer::ALL[i].name());
        }
    }
}

/// Added tokens of a model family.
#[derive(serde::Deserialize)]
struct Family {
    base: String,
    added_tokens: serde_json::Value,
    /// Texts with the ids where all added tokens are recognised, and where those are that are not special.
    cases: std::collections::BTreeMap<String, [Vec<u32>; 2]>,
}

type Families = std::collections::BTreeMap<String, Family>;

fn families() -> Families {
    serde_json::from_str(include_str!("../data/hf_added_tokens.json")).unwrap()
}

/// golden/tokenizer/added_tokens.py
#[test]
fn added_tokens_are_found_as_hugging_face_finds_them() {
    for (name, family) in families() {
        let base = match family.base.as_str() {
            "gpt2" => include_str!("../data/hf_gpt2.json"),
            "llama3" => include_str!("../data/hf_llama3.json"),
            _ => include_str!("../data/hf_qwen2.json"),
        };
        let mut file: serde_json::Value = serde_json::from_str(base).unwrap();
        file["added_tokens"] = family.added_tokens;
        let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
        let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        for (text, [all, plain]) in &family.cases {
            for tokenizer in [&tokenizer, &again] {
                assert_eq!(&tokenizer.encode_with_special(text.as_bytes()).unwrap(), all, "{name}: {text:?}");
                assert_eq!(&tokenizer.encode(text.as_bytes()).unwrap(), plain, "{name}: {text:?}");
            }
        }
        let texts: Vec<&String> = family.cases.keys().collect();
        let plain: Vec<Vec<u32>> = family.cases.values().map(|[_, plain]| plain.clone()).collect();
        assert_eq!(tokenizer.encode_batch(&texts, 2).unwrap(), plain);
    }
}

#[test]
fn a_long_text_is_not_cut_within_an_added_token() {
    let mut file: serde_json::Value = serde_json::from_str(&TRAINED[0].to_json()).unwrap();
    let id = TRAINED[0].vocab_size();
    file["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::json!({"id": id, "content": " a b", "special": false}));
    let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
    let text = "xy a b".repeat(200_000);
    let ids = tokenizer.encode_batch(&[&text], 2).unwrap().remove(0);
    assert_eq!(ids.iter().filter(|&&found| found as usize == id).count(), 200_000);
}

/// Tokenizers trained here with the added tokens of each family, 1,000 random texts each.
#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_tokenizers_finds_the_same_added_tokens() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/tokenizer/added_tokens.py");
    let directory = tempfile::tempdir().unwrap();
    let mut made = Vec::new();
    for (seed, (name, family)) in families().into_iter().enumerate() {
        let trained = &TRAINED[seed % TRAINED.len()];
        let mut file: serde_json::Value = serde_json::from_str(&trained.to_json()).unwrap();
        let own = file["added_tokens"].as_array().unwrap().clone();
        let mut added = own.clone();
        let is_own = |token: &serde_json::Value| own.iter().any(|own| own["content"] == token["content"]);
        let (mut contents, mut next) = (Vec::new(), trained.vocab_size());
        for mut token in
            family.added_tokens.as_array().unwrap().iter().filter(|token| !is_own(token)).cloned()
        {
            let content = token["content"].as_str().unwrap().to_string();
            let known = file["model"]["vocab"].get(&content).cloned();
            token["id"] = known.unwrap_or_else(|| {
                next += 1;
                serde_json::json!(next - 1)
            });
            contents.push(content);
            added.push(token);
        }
        file["added_tokens"] = added.into();
        let pieces: Vec<String> =
            family.cases.keys().flat_map(|text| text.split_inclusive(' ')).map(str::to_string).collect();
        let mut state = seed as u64 + 1;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let texts: Vec<String> = (0..1000)
            .map(|_| {
                (0..1 + draw(12))
                    .map(|_| {
                        if draw(2) == 0 {
                            &contents[draw(contents.len())]
                        } else {
                            &pieces[draw(pieces.len())]
                        }
                    })
                    .cloned()
                    .collect()
            })
            .collect();
        let path = directory.path().join(format!("{name}.json"));
        std::fs::write(&path, file.to_string()).unwrap();
        std::fs::write(path.with_extension("texts.json"), serde_json::to_string(&texts).unwrap()).unwrap();
        made.push((path, file, texts));
    }
    let run =
        std::process::Command::new(python).arg(script).arg("ids").arg(directory.path()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (path, file, texts) in made {
        let wanted: Vec<[Vec<u32>; 2]> =
            serde_json::from_str(&std::fs::read_to_string(path.with_extension("ids")).unwrap()).unwrap();
        let tokenizer = Tokenizer::from_json(&file.to_string()).unwrap();
        for (text, [all, plain]) in texts.iter().zip(&wanted) {
            assert_eq!(&tokenizer.encode_with_special(text.as_bytes()).unwrap(), all, "{path:?}: {text:?}");
            assert_eq!(&tokenizer.encode(text.as_bytes()).unwrap(), plain, "{path:?}: {text:?}");
        }
    }
}

#[test]
fn placed_tokens_are_those_of_the_other_encodings() {
    for tokenizer in TRAINED.iter() {
        for text in
            ["", "one<|endoftext|>two <|endoftext|>", "<|endoftext|>", "日本 a\n\n<|endoftext|", "\u{1f600}"]
        {
            let bytes = text.as_bytes();
            let all = tokenizer.encode_placed(bytes, &|_| true).unwrap();
            assert_eq!(all.ids, tokenizer.encode_with_special(bytes).unwrap(), "{text:?}");
            let none = tokenizer.encode_placed(bytes, &|_| false).unwrap();
            assert_eq!(none.ids, tokenizer.encode(bytes).unwrap(), "{text:?}");
            for placed in [all, none] {
                assert_eq!(placed.ids.len(), placed.ends.len());
                assert_eq!(placed.ends.last().copied().unwrap_or(0), text.len(), "{text:?}");
                let mut begin = 0;
                for (id, end) in placed.ids.iter().zip(placed.ends) {
                    assert_eq!(tokenizer.decode(&[*id]).unwrap(), &bytes[begin..end], "{text:?}");
                    begin = end;
                }
            }
        }
        let first =
            tokenizer.encode_placed(b"<|endoftext|>a<|endoftext|>", &|range| range.start == 0).unwrap();
        assert_eq!((first.ids[0], first.ids.iter().filter(|id| **id == 0).count()), (0, 1));
    }
}

#[test]
fn plain_encoding_never_gives_a_special_token_and_the_other_does() {
    let tokenizer = &TRAINED[0];
    let text = b"one<|endoftext|>two";
    let plain = tokenizer.encode(text).unwrap();
    assert!(!plain.contains(&0));
    assert_eq!(tokenizer.decode(&plain).unwrap(), text);
    let special = tokenizer.encode_with_special(text).unwrap();
    assert_eq!(special.iter().filter(|id| **id == 0).count(), 1);
    assert_eq!(tokenizer.decode(&special).unwrap(), text);
    assert_eq!(
        special,
        [tokenizer.encode(b"one").unwrap(), vec![0], tokenizer.encode(b"two").unwrap()].concat()
    );
}

#[test]
fn a_megabyte_without_a_boundary_is_no_quadratic_affair() {
    let letters: Vec<u8> =
        (0..1_000_000u32).map(|i| b"theandr"[(i.wrapping_mul(2_654_435_761) >> 29) as usize % 7]).collect();
    let spaces = vec![b' '; 1_000_000];
    let same = vec![b'e'; 1_000_000];
    for tokenizer in TRAINED.iter() {
        for text in [&letters, &spaces, &same] {
            let start = Instant::now();
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), *text);
            // Quadratic would be 10^12 steps; this takes a fraction of a second.
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}

#[test]
fn training_on_long_words_ends_too() {
    // A linear congruential generator (Knuth's MMIX constants): letters without a pattern.
    let mut state = 1u64;
    let word: String = (0..200_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (b'a' + ((state >> 33) % 26) as u8) as char
        })
        .collect();
    let start = Instant::now();
    let mut trainer =
        Trainer::new(TokenizerConfig { vocab_size: 1500, ..TokenizerConfig::default() }).unwrap();
    trainer.feed(&word);
    let tokenizer = trainer.finish(|_| {}).unwrap();
    assert_eq!(tokenizer.vocab_size(), 1500);
    assert_eq!(tokenizer.decode(&tokenizer.encode(word.as_bytes()).unwrap()).unwrap(), word.as_bytes());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_character_outside_the_alphabet_is_named_with_its_place() {
    let tokenizer = characters("hello\nworld");
    assert_eq!(tokenizer.decode(&tokenizer.encode(b"old\nhero").unwrap()).unwrap(), b"old\nhero");
    let message = |text: &[u8]| tokenizer.encode(text).unwrap_err().to_string();
    assert!(message("he\nllé".as_bytes()).starts_with("character 'é' (U+00E9) at byte 5 (line 2)"));
    assert!(
        message(b"he\xff").starts_with("byte 0xFF, which is not part of valid UTF-8, at byte 2 (line 1)")
    );
    let error = tokenizer.encode_batch(&["hello", "x"], 2).unwrap_err();
    assert!(matches!(error, TokenizerError::UnknownCharacter { offset: 0, .. }));
}

#[test]
fn an_id_outside_the_vocabulary_is_named_with_its_place() {
    let error = TRAINED[0].decode(&[1, 2, 600]).unwrap_err();
    assert!(matches!(error, TokenizerError::UnknownId { id: 600, position: 2, vocab_size: 600 }), "{error}");
    assert!(TRAINED[0].decode(&[u32::MAX]).is_err());
}

#[test]
fn a_tokenizer_is_shared_among_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<Scratch>();
}
