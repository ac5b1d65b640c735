//! `bessemer chat`, and the template that travels with a model.

use crate::workplace::{GPT2, Workplace};
use serde_json::json;
use std::fs;

const TEMPLATE: &str = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {% if m.role == 'assistant' %}\
                        {% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}\
                        {% if add_generation_prompt %}{{ bos_token }}assistant: {% endif %}";

#[test]
fn chats_are_shown_and_their_template_travels() {
    let place = Workplace::new(GPT2);
    place.train(&[]);
    place.bessemer(&["checkpoint", "export", "runs/t", "--out", "plain"]).text();
    assert!(!place.path("plain/chat_template.jinja").exists());
    fs::write(place.path("plain/chat_template.jinja"), TEMPLATE).unwrap();
    place.bessemer(&["checkpoint", "import", "plain", "--out", "runs/chat"]).text();
    place.bessemer(&["checkpoint", "export", "runs/chat", "--out", "again"]).text();
    for directory in ["runs/chat", "again"] {
        let text = fs::read_to_string(place.path(directory).join("chat_template.jinja")).unwrap();
        assert_eq!(text, TEMPLATE, "{directory}");
    }
    let rows = [
        json!({"messages": [{"role": "user", "content": "Hi <|endoftext|>\u{1b}[31m"}, {"role": "assistant", "content": "Ho"}]}),
        json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}),
        json!({"instruction": "a", "output": ""}),
    ];
    let lines: Vec<String> = rows.iter().map(ToString::to_string).collect();
    fs::write(place.path("chats.jsonl"), lines.join("\n")).unwrap();
    fs::write(place.path("chats.json"), serde_json::to_string_pretty(&rows[..2]).unwrap()).unwrap();
    let show = |words: &[&str]| place.bessemer(&[&["chat", "show"], words].concat());
    for directory in ["runs/chat", "again"] {
        let text = show(&["chats.json", "--template", directory]).text();
        // Tokens of the small vocabulary are in between.
        let joined = text.replace('·', "");
        for part in [
            "line 1 (openai): ",
            "<|endoftext|>user: Hi <|endoftext|>\\u001b[31m⏎\n<|endoftext|>assistant: «Ho<|endoftext|>»⏎\n",
            "line 2 (sharegpt): ",
            "assistant: «b<|endoftext|>»⏎\n<|endoftext|>user: c⏎\n",
        ] {
            assert!(joined.contains(part), "{part}: {text}");
        }
    }
    let one =
        show(&["chats.json", "--tokenizer", "runs/chat", "--answers", "last", "--chats", "2", "--json"])
            .text();
    let last: serde_json::Value = serde_json::from_str(one.lines().last().unwrap()).unwrap();
    let (ids, scored) = (last["ids"].as_array().unwrap(), &last["scored"]);
    assert_eq!(ids.iter().filter(|id| **id == 0).count(), 6, "{last}");
    assert_eq!(scored.as_array().unwrap().len(), 1, "{last}");
    assert_eq!(last["scored_tokens"], json!(2), "{last}");
    let counts =
        show(&["chats.jsonl", "--template", "runs/chat", "--chats", "0", "--count", "--json"]).json();
    assert_eq!((&counts["chats"], &counts["wrong_rows"]), (&json!(2), &json!(1)), "{counts}");

    show(&["chats.jsonl", "--template", "runs/chat"])
        .failed(1, &["chats.jsonl, line 3", "found an empty answer"]);
    show(&["chats.json", "--template", "runs/t"])
        .failed(1, &["runs/t: wanted chat_template.jinja", "--template"]);
    show(&["chats.json", "--template", "lama-3", "--tokenizer", "runs/t"])
        .failed(2, &["did you mean \"llama-3\""]);
    show(&["chats.json", "--template", "llama-3", "--tokenizer", "runs/t"])
        .failed(1, &["<|eot_id|>", "tokenizer.special_tokens"]);
    show(&["chats.json", "--template", "chatml"]).failed(2, &["wanted --tokenizer"]);
    show(&["chats.json", "--tokenizer", "runs/t/tokenizer.json"]).failed(2, &["wanted --template"]);
    show(&["chats.json", "--template", "runs/chat", "--context", "3"]).failed(1, &["line 1", "never cut"]);
    show(&["missing", "--template", "runs/chat"]).failed(1, &["cannot read missing"]);
    // Documents are no chats.
    let mut files = fs::read_dir(place.path("runs/t/corpus")).unwrap().map(|entry| entry.unwrap().path());
    let parquet = files.find(|path| path.to_string_lossy().contains("/documents-")).unwrap();
    show(&[parquet.to_str().unwrap(), "--template", "runs/chat"])
        .failed(1, &["line 1: wanted messages (OpenAI)", "text"]);
    fs::write(place.path("damaged.parquet"), "PAR1PAR1").unwrap();
    show(&["damaged.parquet", "--template", "runs/chat"]).failed(1, &["cannot read damaged.parquet"]);
    fs::write(place.path("empty"), "\n\n").unwrap();
    show(&["empty", "--template", "runs/chat"]).failed(1, &["found an empty file"]);
    fs::write(place.path("bad.jinja"), "{% for %}").unwrap();
    show(&["chats.json", "--template", "bad.jinja", "--tokenizer", "runs/t"])
        .failed(1, &["bad.jinja: cannot parse"]);
    fs::write(place.path("plain/chat_template.jinja"), "{% for %}").unwrap();
    let noted = place.bessemer(&["checkpoint", "import", "plain", "--out", "runs/none"]);
    assert!(noted.err.contains("chats will have no template"), "{}", noted.err);
    assert!(!place.path("runs/none/chat_template.jinja").exists());
}
