//! The token-shard file format: writer, reader, index, checksums.
