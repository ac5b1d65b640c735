//! Manifest, store, atomic save, verified load, retention, Hugging Face in and out.
