//! Initial values: every element a pure function of (seed, parameter name, element), so that every backend and every layout starts
//! from the same bits. The distributions are those of [`bessemer_arch::Init`].

use bessemer_arch::{Init, RowNorms};
use bessemer_tensor::rng::RngKey;

/// Elements `first`, `first + 1`, ... of the initial values of parameter `name` under `seed`, for stretches of a parameter
/// that are drawn from one distribution: an [`Init::Rows`] is to be taken apart before.
pub fn initial_values(init: &Init, seed: u64, name: &str, first: usize, values: &mut [f32]) {
    fill(init, (seed, &RngKey::new(seed, 0, name)), first, 1, values);
}

/// Initial values of the whole parameter `name` under `seed`, a matrix of so many columns.
pub fn initial_matrix(init: &Init, seed: u64, name: &str, columns: usize, values: &mut [f32]) {
    fill(init, (seed, &RngKey::new(seed, 0, name)), 0, columns, values);
}

/// Draws the elements from `first` on of a tensor with so many columns.
fn fill(init: &Init, (seed, key): (u64, &RngKey), first: usize, columns: usize, values: &mut [f32]) {
    match init {
        Init::Normal(std) => key.fill_normal(first as u64, *std as f32, values),
        Init::Uniform(bound) => key.fill_uniform(first as u64, *bound as f32, values),
        Init::Constant(c) => values.fill(*c as f32),
        Init::RowNorms(rows) => fill_norms(rows, seed, first, values),
        Init::Rows(stretches) => {
            let mut at = 0;
            for (rows, init) in stretches {
                let len = rows * columns;
                fill(init, (seed, key), first + at, columns, &mut values[at..at + len]);
                at += len;
            }
        }
    }
}

/// Norms of the rows from `rows.first + first` on of a matrix as it starts.
fn fill_norms(rows: &RowNorms, seed: u64, first: usize, values: &mut [f32]) {
    let (name, columns) = (rows.of.to_string(), rows.columns);
    let mut drawn = vec![0.0; columns];
    for (at, norm) in values.iter_mut().enumerate() {
        let row = rows.first + first + at;
        initial_values(rows.init.of_row(row), seed, &name, row * columns, &mut drawn);
        *norm = euclidean(&drawn) as f32;
    }
}

/// Euclidean norm of a row.
pub fn euclidean(row: &[f32]) -> f64 {
    row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}
