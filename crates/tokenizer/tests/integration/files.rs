//! tokenizer.json in and out, and what hostile files get.

use bessemer_tokenizer::{Pretokenizer, Tokenizer, TokenizerConfig, TokenizerError, TokenizerKind, Trainer};
use proptest::prelude::*;
use serde_json::{Value, json};

const GPT2: &str = include_str!("../data/hf_gpt2.json");

fn golden() -> Value {
    serde_json::from_str(GPT2).unwrap()
}

/// The golden file with one change.
fn edited(edit: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut value = golden();
    edit(&mut value);
    Tokenizer::from_json(&value.to_string())
}

fn refusal(edit: impl FnOnce(&mut Value)) -> String {
    edited(edit).expect_err("must be refused").to_string()
}

#[test]
fn a_file_read_and_written_is_the_same_file() {
    for text in [GPT2, include_str!("../data/hf_llama3.json"), include_str!("../data/hf_qwen2.json")] {
        let tokenizer = Tokenizer::from_json(text).unwrap();
        assert_eq!(tokenizer.to_json(), text);
        assert_eq!(tokenizer.fingerprint().len(), 64);
    }
    let compact = edited(|_| {}).unwrap();
    assert_eq!(compact.fingerprint(), Tokenizer::from_json(GPT2).unwrap().fingerprint());
}

#[test]
fn merges_are_read_in_both_spellings() {
    let spaced = edited(|file| {
        let merges = file["model"]["merges"].as_array_mut().unwrap();
        for merge in merges {
            *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
        }
    });
    assert_eq!(spaced.unwrap().to_json(), GPT2);
}

#[test]
fn a_character_tokenizer_survives_the_file() {
    let config = TokenizerConfig {
        kind: TokenizerKind::Char,
        special_tokens: Some(vec!["<|endoftext|>".into()]),
        ..TokenizerConfig::default()
    };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed("to be\n\tor \"not\" \\ é");
    let tokenizer = trainer.finish(|_| {}).unwrap();
    let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
    assert_eq!(again.fingerprint(), tokenizer.fingerprint());
    assert_eq!(again.kind(), TokenizerKind::Char);
    assert_eq!(again.end_of_text(), Some(0));
    assert_eq!(again.encode("not é".as_bytes()).unwrap(), tokenizer.encode("not é".as_bytes()).unwrap());
}

#[test]
fn saving_leaves_the_file_alone_in_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::from_json(GPT2).unwrap();
    tokenizer.write_hf_side_files(&directory.path().join("deep/export")).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(directory.path().join("deep/export"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]);
    let loaded = Tokenizer::load(&directory.path().join("deep/export/tokenizer.json")).unwrap();
    assert_eq!(loaded.fingerprint(), tokenizer.fingerprint());
    let error = tokenizer.save(&directory.path().join("absent/tokenizer.json")).unwrap_err().to_string();
    assert!(error.contains("absent/tokenizer.json"), "{error}");
    assert!(matches!(Tokenizer::load(directory.path()), Err(TokenizerError::Io { .. })));
    assert!(matches!(Tokenizer::load(&directory.path().join("none")), Err(TokenizerError::Io { .. })));
}

#[test]
fn what_cannot_be_represented_is_refused_by_name() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 13] = [
        (|f| f["normalizer"] = json!({"type": "NFC"}), "normalizer \"NFC\""),
        (
            |f| f["model"] = json!({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}),
            "model \"Unigram\"",
        ),
        (|f| f["model"] = json!({"type": "WordPiece", "vocab": {}}), "model \"WordPiece\""),
        (|f| f["model"]["type"] = json!("WordLevel"), "WordLevel is read only with"),
        (|f| f["pre_tokenizer"] = json!({"type": "Metaspace"}), "pre_tokenizer \"Metaspace\""),
        (|f| f["pre_tokenizer"] = Value::Null, "pre_tokenizer null"),
        (|f| f["pre_tokenizer"]["add_prefix_space"] = json!(true), "add_prefix_space = true"),
        (|f| f["pre_tokenizer"]["use_regex"] = json!(false), "use_regex = false"),
        (|f| f["decoder"] = json!({"type": "Metaspace"}), "decoder \"Metaspace\""),
        (|f| f["post_processor"] = json!({"type": "BertProcessing"}), "post_processor \"BertProcessing\""),
        (|f| f["model"]["dropout"] = json!(0.1), "dropout 0.1"),
        (|f| f["model"]["byte_fallback"] = json!(true), "byte_fallback"),
        (|f| f["model"]["end_of_word_suffix"] = json!("</w>"), "end_of_word_suffix \"</w>\""),
    ];
    for (edit, want) in cases {
        let message = refusal(edit);
        assert!(message.contains(want), "{message} should contain {want}");
    }
    let unknown_pattern = refusal(|f| {
        f["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]});
    });
    assert!(unknown_pattern.contains("\\\\d"), "{unknown_pattern}");
}

#[test]
fn parts_that_contradict_each_other_are_refused_by_name() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 12] = [
        (|f| f["model"]["vocab"]["Ġ"] = json!(4_000_000_000u32), "id 4000000000 is out of range"),
        (|f| f["model"]["vocab"]["zzzz"] = json!(7), "have the same id"),
        (|f| f["model"]["vocab"]["a b"] = json!(1000), "not spelled in the byte-level alphabet"),
        (|f| f["model"]["vocab"][""] = json!(1000), "not spelled in the byte-level alphabet"),
        (|f| drop(f["model"]["vocab"].as_object_mut().unwrap().remove("Ġ")), "single byte 0x20"),
        (|f| f["model"]["merges"][0] = json!(["Ġ", "nothing"]), "\"nothing\" of merge 0"),
        (|f| f["model"]["merges"][0] = json!(["Ŀ", "ŀ"]), "\"Ŀŀ\" of merge 0"),
        (|f| f["model"]["merges"][1] = f["model"]["merges"][0].clone(), "a second time"),
        (|f| f["added_tokens"][0]["id"] = json!(5), "has id 5, but 0 in the vocabulary"),
        (|f| f["added_tokens"][0]["content"] = json!(""), "has no text"),
        (|f| f["added_tokens"][0]["content"] = json!("<other>"), "have the same id 0"),
        (|f| f["added_tokens"] = json!([{"id": 1, "content": "!", "special": true}]), "0x21, without which"),
    ];
    for (edit, want) in cases {
        let message = refusal(edit);
        assert!(message.contains(want), "{message} should contain {want}");
    }
}

#[test]
fn text_that_is_no_tokenizer_is_an_error() {
    let twice = GPT2.replacen("\"!\": 1,", "\"!\": 1, \"!\": 1,", 1);
    let deep = format!("{{\"model\":{}", "[".repeat(100_000));
    let cases = [
        "",
        "null",
        "[]",
        "{}",
        "{\"model\":null}",
        "{\"model\":{}}",
        "{\"model\":{\"vocab\":{},\"merges\":[]}}",
        "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}",
        "{\"model\":{\"vocab\":{\"a\":1e300},\"merges\":[]}}",
        "{\"model\":{\"vocab\":[],\"merges\":{}}}",
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}",
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}",
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}",
        "{\"model\":{\"type\":3}}",
        "\u{feff}{}",
        &twice,
        &deep,
    ];
    for text in cases {
        assert!(Tokenizer::from_json(text).is_err(), "{}", &text[..text.len().min(80)]);
    }
}

/// A tokenizer that keeps special tokens outside the vocabulary, has holes and looks whole pieces up (as Llama-3 does).
#[test]
fn llama_3_habits_are_kept() {
    let tokenizer = edited(|f| {
        f["model"]["ignore_merges"] = json!(true);
        f["model"]["vocab"]["ĠunreachableĠ"] = json!(1000);
        f["model"]["vocab"]["Ġunreachable"] = json!(1001);
        f["model"]["vocab"].as_object_mut().unwrap().remove("<|endoftext|>");
        f["added_tokens"][0]["id"] = json!(1100);
        f["post_processor"] =
            json!({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}});
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.vocab_size(), 1101);
    assert_eq!(tokenizer.encode(b" unreachable").unwrap(), [1001]);
    assert_eq!((tokenizer.token_bytes(0), tokenizer.token_bytes(1050)), (None, None));
    assert_eq!(tokenizer.byte_lengths()[1100], 0);
    assert_eq!(tokenizer.end_of_text(), Some(1100));
    let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
    assert_eq!(again.to_json(), tokenizer.to_json());
    assert!(again.to_json().contains("TemplateProcessing"));
}

#[test]
fn the_spellings_of_the_patterns_are_known() {
    for pretokenizer in Pretokenizer::ALL {
        for (behavior, invert) in [("Isolated", false), ("Removed", true)] {
            let tokenizer = edited(|f| {
                f["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": pretokenizer.pattern()}, "behavior": behavior, "invert": invert},
                    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
                ]});
            });
            assert_eq!(tokenizer.unwrap().pretokenizer(), Some(pretokenizer));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damage anywhere: reading gives a tokenizer or an error, and a tokenizer still encodes and decodes.
    #[test]
    fn a_damaged_file_never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = GPT2.as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Ok(tokenizer) = Tokenizer::from_json(text)
        {
            let sample = b"The quick brown fox, 12345\n\n\xff";
            let ids = tokenizer.encode(sample).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), &sample[..]);
        }
    }

    #[test]
    fn any_json_value_in_place_of_any_field_never_panics(
        field in 0usize..12,
        value in prop::sample::select(vec![
            json!(null), json!(true), json!(-1), json!(4_294_967_296u64), json!(1e308), json!(""), json!("\u{0}"),
            json!([]), json!({}), json!([[]]), json!([{}]), json!({"type": "Sequence"}), json!({"type": "BPE"}),
            json!([["a"]]), json!([null]), json!({"": 0}), json!({"a": 4_294_967_295u64}), json!({"type": "ByteLevel"}),
        ]),
    ) {
        let result = edited(|f| {
            let path = [
                "/version", "/truncation", "/added_tokens", "/added_tokens/0", "/normalizer", "/pre_tokenizer",
                "/post_processor", "/decoder", "/model", "/model/vocab", "/model/merges", "/model/merges/3",
            ][field];
            *f.pointer_mut(path).unwrap() = value;
        });
        if let Ok(tokenizer) = result {
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(b"abc").unwrap()).unwrap(), b"abc");
        }
    }
}

/// Exports put the end-of-text token before a text; the tokenizer that is read back is the one that was written.
#[test]
fn an_export_begins_texts_with_the_end_of_text() {
    let mut trainer =
        Trainer::new(TokenizerConfig { vocab_size: 260, ..TokenizerConfig::default() }).unwrap();
    trainer.feed("the quick brown fox the quick brown fox");
    let tokenizer = trainer.finish(|_| {}).unwrap();
    let end = tokenizer.end_of_text().unwrap();
    let file = |name: &str| {
        let files = tokenizer.hf_files();
        let bytes = files.into_iter().find(|(found, _)| found == name).unwrap().1;
        serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
    };
    let exported = file("tokenizer.json");
    let single = &exported["post_processor"]["single"];
    let content = single[0]["SpecialToken"]["id"].as_str().unwrap();
    assert_eq!(exported["post_processor"]["special_tokens"][content]["ids"], serde_json::json!([end]));
    assert_eq!(single[1]["Sequence"]["id"], "A");
    assert_eq!(file("tokenizer_config.json")["add_bos_token"], true);
    let read = Tokenizer::from_json(&exported.to_string()).unwrap();
    assert_eq!(read.fingerprint(), tokenizer.fingerprint());
    assert_eq!(read.hf_files(), tokenizer.hf_files());
    // The post-processor of a tokenizer from elsewhere is kept.
    let mut other = exported.clone();
    other["post_processor"] = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    let other = Tokenizer::from_json(&other.to_string()).unwrap();
    assert_ne!(other.fingerprint(), tokenizer.fingerprint());
    assert!(!String::from_utf8(other.hf_files().remove(0).1).unwrap().contains("TemplateProcessing"));
}
