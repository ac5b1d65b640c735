//! A model's shapes, parameters, FLOPs and activation bytes; named architectures.
