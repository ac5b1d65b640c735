//! Rates of a machine's matrix products over a grid of shapes, measured on all ranks at once.

use crate::{Effort, MeasureError};
use bessemer_kernels_cpu::{CpuBackend, CpuConfig};
use bessemer_plan::{ProductGrid, ProductKind};
use bessemer_tensor::op::{Linear, LinearBackwardInput, LinearBackwardWeight, Op};
use bessemer_tensor::{Backend, BufferSpec, Stream, TensorError, View};
use bessemer_units::stats::upper_median;
use bessemer_units::{DType, MatmulPrecision};
use std::sync::Barrier;
use std::time::Instant;

/// A product of the grid on a backend: (M, K) by (K, N), in the form of its kind.
fn product(
    backend: &mut dyn Backend,
    kind: ProductKind,
    dtype: DType,
    [m, n, k]: [usize; 3],
) -> Result<Op, TensorError> {
    let mut matrix = |dtype: DType, rows: usize, cols: usize| -> Result<View, TensorError> {
        let spec = BufferSpec { class: "bench", name: "operand", dtype, len: rows * cols };
        let view = backend.alloc(spec)?.matrix(rows, cols);
        let values: Vec<f32> = (0..rows * cols).map(|at| 0.01 * (at % 17) as f32 - 0.08).collect();
        backend.write_f32(view, &values)?;
        Ok(view)
    };
    Ok(match kind {
        ProductKind::Forward => Linear {
            x: matrix(dtype, m, k)?,
            weight: matrix(DType::F32, n, k)?,
            bias: None,
            activation: None,
            residual: None,
            rowwise: false,
            out: matrix(dtype, m, n)?,
        }
        .into(),
        ProductKind::Input => LinearBackwardInput {
            dy: matrix(dtype, m, k)?,
            weight: matrix(DType::F32, k, n)?,
            activation: None,
            dx: matrix(dtype, m, n)?,
            accumulate: false,
        }
        .into(),
        ProductKind::Weight => LinearBackwardWeight {
            dy: matrix(dtype, k, m)?,
            x: matrix(dtype, k, n)?,
            dweight: matrix(DType::F32, m, n)?,
            dbias: None,
            accumulate: true,
        }
        .into(),
    })
}

/// Rates of products of a kind, each measured on all ranks at once; the median over ranks and repeats.
pub(crate) fn grid(
    kind: ProductKind,
    dtype: DType,
    ranks: usize,
    threads: usize,
    matmul: MatmulPrecision,
    effort: &Effort,
) -> Result<ProductGrid, MeasureError> {
    // The sums of a weight's gradient go over tokens, its rows and columns over widths.
    let [m_axis, n_axis, k_axis] = match kind {
        ProductKind::Weight => [effort.widths, effort.widths, effort.rows],
        ProductKind::Forward | ProductKind::Input => [effort.rows, effort.widths, effort.widths],
    };
    let mut shapes = Vec::new();
    for m in m_axis {
        for n in n_axis {
            shapes.extend(k_axis.iter().map(|k| [*m, *n, *k]));
        }
    }
    let barrier = Barrier::new(ranks);
    let rank = || -> Result<Vec<Vec<f64>>, MeasureError> {
        let mut all = Vec::new();
        for shape in &shapes {
            // All ranks come to the barriers, or none does: what one cannot make, none can.
            let mut backend = CpuBackend::new(CpuConfig { threads, matmul, ..CpuConfig::default() })?;
            let op = product(&mut backend, kind, dtype, *shape).map_err(MeasureError::failed)?;
            backend
                .reserve_workspace(backend.workspace(&op).map_err(MeasureError::failed)?)
                .map_err(MeasureError::failed)?;
            backend.launch(Stream::Compute, &op).map_err(MeasureError::failed)?;
            barrier.wait();
            let mut times = Vec::new();
            let first = Instant::now();
            while times.len() < effort.repeats || first.elapsed().as_secs_f64() < effort.seconds_of_product {
                let begun = Instant::now();
                backend.launch(Stream::Compute, &op).map_err(MeasureError::failed)?;
                times.push(begun.elapsed().as_secs_f64());
            }
            all.push(times);
        }
        Ok(all)
    };
    let joined: Vec<Result<Vec<Vec<f64>>, MeasureError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|_| scope.spawn(rank)).collect();
        let panicked = |_| Err(MeasureError::failed("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let times = joined.into_iter().collect::<Result<Vec<_>, MeasureError>>()?;
    let rate = |(at, [m, n, k]): (usize, &[usize; 3])| {
        let mut of_all: Vec<f64> = times.iter().flat_map(|rank| rank[at].iter().copied()).collect();
        2.0 * (m * n * k) as f64 / upper_median(&mut of_all).max(1e-9)
    };
    let flops_per_second = shapes.iter().enumerate().map(rate).collect();
    let axis = |sizes: &[usize]| sizes.iter().map(|size| *size as f64).collect::<Vec<f64>>();
    let (m, n, k) = (axis(m_axis), axis(n_axis), axis(k_axis));
    Ok(ProductGrid { kind, element_bytes: dtype.size(), m, n, k, flops_per_second })
}
