//! The CPU backend: one op a file, forward and backward together.
