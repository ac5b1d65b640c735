//! Sample order, packing and batches from token shards.
