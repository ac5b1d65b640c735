//! Layouts by name, as `bessemer-bench layouts` takes them.

use crate::MeasureError;
use bessemer_parallel::{
    ContextMethod, ContextOrder, CubeConfig, ParallelConfig, PlaneConfig, Stage, TensorConfig,
};
use bessemer_parity::SYNCHRONOUS;
use bessemer_units::Recompute;

/// All of [`USUAL`].
const ALL_USUAL: &str = "usual";
/// Over slow links.
const SLOW: &str = "slow-";
/// Collectives on the thread that computes.
const BLOCKING: &str = "-blocking";
/// FLOPs and bytes a second by which shadows of experts are chosen: of a core, and of memory that ranks share.
const SHADOW_RATES: (f64, f64) = (5e10, 5e9);
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

/// All of [`many`].
const ALL_MANY: &str = "many";

/// More than thirty layouts of one job, for the order in which they are predicted: kinds of parallelism, each with micro-batches of
/// one and of two sequences, and with layers that are recomputed; some over slow links.
fn many() -> Vec<String> {
    let kinds =
        ["ddp", "zero1", "zero2", "zero3", "tensor", "sequence", "gpipe", "1f1b", "interleaved", "zb-h1"];
    let mut names: Vec<String> = kinds
        .iter()
        .flat_map(|kind| ["+b1", "+b2", "+b1+full"].map(|form| format!("{kind}{form}")))
        .collect();
    let slow =
        ["slow-ddp+b1", "slow-zero3+b1", "slow-zero3+b2", "slow-tensor+b1", "slow-tensor+b2", "slow-1f1b+b1"];
    names.extend(slow.map(str::to_owned));
    names
}

/// A layout and its links.
#[derive(Debug, Clone)]
pub struct LayoutCase {
    /// Its name.
    pub name: String,
    /// What the ranks share.
    pub config: ParallelConfig,
    /// Over slow links.
    pub slow: bool,
    /// Sequences of a micro-batch instead of the job's.
    pub sequences: Option<usize>,
    /// What layers compute again, instead of the job's.
    pub recompute: Option<Recompute>,
}

impl LayoutCase {
    /// The layout of this name, over `ranks` ranks.
    ///
    /// # Errors
    /// A name that no layout has, or one of another number of ranks.
    pub fn named(name: &str, ranks: u64) -> Result<LayoutCase, MeasureError> {
        let (layout, forms) = name.split_once('+').map_or((name, ""), |(layout, forms)| (layout, forms));
        let mut case = LayoutCase::of_kind(name, layout, ranks)?;
        for form in forms.split('+').filter(|form| !form.is_empty()) {
            let number = |letter| form.strip_prefix(letter).and_then(|number| number.parse::<usize>().ok());
            match (form, number('b')) {
                (_, Some(sequences)) if sequences > 0 => case.sequences = Some(sequences),
                (_, None) if number('s').is_some_and(|shadows| shadows > 0) => {
                    case.config.shadows = number('s').unwrap_or(0) as u64;
                    (case.config.shadow_flops, case.config.shadow_bandwidth) = SHADOW_RATES;
                }
                ("full", _) => case.recompute = Some(Recompute::Full),
                ("attention", _) => case.recompute = Some(Recompute::Attention),
                _ => {
                    return Err(MeasureError::request(format!(
                        "--layouts {name}: wanted +bN for micro-batches of N sequences, +sN for at most N shadows of experts, +full or \
                         +attention for what is recomputed, found +{form}"
                    )));
                }
            }
        }
        Ok(case)
    }

    fn of_kind(name: &str, layout: &str, ranks: u64) -> Result<LayoutCase, MeasureError> {
        let (slow, rest) = layout.strip_prefix(SLOW).map_or((false, layout), |rest| (true, rest));
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
            "experts" => ParallelConfig { experts: ranks, ..default },
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
                    return Err(MeasureError::request(format!(
                        "--layouts {name}: its {} ranks are not the {ranks} of --ranks",
                        tensor.ranks()
                    )));
                }
                None => {
                    return Err(MeasureError::request(format!(
                        "--layouts {name}: wanted {ALL_USUAL:?}, {ALL_MANY:?}, ddp, experts, zero1, zero2, zero3, tensor, sequence, grid-2x2 (rows x \
                         columns), grid-2x2x2 (x depth), cube-2, all-gather, ulysses, ring, ring-consecutive, ring-striped, \
                         lightseq, {}; perhaps with {SLOW:?} before it and {BLOCKING:?} behind it",
                        SYNCHRONOUS.join(", ")
                    )));
                }
            },
        };
        Ok(LayoutCase { name: name.into(), config, slow, sequences: None, recompute: None })
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

/// The layouts of these names, each over `ranks` ranks.
///
/// # Errors
/// As [`LayoutCase::named`].
pub fn layout_cases(names: &[String], ranks: u64) -> Result<Vec<LayoutCase>, MeasureError> {
    let names = names.iter().flat_map(|name| match name.as_str() {
        ALL_USUAL => USUAL.map(str::to_owned).to_vec(),
        ALL_MANY => many(),
        name => vec![name.to_owned()],
    });
    names.map(|name| LayoutCase::named(&name, ranks)).collect()
}
