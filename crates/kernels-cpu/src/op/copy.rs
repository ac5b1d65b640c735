//! `dst = src` with conversion between f32, bf16 and f16 (round to nearest, ties to even; IEEE 754 and the bfloat16
//! convention). Backward is a copy the other way. Cost: one read, one write.
#![allow(unsafe_code)] // rows of other element types, by address

use super::tiles::{Block, blocks};
use crate::arena::Arena;
use crate::ctx::Ctx;
use bessemer_tensor::op::Copy;
use bessemer_units::DType;
use half::{bf16, f16};

pub(crate) fn run(ctx: &Ctx<'_>, op: &Copy) {
    blocks(ctx, op.src.rows, op.src.cols, &|block| copy_block(ctx.arena, op, &block));
}

fn copy_block(arena: &Arena, op: &Copy, block: &Block) {
    const CHUNK: usize = 256;
    let (src, dst) = (arena.address(&op.src), arena.address(&op.dst));
    let mut buffer = [0.0f32; CHUNK];
    for r in block.rows.clone() {
        for c in block.cols.clone().step_by(CHUNK) {
            let n = CHUNK.min(block.cols.end - c);
            // SAFETY: elements (r, c .. c + n) of two views that the launch found inside their float buffers; blocks
            // are disjoint, so no other thread writes them.
            unsafe {
                load_row(op.src.dtype(), src, r * op.src.stride + c, &mut buffer[..n]);
                store_row(op.dst.dtype(), dst, r * op.dst.stride + c, &buffer[..n]);
            }
        }
    }
}

/// Writes `row` to elements `first ..` of a buffer that starts at `base`.
///
/// # Safety
/// The elements must be mapped, of type `dtype`, and not written by another thread during the call.
pub(crate) unsafe fn store_row(dtype: DType, base: *mut u8, first: usize, row: &[f32]) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        match dtype {
            DType::F32 => {
                std::ptr::copy_nonoverlapping(row.as_ptr(), base.cast::<f32>().add(first), row.len());
            }
            DType::Bf16 => {
                let at = base.cast::<bf16>().add(first);
                row.iter().enumerate().for_each(|(i, &x)| *at.add(i) = bf16::from_f32(x));
            }
            DType::F16 => {
                let at = base.cast::<f16>().add(first);
                row.iter().enumerate().for_each(|(i, &x)| *at.add(i) = f16::from_f32(x));
            }
            // Rounded towards zero and cut to 0 to 255.
            DType::U8 => {
                let at = base.add(first);
                row.iter().enumerate().for_each(|(i, &x)| *at.add(i) = x as u8);
            }
            DType::U32 => unreachable!("float rows are not written to index buffers"),
        }
    }
}

/// Reads elements `first ..` of a buffer that starts at `base` into `row`.
///
/// # Safety
/// The elements must be mapped, of type `dtype`, and not written during the call.
pub(crate) unsafe fn load_row(dtype: DType, base: *const u8, first: usize, row: &mut [f32]) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        match dtype {
            DType::F32 => {
                std::ptr::copy_nonoverlapping(base.cast::<f32>().add(first), row.as_mut_ptr(), row.len());
            }
            DType::Bf16 => {
                let at = base.cast::<bf16>().add(first);
                row.iter_mut().enumerate().for_each(|(i, x)| *x = (*at.add(i)).to_f32());
            }
            DType::F16 => {
                let at = base.cast::<f16>().add(first);
                row.iter_mut().enumerate().for_each(|(i, x)| *x = (*at.add(i)).to_f32());
            }
            DType::U8 => {
                let at = base.add(first);
                row.iter_mut().enumerate().for_each(|(i, x)| *x = f32::from(*at.add(i)));
            }
            DType::U32 => {
                let at = base.cast::<u32>().add(first);
                row.iter_mut().enumerate().for_each(|(i, x)| *x = *at.add(i) as f32);
            }
        }
    }
}

pub(crate) fn reference(arena: &Arena, op: &Copy) {
    let (src, dst) = (arena.address(&op.src), arena.address(&op.dst));
    let mut value = [0.0f32];
    for r in 0..op.src.rows {
        for c in 0..op.src.cols {
            // SAFETY: element (r, c) of two views that the launch found inside their float buffers.
            unsafe {
                load_row(op.src.dtype(), src, r * op.src.stride + c, &mut value);
                store_row(op.dst.dtype(), dst, r * op.dst.stride + c, &value);
            }
        }
    }
}
