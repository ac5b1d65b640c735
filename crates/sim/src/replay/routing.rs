//! Routes of tokens to experts in a simulated step.

use crate::SimError;
use crate::shadow::RowCounts;

/// Rows of each rank of a group for each expert. Each rank has as many experts, the first rank the first ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedRows {
    ranks: usize,
    /// By rank, then by expert.
    rows: Vec<u64>,
}

impl RoutedRows {
    /// Rows by rank, then by expert.
    ///
    /// # Errors
    /// [`SimError::Routing`] for a number of experts that the ranks do not divide.
    pub fn new(ranks: usize, rows: Vec<u64>) -> Result<RoutedRows, SimError> {
        let experts = rows.len() / ranks.max(1);
        if ranks == 0 || experts == 0 || rows.len() != ranks * experts || !experts.is_multiple_of(ranks) {
            let what =
                format!("{} counts of {ranks} ranks: wanted equally many experts of each rank", rows.len());
            return Err(SimError::Routing(what));
        }
        Ok(RoutedRows { ranks, rows })
    }

    /// The choices of a group, dealt out to its ranks one by one in the order of the experts: all ranks have as many rows, and of each expert as
    /// many as the others or one more.
    ///
    /// # Errors
    /// As [`RoutedRows::new`].
    pub fn dealt(ranks: usize, counts: &[u64]) -> Result<RoutedRows, SimError> {
        let mut rows = vec![0; ranks * counts.len()];
        let mut from = 0;
        for (expert, count) in counts.iter().enumerate() {
            // Choices `from .. from + count` of all, of which rank r has every one that is r modulo the ranks.
            let before = |end: u64, rank: usize| (end + (ranks - 1 - rank) as u64) / ranks as u64;
            for rank in 0..ranks {
                rows[rank * counts.len() + expert] = before(from + count, rank) - before(from, rank);
            }
            from += count;
        }
        RoutedRows::new(ranks, rows)
    }
}

impl RowCounts for RoutedRows {
    fn ranks(&self) -> usize {
        self.ranks
    }
    fn experts(&self) -> usize {
        self.rows.len() / self.ranks
    }
    fn rows(&self, rank: usize, expert: usize) -> u64 {
        self.rows[rank * self.experts() + expert]
    }
}

/// Loads of the experts of a layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Loads {
    /// All experts have as many tokens.
    #[default]
    Balanced,
    /// Expert i of a layer, counted from 0, has a share of (i+1)^-s: the first rank has the experts with most tokens.
    Zipf(f64),
    /// Choices that a run recorded, by layer of the model and expert.
    Recorded(Vec<Vec<u64>>),
    /// Rows of each rank, by layer of the model.
    Routed(Vec<RoutedRows>),
}

/// Choices of a group of ranks in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupChoices {
    /// Ranks of the group.
    pub ranks: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Tokens of all ranks.
    pub tokens: u64,
    /// Different experts of a token.
    pub choices: u64,
}

impl Loads {
    /// Rows of the ranks of a group in layer `layer`, as near to the loads as whole numbers are. No expert has more tokens than there are; what
    /// is above that is spread over the others.
    ///
    /// # Errors
    /// [`SimError::Routing`] for a layer that was not recorded, or has other experts or ranks; an exponent that is none.
    pub fn rows(&self, layer: usize, group: GroupChoices) -> Result<RoutedRows, SimError> {
        if let Loads::Routed(layers) = self {
            let alike = |rows: &&RoutedRows| (rows.ranks(), rows.experts()) == (group.ranks, group.experts);
            let wanted = || {
                format!("wanted rows of {} experts of {} ranks in layer {layer}", group.experts, group.ranks)
            };
            return layers.get(layer).filter(alike).cloned().ok_or_else(|| SimError::Routing(wanted()));
        }
        RoutedRows::dealt(group.ranks, &self.counts(layer, group)?)
    }

    fn counts(&self, layer: usize, group: GroupChoices) -> Result<Vec<u64>, SimError> {
        let GroupChoices { experts, tokens, choices, .. } = group;
        let weights: Vec<f64> = match self {
            Loads::Balanced | Loads::Routed(_) => vec![1.0; experts],
            Loads::Zipf(s) if s.is_finite() && *s >= 0.0 => {
                (0..experts).map(|expert| (expert as f64 + 1.0).powf(-s)).collect()
            }
            Loads::Zipf(s) => {
                return Err(SimError::Routing(format!("exponent {s}: wanted a finite number of at least 0")));
            }
            Loads::Recorded(layers) => {
                let counts = layers.get(layer).map_or(&[][..], Vec::as_slice);
                if counts.len() != experts || counts.iter().all(|count| *count == 0) {
                    let found = counts.iter().sum::<u64>();
                    let has = counts.len();
                    return Err(SimError::Routing(format!(
                        "layer {layer} has {experts} experts, and recorded are {found} choices of {has}: wanted loads of the same model"
                    )));
                }
                counts.iter().map(|count| *count as f64).collect()
            }
        };
        let mut wanted: Vec<f64> = vec![0.0; experts];
        let (mut left, mut full) = ((tokens * choices) as f64, vec![false; experts]);
        loop {
            let open = || (0..experts).filter(|expert| !full[*expert]);
            let sum: f64 = open().map(|expert| weights[expert]).sum();
            // Where experts with a weight are too few, the others share what is left.
            let share = |expert: usize| match sum > 0.0 {
                true => left * weights[expert] / sum,
                false => left / open().count().max(1) as f64,
            };
            let above: Vec<usize> = open().filter(|expert| share(*expert) > tokens as f64).collect();
            if above.is_empty() {
                for expert in open() {
                    wanted[expert] = share(expert);
                }
                break;
            }
            for expert in above {
                (wanted[expert], full[expert]) = (tokens as f64, true);
                left -= tokens as f64;
            }
        }
        let (mut sum, mut before) = (0.0, 0);
        let count = |wanted: f64| {
            sum += wanted;
            let end = (sum + 1e-6).round() as u64;
            let count = end - before;
            before = end;
            count
        };
        Ok(wanted.into_iter().map(count).collect())
    }
}

/// Routes of a simulated step, the same in every micro-batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoutingProfile {
    /// Loads of the experts.
    pub loads: Loads,
}
