//! Comparison with Transformers: golden/chat/masks.py.

use crate::common::{Draw, shipped, tokenizer_json};
use bessemer_chat::rows::read_row;
use bessemer_chat::{Answers, SHIPPED};
use bessemer_test_tier as tier;
use serde::Deserialize;
use serde_json::{Value, json};

/// One chat by Transformers.
#[derive(Deserialize)]
struct Wanted {
    ids: Vec<u32>,
    mask: Vec<u8>,
    header: usize,
    typed_ids: Vec<u32>,
    typed_mask: Vec<u8>,
}

/// 1,000 chats for each template (10,000 in a soak), in half of which every text may spell special tokens, whole and in part.
#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_transformers_marks_the_same_tokens() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/chat/masks.py");
    let directory = tempfile::tempdir().unwrap();
    let count = tier::either(1_000, 10_000);
    let mut made = Vec::new();
    for (seed, one) in SHIPPED.iter().enumerate() {
        let mut draw = Draw(seed as u64 + 1);
        let with_tools = ["chatml", "qwen", "llama-3"].contains(&one.name);
        let chats: Vec<Value> =
            (0..count).map(|i| draw.chat(if i % 2 == 0 { &[] } else { one.tokens }, with_tools)).collect();
        let write = |ending: &str, text: String| {
            std::fs::write(directory.path().join(format!("{}.{ending}", one.name)), text).unwrap();
        };
        write("json", tokenizer_json(one.name).to_string());
        write("jinja", one.source.to_owned());
        let mut tokens = json!({"eos_token": one.eos});
        if let Some(bos) = one.bos {
            tokens["bos_token"] = json!(bos);
        }
        write("tokens.json", tokens.to_string());
        write("chats.json", serde_json::to_string(&chats).unwrap());
        made.push((one, chats));
    }
    let run = std::process::Command::new(python).arg(script).arg(directory.path()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (one, chats) in made {
        let text = std::fs::read_to_string(directory.path().join(format!("{}.out.json", one.name))).unwrap();
        let wanted: Vec<Wanted> = serde_json::from_str(&text).unwrap();
        assert_eq!(wanted.len(), chats.len());
        let encoder = shipped(one.name);
        let (mut same, mut headers) = (0, 0);
        for (row, wanted) in chats.iter().zip(&wanted) {
            let (_, chat) = read_row(row.to_string().as_bytes()).unwrap_or_else(|e| panic!("{row}: {e}"));
            let found =
                encoder.encode(&chat, Answers::All).unwrap_or_else(|e| panic!("{}: {row}: {e}", one.name));
            let mut mask = vec![0u8; found.ids.len()];
            found.scored.iter().cloned().for_each(|range| mask[range].fill(1));
            assert_eq!((&found.ids, &mask), (&wanted.typed_ids, &wanted.typed_mask), "{}: {row}", one.name);
            // Without special tokens in messages there is one encoding.
            let is_same = (&found.ids, &mask) == (&wanted.ids, &wanted.mask);
            same += usize::from(is_same);
            headers += wanted.header;
            let typed =
                one.tokens.iter().chain(&["<|endoftext|>"]).any(|token| row.to_string().contains(token));
            assert!(is_same || typed, "{}: {row}", one.name);
        }
        println!(
            "{}: {} chats, {same} also without typed special tokens, {headers} headers",
            one.name,
            chats.len()
        );
        assert!(same >= chats.len() / 2 && same < chats.len(), "{}", one.name);
    }
}
