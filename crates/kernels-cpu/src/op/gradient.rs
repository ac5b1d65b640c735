//! The product `out (+)= A B^T` into a gradient of any type: summed in f32, rounded when it is stored.
//!
//! f16 has its sums in the workspace first: a product that ends in f16 would be compiled for every register tile once more,
//! for a type that few gradients have. Cost there: a matrix of f32 written and read on top.
#![allow(unsafe_code)] // rows by address

use super::tiles::{Block, blocks};
use crate::ctx::{Ctx, Machine, padded};
use crate::gemm::{self, Epilogue, Factor, Gemm, Shape};
use crate::operand::{AnyMat, Mat};
use crate::simd::{Kernel, Simd, dispatch, load_part, store_part};
use bessemer_units::DType;
use half::{bf16, f16};

/// Scratch floats for a product of this shape.
pub(super) fn workspace(machine: Machine, shape: &Shape) -> usize {
    match shape.out {
        DType::F16 => {
            padded(shape.m * shape.n) + gemm::workspace(machine, &Shape { out: DType::F32, ..*shape })
        }
        _ => gemm::workspace(machine, shape),
    }
}

/// Scratch floats for any product that is a block of one of this shape, and for one of fewer k, on one thread.
pub(super) fn block_workspace(machine: Machine, shape: &Shape) -> usize {
    match shape.out {
        DType::F16 => {
            padded(shape.m * shape.n) + gemm::block_workspace(machine, &Shape { out: DType::F32, ..*shape })
        }
        _ => gemm::block_workspace(machine, shape),
    }
}

/// Rounds a block of sums into f16, or adds it.
struct Round<'a> {
    sums: &'a Mat,
    out: &'a Mat<f16>,
    accumulate: bool,
    block: Block,
}

impl Kernel for Round<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Round { sums, out, accumulate, block } = self;
        for r in block.rows {
            for c in block.cols.clone().step_by(S::LANES) {
                let n = S::LANES.min(block.cols.end - c);
                // SAFETY: columns c .. c + n of row r of both.
                unsafe {
                    let to = out.row(r).add(c);
                    let mut y = load_part::<S>(sums.row(r).add(c), n);
                    if accumulate {
                        y = S::add(y, load_part::<S>(to, n));
                    }
                    store_part::<S>(to, y, n);
                }
            }
        }
    }
}

/// Computes the product. Takes [`workspace`] floats from the start of the workspace after `skip` floats.
pub(super) fn product(
    ctx: &Ctx<'_>,
    (k, a, b): (usize, Factor, Factor),
    out: &AnyMat,
    accumulate: bool,
    whole: Option<usize>,
    skip: usize,
) {
    match out.dtype {
        DType::F16 => {}
        DType::Bf16 => {
            let epilogue = Epilogue { whole, ..Epilogue::store(out.typed::<bf16>(), accumulate) };
            return gemm::run(ctx, &Gemm { k, a, b, epilogue }, skip);
        }
        _ => {
            let epilogue = Epilogue { whole, ..Epilogue::store(out.typed::<f32>(), accumulate) };
            return gemm::run(ctx, &Gemm { k, a, b, epilogue }, skip);
        }
    }
    let (m, n) = (out.rows, out.cols);
    let mut scratch = ctx.scratch();
    scratch.take(skip);
    // SAFETY: workspace of this launch.
    let sums: Mat = unsafe { Mat::new(scratch.take(m * n).at(0, m * n), m, n, n) };
    let epilogue = Epilogue { whole, ..Epilogue::store(sums, false) };
    gemm::run(ctx, &Gemm { k, a, b, epilogue }, padded(skip) + padded(m * n));
    let out = out.typed::<f16>();
    blocks(ctx, m, n, &|block| {
        // SAFETY: the instruction set is available; the gradient is a checked view; blocks are disjoint.
        unsafe { dispatch(ctx.rung, Round { sums: &sums, out: &out, accumulate, block }) }
    });
}
