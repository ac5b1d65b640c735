//! K-FAC's work as units.

use super::{Need, Unit, When};
use crate::{SimError, Step};
use bessemer_schedule::{Filler, Instruction, Place, Program};

/// A factor of a layer's curvature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KfacFactor {
    /// Layer of the stage, from 0.
    pub layer: usize,
    /// Made of the gradients of the layer's outputs, not of its inputs.
    pub outputs: bool,
    /// Time to add one micro-batch.
    pub curvature: f64,
    /// Time to add it up over the ranks that have seen other data, and into the running mean.
    pub sync: f64,
    /// Time to invert it.
    pub invert: f64,
}

/// The work of one stage.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KfacStage {
    /// Its factors, those of one layer beside each other.
    pub factors: Vec<KfacFactor>,
    /// Time to multiply the gradient of each layer by its inverses.
    pub precondition: Vec<f64>,
}

/// When a micro-batch's inputs and output gradients of the layers can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Operands {
    /// Inputs after the forward pass, output gradients after the input part of the backward pass: all are kept.
    #[default]
    AsMade,
    /// Both after the gradients of the weights were made; and nothing joins the running means before the step's gradients
    /// have been judged, at its end: those of a step that is left out must not. Several holders of a stage invert a factor in
    /// the same step.
    AfterBackward,
}

/// The number of the unit that adds a micro-batch to a factor of a stage with `factors`.
pub fn curvature_number(factors: usize, factor: usize, micro: usize) -> usize {
    micro * factors + factor
}

/// The units of one refresh, and those of every update.
///
/// Of each place: curvature of every factor from every micro-batch that passes there ([`curvature_number`]), one after
/// the other; sum of each factor, together with the other holders of the stage (number: the factor's); inverse of each,
/// when all of its layer are summed, because damping is shared out by their sizes; and with every update the layers'
/// directions (number: the layer's), which take the newest inverses there are.
///
/// # Errors
/// [`SimError::Unit`] for a number of stages that is not the program's, and layers that have no time.
pub fn kfac_units(
    program: &Program,
    stages: &[KfacStage],
    operands: Operands,
) -> Result<Vec<Unit>, SimError> {
    let wrong = |what: String| Err(SimError::Unit { unit: 0, what });
    if stages.len() != program.stages {
        return wrong(format!(
            "the work of K-FAC is given for {} stages of {}",
            stages.len(),
            program.stages
        ));
    }
    let mut units = Vec::new();
    for (stage, work) in stages.iter().enumerate() {
        if let Some(factor) = work.factors.iter().find(|f| f.layer >= work.precondition.len()) {
            return wrong(format!("stage {stage} has no times for layer {}", factor.layer));
        }
        let holders = program.holders(stage);
        let factors = work.factors.len();
        // By holder and factor: the last micro-batch's.
        let mut captured = vec![vec![None; factors]; holders.len()];
        for (holder, place) in holders.iter().enumerate() {
            curvature(&mut units, program, *place, work, operands, &mut captured[holder])?;
        }
        let first_sync = units.len();
        for (number, factor) in work.factors.iter().enumerate() {
            let mut after: Vec<Need> = captured.iter().filter_map(|of| of[number]).map(Need::Unit).collect();
            if operands == Operands::AfterBackward {
                after.push(Need::EndOfStep);
            }
            units.push(Unit {
                places: holders.clone(),
                filler: Filler::SyncCurvature,
                number,
                time: factor.sync,
                when: When::Spread,
                after,
            });
        }
        // Holders that invert at different times must do so in one step, or they step the same weights differently.
        let together = match operands {
            Operands::AsMade => holders.iter().map(|place| vec![*place]).collect(),
            Operands::AfterBackward => vec![holders.clone()],
        };
        for places in &together {
            for (number, factor) in work.factors.iter().enumerate() {
                let same = work.factors.iter().enumerate().filter(|(_, other)| other.layer == factor.layer);
                units.push(Unit {
                    places: places.clone(),
                    filler: Filler::Invert,
                    number,
                    time: factor.invert,
                    when: When::Spread,
                    after: same.map(|(other, _)| Need::Unit(first_sync + other)).collect(),
                });
            }
        }
        for place in &holders {
            for (number, time) in work.precondition.iter().enumerate() {
                units.push(Unit {
                    places: vec![*place],
                    filler: Filler::Precondition,
                    number,
                    time: *time,
                    when: When::Update,
                    after: Vec::new(),
                });
            }
        }
    }
    Ok(units)
}

/// Curvature of every micro-batch that passes a place, in the order of the rank's list.
fn curvature(
    units: &mut Vec<Unit>,
    program: &Program,
    place: Place,
    work: &KfacStage,
    operands: Operands,
    captured: &mut [Option<usize>],
) -> Result<(), SimError> {
    let list = program.lists[place.rank].iter().enumerate();
    for (index, instruction) in list {
        let Some(pass) = instruction.gradient_part().filter(|p| p.chunk == place.chunk) else { continue };
        let made = |outputs: bool| {
            let is_it = |i: &Instruction| match (*i, outputs) {
                (Instruction::Forward(p) | Instruction::Together { forward: p, .. }, false) => {
                    (p.micro, p.chunk) == (pass.micro, pass.chunk)
                }
                (
                    Instruction::BackwardInput(p)
                    | Instruction::Backward(p)
                    | Instruction::Together { backward: p, .. },
                    true,
                ) => (p.micro, p.chunk) == (pass.micro, pass.chunk),
                _ => false,
            };
            let at = program.lists[place.rank].iter().take(index + 1).position(is_it);
            match operands {
                Operands::AsMade => at.unwrap_or(index),
                Operands::AfterBackward => index,
            }
        };
        let made = [made(false), made(true)];
        for (number, factor) in work.factors.iter().enumerate() {
            let index = made[usize::from(factor.outputs)];
            let mut after = vec![Need::Instruction(Step { rank: place.rank, index })];
            after.extend(captured[number].map(Need::Unit));
            captured[number] = Some(units.len());
            units.push(Unit {
                places: vec![place],
                filler: Filler::Curvature,
                number: curvature_number(work.factors.len(), number, pass.micro),
                time: factor.curvature,
                when: When::Spread,
                after,
            });
        }
    }
    Ok(())
}

impl KfacStage {
    /// The work of `layers` layers of a transformer of `width` (four matrices each: queries, keys and values fused with a
    /// block of curvature for each; output; a feed-forward block four times as wide) on micro-batches of `tokens`, where a
    /// forward pass through them takes `forward`: everything in proportion to its floating-point operations (curvature
    /// 2 tokens n^2, inversion 8/3 n^3, sums 3 n^2, directions 2 o i (o + i)), those of the forward pass 24 tokens width^2 a layer.
    pub fn transformer(layers: usize, width: usize, tokens: usize, forward: f64) -> KfacStage {
        let (d, t) = (width as f64, tokens as f64);
        let time = |flops: f64| flops * forward / (24.0 * t * d * d * layers as f64);
        let matrices: [(f64, &[f64]); 4] =
            [(1.0, &[1.0, 1.0, 1.0]), (1.0, &[1.0]), (1.0, &[4.0]), (4.0, &[1.0])];
        let mut stage = KfacStage::default();
        for _ in 0..layers {
            for (inputs, blocks) in matrices {
                let layer = stage.precondition.len();
                let mut factor = |side: f64, outputs: bool| {
                    let n = side * d;
                    stage.factors.push(KfacFactor {
                        layer,
                        outputs,
                        curvature: time(2.0 * t * n * n),
                        sync: time(3.0 * n * n),
                        invert: time(8.0 / 3.0 * n.powi(3)),
                    });
                };
                factor(inputs, false);
                blocks.iter().for_each(|side| factor(*side, true));
                let direction = |o: f64| 2.0 * o * inputs * (o + inputs) * d.powi(3);
                stage.precondition.push(time(blocks.iter().map(|o| direction(*o)).sum()));
            }
        }
        stage
    }
}
