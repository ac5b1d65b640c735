//! Sources, rules, deduplication, privacy: one plan of stages over Arrow batches and its local executor.
