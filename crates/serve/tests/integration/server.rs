//! The server over its socket, with a small model.

use crate::client::{get, post, receive, send};
use crate::fake::tokenizer;
use crate::tiny::{CONTEXT, Running, engine, generated};
use bessemer_eval::generate::{ContextLimit, Finish, GenerateConfig};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::engine::Engine;
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
        stop: vec![],
        sampling: SamplingConfig { temperature, top_p: 1.0, seed, ..SamplingConfig::default() },
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
            let mut engine = engine(1);
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
    let messages = json!([{"role": "system", "content": "Be."}, {"role": "user", "content": [{"type": "text", "text": " Hi "}]}]);
    let body =
        json!({"messages": messages, "max_tokens": 12, "seed": 4, "logprobs": true, "top_logprobs": 2});
    for (chat, prompt) in [
        (ChatTemplate::plain(), json!("System: Be.\n\nUser:  Hi \n\nAssistant:")),
        (ChatTemplate::of_tokenizer_config(&config_file).unwrap(), {
            let text = "<system>Be.<|endoftext|><user>Hi<|endoftext|><assistant>";
            json!(tokenizer().encode_with_special(text.as_bytes()).unwrap())
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
    assert!(ChatTemplate::of_tokenizer_config("{\"chat_template\": \"{% for\"}").is_err());
    let refuses =
        ChatTemplate::of_tokenizer_config("{\"chat_template\": \"{{ raise_exception('no system') }}\"}")
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
        (json!({"prompt": [1.5]}), 400, "prompt", "found 1.5"),
        (json!({"prompt": "a", "max_tokens": -1}), 400, "max_tokens", "wanted a whole number"),
        (json!({"prompt": "a", "temperature": "hot"}), 400, "temperature", "wanted a number, found \"hot\""),
        (json!({"prompt": "a", "temperature": -2}), 400, "temperature", "wanted 0"),
        (json!({"prompt": "a", "top_p": 0}), 400, "top_p", "more than 0"),
        (json!({"prompt": "a", "logprobs": 99}), 400, "logprobs", "from 0 to 20"),
        (json!({"prompt": "a", "stop": [1]}), 400, "stop", "strings"),
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
    assert!(reply.status == 400 && reply.body.contains("no JSON"), "{}", reply.body);
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
    // Fields that nobody knows, and known ones that ask for nothing, are let through.
    let odd = json!({"prompt": "a", "user": "me", "presence_penalty": 0.0, "best_of": 1, "suffix": null, "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &odd).status, 200);
}

#[test]
fn pages_say_what_there_is() {
    let server = start(2, 8);
    assert_eq!(get(server.address, "/healthz").body, "ok\n");
    let models = get(server.address, "/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["context_length"]),
        (&json!("tiny"), &json!(CONTEXT))
    );
    let page = get(server.address, "/");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
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
