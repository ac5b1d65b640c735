//! Renderings of our templates beside those of the public documentation.

use crate::common::{chat, marked, shipped, tokenizer};
use bessemer_chat::{Answers, ChatEncoder, ChatTemplate, Message, Role, SHIPPED, ToolCall};
use serde_json::{Value, json};

/// A prompt as text.
fn prompt(name: &str, messages: &Value) -> String {
    let encoder = shipped(name);
    let ids = encoder.prompt(messages.as_array().unwrap(), &[]).unwrap();
    String::from_utf8(encoder.tokenizer().decode(&ids).unwrap()).unwrap()
}

/// Right: the examples of the pages that the templates cite, with the answer and its end scored.
#[test]
fn renderings_are_those_of_the_documentation() {
    let two = [
        ("u", "Hello, how are you?"),
        ("a", "Fine, and you?"),
        ("u", "I'm doing great!"),
        ("a", "Glad to hear!"),
    ];
    for (name, turns, wanted) in [
        (
            "chatml",
            vec![("s", "You are ChatGPT."), ("u", "How are you"), ("a", "I am doing well!")],
            "<|im_start|>system\nYou are ChatGPT.<|im_end|>\n<|im_start|>user\nHow are you<|im_end|>\n\
             <|im_start|>assistant\n«I am doing well!<|im_end|>»\n",
        ),
        (
            "qwen",
            vec![("s", "You are a helpful assistant."), ("u", "hello"), ("a", "Hello!")],
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n\
             <|im_start|>assistant\n«Hello!<|im_end|>»\n",
        ),
        (
            "gemma",
            vec![("u", "knock knock"), ("a", "who is there"), ("u", "Gemma"), ("a", "Gemma who?")],
            "<bos><start_of_turn>user\nknock knock<end_of_turn>\n<start_of_turn>model\n«who is there<end_of_turn>»\n\
             <start_of_turn>user\nGemma<end_of_turn>\n<start_of_turn>model\n«Gemma who?<end_of_turn>»\n",
        ),
        (
            "gemma",
            vec![
                ("s", "Only reply like a pirate."),
                ("u", "What is the answer to life the universe and everything?"),
                ("a", "Arrr, 'tis 42,"),
            ],
            "<bos><start_of_turn>user\nOnly reply like a pirate.\n\nWhat is the answer to life the universe and everything?<end_of_turn>\n\
             <start_of_turn>model\n«Arrr, 'tis 42,<end_of_turn>»\n",
        ),
        (
            "llama-2",
            vec![("s", "Be brief."), ("u", " Hi "), ("a", "Hello!"), ("u", "Bye"), ("a", "Bye!")],
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi [/INST]« Hello! </s>»<s>[INST] Bye [/INST]« Bye! </s>»",
        ),
        (
            "llama-3",
            vec![
                ("s", "You are a helpful AI assistant"),
                ("u", "What is France's capital?"),
                ("a", "Bonjour!"),
            ],
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful AI assistant<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nWhat is France's capital?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n«Bonjour!<|eot_id|>»",
        ),
        (
            "mistral",
            two.to_vec(),
            "<s>[INST]Hello, how are you?[/INST]«Fine, and you?</s>»[INST]I'm doing great![/INST]«Glad to hear!</s>»",
        ),
        (
            "mistral",
            vec![("s", "p"), ("u", "q"), ("a", "r")],
            "<s>[SYSTEM_PROMPT]p[/SYSTEM_PROMPT][INST]q[/INST]«r</s>»",
        ),
    ] {
        assert_eq!(marked(&shipped(name), &chat(&turns), Answers::All), wanted, "{name}");
    }
    // Tokens of Phi-3 take the line break behind them.
    let phi = [("s", "You are a helpful assistant."), ("u", "Question?"), ("a", "Answer.")];
    assert_eq!(
        marked(&shipped("phi"), &chat(&phi), Answers::All),
        "<|system|>You are a helpful assistant.<|end|><|user|>Question?<|end|><|assistant|>«Answer.<|end|>»"
    );
    let messages = json!([{"role": "user", "content": "What is Cramer's Rule?"}]);
    assert_eq!(
        prompt("gemma", &messages),
        "<bos><start_of_turn>user\nWhat is Cramer's Rule?<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(prompt("llama-2", &messages), "<s>[INST] What is Cramer's Rule? [/INST]");
    assert_eq!(prompt("mistral", &messages), "<s>[INST]What is Cramer's Rule?[/INST]");
}

#[test]
fn the_last_answer_or_all() {
    let turns = [("u", "a"), ("a", "b"), ("u", "c"), ("a", "d")];
    let encoder = shipped("mistral");
    assert_eq!(marked(&encoder, &chat(&turns), Answers::Last), "<s>[INST]a[/INST]b</s>[INST]c[/INST]«d</s>»");
    let mut weighted = chat(&turns);
    weighted.messages[3].scored = false;
    assert_eq!(marked(&encoder, &weighted, Answers::All), "<s>[INST]a[/INST]«b</s>»[INST]c[/INST]d</s>");
    assert!(
        encoder
            .encode(&weighted, Answers::Last)
            .unwrap_err()
            .to_string()
            .contains("no answer that is scored")
    );
}

#[test]
fn tools_and_their_results() {
    let mut calls = chat(&[("s", "S"), ("u", "Q"), ("a", ""), ("t", "18"), ("t", "19"), ("a", "A")]);
    calls.tools =
        vec![json!({"type": "function", "function": {"name": "f<é>", "parameters": {"type": "object"}}})];
    let call =
        |city: &str| ToolCall {
            id: None, name: "f<é>".into(), arguments: json!({"x": city, "n": [1, 2.5]})
        };
    calls.messages[2].tool_calls = vec![call("A"), call("B")];
    let schema = r#"{"type": "function", "function": {"name": "f<é>", "parameters": {"type": "object"}}}"#;
    let call = |city: &str| format!(r#"{{"name": "f<é>", "arguments": {{"x": "{city}", "n": [1, 2.5]}}}}"#);
    let (a, b) = (call("A"), call("B"));
    assert_eq!(
        marked(&shipped("qwen"), &calls, Answers::All),
        format!(
            "<|im_start|>system\nS\n\n# Tools\n\nJSON schemas, one a line:\n<tools>\n{schema}\n</tools>\n\n\
             A call is a JSON object with name and arguments between <tool_call> and </tool_call>.<|im_end|>\n\
             <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n«<tool_call>\n{a}\n</tool_call>\n<tool_call>\n{b}\n</tool_call><|im_end|>»\n\
             <|im_start|>user\n<tool_response>\n18\n</tool_response>\n<tool_response>\n19\n</tool_response><|im_end|>\n\
             <|im_start|>assistant\n«A<|im_end|>»\n"
        )
    );
    let text = marked(&shipped("chatml"), &calls, Answers::All);
    assert!(text.contains("<|im_start|>tool\n18<|im_end|>\n<|im_start|>tool\n19<|im_end|>\n"), "{text}");
    let text = marked(&shipped("llama-3"), &calls, Answers::All);
    let parameters = a.replace("arguments", "parameters");
    assert!(text.contains("<|start_header_id|>ipython<|end_header_id|>\n\n18<|eot_id|>"), "{text}");
    assert!(text.contains(&format!("<|end_header_id|>\n\n«{parameters}\n")), "{text}");
    for name in ["gemma", "llama-2", "mistral", "phi"] {
        let error = shipped(name).encode(&calls, Answers::All).unwrap_err().to_string();
        assert!(error.contains("tools; take") && error.contains(name), "{error}");
    }
}

#[test]
fn names_and_tokens_that_are_not_there() {
    let error = ChatTemplate::shipped("lama-3").unwrap_err().to_string();
    assert!(error.contains("did you mean \"llama-3\"") && error.contains("chatml, gemma"), "{error}");
    let error = ChatEncoder::new(ChatTemplate::shipped("gemma").unwrap(), tokenizer("chatml"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("found none named <bos> <start_of_turn> <end_of_turn>"), "{error}");
    for one in SHIPPED {
        let template = ChatTemplate::shipped(one.name).unwrap();
        assert!(template.marks_answers(), "{}", one.name);
        assert!(
            template.source().contains("Source: ") && template.source().contains("https://"),
            "{}",
            one.name
        );
    }
}

#[test]
fn templates_of_models() {
    let of = |config: &str, jinja: Option<&str>| ChatTemplate::of_model("m", Some(config), jinja);
    assert!(of("{}", None).unwrap().is_none());
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}], "bos_token": {"content": "<s>"}}"#;
    let template = of(list, None).unwrap().unwrap();
    assert_eq!((template.source(), template.tokens().bos.as_deref()), ("D", Some("<s>")));
    assert_eq!(of(list, Some("J")).unwrap().unwrap().source(), "J");
    for (config, problem) in
        [("[]", "wanted a JSON object"), (r#"{"chat_template": "{% for"}"#, "cannot parse")]
    {
        assert!(of(config, None).unwrap_err().to_string().contains(problem), "{config}");
    }
}

#[test]
fn roles_of_messages_are_checked_before_rendering() {
    let encoder = shipped("chatml");
    for (turns, problem) in [
        (vec![], "found no turns"),
        (vec![("a", "x")], "turn 1 (assistant): wanted the role system or user first"),
        (vec![("u", "x"), ("u", "y")], "turn 2 (user): wanted the role assistant after user"),
        (vec![("u", "x"), ("a", "y"), ("a", "z")], "turn 3 (assistant)"),
        (vec![("u", "x"), ("s", "y"), ("a", "z")], "turn 2 (system)"),
        (vec![("u", "x"), ("a", "y"), ("t", "z")], "wanted a call in the answer"),
        (
            vec![("u", "x"), ("a", " \n")],
            "turn 2 (assistant): wanted a text or calls of tools, found an empty answer",
        ),
        (vec![("u", ""), ("a", "x")], "turn 1 (user): wanted a text, found an empty question"),
        (vec![("u", "x")], "turn 1: wanted an answer as the last turn, found user"),
    ] {
        let error = encoder.encode(&chat(&turns), Answers::All).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let many = (0..10_002).map(|i| Message::new(if i % 2 == 0 { Role::User } else { Role::Assistant }, "x"));
    let many = bessemer_chat::Chat { messages: many.collect(), tools: Vec::new() };
    let error = encoder.encode(&many, Answers::All).unwrap_err().to_string();
    assert!(error.contains("wanted at most 10000 turns, found 10002"), "{error}");
}
