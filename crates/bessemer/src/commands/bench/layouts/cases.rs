//! The layouts that `bessemer bench layouts` knows, by name.

use crate::failure::Failure;
use bessemer_parallel::{
    ContextMethod, ContextOrder, CubeConfig, ParallelConfig, PlaneConfig, Stage, TensorConfig,
};
use bessemer_train::parity::SYNCHRONOUS;

/// All of [`USUAL`].
const ALL_USUAL: &str = "usual";
/// Over slow links.
const SLOW: &str = "slow-";
/// Collectives on the thread that computes.
const BLOCKING: &str = "-blocking";
/// Layouts whose figures are kept.
const USUAL: [&str; 24] = [
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "tensor",
    "tensor-blocking",
    "sequence",
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "chimera",
    "slow-ddp",
    "slow-ddp-blocking",
    "slow-zero1",
    "slow-zero2",
    "slow-zero3",
    "slow-tensor",
    "slow-tensor-blocking",
    "slow-sequence",
    "slow-gpipe",
    "slow-1f1b",
    "slow-interleaved",
    "slow-zb-h1",
];

/// A layout and its links.
#[derive(Debug, Clone)]
pub(super) struct LayoutCase {
    pub(super) name: String,
    pub(super) config: ParallelConfig,
    /// Over slow links.
    pub(super) slow: bool,
}

impl LayoutCase {
    /// The layout of this name, over `ranks` ranks.
    fn named(name: &str, ranks: u64) -> Result<LayoutCase, Failure> {
        let (slow, rest) = name.strip_prefix(SLOW).map_or((false, name), |rest| (true, rest));
        let (overlap, kind) = rest.strip_suffix(BLOCKING).map_or((true, rest), |kind| (false, kind));
        let default = ParallelConfig { overlap, ..ParallelConfig::default() };
        let shared = |context_method, context_order| ParallelConfig {
            context: ranks,
            context_method,
            context_order,
            ..default.clone()
        };
        let config = match kind {
            "ddp" => default,
            "zero1" => ParallelConfig { stage: Stage::Zero1, ..default },
            "zero2" => ParallelConfig { stage: Stage::Zero2, ..default },
            "zero3" => ParallelConfig { stage: Stage::Zero3, ..default },
            "tensor" => ParallelConfig { tensor: ranks.into(), ..default },
            "sequence" => ParallelConfig { tensor: ranks.into(), sequence: true, ..default },
            "all-gather" => shared(ContextMethod::AllGather, ContextOrder::Auto),
            "ulysses" => shared(ContextMethod::Ulysses, ContextOrder::Auto),
            "ring" => shared(ContextMethod::Ring, ContextOrder::Auto),
            "ring-consecutive" => shared(ContextMethod::Ring, ContextOrder::Consecutive),
            "ring-striped" => shared(ContextMethod::Ring, ContextOrder::Striped),
            "lightseq" => shared(ContextMethod::LightSeq, ContextOrder::Auto),
            schedule if SYNCHRONOUS.contains(&schedule) => {
                ParallelConfig { pipeline: ranks, schedule: schedule.into(), ..default }
            }
            _ => match grid(kind) {
                Some(tensor) if tensor == ranks => ParallelConfig { tensor, ..default },
                Some(tensor) => {
                    return Err(Failure::usage(format!(
                        "--layouts {name}: its {} ranks are not the {ranks} of --ranks",
                        tensor.ranks()
                    )));
                }
                None => {
                    return Err(Failure::usage(format!(
                        "--layouts {name}: wanted {ALL_USUAL:?}, ddp, zero1, zero2, zero3, tensor, sequence, grid-2x2 (rows x \
                         columns), grid-2x2x2 (x depth), cube-2, all-gather, ulysses, ring, ring-consecutive, ring-striped, \
                         lightseq, {}; perhaps with {SLOW:?} before it and {BLOCKING:?} behind it",
                        SYNCHRONOUS.join(", ")
                    )));
                }
            },
        };
        Ok(LayoutCase { name: name.into(), config, slow })
    }
}

/// The grid of a name: "grid-2x4" of 2 rows and 4 columns, "grid-2x4x2" of that in 2 layers, "cube-2" of 8 ranks.
fn grid(name: &str) -> Option<TensorConfig> {
    if let Some(side) = name.strip_prefix("cube-") {
        return Some(TensorConfig::Cube(CubeConfig { cube: side.parse().ok()? }));
    }
    let sides: Vec<u64> =
        name.strip_prefix("grid-")?.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    let (rows, columns, depth) = match sides[..] {
        [rows, columns] => (rows, columns, 1),
        [rows, columns, depth] => (rows, columns, depth),
        _ => return None,
    };
    Some(TensorConfig::Plane(PlaneConfig { grid: [rows, columns], depth }))
}

/// The layouts of these names.
pub(super) fn chosen(names: &[String], ranks: u64) -> Result<Vec<LayoutCase>, Failure> {
    let names = names.iter().flat_map(|name| match name.as_str() {
        ALL_USUAL => USUAL.to_vec(),
        name => vec![name],
    });
    names.map(|name| LayoutCase::named(name, ranks)).collect()
}
