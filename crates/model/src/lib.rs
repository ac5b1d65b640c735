//! Decoder layers with explicit forward and backward, initialisation, KV-cache decoding.
