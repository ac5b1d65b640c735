//! Byte-level BPE: training, encoding, pre-tokenizers, tokenizer.json.
