//! The server over its socket, with a small model.

use crate::client::{get, post, receive, send, send_with};
use crate::fake::tokenizer;
use crate::tiny::{CONTEXT, DRAIN, Running, engine, generated, generated_by, model};
use bessemer_eval::generate::{ContextLimit, Finish, GenerateConfig};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_http::Access;
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::engine::Engine;
use bessemer_serve::{AccessKey, Model, Service};
use serde_json::{Value, json};
use std::io::Read;
use std::time::{Duration, Instant};

fn start(slots: usize, queue: usize) -> Running {
    Running::start(slots, queue, ChatTemplate::plain())
}

fn config(max_tokens: u64, temperature: f64, seed: u64) -> GenerateConfig {
    GenerateConfig {
        max_tokens,
        context_limit: ContextLimit::Stop,
        sampling: SamplingConfig { temperature, top_p: 1.0, seed, ..SamplingConfig::default() },
        ..GenerateConfig::default()
    }
}

#[test]
fn texts_are_those_of_generate_whole_and_in_pieces() {
    let server = start(3, 8);
    for (prompt, temperature, seed) in [("Once", 0.0, 0), ("é🎉", 1.0, 5), ("", 1.5, 9)] {
        let wanted = generated(prompt, &config(40, temperature, seed));
        let mut body = json!({"prompt": prompt, "max_tokens": 40, "temperature": temperature, "seed": seed});
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer = reply.json();
        assert_eq!(answer["choices"][0]["text"], wanted.text);
        let reason = if wanted.generated.finish == Finish::EndOfText { "stop" } else { "length" };
        assert_eq!(answer["choices"][0]["finish_reason"], reason);
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
        assert_eq!(answer["usage"]["completion_tokens"], wanted.generated.tokens.len());
        (body["stream"], body["stream_options"]) = (json!(true), json!({"include_usage": true}));
        let reply = post(server.address, "/v1/completions", &body);
        assert!(reply.head.contains("text/event-stream") && reply.whole);
        let events = reply.events();
        let text: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, wanted.text);
        assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], reason);
        assert_eq!(events[events.len() - 1]["usage"], answer["usage"]);
    }
}

#[test]
fn many_prompts_and_samples_come_back_in_their_order() {
    let server = start(2, 8);
    let body = json!({"prompt": ["ab", "c"], "n": 2, "max_tokens": 6, "seed": 3, "temperature": 1.0});
    let answer = post(server.address, "/v1/completions", &body).json();
    let texts: Vec<&str> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 4);
    assert_eq!(texts[0], generated("ab", &config(6, 1.0, 3)).text);
    assert_eq!(texts[2], generated("c", &config(6, 1.0, 3)).text);
    assert!(texts[0] != texts[1] && texts[2] != texts[3]);
    let stop = texts[0].chars().next_back().unwrap().to_string();
    let body = json!({"prompt": "ab", "max_tokens": 6, "seed": 3, "temperature": 1, "stop": stop});
    let answer = post(server.address, "/v1/completions", &body).json();
    assert_eq!(answer["choices"][0]["text"].as_str(), texts[0].split(&stop).next());
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// Every text of prompts that share beginnings has the tokens and the log-probabilities that it has on a server that has seen nothing.
#[test]
fn shared_beginnings_are_not_computed_again_and_change_no_bit() {
    let server = start(3, 64);
    let beginning: String = (0..120).map(|i| char::from(b'a' + (i * i % 26) as u8)).collect();
    let body = |prompt: &str| json!({"prompt": prompt, "max_tokens": 9, "temperature": 1.0, "seed": 4, "logprobs": 3});
    let prompts: Vec<String> = ["", " x", " xyzxyzxyz", "!", " x!", "and more than a piece takes"]
        .iter()
        .map(|end| format!("{beginning}{end}"))
        .chain([beginning[..40].to_owned(), format!("{}?", &beginning[..125 - 9])])
        .collect();
    let mut cached = 0;
    for prompt in prompts.iter().chain(&prompts) {
        let answer = post(server.address, "/v1/completions", &body(prompt)).json();
        let fresh = start(1, 1);
        let alone = post(fresh.address, "/v1/completions", &body(prompt)).json();
        assert_eq!(answer["choices"], alone["choices"], "{prompt}");
        let count =
            |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(count(&alone), 0);
        assert!(count(&answer) < answer["usage"]["prompt_tokens"].as_u64().unwrap());
        cached += count(&answer);
    }
    assert!(cached > 1000, "{cached}");
    // The end-of-text token before each prompt is not the client's: the metric counts it.
    let metrics = get(server.address, "/metrics").body;
    let line =
        metrics.lines().find(|line| line.starts_with("bessemer_serve_cached_prompt_tokens_total ")).unwrap();
    let counted: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((cached..cached + 16).contains(&counted), "{line}, told {cached}");
    // Several texts of one prompt and the same prompt twice: each prompt counts once.
    let many = json!({"prompt": [prompts[1], prompts[1]], "n": 2, "max_tokens": 1, "temperature": 0});
    let usage = &post(server.address, "/v1/completions", &many).json()["usage"];
    let all = usage["prompt_tokens"].as_u64().unwrap();
    assert!(
        (all / 2..all).contains(&usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()),
        "{usage}"
    );
}

/// The numbers that lm-evaluation-harness's `local-completions` reads, against the logits of the model.
#[test]
fn scores_of_token_ids_have_the_form_that_the_harness_reads() {
    let server = start(3, 8);
    let lists: Vec<Vec<u32>> = vec![(1..60).map(|i| i * 7 % 250).collect(), vec![9, 200, 77]];
    for max_tokens in [0, 1] {
        let body = json!({
            "model": "tiny", "prompt": lists, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234,
            "echo": true,
        });
        let answer = post(server.address, "/v1/completions", &body).json();
        for (list, choice) in lists.iter().zip(answer["choices"].as_array().unwrap()) {
            let scores = &choice["logprobs"];
            let n = list.len() + max_tokens;
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                assert_eq!(scores[name].as_array().unwrap().len(), n, "{name}");
            }
            assert!(scores["token_logprobs"][0].is_null() && scores["top_logprobs"][0].is_null());
            let mut engine = engine(1, 1);
            let mut rows = Vec::new();
            engine.decode_each(0, list, &mut |_, row| rows.push(row.to_vec())).unwrap();
            for i in 1..n {
                let row = &rows[i - 1];
                let sum: f64 = row.iter().map(|l| f64::from(*l).exp()).sum();
                let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
                let id = list.get(i).copied().unwrap_or(best);
                let found = scores["token_logprobs"][i].as_f64().unwrap();
                assert!((found - (f64::from(row[id as usize]) - sum.ln())).abs() < 1e-5);
                let top = scores["top_logprobs"][i].as_object().unwrap();
                assert!(top.values().any(|p| p.as_f64() == Some(found)), "the token stands beside the best");
                let largest = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
                assert_eq!(largest == found, id == best, "greedy or not");
            }
        }
    }
    // Of text: the first token follows the end of a document, so it has a score too; offsets are those of the text.
    let body = json!({"prompt": "aé🎉b", "max_tokens": 0, "logprobs": 0, "echo": true});
    let answer = post(server.address, "/v1/completions", &body).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "aé🎉b");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 2, 3, 3, 3, 3]));
    assert_eq!(choice["logprobs"]["tokens"][1], "bytes:\\xc3");
    assert!(choice["logprobs"]["token_logprobs"].as_array().unwrap().iter().all(Value::is_number));
    // In pieces the same.
    let mut body = json!({"prompt": "aé", "max_tokens": 9, "logprobs": 1, "echo": true, "seed": 2});
    let whole = &post(server.address, "/v1/completions", &body).json()["choices"][0];
    body["stream"] = json!(true);
    let events = post(server.address, "/v1/completions", &body).events();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let pieces = events.iter().flat_map(|e| e["choices"][0]["logprobs"][name].as_array().unwrap());
        assert_eq!(json!(pieces.collect::<Vec<_>>()), whole["logprobs"][name], "{name}");
    }
    let text: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, whole["text"].as_str().unwrap());
    let biased = json!({"prompt": "a", "max_tokens": 3, "logit_bias": {"98": 100}});
    assert_eq!(post(server.address, "/v1/completions", &biased).json()["choices"][0]["text"], {
        let bytes = tokenizer().token_bytes(98).unwrap().repeat(3);
        String::from_utf8_lossy(&bytes).into_owned()
    });
}

#[test]
fn conversations_go_through_the_model_s_template_or_a_plain_one() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content.strip() }}{{ eos_token }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    let config_file =
        json!({"chat_template": template, "eos_token": {"content": "<|endoftext|>"}}).to_string();
    // A special token that a user types is text.
    let typed = [json!({"type": "text", "text": " Hi <|endoftext|> "})];
    let messages = json!([{"role": "system", "content": "Be."}, {"role": "user", "content": typed}]);
    let body =
        json!({"messages": messages, "max_tokens": 12, "seed": 4, "logprobs": true, "top_logprobs": 2});
    for (chat, prompt) in [
        (ChatTemplate::plain(), json!("System: Be.\n\nUser:  Hi <|endoftext|> \n\nAssistant:")),
        (ChatTemplate::of_tokenizer_config(&config_file, &tokenizer()).unwrap(), {
            let (begin, end) = ("<system>Be.<|endoftext|><user>Hi ", "<|endoftext|><assistant>");
            let text = tokenizer().encode(b"<|endoftext|>").unwrap();
            let encode = |text: &str| tokenizer().encode_with_special(text.as_bytes()).unwrap();
            json!([encode(begin), text, encode(end)].concat())
        }),
    ] {
        let server = Running::start(2, 8, chat);
        let same = json!({"prompt": prompt, "max_tokens": 12, "seed": 4, "stop": "\nUser:"});
        let wanted = post(server.address, "/v1/completions", &same).json();
        let answer = post(server.address, "/v1/chat/completions", &body).json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            (&message["role"], &message["content"]),
            (&json!("assistant"), &wanted["choices"][0]["text"])
        );
        assert_eq!(answer["object"], "chat.completion");
        let scores = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert_eq!(Some(scores.len() as u64), answer["usage"]["completion_tokens"].as_u64());
        assert_eq!(scores[0]["top_logprobs"].as_array().unwrap().len(), 2);
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let events = post(server.address, "/v1/chat/completions", &streamed).events();
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let text: String =
            events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, message["content"].as_str().unwrap());
    }
    assert!(ChatTemplate::of_tokenizer_config("{\"chat_template\": \"{% for\"}", &tokenizer()).is_err());
    let refuses = ChatTemplate::of_tokenizer_config(
        "{\"chat_template\": \"{{ raise_exception('no system') }}\"}",
        &tokenizer(),
    )
    .unwrap();
    let server = Running::start(1, 8, refuses);
    let reply = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("no system"), "{}", reply.body);
}

#[test]
fn requests_that_cannot_be_are_refused_with_what_was_wanted() {
    let server = start(1, 8);
    let long = vec![5; CONTEXT + 7];
    for (body, status, param, part) in [
        (json!({"prompt": long}), 400, "prompt", "context is 160 tokens, the prompt has 167"),
        (json!({"prompt": {}}), 400, "prompt", "wanted a string"),
        (json!({"prompt": []}), 400, "prompt", "wanted a string"),
        (json!({"prompt": [[]]}), 400, "prompt", "end-of-text token"),
        (json!({"prompt": [1, 300]}), 400, "prompt", "token ids below 257, found 300"),
        (json!({"prompt": [1.5]}), 400, "prompt", "1.5"),
        (json!({"prompt": "a", "max_tokens": -1}), 400, "max_tokens", "wanted a whole number"),
        (
            json!({"prompt": "a", "temperature": "hot"}),
            400,
            "temperature",
            "wanted a number, found string \"hot\"",
        ),
        (json!({"prompt": "a", "temperature": -2}), 400, "temperature", "wanted 0"),
        (json!({"prompt": "a", "top_p": 0}), 400, "top_p", "more than 0"),
        (json!({"prompt": "a", "logprobs": 99}), 400, "logprobs", "from 0 to 20"),
        (json!({"prompt": "a", "stop": [1]}), 400, "stop", "wanted a string"),
        (json!({"prompt": "a", "stop": vec!["x"; 65]}), 400, "stop", "at most 64 strings"),
        (json!({"prompt": ["a", [1]], "n": 2, "min_p": 2}), 400, "min_p", "wanted 0 to 1"),
        (json!({"prompt": ["a", 1]}), 400, "prompt", "several kinds"),
        (json!({"prompt": "a", "frequency_penalty": 2.1}), 400, "frequency_penalty", "wanted -2 to 2"),
        (json!({"prompt": "a", "presence_penalty": -3}), 400, "presence_penalty", "wanted -2 to 2"),
        (json!({"prompt": "a", "min_tokens": 17}), 400, "min_tokens", "wanted 0 to max_tokens = 16"),
        (
            json!({"prompt": "a", "stop_token_ids": [257]}),
            400,
            "stop_token_ids",
            "token ids below 257, found 257",
        ),
        (json!({"prompt": "a", "top_k": -2}), 400, "top_k", "wanted -1"),
        (json!({"prompt": "a", "ignore_eos": 1}), 400, "ignore_eos", "wanted true or false"),
        (json!({"prompt": "a", "n": 0}), 400, "n", "from 1 to 128"),
        (json!({"prompt": vec!["a"; 600], "n": 2}), 400, "prompt", "at most 1024 texts"),
        (json!({"prompt": "a", "suffix": "b"}), 400, "suffix", "does not support"),
        (json!({"prompt": "a", "logit_bias": {"9999": 1}}), 400, "logit_bias", "token ids below 257"),
        (json!({"prompt": "a", "model": "gpt-5"}), 404, "model", "this server has \"tiny\""),
        (json!([1]), 400, "", "wanted a JSON object"),
    ] {
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    for body in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": [{"role": "user"}]}),
        json!({"messages": "hi"}),
    ] {
        let reply = post(server.address, "/v1/chat/completions", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("messages")));
    }
    let reply = receive(send(server.address, "POST", "/v1/completions", "{\"prompt\": "));
    assert!(reply.status == 400 && reply.body.contains("not valid JSON"), "{}", reply.body);
    // What the server refuses before its handler sees it has the same form, on these paths alone.
    // One byte too many: what the server leaves unread would reset the connection, perhaps before its answer is read.
    let large = " ".repeat((4 << 20) + 1);
    let reply = receive(send(server.address, "POST", "/v1/completions", &large));
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["type"]), (413, &json!("invalid_request_error")));
    assert!(error["message"].as_str().unwrap().contains("at most 4194304 bytes") && error["param"].is_null());
    let reply = receive(send(server.address, "POST", "/elsewhere", &large));
    assert!(reply.status == 413 && reply.body.starts_with("wanted a body"), "{}", reply.body);
    assert_eq!(get(server.address, "/v1/completions").status, 405);
    assert_eq!(get(server.address, "/v2").status, 404);
}

/// Fields of vLLM's and OpenAI's interfaces, each with a value that changes nothing and one that would.
#[test]
fn a_field_is_obeyed_harmless_or_refused_by_name() {
    let server = start(1, 8);
    let ask = |chat: bool, field: &str, value: &Value| {
        let (path, mut body) = match chat {
            true => ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
            false => ("/v1/completions", json!({"prompt": "a"})),
        };
        (body["max_tokens"], body[field]) = (json!(1), value.clone());
        post(server.address, path, &body)
    };
    let harmless = json!({
        "user": "me", "store": true, "metadata": {"a": ["b"]}, "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": false}, "request_id": "r", "priority": 3, "seed": null, "n": 1, "logit_bias": {}, "top_k": -1,
        "skip_special_tokens": false, "use_beam_search": false, "length_penalty": 1.0, "stop": null, "logprobs": null,
    });
    for (field, value) in harmless.as_object().unwrap() {
        for chat in [false, true] {
            let reply = ask(chat, field, value);
            assert_eq!(reply.status, 200, "{field}: {}", reply.body);
        }
    }
    for (chat, field, nothing, something) in [
        (false, "suffix", json!(""), json!("b")),
        (true, "tools", json!([]), json!([{"type": "function"}])),
        (true, "tool_choice", json!("none"), json!(null)),
        (true, "response_format", json!({"type": "text"}), json!({"type": "json_object"})),
        (true, "modalities", json!(["text"]), json!(["text", "audio"])),
        (true, "reasoning_effort", json!("none"), json!("high")),
        (true, "echo", json!(false), json!(true)),
        (true, "prompt", json!(null), json!("x")),
        (false, "messages", json!(null), json!([{"role": "user", "content": "x"}])),
        (false, "best_of", json!(1), json!(3)),
        (false, "add_special_tokens", json!(true), json!(false)),
        (true, "add_special_tokens", json!(false), json!(true)),
        (false, "guided_json", json!(null), json!({"type": "object"})),
        (false, "structured_outputs", json!({}), json!({"regex": "a+"})),
        (false, "allowed_token_ids", json!(null), json!([5])),
        (false, "bad_words", json!([]), json!(["x"])),
        (false, "length_penalty", json!(1), json!(0.5)),
        (false, "include_stop_str_in_output", json!(false), json!(true)),
        (false, "truncate_prompt_tokens", json!(null), json!(5)),
        (false, "stream_options", json!({"include_usage": false}), json!({"continuous_usage_stats": true})),
        (true, "truncation", json!("auto"), json!("middle")),
        (false, "logits_processors", json!([]), json!(["x"])),
        (false, "temprature", json!(null), json!(0.5)),
    ] {
        assert_eq!(ask(chat, field, &nothing).status, 200, "{field}: {nothing}");
        if something.is_null() {
            continue;
        }
        let reply = ask(chat, field, &something);
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(field)), "{field}: {}", reply.body);
        assert!(error["message"].as_str().unwrap().starts_with(&format!("{field}: ")), "{error}");
    }
    let messages =
        |message: Value| ask(true, "messages", &json!([{"role": "user", "content": "a"}, message]));
    let refused = messages(json!({"role": "user", "content": "x", "name": "bob"}));
    assert!(
        refused.status == 400 && refused.body.contains("name: this server does not support it"),
        "{}",
        refused.body
    );
    assert_eq!(messages(json!({"role": "user", "content": null})).status, 400);
    assert_eq!(
        messages(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}))
            .status,
        400
    );
    // An answer as OpenAI's client sends it back.
    let null = json!({"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null, "tool_calls": null});
    assert_eq!(messages(null).status, 200);
    // With the strings that end an answer of the plain template there are too many.
    let reply = ask(true, "stop", &json!(vec!["x"; 64]));
    assert!(reply.status == 400 && reply.body.contains("at most 64 strings"), "{}", reply.body);
    // Of a large value only the beginning is repeated.
    let reply = ask(false, "tools", &json!(vec!["x"; 10_000]));
    assert!(reply.status == 400 && reply.body.len() < 400, "{}", reply.body);
}

/// The distribution of each setting is tested with the sampler; here that a request's settings arrive at it.
#[test]
fn settings_of_vllm_give_the_texts_of_generate() {
    let server = start(2, 8);
    let end = u64::from(tokenizer().end_of_text().unwrap());
    let base = json!({"prompt": "ab", "max_tokens": 60, "temperature": 1.3, "seed": 11});
    for (settings, change) in [
        (json!({"min_p": 0.2}), (|c| c.sampling.min_p = 0.2) as fn(&mut GenerateConfig)),
        (json!({"frequency_penalty": 1.5}), |c| c.sampling.frequency_penalty = 1.5),
        (json!({"presence_penalty": -2}), |c| c.sampling.presence_penalty = -2.0),
        (json!({"repetition_penalty": 1.2, "top_k": 9}), |c| {
            (c.sampling.repetition_penalty, c.sampling.top_k) = (1.2, 9);
        }),
        (json!({"stop_token_ids": (97..123).collect::<Vec<u32>>(), "min_tokens": 4}), |c| {
            (c.stop_token_ids, c.min_tokens) = ((97..123).collect(), 4);
        }),
    ] {
        let mut wanted = config(60, 1.3, 11);
        change(&mut wanted);
        let wanted = generated("ab", &wanted);
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let answer = post(server.address, "/v1/completions", &body).json();
        assert_eq!(answer["choices"][0]["text"], wanted.text, "{settings}");
        assert_eq!(answer["usage"]["completion_tokens"], wanted.generated.tokens.len(), "{settings}");
        let stopped = matches!(wanted.generated.finish, Finish::EndOfText | Finish::StopToken);
        assert_eq!(answer["choices"][0]["finish_reason"], if stopped { "stop" } else { "length" });
        assert_ne!(wanted.text, generated("ab", &config(60, 1.3, 11)).text, "{settings}: no effect");
    }
    // An end of text that is ignored has no text, and as a stop token it ends the text again.
    let mut body =
        json!({"prompt": "a", "max_tokens": 3, "logit_bias": {end.to_string(): 100}, "ignore_eos": true});
    let answer = post(server.address, "/v1/completions", &body).json();
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]),
        (&json!(""), &json!(3))
    );
    body["stop_token_ids"] = json!([end]);
    let answer = post(server.address, "/v1/completions", &body).json();
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
        (&json!("stop"), &json!(0))
    );
}

#[test]
fn a_conversation_longer_than_the_context_loses_its_oldest_turns_with_a_note() {
    let server = start(2, 8);
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let word = "x".repeat(30);
    let mut messages = vec![turn("system", "Be."), turn("user", "oldest")];
    for _ in 0..3 {
        messages.extend([turn("assistant", &word), turn("user", &word)]);
    }
    let mut body = json!({"messages": messages, "max_tokens": 8, "seed": 4, "temperature": 1});
    let ask = |body: &Value| post(server.address, "/v1/chat/completions", body);
    let long = ask(&body).json();
    assert_eq!(long["truncation"]["dropped_messages"], 4, "{long}");
    let note = long["truncation"]["message"].as_str().unwrap();
    assert!(note.contains("context of 160 tokens") && note.contains("4 oldest messages"), "{note}");
    // What was left is asked as it is: the system message and whole turns from a user's message on.
    let kept: Vec<Value> = messages[..1].iter().chain(&messages[5..]).cloned().collect();
    let mut short = body.clone();
    short["messages"] = json!(kept);
    let answer = ask(&short).json();
    assert_eq!(
        (&answer["choices"], &answer["usage"]["prompt_tokens"]),
        (&long["choices"], &long["usage"]["prompt_tokens"])
    );
    assert!(answer["truncation"].is_null(), "{answer}");
    // In pieces, before the first text.
    body["stream"] = json!(true);
    let events = ask(&body).events();
    assert_eq!(events[0]["truncation"], long["truncation"]);
    assert!(events[1..].iter().all(|event| event["truncation"].is_null()));
    // Whoever wants all or nothing, and a last turn that does not fit alone.
    body["truncation"] = json!("disabled");
    let refused = ask(&body);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let alone = json!({"messages": [turn("user", "a"), turn("user", &"y".repeat(200))]});
    let refused = ask(&alone);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    // A template that wants a user's message first gets one.
    let template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}\
                    {% for m in messages %}{{ m.content }}|{% endfor %}";
    let chat =
        ChatTemplate::of_tokenizer_config(&json!({"chat_template": template}).to_string(), &tokenizer())
            .unwrap();
    let server = Running::start(1, 8, chat);
    let body = json!({"messages": &messages[1..], "max_tokens": 1});
    let answer = post(server.address, "/v1/chat/completions", &body);
    assert!(answer.status == 200 && answer.body.contains("dropped_messages"), "{}", answer.body);
}

#[test]
fn a_key_opens_the_interface_and_allowed_origins_may_read() {
    let mut service = Service::new(model(ChatTemplate::plain()), Vec::new(), 8, 1, 1 << 20);
    service.key = Some(AccessKey::new("sk-1").unwrap());
    let access = Access { origins: vec!["https://app.example".into()], ..Access::default() };
    let server = Running::of(service, 1, access, Duration::from_secs(1));
    let ask = |method: &str, path: &str, headers: &str| {
        let body = if method == "POST" { "{\"prompt\": \"a\", \"max_tokens\": 1}" } else { "" };
        receive(send_with(server.address, method, path, headers, body))
    };
    for (key, status) in
        [("", 401), ("Authorization: Bearer sk-2\r\n", 401), ("Authorization: Bearer sk-1\r\n", 200)]
    {
        assert_eq!(ask("POST", "/v1/completions", key).status, status);
        assert_eq!(ask("GET", "/v1/models", key).status, status);
    }
    let refused = ask("GET", "/v1/models/tiny", "");
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"), "{}", refused.head);
    for path in ["/", "/health", "/metrics"] {
        assert_eq!(ask("GET", path, "").status, 200, "{path}");
    }
    let origin = "Origin: https://app.example\r\n";
    let preflight =
        ask("OPTIONS", "/v1/completions", &format!("{origin}Access-Control-Request-Method: POST\r\n"));
    assert_eq!(preflight.status, 204, "a preflight carries no key");
    let answer = ask("POST", "/v1/completions", &format!("{origin}Authorization: Bearer sk-1\r\n"));
    assert!(
        answer.status == 200 && answer.head.contains("access-control-allow-origin: https://app.example"),
        "{}",
        answer.head
    );
    let foreign = "Origin: https://evil.example\r\nAuthorization: Bearer sk-1\r\n";
    let foreign = ask("POST", "/v1/completions", foreign);
    assert_eq!((foreign.status, &foreign.json()["error"]["type"]), (403, &json!("invalid_request_error")));
}

/// Requests for a base and two adapted models at once, in slots that they share, with beginnings that are alike.
#[test]
fn texts_of_adapters_on_one_base_are_those_of_models_alone() {
    let of =
        |name: &str| Model { name: name.into(), parent: Some("tiny".into()), ..model(ChatTemplate::plain()) };
    let base = model(ChatTemplate::plain());
    let names = ["tiny", "small", "other"];
    let service = Service::new(base, vec![of(names[1]), of(names[2])], 32, 2, 1 << 20);
    let server = Running::of(service, 2, Access::default(), DRAIN);
    let list = get(server.address, "/v1/models").json();
    let listed: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((&listed[..], &list["data"][1]["parent"]), (&names[..], &json!("tiny")));
    assert_eq!(get(server.address, "/v1/models/other").json(), list["data"][2]);
    let prompt = |number: usize| "once upon a time ".repeat(2) + &"abc"[number % 3..];
    let texts: Vec<String> = std::thread::scope(|scope| {
        let ask = |number: usize| {
            let body = json!({
                "model": names[number % 3], "prompt": prompt(number / 3), "max_tokens": 30, "temperature": 1,
                "seed": number,
            });
            let answer = post(server.address, "/v1/completions", &body).json();
            assert_eq!(answer["model"], names[number % 3], "{answer}");
            answer["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        let asked: Vec<_> = (0..12).map(|number| scope.spawn(move || ask(number))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (number, text) in texts.iter().enumerate() {
        let wanted = generated_by(number % 3, &prompt(number / 3), &config(30, 1.0, number as u64));
        assert_eq!(*text, wanted.text, "request {number}");
    }
    let same = generated_by(1, &prompt(0), &config(30, 1.0, 0)).text == texts[0];
    assert!(!same, "adapters change nothing");
    let unknown = post(server.address, "/v1/completions", &json!({"model": "none", "prompt": "a"}));
    assert_eq!(unknown.status, 404);
    assert!(
        unknown
            .body
            .contains(r#"there is no model \"none\"; this server has \"tiny\", \"small\", \"other\""#),
        "{}",
        unknown.body
    );
}

#[test]
fn adapters_add_their_own_memory_only() {
    let bytes = |models: usize| {
        let classes = engine(2, models).memory().classes;
        let of = |class: &str| {
            classes.iter().filter(|(name, _)| *name == class).map(|(_, bytes)| bytes.0).sum::<u64>()
        };
        (of("weights"), of("cache"))
    };
    let (weights, cache) = bytes(1);
    let (with_adapter, shared) = bytes(2);
    // Rank 8 for queries [32, 32] and values [16, 32] of two layers.
    assert_eq!(with_adapter - weights, 4 * 2 * 8 * (32 + 32 + 32 + 16));
    // Keys, values and logits are shared; the scratch may grow by what adapters need.
    assert!(shared - cache < cache / 10, "{cache} bytes of cache, {shared} with an adapter");
}

#[test]
fn pages_say_what_there_is() {
    let server = start(2, 8);
    for path in ["/healthz", "/health"] {
        assert_eq!(get(server.address, path).body, "ok\n");
    }
    let models = get(server.address, "/v1/models").json();
    assert_eq!(get(server.address, "/v1/models/").json(), models);
    for path in ["/v1/models/tiny", "/v1/models/t%69ny"] {
        assert_eq!(get(server.address, path).json(), models["data"][0], "{path}");
    }
    let other = get(server.address, "/v1/models/other");
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["context_length"]),
        (&json!("tiny"), &json!(CONTEXT))
    );
    let page = get(server.address, "/");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    assert!(
        page.head.contains("frame-ancestors 'none'") && page.head.contains("x-frame-options: DENY"),
        "{}",
        page.head
    );
    // Nothing from elsewhere, and no text of the model taken for HTML.
    assert!(
        !page.body.contains("http://") && !page.body.contains("https://") && !page.body.contains("innerHTML")
    );
    post(
        server.address,
        "/v1/completions",
        &json!({"prompt": "abc", "max_tokens": 4, "logit_bias": {"98": 100}}),
    );
    post(server.address, "/v1/completions", &json!({"prompt": 3}));
    let wanted = [
        "bessemer_serve_requests_total{outcome=\"answered\"} 1",
        "bessemer_serve_requests_total{outcome=\"refused\"} 1",
        // The end of text before the prompt goes through the model too.
        "bessemer_serve_prompt_tokens_total 4",
        "bessemer_serve_tokens_total 4",
        "bessemer_serve_slots 2",
        "bessemer_serve_slots_in_use 0",
        "bessemer_serve_waiting_requests 0",
        "bessemer_serve_first_token_seconds_bucket{le=\"+Inf\"} 1",
        "bessemer_serve_further_token_seconds_count 3",
    ];
    // A request is counted when its answer is on the way, so a client may ask before that.
    until("the requests are counted", || {
        let metrics = get(server.address, "/metrics").body;
        wanted.iter().all(|line| metrics.lines().any(|l| l == *line))
    });
}

/// Waits until `seen` is true.
fn until(what: &str, seen: impl Fn() -> bool) {
    let begun = Instant::now();
    while !seen() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_full_queue_is_an_answer_and_those_who_leave_make_room() {
    let server = start(1, 1);
    let held = server.gate.lock().unwrap();
    let endless =
        json!({"prompt": "a", "max_tokens": 150, "stream": true, "logit_bias": {"98": 100}}).to_string();
    let first = send(server.address, "POST", "/v1/completions", &endless);
    until("the first is in its slot", || server.service.load().active == 1);
    let second = send(server.address, "POST", "/v1/completions", &endless);
    until("the second waits", || server.service.load().waiting == 1);
    let third = post(server.address, "/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(third.status, 429, "{}", third.body);
    assert!(third.head.to_lowercase().contains("retry-after: 1"), "{}", third.head);
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    // Both leave: one from its slot, one from the queue.
    drop((first, second));
    // Nothing shows that the server has seen it; the model stands still until then.
    std::thread::sleep(Duration::from_secs(1));
    drop(held);
    until("their places are free", || {
        let load = server.service.load();
        load.active + load.waiting == 0
    });
    until("they are counted", || {
        get(server.address, "/metrics").body.contains("requests_total{outcome=\"abandoned\"} 2")
    });
    assert_eq!(post(server.address, "/v1/completions", &json!({"prompt": "a", "max_tokens": 2})).status, 200);
}

#[test]
fn a_client_that_does_not_read_stops_nobody() {
    let server = start(2, 8);
    let body = json!({"prompt": "a", "max_tokens": 150, "n": 8, "stream": true, "logprobs": 20}).to_string();
    let mut slow = send(server.address, "POST", "/v1/completions", &body);
    for _ in 0..10 {
        let reply = post(server.address, "/v1/completions", &json!({"prompt": "b", "max_tokens": 9}));
        assert_eq!(reply.status, 200);
    }
    let mut begin = [0; 64];
    slow.read_exact(&mut begin).unwrap();
    assert!(receive_rest(slow).ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

fn receive_rest(mut stream: std::net::TcpStream) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn a_server_that_stops_finishes_what_is_under_way() {
    let mut server = start(2, 8);
    let held = server.gate.lock().unwrap();
    let body =
        json!({"prompt": "a", "max_tokens": 30, "stream": true, "logit_bias": {"98": 100}}).to_string();
    let streams: Vec<_> = (0..3).map(|_| send(server.address, "POST", "/v1/completions", &body)).collect();
    // The model is held in the first pass, so not all of them are in slots yet.
    until("all are in", || server.service.load().active + server.service.load().waiting == 3);
    server.stop();
    drop(held);
    for stream in streams {
        let reply = receive(stream);
        assert!(reply.whole);
        let text: String = reply.events().iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(text.chars().count(), 30);
    }
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

/// Clients that send slowly, read nothing or wait for a long answer do not hold the server up.
#[test]
fn a_server_ends_within_two_seconds_whatever_its_clients_do() {
    let service = Service::new(model(ChatTemplate::plain()), Vec::new(), 8, 1, 1 << 20);
    // As `bessemer serve` by default.
    let mut server = Running::of(service, 1, Access::default(), Duration::from_secs(1));
    // More tokens than the model makes in that time.
    let long = json!({
        "prompt": vec!["a"; 8], "n": 128, "max_tokens": 150, "ignore_eos": true, "stream": true, "logprobs": 20,
    });
    let reads_nothing = send(server.address, "POST", "/v1/completions", &long.to_string());
    let reads = send(server.address, "POST", "/v1/completions", &long.to_string());
    until("the first is in its slot", || server.service.load().active == 1);
    let mut slow = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut slow, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{").unwrap();
    let reader = std::thread::spawn(move || receive(reads));
    let begun = Instant::now();
    server.join();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let reply = reader.join().unwrap();
    assert!(reply.body.contains("shutting down") || !reply.whole, "{}", reply.body);
    drop((reads_nothing, slow));
}
