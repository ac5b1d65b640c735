//! A covering set of models and layouts: every pair of choices, without their whole product.
//!
//! | factor | choices |
//! |---|---|
//! | family | LayerNorm, GELU, learned positions, biases, dropout; RMSNorm, SwiGLU, rotary positions |
//! | positions | the family's, ALiBi, sinusoidal |
//! | normalisation | before each block, after each sum, DeepNorm |
//! | QK-norm | no, yes |
//! | attention window | none, 11 positions |
//! | documents | attention across them, attention within each |
//! | key/value heads of 8 | 8, 2, 1: tensor ranks share one head where there are fewer than ranks |
//! | embeddings | untied, tied |
//! | sequence length | 16, 64 |
//! | recomputation | none, selective, full, full with partitioned activations (over tensor ranks), all but the attention |
//! | data parallelism | one rank, DDP, ZeRO-1 to 3, replicas of ZeRO-1 and ZeRO-3 shards, ZeRO-3 over four ranks |
//! | tensor parallelism | 1, 2 and 4 ranks, without and with sequence parallelism |
//! | pipeline | none, 1F1B on 2 and 4 ranks, interleaved, ZB-H1, ZB-V, DualPipe, DualPipeV |
//! | micro-batches | 1, 2; in pipelines 4, 8 |
//! | overlap of collectives with computation | no, yes |
//!
//! The product has more than four million rows. Faults of layouts come from one choice or from two that do not fit together, and a
//! set of rows that holds every pair of choices (a covering array of strength two; Cohen et al. 1997, AETG) finds those
//! with some sixty.

use crate::layouts::Layout;
use crate::models::{Style, Variant};
use crate::run::ParityJob;
use bessemer_arch::{ArchError, Placement, PositionChoice};
use bessemer_optim::OptimConfig;
use bessemer_parallel::Stage;
use bessemer_runtime::ActivationConfig;
use bessemer_units::Recompute;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Sequences of a step.
const SEQUENCES: usize = 16;

/// Data parallelism: the stage, replicas, and ranks over which each is sharded.
const DATA: [(Stage, (usize, usize)); 8] = [
    (Stage::Ddp, (1, 1)),
    (Stage::Ddp, (2, 1)),
    (Stage::Zero1, (1, 2)),
    (Stage::Zero2, (1, 2)),
    (Stage::Zero3, (1, 2)),
    (Stage::Zero1, (2, 2)),
    (Stage::Zero3, (2, 2)),
    (Stage::Zero3, (1, 4)),
];

/// Tensor-parallel ranks, and whether the residual stream is sharded by rows.
const TENSOR: [(usize, bool); 5] = [(1, false), (2, false), (2, true), (4, false), (4, true)];

/// Schedules, pipeline ranks (at most four stages) and micro-batches.
const PIPELINE: [(&str, usize, usize); 8] = [
    ("none", 1, 1),
    ("1f1b", 2, 4),
    ("1f1b", 4, 4),
    ("interleaved", 2, 4),
    ("zb-h1", 2, 4),
    ("zb-v", 2, 4),
    ("dualpipe", 2, 4),
    ("dualpipev", 2, 4),
];

/// Recomputation, and whether tensor ranks that all have the residual stream keep parts of it.
const RECOMPUTE: [(Recompute, bool); 5] = [
    (Recompute::None, false),
    (Recompute::Selective, false),
    (Recompute::Full, false),
    (Recompute::Full, true),
    (Recompute::AttentionOutput, false),
];

const KV_HEADS: [u64; 3] = [8, 2, 1];
/// Shorter than any sequence, and no multiple of a tile of a kernel.
const WINDOW: u64 = 11;
const SEQ: [usize; 2] = [16, 64];

/// Choices of each factor, in the order of [`Row`]. The first of each goes with everything.
const CHOICES: [usize; 15] =
    [DATA.len(), PIPELINE.len(), TENSOR.len(), KV_HEADS.len(), 2, 2, 2, 2, 2, 2, RECOMPUTE.len(), 2, 2, 3, 3];

/// One choice of each factor.
type Row = [Option<usize>; CHOICES.len()];

/// A model and a layout of the covering set.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The model.
    pub variant: Variant,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Values that the backward pass recomputes.
    pub recompute: Recompute,
    /// The layout.
    pub layout: Layout,
}

impl Case {
    fn of(row: &Row) -> Case {
        let at = |factor: usize| row[factor].unwrap_or(0);
        let yes = |factor: usize| at(factor) == 1;
        let variant = Variant {
            style: Style::ALL[at(4)],
            positions: [None, Some(PositionChoice::Alibi), Some(PositionChoice::Sinusoidal)][at(13)],
            placement: [Placement::Pre, Placement::Post, Placement::DeepNorm][at(14)],
            qk_norm: yes(5),
            window: yes(6).then_some(WINDOW),
            documents: yes(7),
            kv_heads: KV_HEADS[at(3)],
            tied_embeddings: yes(8),
        };
        let (stage, copies) = DATA[at(0)];
        let (schedule, ranks, least) = PIPELINE[at(1)];
        let micro_batches = least * (1 + at(11));
        let mut layout = match ranks {
            1 => Layout::of(stage, copies, TENSOR[at(2)], micro_batches),
            _ => Layout::of(stage, copies, TENSOR[at(2)], 1).pipelined(schedule, ranks, micro_batches, &[]),
        };
        layout.parallel.overlap = yes(12);
        if layout.parallel.overlap {
            layout.name += ", overlap";
        }
        let (recompute, partition) = RECOMPUTE[at(10)];
        if partition && layout.parallel.tensor > 1 && !layout.parallel.sequence {
            layout.parallel.partition_activations = true;
            layout.name += ", partitioned";
        }
        Case { variant, seq: SEQ[at(9)], recompute, layout }
    }

    /// The model in words: "llama, 2 kv heads, tied, 64 tokens, recompute none".
    pub fn model_name(&self) -> String {
        format!("{}, {} tokens, recompute {}", self.variant.name(), self.seq, self.recompute)
    }

    /// Model and layout in words.
    pub fn name(&self) -> String {
        format!("{}; {}", self.model_name(), self.layout.name)
    }

    /// What the case trains: `steps` steps from `seed` with AdamW.
    ///
    /// # Errors
    /// A model that cannot be built.
    pub fn job(&self, steps: u64, seed: u64) -> Result<ParityJob, ArchError> {
        Ok(ParityJob {
            model: self.variant.model(self.seq)?,
            optim: OptimConfig { lr: 1e-3, ..OptimConfig::default() },
            activations: ActivationConfig {
                recompute: self.recompute.into(),
                in_gradients: true,
                ..ActivationConfig::default()
            },
            sequences: SEQUENCES,
            seq: self.seq,
            steps,
            seed,
        })
    }
}

/// Cases of at most `ranks` ranks that hold every pair of choices that a layout of so many ranks may hold.
pub fn pairwise(ranks: usize) -> Vec<Case> {
    let rows = covering(&CHOICES, &|row: &Row| allowed(row, ranks));
    let mut cases: Vec<Case> = rows.iter().map(Case::of).collect();
    cases.retain(|c| c.layout.ranks > 1 || c.layout.accumulation > 1);
    cases.sort_by_key(|c| c.layout.ranks);
    cases
}

/// Whether these choices go together, with the first one of every factor that has none.
fn allowed(row: &Row, ranks: usize) -> bool {
    let (stage, (replicas, shard)) = DATA[row[0].unwrap_or(0)];
    let (_, pipeline, least) = PIPELINE[row[1].unwrap_or(0)];
    let tensor = TENSOR[row[2].unwrap_or(0)].0;
    let micro_batches = least * (1 + row[11].unwrap_or(0));
    let data = replicas * shard;
    // A pipeline goes with DDP and ZeRO-1 only.
    (pipeline == 1 || stage <= Stage::Zero1)
        && data * pipeline * tensor <= ranks
        && data * micro_batches <= SEQUENCES
}

/// Rows that hold every pair of choices of two factors that is allowed, chosen greedily: each begins with a pair that no row
/// holds yet and takes, factor by factor, the choice that makes most new pairs. The first choice of a factor must be allowed
/// beside all that is.
fn covering<const FACTORS: usize>(
    choices: &[usize; FACTORS],
    allowed: &dyn Fn(&[Option<usize>; FACTORS]) -> bool,
) -> Vec<[Option<usize>; FACTORS]> {
    let all = || (0..FACTORS).flat_map(|f| (0..choices[f]).map(move |choice| (f, choice)));
    let of = |pair: &[(usize, usize)]| {
        let mut row = [None; FACTORS];
        pair.iter().for_each(|(f, choice)| row[*f] = Some(*choice));
        row
    };
    let mut open: BTreeSet<[(usize, usize); 2]> =
        all().flat_map(|a| all().filter(move |b| a.0 < b.0).map(move |b| [a, b])).collect();
    open.retain(|pair| allowed(&of(pair)));
    let mut rows = Vec::new();
    while let Some(pair) = open.first() {
        let mut row = of(pair);
        for factor in 0..FACTORS {
            if row[factor].is_some() {
                continue;
            }
            let with = |choice: usize| {
                let mut row = row;
                row[factor] = Some(choice);
                row
            };
            // Of equally good ones each has its turn, at another pace for every factor.
            let turn = |choice: usize| (choice + rows.len() / (1 + factor)) % choices[factor];
            let best = (0..choices[factor]).filter(|choice| allowed(&with(*choice))).max_by_key(|choice| {
                (pairs(&with(*choice)).filter(|p| open.contains(p)).count(), Reverse(turn(*choice)))
            });
            row[factor] = Some(best.unwrap_or(0));
        }
        pairs(&row).for_each(|pair| {
            open.remove(&pair);
        });
        rows.push(row);
    }
    rows
}

/// The pairs of choices in a row, in the order of the factors.
fn pairs(row: &[Option<usize>]) -> impl Iterator<Item = [(usize, usize); 2]> {
    let chosen = move || row.iter().enumerate().filter_map(|(f, choice)| Some((f, (*choice)?)));
    chosen().flat_map(move |a| chosen().filter(move |b| a.0 < b.0).map(move |b| [a, b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_that_is_allowed_is_in_a_row_and_every_row_is_allowed() {
        let within = |row: &Row| allowed(row, 16);
        let rows = covering(&CHOICES, &within);
        assert!(rows.iter().all(within));
        assert!(rows.iter().flatten().all(Option::is_some));
        let held: BTreeSet<_> = rows.iter().flat_map(|row| pairs(row).collect::<Vec<_>>()).collect();
        let mut wanted = 0;
        for a in 0..CHOICES.len() {
            for b in a + 1..CHOICES.len() {
                for (x, y) in (0..CHOICES[a]).flat_map(|x| (0..CHOICES[b]).map(move |y| (x, y))) {
                    let mut row: Row = [None; CHOICES.len()];
                    (row[a], row[b]) = (Some(x), Some(y));
                    assert_eq!(held.contains(&[(a, x), (b, y)]), within(&row), "{row:?}");
                    wanted += usize::from(within(&row));
                }
            }
        }
        assert_eq!(held.len(), wanted);
        // Data parallelism and pipelines alone make 40 pairs.
        assert!((40..80).contains(&rows.len()), "{}", rows.len());
        assert_eq!(pairwise(16).iter().map(|c| c.layout.ranks).max(), Some(16));
    }
}
