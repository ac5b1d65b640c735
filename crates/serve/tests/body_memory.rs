//! Memory that bodies of requests take while they are read, with a counting allocator: alone in its process.
#![allow(clippy::unwrap_used)]

use bessemer_counting_alloc::{CountingAllocator, live_bytes, peak_bytes, reset_peak};
use bessemer_serve::Model;
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::request::{completion, conversation};
use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Largest body that the server takes.
const BODY: usize = 4 << 20;

/// A body of the largest size: `begin`, as many of `item` as fit, `end`.
fn body(begin: &str, item: &str, end: &str) -> String {
    let items = (BODY - begin.len() - end.len()) / item.len();
    let body = begin.to_owned() + &item.repeat(items);
    body.trim_end_matches(',').to_owned() + end
}

#[test]
fn a_body_takes_a_small_multiple_of_its_size() {
    let config =
        TokenizerConfig { kind: TokenizerKind::ByteBpe, vocab_size: 257, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed("x");
    let tokenizer = Arc::new(trainer.finish(|_| ()).unwrap());
    let chat = ChatTemplate::plain();
    let model = Model { name: "m".into(), tokenizer, context: 1 << 17, chat, created: 0, parent: None };
    let models = &[model];
    let bodies = [
        ("token ids", body("{\"prompt\":[", "1,", "]}")),
        ("lists of token ids", body("{\"prompt\":[", "[1],", "]}")),
        ("strings", body("{\"prompt\":[", "\"a\",", "]}")),
        ("one string", body("{\"prompt\":\"", "a", "\"}")),
        ("one string with escapes", body("{\"prompt\":\"", "\\n", "\"}")),
        ("stop strings", body("{\"prompt\":\"a\",\"stop\":[", "\"a\",", "]}")),
        ("biases", body("{\"prompt\":\"a\",\"logit_bias\":{", "\"1\":1,", "}}")),
        ("fields", body("{\"prompt\":\"a\",", "\"user\":1,", "\"n\":1}")),
        ("an unknown list", body("{\"prompt\":\"a\",\"x\":[", "[],", "]}")),
        ("a harmless list", body("{\"prompt\":\"a\",\"metadata\":[", "{},", "]}")),
        ("a list for a number", body("{\"prompt\":\"a\",\"logprobs\":[", "[],", "]}")),
        ("messages", body("{\"messages\":[", "{\"role\":\"user\",\"content\":\"\"},", "]}")),
        ("parts", body("{\"messages\":[{\"role\":\"user\",\"content\":[", "{\"text\":\"a\"},", "]}]}")),
        // 8 prompts that fill the context, 128 texts of each.
        ("many texts of long prompts", {
            let prompt = format!("[{}],", "1,".repeat((1 << 17) - 1) + "1");
            format!("{{\"n\":128,\"prompt\":[{}]}}", prompt.repeat(8).trim_end_matches(','))
        }),
    ];
    for (name, body) in bodies {
        assert!(body.len() <= BODY, "{name}");
        for is_conversation in [false, true] {
            reset_peak();
            let before = live_bytes();
            let read = match is_conversation {
                true => conversation(models, body.as_bytes(), 1).map(drop),
                false => completion(models, body.as_bytes(), 1).map(drop),
            };
            let peak = peak_bytes() - before;
            println!("{name}: {:.1} MiB, {}", peak as f64 / f64::from(1 << 20), read.is_ok());
            // A string, its tokens (4 bytes for each byte) and room of growing buffers.
            assert!(peak <= 12 * BODY as u64, "{name}: {peak} bytes");
        }
    }
}
