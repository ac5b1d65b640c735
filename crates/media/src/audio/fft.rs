//! The discrete Fourier transform of real frames whose length is even and has no prime factor above 5, such as Whisper's 400.
//!
//! X_k = sum_n x_n e^(-2 pi i k n / N), k = 0..N/2. The frame is taken as N/2 complex numbers z_n = x_2n + i x_2n+1, transformed by
//! Stockham's self-sorting passes of radix 4, 2, 3 and 5 (P. Swarztrauber, "FFT algorithms for vector computers", 1984), and
//! split: with E, O the transforms of even and odd samples, X_k = E_k + e^(-2 pi i k / N) O_k. In f64 and plain Rust, so that the
//! bits are the same on every machine. Cost: about 5 N/2 log2(N/2) operations.

use std::f64::consts::PI;

type Complex = (f64, f64);

fn add(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

fn sub(a: Complex, b: Complex) -> Complex {
    (a.0 - b.0, a.1 - b.1)
}

fn mul(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// e^(-2 pi i k / n)
fn root(k: usize, n: usize) -> Complex {
    let angle = -2.0 * PI * (k % n) as f64 / n as f64;
    (angle.cos(), angle.sin())
}

/// One pass: `l` sub-transforms of length `n = radix * m` become `l * radix` of length m.
#[derive(Debug)]
struct Pass {
    radix: usize,
    m: usize,
    l: usize,
    /// e^(-2 pi i j q / n) for j < m, 1 <= q < radix.
    twiddles: Vec<Complex>,
    /// e^(-2 pi i q / radix), q < radix.
    roots: [Complex; 5],
}

/// A plan for frames of one length.
#[derive(Debug)]
pub(crate) struct RealFft {
    n: usize,
    passes: Vec<Pass>,
    /// e^(-2 pi i k / N), k <= N/2.
    split: Vec<Complex>,
    a: Vec<Complex>,
    b: Vec<Complex>,
}

impl RealFft {
    /// A plan for frames of `n` samples; `None` if n is odd, 0 or has a prime factor above 5.
    pub(crate) fn new(n: usize) -> Option<RealFft> {
        if n == 0 || !n.is_multiple_of(2) {
            return None;
        }
        let half = n / 2;
        let (mut rest, mut l, mut passes) = (half, 1, Vec::new());
        while rest > 1 {
            let radix = [4, 2, 3, 5].into_iter().find(|r| rest.is_multiple_of(*r))?;
            let m = rest / radix;
            let twiddles = (0..m).flat_map(|j| (1..radix).map(move |q| root(j * q, rest))).collect();
            let roots = std::array::from_fn(|q| root(q, radix));
            passes.push(Pass { radix, m, l, twiddles, roots });
            rest = m;
            l *= radix;
        }
        let split = (0..=half).map(|k| root(k, n)).collect();
        Some(RealFft { n, passes, split, a: vec![(0.0, 0.0); half], b: vec![(0.0, 0.0); half] })
    }

    /// Squared magnitudes |X_k|^2 for k = 0..N/2 of the frame `x` (N samples) into `power` (N/2 + 1 values).
    pub(crate) fn power(&mut self, x: &[f64], power: &mut [f64]) {
        let half = self.n / 2;
        for (z, pair) in self.a.iter_mut().zip(x.chunks_exact(2)) {
            *z = (pair[0], pair[1]);
        }
        for pass in &self.passes {
            pass.run(&self.a, &mut self.b);
            std::mem::swap(&mut self.a, &mut self.b);
        }
        for (k, p) in power.iter_mut().enumerate().take(half + 1) {
            let z = self.a[k % half];
            let w = self.a[(half - k) % half];
            let mirrored = (w.0, -w.1);
            let even = add(z, mirrored);
            let odd = sub(z, mirrored);
            // O = (z - conj) / 2i, E = (z + conj) / 2; the halves come last.
            let x = add(even, mul(self.split[k], (odd.1, -odd.0)));
            *p = 0.25 * (x.0 * x.0 + x.1 * x.1);
        }
    }
}

impl Pass {
    /// Decimation in frequency: y[l q + k + l r j'...] with input x[k + l (j + m p)], output y[k + l (radix j + q)].
    fn run(&self, x: &[Complex], y: &mut [Complex]) {
        let Pass { radix, m, l, .. } = *self;
        for j in 0..m {
            let twiddles = &self.twiddles[j * (radix - 1)..(j + 1) * (radix - 1)];
            for k in 0..l {
                let input = |p: usize| x[k + l * (j + m * p)];
                let out = &mut y[k + l * radix * j..];
                match radix {
                    2 => {
                        let (a, b) = (input(0), input(1));
                        out[0] = add(a, b);
                        out[l] = mul(sub(a, b), twiddles[0]);
                    }
                    4 => {
                        let (a, b, c, d) = (input(0), input(1), input(2), input(3));
                        let (s, t, u, v) = (add(a, c), sub(a, c), add(b, d), sub(b, d));
                        let turned = (v.1, -v.0);
                        out[0] = add(s, u);
                        out[l] = mul(add(t, turned), twiddles[0]);
                        out[2 * l] = mul(sub(s, u), twiddles[1]);
                        out[3 * l] = mul(sub(t, turned), twiddles[2]);
                    }
                    _ => {
                        for q in 0..radix {
                            let mut sum = input(0);
                            for p in 1..radix {
                                sum = add(sum, mul(input(p), self.roots[p * q % radix]));
                            }
                            out[q * l] = if q == 0 { sum } else { mul(sum, twiddles[q - 1]) };
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_definition() {
        for n in [2, 4, 6, 10, 16, 30, 50, 128, 400, 480] {
            let x: Vec<f64> = (0..n).map(|i| ((i * i * 7 + i) % 23) as f64 / 11.5 - 1.0).collect();
            let mut power = vec![0.0; n / 2 + 1];
            RealFft::new(n).unwrap().power(&x, &mut power);
            for (k, p) in power.iter().enumerate() {
                let sum =
                    x.iter().enumerate().fold((0.0, 0.0), |s, (i, &v)| add(s, mul((v, 0.0), root(k * i, n))));
                let wanted = sum.0 * sum.0 + sum.1 * sum.1;
                assert!((p - wanted).abs() <= 1e-12 * (n * n) as f64, "n = {n}, k = {k}: {p} {wanted}");
            }
        }
        assert!(RealFft::new(14).is_none() && RealFft::new(7).is_none() && RealFft::new(0).is_none());
    }
}
