//! Rows of chats: the four forms, and what is refused.

use bessemer_chat::rows::{MOST_ROW_BYTES, read_object, read_object_of_row, read_pair, read_row};
use bessemer_chat::{Chat, ChatRows, Message, Pair, Role, RowForm, ToolCall};
use serde_json::json;
use std::io::{BufReader, Read};

fn read(row: &str) -> (RowForm, Chat) {
    read_row(row.as_bytes()).unwrap_or_else(|e| panic!("{row}: {e}"))
}

#[test]
fn four_forms_of_one_chat() {
    let wanted = vec![
        Message::new(Role::System, "s"),
        Message::new(Role::User, "a\n\nb"),
        Message::new(Role::Assistant, "c"),
    ];
    for (form, row) in [
        (
            RowForm::OpenAi,
            json!({"messages": [{"role": "developer", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "a\n"}, {"type": "text", "text": "\nb"}]},
                {"role": "assistant", "content": "c", "weight": 1, "refusal": null}], "id": 3}),
        ),
        (
            RowForm::ShareGpt,
            json!({"system": "s", "conversations": [{"from": "human", "value": "a\n\nb"}, {"from": "gpt", "value": "c"}]}),
        ),
        (RowForm::Alpaca, json!({"instruction": "a", "input": "b", "output": "c", "system": "s"})),
    ] {
        assert_eq!(read(&row.to_string()), (form, Chat { messages: wanted.clone(), tools: vec![] }));
    }
    let (form, chat) = read(r#"{"prompt": "a\n\nb", "completion": "c"}"#);
    assert_eq!((form, chat.messages.len()), (RowForm::PromptCompletion, 2));
    assert!(chat.messages[1].scored && chat.messages[1].content == "c");
    let lists = json!({
        "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
        "completion": [{"role": "assistant", "content": "d"}],
    });
    let scored: Vec<bool> = read(&lists.to_string()).1.messages.iter().map(|one| one.scored).collect();
    assert_eq!(scored, [false, false, false, true]);
    let alpaca = json!({"instruction": "c", "input": "", "output": "d", "history": [["a", "b"]]});
    let texts: Vec<String> =
        read(&alpaca.to_string()).1.messages.into_iter().map(|one| one.content).collect();
    assert_eq!(texts, ["a", "b", "c", "d"]);
    // A byte order mark, and fields of several forms: the first form of the table counts.
    let (form, _) = read_row("\u{feff}{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"prompt\": \"x\", \"completion\": \"y\"}".as_bytes()).unwrap();
    assert_eq!(form, RowForm::OpenAi);
}

/// Structures of Parquet have all fields of the column, with null where a turn has none.
#[test]
fn rows_with_nulls() {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content, "name": null, "tool_calls": null, "tool_call_id": null, "weight": null, "thinking": null});
    let row = json!({"messages": [turn("user", "a"), turn("assistant", "b")], "tools": null});
    let (form, chat) = read_object(row.as_object().unwrap()).unwrap();
    assert_eq!((form, chat.messages[1].clone()), (RowForm::OpenAi, Message::new(Role::Assistant, "b")));
    let row = json!({"messages": null, "conversations": null, "instruction": "a", "input": null, "output": "b", "history": null, "system": null});
    assert_eq!(read_object(row.as_object().unwrap()).unwrap().0, RowForm::Alpaca);
}

#[test]
fn calls_of_tools() {
    let call = ToolCall { id: Some("1".into()), name: "f".into(), arguments: json!({"x": [1]}) };
    let openai = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1]}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "assistant", "content": "a"}]});
    let (_, chat) = read(&openai.to_string());
    assert_eq!((chat.messages[1].tool_calls.clone(), chat.tools.len()), (vec![call.clone()], 1));
    assert_eq!(chat.messages[2].tool_call_id.as_deref(), Some("1"));
    let sharegpt = json!({"tools": "[{\"name\": \"f\"}]", "conversations": [
        {"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": [1]}}"},
        {"from": "observation", "value": "r"}, {"from": "gpt", "value": "a"}]});
    let (_, chat) = read(&sharegpt.to_string());
    assert_eq!(chat.messages[1].tool_calls, [ToolCall { id: None, ..call }]);
    assert_eq!(chat.tools, [json!({"name": "f"})]);
}

#[test]
fn rows_that_are_refused_name_the_fault() {
    let openai = |turns: &str| format!(r#"{{"messages": [{{"role": "user", "content": "q"}}, {turns}]}}"#);
    for (row, problem) in [
        ("[1]".to_owned(), "wanted a JSON object, found a list"),
        ("{".into(), "wanted a JSON object: EOF"),
        ("{}".into(), "found no fields"),
        (r#"{"text": "a", "id": 1}"#.into(), "or prompt with completion, found the fields text, id"),
        (r#"{"instruction": "a"}"#.into(), "found the fields instruction"),
        (r#"{"messages": "a"}"#.into(), "messages: wanted a list of turns, found a text"),
        (openai("1"), "turn 2: wanted an object, found a number"),
        (openai(r#"{"content": "a"}"#), "turn 2: wanted the field role or from, found neither"),
        (openai(r#"{"role": "narrator", "content": "a"}"#), "found \"narrator\""),
        (
            openai(r#"{"role": "assistant", "content": 1}"#),
            "turn 2: wanted a text or a list of parts, found a number",
        ),
        (
            openai(r#"{"role": "assistant", "content": [{"type": "image_url"}]}"#),
            "part 1: wanted the type \"text\", found \"image_url\"",
        ),
        (
            openai(r#"{"role": "assistant", "content": [{"text": [["a"]]}]}"#),
            "part 1: wanted a text, found a list",
        ),
        (
            openai(r#"{"role": "assistant", "content": [["a"]]}"#),
            "part 1: wanted a text or an object, found a list",
        ),
        (
            openai(r#"{"role": "assistant", "content": "a", "weight": 0.5}"#),
            "weight: wanted 0 or 1, found 0.5",
        ),
        (openai(r#"{"role": "assistant", "content": "a", "weight": 0}"#), "found weight = 0 in all"),
        (
            openai(r#"{"role": "assistant", "tool_calls": [{}]}"#),
            "turn 2: call 1: wanted the name of a function",
        ),
        (openai(r#"{"role": "assistant", "content": ""}"#), "turn 2 (assistant): wanted a text or calls"),
        (
            openai(r#"{"role": "user", "content": "a"}"#),
            "turn 2 (user): wanted the role assistant after user, found user",
        ),
        (
            r#"{"conversations": [{"from": "function_call", "value": "f()"}]}"#.into(),
            "function_call: wanted a JSON object",
        ),
        (r#"{"instruction": "a", "output": null}"#.into(), "found the fields instruction, output"),
        (
            r#"{"instruction": "a", "output": "b", "history": [["c"]]}"#.into(),
            "history: wanted pairs of texts",
        ),
        (r#"{"prompt": 1, "completion": "b"}"#.into(), "prompt: wanted a text, found a number"),
        (r#"{"messages": [], "tools": 1}"#.into(), "tools: wanted a list, found a number"),
        (
            r#"{"messages": [], "tools": "x"}"#.into(),
            "tools: wanted a list of objects, found a text that is not JSON",
        ),
        (format!(r#"{{"messages": {}"#, "[".repeat(5000)), "recursion limit"),
    ] {
        let error = read_row(row.as_bytes()).unwrap_err();
        assert!(error.contains(problem) && error.len() < 400, "{row:.200}: {error}");
    }
    let error = read_row(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}").unwrap_err();
    assert_eq!(error, "wanted UTF-8, found the byte 0xff at byte 44");
}

#[test]
fn a_million_turns_and_huge_lines_are_refused_within_bounds() {
    let turn = r#"{"role":"user","content":"a"},"#;
    let many = |count: usize| format!(r#"{{"messages":[{}{{}}]}}"#, turn.repeat(count));
    let error = read_row(many(500_000).as_bytes()).unwrap_err();
    assert!(error.contains("values, found") && error.contains("at most 10000 turns"), "{error}");
    let error = read_row(many(20_000).as_bytes()).unwrap_err();
    assert_eq!(error, "messages: wanted at most 10000 turns, found 20001");
    // A line that does not end is passed over without being held.
    let endless = BufReader::new(std::io::repeat(b'x').take(40 << 20));
    let good = b"\n\n{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n\n{\"prompt\": \"a\", \"completion\": \"b\"}".as_slice();
    let mut rows = ChatRows::new(BufReader::new(endless.chain(good)));
    let error = rows.next().unwrap().unwrap_err().to_string();
    assert_eq!(error, format!("line 1: wanted a row of at most {MOST_ROW_BYTES} bytes, found a longer line"));
    assert_eq!(rows.next().unwrap().unwrap().line, 3);
    assert!(rows.next().unwrap().unwrap_err().to_string().starts_with("line 4: wanted messages (OpenAI)"));
    assert_eq!(rows.next().unwrap().unwrap().line, 6);
    assert!(rows.next().is_none() && rows.next().is_none());
}

/// A reader that breaks.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the disk is gone"))
    }
}

#[test]
fn a_reader_that_breaks_ends_the_rows() {
    let good = b"{\"prompt\": \"a\", \"completion\": \"b\"}\n{".as_slice();
    let mut rows = ChatRows::new(BufReader::new(good.chain(Broken)));
    assert_eq!(rows.next().unwrap().unwrap().line, 1);
    assert!(rows.next().unwrap().unwrap_err().to_string().contains("line 2: cannot read: the disk is gone"));
    assert!(rows.next().is_none());
}

/// Both chats of a row, as their questions and answers.
fn pair(row: &str) -> Result<[Vec<(bool, String)>; 2], String> {
    let Pair { chosen, rejected } = read_pair(&read_object_of_row(row.as_bytes())?)?;
    let turns = |chat: Chat| {
        let scored = |one: &Message| one.scored && one.role == Role::Assistant;
        chat.messages.iter().map(|one| (scored(one), one.content.clone())).collect()
    };
    Ok([turns(chosen), turns(rejected)])
}

#[test]
fn forms_of_a_pair_are_one_pair() {
    let wanted = |answer: &str| vec![(false, "q".to_owned()), (true, answer.to_owned())];
    for row in [
        r#"{"prompt": "q", "chosen": "a", "rejected": "b"}"#,
        r#"{"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"role": "assistant", "content": "b"}]}"#,
        r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}], "score": 1}"#,
        r#"{"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"}}"#,
    ] {
        assert_eq!(pair(row).unwrap(), [wanted("a"), wanted("b")], "{row}");
    }
    // Of whole chats the turns that both have are the question: an earlier answer too.
    let row = r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"},
                             {"role": "assistant", "content": "s"}],
                  "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"},
                               {"role": "assistant", "content": "t"}]}"#;
    let [chosen, rejected] = pair(row).unwrap();
    let scored = |turns: &[(bool, String)]| turns.iter().map(|turn| turn.0).collect::<Vec<_>>();
    assert_eq!([scored(&chosen), scored(&rejected)], [[false, false, false, true]; 2]);
}

#[test]
fn rows_that_are_no_pairs_are_refused() {
    for (row, fault) in [
        (
            r#"{"prompt": "q", "completion": "a"}"#,
            "wanted chosen and rejected, found the fields prompt, completion",
        ),
        (r#"{"prompt": "q", "chosen": "a", "rejected": "a"}"#, "found chosen equal to rejected"),
        (r#"{"prompt": "q", "chosen": "a", "rejected": ""}"#, "rejected: turn 2 (assistant): wanted a text"),
        (r#"{"chosen": "a", "rejected": "b"}"#, "texts need the field prompt"),
        (
            r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "rejected": [{"role": "user", "content": "r"}, {"role": "assistant", "content": "a"}]}"#,
            "found different first turns",
        ),
        (
            r#"{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"},
                             {"role": "assistant", "content": "b"}]}"#,
            "chosen: wanted an answer that is scored",
        ),
        (r#"{"prompt": 1, "chosen": "a", "rejected": "b"}"#, "prompt: wanted a text, found a number"),
        ("[]", "wanted a JSON object"),
    ] {
        let e = pair(row).unwrap_err();
        assert!(e.contains(fault), "{row}: {e}");
    }
}
