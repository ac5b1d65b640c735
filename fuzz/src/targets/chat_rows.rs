//! Rows of chats, encoded by a template of ours and by one without the tag `generation`.

use bessemer_chat::{Answers, ChatEncoder, ChatRows, ChatTemplate, TokenNames};
use bessemer_tokenizer::{TokenizerConfig, Trainer};
use std::sync::{Arc, OnceLock};

/// Prints texts of users beside halves of special tokens.
const PREFIXES: &str = "{% for m in messages %}<|im_start|><{{ m.content }}>{% endfor %}";

fn encoders() -> &'static [ChatEncoder; 2] {
    static ENCODERS: OnceLock<[ChatEncoder; 2]> = OnceLock::new();
    ENCODERS.get_or_init(|| {
        let special_tokens = Some(vec!["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
        let config = TokenizerConfig { vocab_size: 300, special_tokens, ..TokenizerConfig::default() };
        let mut trainer = Trainer::new(config).expect("a vocabulary above the bytes");
        trainer.feed("the quick brown fox jumps over the lazy dog");
        let tokenizer = Arc::new(trainer.finish(|_| {}).expect("a text to learn from"));
        let prefixes = ChatTemplate::new("prefixes", PREFIXES, TokenNames::default());
        [ChatTemplate::shipped("chatml"), prefixes].map(|template| {
            let template = template.expect("a template without faults");
            ChatEncoder::new(template, Arc::clone(&tokenizer)).expect("a tokenizer with its tokens")
        })
    })
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let [chatml, prefixes] = encoders();
    for row in ChatRows::new(data).take(64).flatten() {
        let _ = prefixes.encode(&row.chat, Answers::Last);
        let Ok(tokens) = chatml.encode(&row.chat, Answers::All) else { continue };
        let special = tokens.ids.iter().filter(|id| chatml.is_special(**id)).count();
        let parts = row.chat.messages.len() + usize::from(!row.chat.tools.is_empty());
        assert!(special == 2 * parts || special + 2 == 2 * parts, "{special} special tokens: {:?}", row.chat);
        let mut end = 0;
        for range in &tokens.scored {
            assert!(end <= range.start && range.start < range.end && range.end <= tokens.ids.len());
            end = range.end;
        }
    }
}
