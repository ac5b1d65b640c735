//! Text that a tokenizer is trained on and then encodes.

use bessemer_tokenizer::{TokenizerConfig, Trainer};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let config = TokenizerConfig { vocab_size: 300, ..TokenizerConfig::default() };
    let Ok(mut trainer) = Trainer::new(config) else { return };
    trainer.feed(&text);
    let Ok(tokenizer) = trainer.finish(|_| {}) else { return };
    let ids = tokenizer.encode(data).expect("any bytes have tokens");
    assert_eq!(tokenizer.decode(&ids).expect("its own ids are known"), data);
}
