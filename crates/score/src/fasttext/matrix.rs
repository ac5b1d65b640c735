//! The two matrices of a model, dense or quantised.
//!
//! A quantised row is cut into sub-vectors, each stored as the number of one of 256 centroids; with `qnorm` the rows
//! were scaled to length 1 first and the length is a centroid number of its own (product quantisation; Jégou et al.
//! 2011, Joulin et al. 2016, arXiv:1612.03651).

use crate::error::Result;
use crate::source::Source;
use std::io::{self, Read, Write};

/// No trained model has larger numbers; with this bound no sum in inference can overflow, so nothing becomes NaN.
const LIMIT: f32 = 1e7;
/// Centroids of one sub-vector: a code is one byte.
const CENTROIDS: usize = 256;

/// Rows of `dim` floats.
#[derive(Debug, Clone)]
pub(crate) enum Matrix {
    /// As trained.
    Dense(Dense),
    /// As compressed by `fasttext quantize`.
    Quantised(Quantised),
}

/// `rows` x `dim` floats, one row after the other.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    pub(crate) dim: usize,
    pub(crate) values: Vec<f32>,
}

/// Product-quantised rows.
#[derive(Debug, Clone)]
pub(crate) struct Quantised {
    rows: usize,
    codes: Vec<u8>,
    product: Codebook,
    /// Per row the code of its length, and the lengths.
    norms: Option<(Vec<u8>, Codebook)>,
}

#[derive(Debug, Clone)]
struct Codebook {
    parts: usize,
    /// Floats of a sub-vector; the last may have fewer.
    width: usize,
    last_width: usize,
    centroids: Vec<f32>,
}

impl Matrix {
    pub(crate) fn read<R: Read>(
        source: &mut Source<R>,
        quantised: bool,
        dim: usize,
        what: &str,
    ) -> Result<Matrix> {
        let matrix = if quantised {
            Matrix::Quantised(Quantised::read(source, dim, what)?)
        } else {
            let (rows, columns) = (source.i64(what)?, source.i64(what)?);
            let rows = size(source, rows, columns, dim, what)?;
            let count = rows.checked_mul(dim as u64);
            let count =
                count.ok_or_else(|| source.error(format!("{what}: impossible number of rows, {rows}")))?;
            Matrix::Dense(Dense { dim, values: source.f32s(count, LIMIT, what)? })
        };
        Ok(matrix)
    }

    pub(crate) fn rows(&self) -> usize {
        match self {
            Matrix::Dense(m) => m.values.len() / m.dim,
            Matrix::Quantised(m) => m.rows,
        }
    }

    /// `to += row`.
    pub(crate) fn add_row(&self, row: usize, to: &mut [f32]) {
        match self {
            Matrix::Dense(m) => {
                for (to, from) in to.iter_mut().zip(m.row(row)) {
                    *to += from;
                }
            }
            Matrix::Quantised(m) => {
                let norm = m.norm(row);
                for (part, to) in to.chunks_mut(m.product.width).enumerate() {
                    for (to, from) in to.iter_mut().zip(m.centroid(row, part)) {
                        *to += norm * from;
                    }
                }
            }
        }
    }

    /// The product of a row and `with`.
    pub(crate) fn dot_row(&self, row: usize, with: &[f32]) -> f32 {
        match self {
            Matrix::Dense(m) => dot(m.row(row), with),
            Matrix::Quantised(m) => {
                let mut sum = 0.0;
                for (part, with) in with.chunks(m.product.width).enumerate() {
                    for (a, b) in with.iter().zip(m.centroid(row, part)) {
                        sum += a * b;
                    }
                }
                sum * m.norm(row)
            }
        }
    }
}

/// Sum of products in 8 lanes, which lets the compiler use vector instructions; the order is fixed.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for lane in 0..8 {
            lanes[lane] += x[lane] * y[lane];
        }
    }
    let [p, q, r, s, t, u, v, w] = lanes;
    ((p + t) + (r + v)) + ((q + u) + (s + w)) + rest
}

impl Dense {
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.dim..(row + 1) * self.dim]
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&((self.values.len() / self.dim) as i64).to_le_bytes())?;
        to.write_all(&(self.dim as i64).to_le_bytes())?;
        let mut block = Vec::with_capacity(1 << 14);
        for values in self.values.chunks(1 << 12) {
            block.clear();
            block.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            to.write_all(&block)?;
        }
        Ok(())
    }
}

impl Quantised {
    fn read<R: Read>(source: &mut Source<R>, dim: usize, what: &str) -> Result<Quantised> {
        let with_norms = source.boolean(what)?;
        let (rows, columns) = (source.i64(what)?, source.i64(what)?);
        let rows = size(source, rows, columns, dim, what)?;
        let code_bytes = source.i32(what)?;
        let codes = source.bytes(code_bytes.max(0) as u64, what)?;
        let product = Codebook::read(source, dim, what)?;
        if codes.len() as u64 != rows * product.parts as u64 {
            return Err(source.error(format!(
                "{what}: {rows} rows of {} codes do not make the {code_bytes} codes of the file",
                product.parts
            )));
        }
        let norms = if with_norms {
            let codes = source.bytes(rows, what)?;
            Some((codes, Codebook::read(source, 1, what)?))
        } else {
            None
        };
        // Fits: the codes are in memory.
        Ok(Quantised { rows: rows as usize, codes, product, norms })
    }

    fn norm(&self, row: usize) -> f32 {
        match &self.norms {
            None => 1.0,
            Some((codes, book)) => book.centroids[codes[row] as usize],
        }
    }

    fn centroid(&self, row: usize, part: usize) -> &[f32] {
        self.product.centroid(part, self.codes[row * self.product.parts + part])
    }
}

impl Codebook {
    fn read<R: Read>(source: &mut Source<R>, dim: usize, what: &str) -> Result<Codebook> {
        let (found, parts) = (source.i32(what)?, source.i32(what)?);
        let (width, last_width) = (source.i32(what)?, source.i32(what)?);
        let fits = found as i64 == dim as i64
            && parts >= 1
            && width >= 1
            && (1..=width).contains(&last_width)
            && (parts as i64 - 1) * width as i64 + last_width as i64 == dim as i64;
        if !fits {
            return Err(source.error(format!(
                "{what}: {parts} sub-vectors of {width} (the last of {last_width}) do not make {found} of {dim} columns"
            )));
        }
        let centroids = source.f32s(dim as u64 * CENTROIDS as u64, LIMIT, what)?;
        Ok(Codebook {
            parts: parts as usize,
            width: width as usize,
            last_width: last_width as usize,
            centroids,
        })
    }

    fn centroid(&self, part: usize, code: u8) -> &[f32] {
        let width = if part + 1 == self.parts { self.last_width } else { self.width };
        let start = part * CENTROIDS * self.width + code as usize * width;
        &self.centroids[start..start + width]
    }
}

/// Rows, checked, of a matrix that must have `dim` columns.
fn size<R: Read>(source: &Source<R>, rows: i64, columns: i64, dim: usize, what: &str) -> Result<u64> {
    if rows < 0 || columns != dim as i64 {
        return Err(
            source.error(format!("{what} is {rows} x {columns}, wanted {dim} columns as in the settings"))
        );
    }
    Ok(rows as u64)
}
