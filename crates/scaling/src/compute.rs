//! Compute of a training: `C = tau T = 6 P D`, in all directions.
//!
//! tau are the operations a second that the whole machine achieves (devices x peak x utilisation), T seconds, P parameters, D tokens.
//! Hoffmann et al. 2022 count all parameters in P, Kaplan et al. 2020 those without embeddings: at small sizes the two differ by a
//! factor of two, so every number here says which it is.

/// Floating-point operations of training for each parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1).
pub const FLOPS_PER_PARAMETER_AND_TOKEN: f64 = 6.0;
/// Operations of a petaflop/s-day.
pub const PETAFLOP_DAY: f64 = 8.64e19;

/// Sizes of a model and of its training text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation {
    /// Parameters, embeddings included.
    pub parameters: f64,
    /// Tokens.
    pub tokens: f64,
}

impl Allocation {
    /// Floating-point operations of the training, `6 P D`.
    pub fn flops(&self) -> f64 {
        FLOPS_PER_PARAMETER_AND_TOKEN * self.parameters * self.tokens
    }
}

/// Some of the quantities of `C = tau T = 6 P D`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Budget {
    /// C, floating-point operations.
    pub flops: Option<f64>,
    /// P, parameters, embeddings included.
    pub parameters: Option<f64>,
    /// D, tokens.
    pub tokens: Option<f64>,
    /// tau, operations a second of the whole machine.
    pub rate: Option<f64>,
    /// T, seconds.
    pub seconds: Option<f64>,
}

/// Relative difference from which two ways to one quantity contradict each other.
const CONTRADICTION: f64 = 1e-6;

/// Quantities that were given and cannot all hold.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// A quantity that is not above zero.
    #[error("{quantity}: wanted a number above 0, found {found}")]
    Value {
        /// Name of the quantity.
        quantity: &'static str,
        /// The value.
        found: f64,
    },
    /// `tau T` and `6 P D` are given and differ.
    #[error(
        "{first} and {second} do not agree: wanted {first_flops:.4e} floating-point operations, found {second_flops:.4e}; leave one of them out"
    )]
    Contradiction {
        /// Quantities that give the first compute.
        first: &'static str,
        /// Quantities that give the second.
        second: &'static str,
        /// The first compute.
        first_flops: f64,
        /// The second.
        second_flops: f64,
    },
}

impl Budget {
    /// Fills in every quantity that follows from those that are given.
    ///
    /// # Errors
    /// Quantities that are not above zero, or that contradict each other.
    pub fn complete(self) -> Result<Budget, BudgetError> {
        let named = [
            ("compute", self.flops),
            ("parameters", self.parameters),
            ("tokens", self.tokens),
            ("operations a second", self.rate),
            ("time", self.seconds),
        ];
        for (quantity, value) in named {
            if let Some(found) = value
                && !(found > 0.0 && found.is_finite())
            {
                return Err(BudgetError::Value { quantity, found });
            }
        }
        let product = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a * b);
        let ways = [
            ("compute", self.flops),
            ("operations a second x time", product(self.rate, self.seconds)),
            (
                "6 x parameters x tokens",
                product(self.parameters, self.tokens).map(|pd| FLOPS_PER_PARAMETER_AND_TOKEN * pd),
            ),
        ];
        let mut known = ways.iter().filter_map(|(name, flops)| flops.map(|flops| (*name, flops)));
        let Some((first, first_flops)) = known.next() else { return Ok(self) };
        for (second, second_flops) in known {
            if (first_flops / second_flops).ln().abs() > CONTRADICTION {
                return Err(BudgetError::Contradiction { first, second, first_flops, second_flops });
            }
        }
        let per = |total: f64, other: Option<f64>| other.map(|other| total / other);
        let pd = first_flops / FLOPS_PER_PARAMETER_AND_TOKEN;
        Ok(Budget {
            flops: Some(first_flops),
            parameters: self.parameters.or(per(pd, self.tokens)),
            tokens: self.tokens.or(per(pd, self.parameters)),
            rate: self.rate.or(per(first_flops, self.seconds)),
            seconds: self.seconds.or(per(first_flops, self.rate)),
        })
    }
}
