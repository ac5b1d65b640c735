//! Requests of OpenAI's interface and chat templates: the first byte says which.

use bessemer_serve::Model;
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::request::{completion, conversation};
use bessemer_tokenizer::{TokenizerConfig, Trainer};
use std::slice::from_ref;
use std::sync::{Arc, OnceLock};

/// Positions of the model that requests are checked against.
const CONTEXT: usize = 64;

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let config = TokenizerConfig { vocab_size: 300, ..TokenizerConfig::default() };
        let mut trainer = Trainer::new(config).expect("a vocabulary above the bytes");
        trainer.feed("the quick brown fox jumps over the lazy dog");
        let tokenizer = trainer.finish(|_| {}).expect("a text to learn from");
        Model {
            name: "fuzz".into(),
            tokenizer: Arc::new(tokenizer),
            context: CONTEXT,
            chat: ChatTemplate::plain(),
            created: 0,
            parent: None,
        }
    })
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    let request = match kind {
        0 => completion(from_ref(model()), body, 0),
        1 => conversation(from_ref(model()), body, 0),
        _ => {
            if let Ok(text) = std::str::from_utf8(body) {
                let _ = ChatTemplate::of_tokenizer_config(text, &model().tokenizer);
            }
            return;
        }
    };
    if let Ok(request) = request {
        assert!(request.sequences.iter().all(|one| (1..=CONTEXT).contains(&one.prompt.len())), "{body:?}");
    }
}
