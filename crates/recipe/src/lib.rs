//! Strict TOML recipes: raw, checked, resolved.
