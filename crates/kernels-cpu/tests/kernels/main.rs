//! Every operator on every rung: against the reference loop over a list of shapes, bit for bit for any number of threads,
//! and its backward pass against finite differences.
#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test with a backtrace

mod attention;
mod attention_blocks;
mod attention_golden;
mod attention_masks;
mod backend;
mod background;
mod elementwise;
mod embedding;
mod engines;
#[cfg(target_arch = "x86_64")]
mod fp16;
mod gradients;
mod harness;
#[path = "../instruction_set/mod.rs"]
mod instruction_set;
mod linear;
mod loss;
mod norm;
mod not_a_number;
mod optimizer;
mod quantised;
mod sharding;
mod tensor_shards;
