//! tokenizer.json; what is read encodes and decodes without loss.

use bessemer_tokenizer::Tokenizer;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(tokenizer) = Tokenizer::from_json(text) else { return };
    let sample = &data[..data.len().min(2048)];
    for encoded in [tokenizer.encode(sample), tokenizer.encode_with_special(sample)] {
        let Ok(ids) = encoded else { continue };
        let Ok(bytes) = tokenizer.decode(&ids) else { continue };
        assert_eq!(bytes, sample);
    }
}
