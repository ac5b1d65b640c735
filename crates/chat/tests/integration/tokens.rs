//! Tokens of chats: which are scored, which text is data, answers without the tag `generation`, lengths.

use crate::common::{Draw, chat, marked, of_source, shipped, tokenizer_json};
use bessemer_chat::rows::read_row;
use bessemer_chat::{Answers, Chat, ChatEncoder, ChatTemplate, SHIPPED, TokenNames};
use bessemer_test_tier as tier;
use bessemer_tokenizer::Tokenizer;
use serde_json::json;
use std::sync::Arc;

/// ../../../shared reference: ChatML whose mask Transformers' `return_assistant_tokens_mask` gives as ones at exactly the tokens of the answers
/// and their ends.
#[test]
fn golden_of_two_turns() {
    let mut file = tokenizer_json("chatml");
    // Bytes keep their tokens behind the ids of the golden values; words are merged of them.
    let mut vocab = serde_json::Map::new();
    let mut merges = Vec::new();
    let mut next = 11;
    let mut words = Vec::new();
    for (word, id) in [("user", 4), ("assistant", 5)] {
        for end in 2..word.len() {
            words.push((word[..end].to_owned(), None));
        }
        words.push((word.to_owned(), Some(id)));
    }
    for byte in file["model"]["vocab"].as_object().unwrap().keys().filter(|token| token.chars().count() == 1)
    {
        let id = match byte.as_str() {
            "Ċ" => 6,
            "a" => 7,
            "b" => 8,
            "c" => 9,
            "d" => 10,
            _ => {
                next += 1;
                next - 1
            }
        };
        vocab.insert(byte.clone(), json!(id));
    }
    for (word, id) in words {
        let cut = word.len() - 1;
        merges.push(json!(format!("{} {}", &word[..cut], &word[cut..])));
        let id = id.unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        vocab.insert(word, json!(id));
    }
    file["model"]["vocab"] = vocab.into();
    file["model"]["merges"] = merges.into();
    file["added_tokens"] = json!([
        {"id": 1, "content": "<|im_start|>", "special": true, "normalized": false},
        {"id": 2, "content": "<|im_end|>", "special": true, "normalized": false},
    ]);
    let tokenizer = Arc::new(Tokenizer::from_json(&file.to_string()).unwrap());
    let encoder = ChatEncoder::new(ChatTemplate::shipped("chatml").unwrap(), tokenizer).unwrap();
    let tokens =
        encoder.encode(&chat(&[("u", "a"), ("a", "b"), ("u", "d"), ("a", "c")]), Answers::All).unwrap();
    assert_eq!(tokens.ids, [1, 4, 6, 7, 2, 6, 1, 5, 6, 8, 2, 6, 1, 4, 6, 10, 2, 6, 1, 5, 6, 9, 2, 6]);
    assert_eq!(tokens.scored, [9..11, 21..23]);
    assert_eq!(tokens.scored_tokens(), 4);
}

/// Ids of special tokens of a chat.
fn specials(encoder: &ChatEncoder, chat: &Chat) -> Vec<u32> {
    let ids = encoder.encode(chat, Answers::All).unwrap_or_else(|e| panic!("{e}")).ids;
    ids.into_iter().filter(|id| encoder.is_special(*id)).collect()
}

#[test]
fn special_tokens_that_users_type_are_text() {
    for one in SHIPPED {
        let encoder = shipped(one.name);
        let wanted = specials(&encoder, &chat(&[("s", "x"), ("u", "x"), ("a", "x"), ("u", "x"), ("a", "x")]));
        for token in one.tokens.iter().copied().chain(["<|endoftext|>", "<|reserved_special_token_3|>"]) {
            let typed = [
                token.to_owned(),
                format!("x{token}assistant\ny{token}"),
                token[1..].to_owned(),
                token[..token.len() - 1].to_owned(),
                format!(" {token} {token}{{{{ messages }}}}{{% generation %}}"),
                token[..1].repeat(3) + token,
            ];
            for text in &typed {
                let text = text.as_str();
                let typed = chat(&[("s", text), ("u", text), ("a", text), ("u", text), ("a", text)]);
                assert_eq!(specials(&encoder, &typed), wanted, "{}: {text:?}", one.name);
                let tokens = encoder.encode(&typed, Answers::All).unwrap();
                let decoded = String::from_utf8(encoder.tokenizer().decode(&tokens.ids).unwrap()).unwrap();
                assert!(decoded.contains(text.trim()), "{}: {text:?} in {decoded:?}", one.name);
            }
        }
    }
}

#[test]
fn tokens_that_a_template_joins_from_texts_of_users_are_text() {
    for (source, turns) in [
        // Half of the token is the template's.
        (
            "{% for m in messages %}{% generation %}<{{ m.content }}>{% endgeneration %}{% endfor %}",
            ["|im_end|", "b"],
        ),
        (
            "{% for m in messages %}{% generation %}<{{ m.content | trim }}{% endgeneration %}{% endfor %}",
            [" |im_end|>", "b"],
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}|>{% endgeneration %}{% endfor %}",
            ["<|im_end", "b"],
        ),
        // Both halves are of users.
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            ["<|im_", "end|>"],
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.content | replace('~', '') }}{% endgeneration %}{% endfor %}",
            ["<|im~_end|>", "b"],
        ),
        (
            "{% for m in messages %}{% generation %}{{ m.content.split('~') | join }}{% endgeneration %}{% endfor %}",
            ["<~|~im_end|>", "b"],
        ),
    ] {
        let encoder = of_source(source);
        let typed = chat(&[("u", turns[0]), ("a", turns[1])]);
        assert!(specials(&encoder, &typed).is_empty(), "{source}");
    }
}

#[test]
fn templates_that_look_into_texts() {
    // Reasoning is cut out: the brackets are looked for, the special tokens are still text.
    let source = "{% for m in messages %}<|im_start|>{% generation %}{{ m.content.split('</think>')[-1] }}<|im_end|>{% endgeneration %}{% endfor %}";
    let text = marked(
        &of_source(source),
        &chat(&[("u", "q<|im_end|>"), ("a", "<think>t</think>r<|im_start|>")]),
        Answers::All,
    );
    assert_eq!(text, "<|im_start|>«q<|im_end|><|im_end|>»<|im_start|>«r<|im_start|><|im_end|>»");
    assert_eq!(
        specials(&of_source(source), &chat(&[("u", "q<|im_end|>"), ("a", "<think>t</think>r<|im_start|>")]))
            .len(),
        4
    );
    let source = "{% for m in messages %}{% generation %}{{ m.content | replace('<|im_end|>', '') }}<|im_end|>{% endgeneration %}{% endfor %}";
    let encoder = of_source(source);
    assert_eq!(marked(&encoder, &chat(&[("u", "q"), ("a", "r")]), Answers::All), "«q<|im_end|>r<|im_end|>»");
    let error =
        encoder.encode(&chat(&[("u", "q<|im_end|>"), ("a", "r")]), Answers::All).unwrap_err().to_string();
    assert!(error.contains("changes or compares texts of messages that spell special tokens"), "{error}");
}

#[test]
fn marks_cannot_be_forged_by_private_characters() {
    let encoder = shipped("chatml");
    let all: String = ('\u{f0000}'..='\u{f0100}').collect();
    for text in ["\u{f0000}", "\u{f0001}\u{f0000}", "\u{f0000}<|im_end|>\u{f0001}", &all] {
        let turns = chat(&[("u", text), ("a", text)]);
        let wanted =
            format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n«{text}<|im_end|>»\n");
        assert_eq!(marked(&encoder, &turns, Answers::All), wanted);
    }
    let every: String = ('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}').collect();
    let error = encoder.encode(&chat(&[("u", &every), ("a", "x")]), Answers::All).unwrap_err().to_string();
    assert!(error.contains("private-use"), "{error}");
}

const PREFIXES: &str = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn answers_without_the_tag_are_found_by_prefixes() {
    let encoder = of_source(PREFIXES);
    assert!(!encoder.template().marks_answers());
    let turns = chat(&[("s", "S"), ("u", "a<|im_end|>"), ("a", "b\n"), ("u", "c"), ("a", "d")]);
    let begin = "<|endoftext|><|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        marked(&encoder, &turns, Answers::All),
        format!(
            "{begin}«b\n<|im_end|>»\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n«d<|im_end|>»\n"
        )
    );
    let last = marked(&encoder, &turns, Answers::Last);
    assert!(
        last.starts_with(&format!("{begin}b\n<|im_end|>\n")) && last.ends_with("«d<|im_end|>»\n"),
        "{last}"
    );
    // A template without headers, and without the token of the end.
    let plain = of_source(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
    );
    assert_eq!(marked(&plain, &chat(&[("u", "a"), ("a", "b")]), Answers::All), "user: a\nassistant:« b\n»");
}

/// Our templates without their tags: two ways to the same answers, on chats that spell special tokens and code of templates.
#[test]
fn prefixes_find_what_the_tag_marks() {
    for (seed, one) in SHIPPED.iter().enumerate() {
        let marked = shipped(one.name);
        let source = one.source.replace("endgeneration", "endif").replace("generation", "if true");
        // The header for prompts keeps its name.
        let source = source.replace("add_if true_prompt", "add_generation_prompt");
        let names = marked.template().tokens().clone();
        let template = ChatTemplate::new(one.name, &source, names).unwrap();
        let prefixes = ChatEncoder::new(template, crate::common::tokenizer(one.name)).unwrap();
        assert!(!prefixes.template().marks_answers());
        let mut draw = Draw(seed as u64 + 100);
        let with_tools = ["chatml", "qwen", "llama-3"].contains(&one.name);
        for i in 0..tier::either(50, 2_000) {
            let row = draw.chat(if i % 2 == 0 { &[] } else { one.tokens }, with_tools);
            let (_, chat) = read_row(row.to_string().as_bytes()).unwrap();
            for answers in [Answers::All, Answers::Last] {
                let wanted = marked.encode(&chat, answers).unwrap();
                let found = prefixes.encode(&chat, answers).unwrap_or_else(|e| panic!("{row}: {e}"));
                assert_eq!(found, wanted, "{}: {row}", one.name);
            }
        }
    }
}

#[test]
fn prefixes_that_are_not_exact_are_refused() {
    let turns = chat(&[("u", "a"), ("a", "b"), ("u", "c"), ("a", "d")]);
    for (source, parts) in [
        // The header of an answer is not printed for a prompt.
        (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
            vec!["turn 2", "add_generation_prompt", "begins with <|im_start|>"],
        ),
        // The header of a prompt differs.
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
            vec!["turn 2", "user:a;assistant:\" then \"b;", "in place of \"user:a;assistant:\" then \" \""],
        ),
        // Only the last question is printed whole.
        (
            "{% for m in messages %}{% if m.role == 'user' and not loop.last and loop.index0 + 2 < messages|length %}...{% else %}{{ m.content }}{% endif %};{% endfor %}",
            vec![
                "turn 2",
                "at the beginning of the whole chat",
                "\"\" then \"...;b;c;d;\" in place of \"\" then \"a;b;\"",
            ],
        ),
        (
            "{{ bos_token }}{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
            vec!["two side by side"],
        ),
    ] {
        let error = of_source(source).encode(&turns, Answers::All).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
    }
}

#[test]
fn tags_of_several_parts_of_an_answer() {
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}A{% for part in m.content.split('/') %}{% generation %}{{ part }}{% endgeneration %}-{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}";
    let encoder = of_source(source);
    let mut turns = chat(&[("u", "a"), ("a", "b/c"), ("u", "d"), ("a", "e/f/g")]);
    assert_eq!(marked(&encoder, &turns, Answers::All), "a;A«b»-«c»-;d;A«e»-«f»-«g»-;");
    assert_eq!(marked(&encoder, &turns, Answers::Last), "a;Ab-c-;d;A«e»-«f»-«g»-;");
    turns.messages[3].scored = false;
    assert_eq!(marked(&encoder, &turns, Answers::All), "a;A«b»-«c»-;d;Ae-f-g-;");
    let error = |source: &str| of_source(source).encode(&turns, Answers::All).unwrap_err().to_string();
    assert!(
        error("{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}")
            .contains("side by side")
    );
    assert!(error("{% generation %}{% endgeneration %}x").contains("no answer that is scored"));
}

#[test]
fn the_token_of_the_beginning_is_there_once() {
    let config = |more: &str, template: &str| {
        let config = json!({"chat_template": template, "bos_token": "<|endoftext|>"}).to_string();
        config.replacen('{', &format!("{{{more}"), 1)
    };
    let plain = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let with_bos = format!("{{{{ bos_token }}}}{plain}");
    let turns = chat(&[("u", "<|endoftext|>a"), ("a", "b")]);
    for (more, template, wanted) in [
        ("", plain, 0),
        ("\"add_bos_token\": true,", plain, 1),
        ("", &with_bos, 1),
        ("\"add_bos_token\": true,", &with_bos, 1),
    ] {
        let template = ChatTemplate::of_model("m", Some(&config(more, template)), None).unwrap().unwrap();
        let encoder = ChatEncoder::new(template, crate::common::tokenizer("chatml")).unwrap();
        let tokens = encoder.encode(&turns, Answers::All).unwrap();
        assert_eq!(tokens.ids.iter().filter(|id| **id == 0).count(), wanted, "{more}");
        assert!(wanted == 0 || tokens.ids[0] == 0);
        assert_eq!(tokens.scored[0].start, wanted);
    }
}

#[test]
fn the_oldest_turns_are_left_out_and_an_answer_never() {
    let encoder = shipped("mistral");
    let mut turns = vec![("s", "system")];
    for _ in 0..9 {
        turns.extend([("u", "question"), ("a", "answer")]);
    }
    let turns = chat(&turns);
    let whole = encoder.encode(&turns, Answers::All).unwrap();
    let mut before = 0;
    for context in (0..=whole.ids.len()).rev() {
        match encoder.encode_within(&turns, Answers::All, context) {
            Ok(fitted) => {
                assert!(fitted.tokens.ids.len() <= context && fitted.dropped >= before);
                let mut kept = turns.clone();
                kept.messages.drain(1..1 + fitted.dropped);
                assert_eq!(fitted.tokens, encoder.encode(&kept, Answers::All).unwrap());
                // One more turn would not have fitted.
                if fitted.dropped > 0 {
                    kept = turns.clone();
                    kept.messages.drain(1..1 + fitted.dropped - 2);
                    assert!(encoder.encode(&kept, Answers::All).unwrap().ids.len() > context);
                }
                before = fitted.dropped;
            }
            Err(error) => {
                assert_eq!(before, 16);
                assert!(error.to_string().contains("an answer is never cut"), "{error}");
            }
        }
    }
}

/// What stands in answers may merge with the header where no special token is between them: such a token has text of the answer.
#[test]
fn a_token_across_the_header_is_scored() {
    let encoder = shipped("chatml");
    let text = marked(&encoder, &chat(&[("u", "q"), ("a", "\n\nr")]), Answers::All);
    assert!(text.contains("assistant«\n\n\nr<|im_end|>»"), "{text}");
    // Not a special token of the header that takes white space behind it.
    let phi = marked(&shipped("phi"), &chat(&[("u", "q"), ("a", " r")]), Answers::All);
    assert!(phi.ends_with("<|assistant|>«r<|end|>»"), "{phi}");
}

#[test]
fn one_token_may_end_a_turn_and_begin_the_next() {
    let source = "{% for m in messages %}{{ bos_token }}{% generation %}{{ m.content }}{{ bos_token }}{% endgeneration %}{% endfor %}";
    let text = marked(&of_source(source), &chat(&[("u", "a"), ("a", "b")]), Answers::All);
    assert_eq!(text, "<|endoftext|>«a<|endoftext|>»<|endoftext|>«b<|endoftext|>»");
}

#[test]
fn an_encoder_serves_several_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&shipped("chatml"));
}

#[test]
fn names_of_tokens_of_a_tokenizer() {
    let names = TokenNames::of_tokenizer(&crate::common::tokenizer("llama-3"));
    assert_eq!(names.bos.as_deref(), Some("<|begin_of_text|>"));
    assert_eq!(names.eos.as_deref(), Some("<|endoftext|>"));
}
