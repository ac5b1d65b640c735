//! Buffers, views, the Backend trait, op descriptors, counter-based RNG, null backend.
