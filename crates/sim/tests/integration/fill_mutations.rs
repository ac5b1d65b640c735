//! The verifier of filled programs refuses every wrong one: K-FAC's work alone, and with evaluations and copies on top of it.

use bessemer_schedule::{Filler, Instruction, Kind, Place, Program, Shape, generate};
use bessemer_sim::fill::{FillOptions, KfacStage, Need, Operands, Unit, When, fill, kfac_units, verify_fill};
use bessemer_sim::{Costs, PassTimes};

/// Programs of an interval with the work of one kind, and what they were made from.
struct Layer {
    base: Program,
    units: Vec<Unit>,
    interval: Vec<Program>,
}

impl Layer {
    fn new(base: &Program, costs: &Costs, units: Vec<Unit>) -> (Layer, Costs) {
        let filled = fill(base, costs, &units, &FillOptions::default()).unwrap();
        (Layer { base: base.clone(), units, interval: filled.programs }, filled.costs)
    }

    fn verify(&self, interval: &[Program]) -> Result<(), String> {
        verify_fill(&self.base, &self.units, interval).map_err(|e| e.to_string())
    }
}

fn spread(place: Place, filler: Filler, number: usize, after: Vec<Need>) -> Unit {
    Unit { places: vec![place], filler, number, time: 1e-3, when: When::Spread, after }
}

/// K-FAC's interval, then the first step of it with batches that are evaluated, then that with copies of the state.
fn layers(kind: Kind, ranks: usize, micro_batches: usize) -> Vec<Layer> {
    let plain = generate(kind, &Shape::new(ranks, micro_batches)).unwrap();
    let costs = Costs::per_rank(&plain, &PassTimes::new(4.0, 4.0, 4.0));
    let work = KfacStage::transformer(1, 16, 64, 1.0);
    let stages = vec![work; plain.stages];
    let (kfac, costs) =
        Layer::new(&plain, &costs, kfac_units(&plain, &stages, Operands::AfterBackward).unwrap());
    assert!(kfac.interval.len() > 1);
    let mut evaluations: Vec<Unit> = Vec::new();
    for number in 0..2 {
        for (stage, place) in plain.routes[0].iter().enumerate() {
            let after = if stage > 0 { vec![Need::Unit(evaluations.len() - 1)] } else { Vec::new() };
            evaluations.push(spread(*place, Filler::Evaluate, number, after));
        }
    }
    let (evaluating, costs) = Layer::new(&kfac.interval[0], &costs, evaluations);
    if evaluating.interval.len() > 1 {
        // Its first step has no room left.
        return vec![kfac];
    }
    let copies = (0..ranks).flat_map(|rank| {
        (0..3).map(move |number| spread(Place { rank, chunk: 0 }, Filler::Copy, number, Vec::new()))
    });
    let (copying, _) = Layer::new(&evaluating.interval[0], &costs, copies.collect());
    assert_eq!(copying.interval.len(), 1, "{kind:?}");
    vec![kfac, evaluating, copying]
}

/// Programs with one unit of one list removed, doubled, or moved to the beginning or the end, and whether such a program must
/// be refused.
fn mutations(layer: &Layer) -> Vec<(String, Vec<Program>, bool)> {
    let mut all = Vec::new();
    for (step, program) in layer.interval.iter().enumerate() {
        for (rank, list) in program.lists.iter().enumerate() {
            for (at, instruction) in list.iter().enumerate() {
                let Instruction::Fill(fill) = instruction else { continue };
                let own = layer.units.iter().find(|unit| {
                    let here = unit.places.contains(&Place { rank, chunk: fill.chunk });
                    here && (unit.filler, unit.number) == (fill.filler, fill.unit)
                });
                let mut changed = |what: &str, refused: bool, change: &dyn Fn(&mut Vec<Instruction>)| {
                    let mut interval = layer.interval.clone();
                    change(&mut interval[step].lists[rank]);
                    if interval[step].lists[rank] != *list {
                        all.push((
                            format!("{what} {instruction}, step {step}, rank {rank}"),
                            interval,
                            refused,
                        ));
                    }
                };
                changed("without", true, &|list| {
                    list.remove(at);
                });
                changed("twice", true, &|list| list.insert(at, *instruction));
                changed("at the end", true, &|list| {
                    let of = list.remove(at);
                    list.push(of);
                });
                // At the beginning of a step, a unit of this kind may stand if it needs nothing of that step.
                let free = own.is_some_and(|unit| {
                    let here = |need: &Need| match need {
                        Need::Unit(other) => {
                            let other = &layer.units[*other];
                            other.places.iter().any(|place| place.rank == rank)
                        }
                        Need::Instruction(_) => step == 0,
                        Need::EndOfStep => false,
                    };
                    unit.when == When::Spread && !unit.after.iter().any(here)
                });
                if !free {
                    changed(
                        "at the beginning",
                        own.is_none_or(|unit| step == 0 || unit.when == When::Update),
                        &|list| {
                            let of = list.remove(at);
                            list.insert(0, of);
                        },
                    );
                }
            }
        }
    }
    all
}

#[test]
fn every_wrong_program_is_refused() {
    for (kind, ranks, micro_batches) in [
        (Kind::GPipe, 2, 4),
        (Kind::OneFOneB, 4, 4),
        (Kind::Interleaved, 2, 4),
        (Kind::ZbH1, 2, 4),
        (Kind::Chimera, 2, 4),
    ] {
        let mut count = 0;
        let layers = layers(kind, ranks, micro_batches);
        assert!(layers.len() == 3 || !matches!(kind, Kind::GPipe | Kind::OneFOneB), "{kind:?}");
        for layer in layers {
            layer.verify(&layer.interval).unwrap();
            for (what, interval, refused) in mutations(&layer) {
                count += usize::from(refused);
                assert!(!refused || layer.verify(&interval).is_err(), "{kind:?}: {what} is accepted");
            }
        }
        assert!(count > 500, "{kind:?}: {count}");
    }
}

/// A step that changes what a checkpoint holds copies nothing behind that.
#[test]
fn a_copy_stands_before_everything_that_changes_the_state() {
    let kfac = &layers(Kind::OneFOneB, 2, 4)[0];
    let changes = |i: &Instruction| matches!(i, Instruction::Fill(fill) if fill.filler.changes_state());
    let changing: Vec<&Program> = kfac.interval.iter().filter(|p| p.lists[0].iter().any(changes)).collect();
    // Sums wait for the end of the first step.
    assert!(!changing.is_empty() && !kfac.interval[0].lists.iter().flatten().any(changes));
    for program in changing {
        let units = [spread(Place { rank: 0, chunk: 0 }, Filler::Copy, 0, Vec::new())];
        let copy = Instruction::Fill(bessemer_schedule::Fill { filler: Filler::Copy, chunk: 0, unit: 0 });
        let at = program.lists[0].iter().position(changes).unwrap();
        for (place, fits) in [(at, true), (at + 1, false)] {
            let mut copying = program.clone();
            copying.lists[0].insert(place, copy);
            let verified = verify_fill(program, &units, &[copying]);
            assert_eq!(verified.is_ok(), fits, "{verified:?}");
        }
    }
}

/// Holders of a stage that invert a factor in different steps would step the same weights differently.
#[test]
fn holders_invert_in_one_step() {
    let kfac = &layers(Kind::Chimera, 2, 4)[0];
    let invert = |i: &Instruction| matches!(i, Instruction::Fill(fill) if fill.filler == Filler::Invert);
    let last = kfac.interval.len() - 1;
    let (step, at) = (0..last)
        .find_map(|step| Some((step, kfac.interval[step].lists[0].iter().position(invert)?)))
        .expect("an inversion before the last step");
    let mut moved = kfac.interval.clone();
    let unit = moved[step].lists[0].remove(at);
    moved[last].lists[0].insert(0, unit);
    assert!(kfac.verify(&moved).unwrap_err().contains("in different steps"));
}
