//! For tests: how much of a large set of cases is tried.
//!
//! Two tiers. `cargo test --workspace` runs the commit tier, which proves each mechanism once. `cargo xtask soak` sets
//! `BESSEMER_SOAK` and runs the whole sets, and the tests that are ignored because they take minutes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

/// Whether the whole sets are tried.
pub fn soak() -> bool {
    std::env::var_os("BESSEMER_SOAK").is_some_and(|value| !value.is_empty())
}

/// A number (of steps, cases, mutations) of the commit tier and of the soak.
pub fn either<T>(commit: T, soak: T) -> T {
    if self::soak() { soak } else { commit }
}

/// Every case in the soak. In the commit tier part number `part` of `parts`: each case is in exactly one part.
///
/// A case's part follows from the sum of the digits of its index, not from the index itself. Lists of cases are often
/// products whose innermost choice alternates, and every part must see both.
pub fn part<T>(cases: impl IntoIterator<Item = T>, part: usize, parts: usize) -> Vec<T> {
    let digits = |mut index: usize| {
        let mut sum = 0;
        while index > 0 {
            sum += index % parts;
            index /= parts;
        }
        sum
    };
    let everything = soak();
    let taken = cases.into_iter().enumerate().filter(|(i, _)| everything || digits(*i) % parts == part);
    taken.map(|(_, case)| case).collect()
}

/// Takes one case in so many, wherever loops lie in one another; in the soak every case.
///
/// The multiples of the golden ratio are spread evenly along every arithmetic progression of indices, so that no
/// choice of an inner or an outer loop is always left out.
#[derive(Debug)]
pub struct Sample {
    one_in: f64,
    seen: u64,
}

impl Sample {
    /// A sample of one case in `one_in`.
    pub fn one_in(one_in: u32) -> Sample {
        Sample { one_in: f64::from(one_in), seen: 0 }
    }

    /// Whether the next case is tried. The first one is.
    pub fn takes(&mut self) -> bool {
        const GOLDEN: f64 = 1.618_033_988_749_895;
        let place = (self.seen as f64 * GOLDEN).fract();
        self.seen += 1;
        place * self.one_in < 1.0 || soak()
    }
}
