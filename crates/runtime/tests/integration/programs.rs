//! Programs of ranks: the verifier takes those that are made and refuses every mutation of them.

use crate::grids::plane;
use crate::tensor_shards::{
    BLOCKS, EXCHANGED, GATHERED, HELPED, PARTITIONED, ROWS, Sharing, WHOLE, one_sequence, part, ring,
};
use crate::tiny;

use bessemer_arch::{Annotations, Model, ParamLayout, Unit};
use bessemer_mesh::{Axis, ContextOrder, Placement, TensorGrid};
use bessemer_program::{
    CollectiveKind, Home, Node, OFFLOAD_ALIGNMENT, OffloadedValue, UnitMemory, UnitProgram, Value, offloads,
    print, seal, verify,
};
use bessemer_runtime::{ActivationConfig, Decoder, LineStream, Phase, Purpose, Shape, StageConfig, Stream};
use bessemer_tensor::View;
use bessemer_tensor::null::NullBackend;
use bessemer_tensor::op::Access;
use bessemer_test_tier::{Sample, either};
use bessemer_units::{Compression, Offload, Recompute};
use tiny::all_kinds;

/// Rows enough for products in pieces.
const SHAPE: Shape = Shape { sequences: 16, seq: 16, purpose: Purpose::Train };

/// A rank of a layout: (degree, index, sharing, overlap, split backward passes, recomputation).
type LayoutOfRank = (usize, usize, Sharing, bool, bool, Recompute);

fn layouts() -> Vec<LayoutOfRank> {
    let mut all = Vec::new();
    for (degree, index) in [(2, 0), (2, 1), (4, 3)] {
        for stream in [WHOLE, ROWS, GATHERED, EXCHANGED].into_iter().chain(BLOCKS) {
            for (overlap, split, recompute) in [
                (false, false, Recompute::Selective),
                (true, false, Recompute::None),
                (true, true, Recompute::Selective),
                (true, true, Recompute::Full),
            ]
            .into_iter()
            .filter(|(_, _, recompute)| degree == 2 || *recompute != Recompute::Full)
            {
                all.push((degree, index, stream, overlap, split, recompute));
            }
        }
        for (overlap, recompute) in [(false, Recompute::None), (true, Recompute::Full)] {
            all.push((degree, index, PARTITIONED, overlap, overlap, recompute));
        }
    }
    let rows = LineStream::Rows;
    for (index, sharing) in [
        (3, GATHERED.with_line(2, rows)),
        (1, EXCHANGED.with_line(2, rows)),
        (2, ring(ContextOrder::ZigZag).with_line(2, rows)),
        (3, ring(ContextOrder::Striped).with_line(2, LineStream::Whole)),
        (3, HELPED.with_line(2, LineStream::Partitioned)),
        (1, GATHERED.with_heads(2)),
        (3, ring(ContextOrder::ZigZag).with_heads(2)),
    ] {
        for (overlap, recompute) in [(false, Recompute::Selective), (true, Recompute::Full)] {
            all.push((4, index, sharing, overlap, overlap, recompute));
        }
    }
    all
}

/// Whether the model of this number is tried with every mutation in the layout of that number: every fifth, so that each model is tried
/// with each stream in some layout. Programs of blocks are long, and differ little from model to model.
fn is_mutated(kind: usize, at: usize, sharing: Sharing) -> bool {
    let blocks = sharing.context().is_some_and(|context| context.method.by_blocks());
    if blocks { kind.is_multiple_of(12) } else { (kind + at).is_multiple_of(5) }
}

fn decoder(model: &Model, layout: LayoutOfRank) -> Option<Decoder> {
    storing(model, layout, Compression::None, Offload::None)
}

/// A decoder whose layers store activations in this form and this memory.
fn storing(
    model: &Model,
    (degree, index, stream, overlap, split, recompute): LayoutOfRank,
    form: Compression,
    offload: Offload,
) -> Option<Decoder> {
    let tensor_shard = part(model, degree, index, stream)?;
    let shape = if one_sequence(stream) { Shape { sequences: 1, ..SHAPE } } else { SHAPE };
    let stage =
        StageConfig { pending: usize::from(split), overlap, ..StageConfig::whole(&tensor_shard.model) };
    let config = ActivationConfig {
        recompute: recompute.into(),
        compression: form.into(),
        offload: offload.into(),
        ..ActivationConfig::default()
    };
    Some(
        Decoder::of_stage(&mut NullBackend::new(), &tensor_shard, stream.stream, shape, config, &stage, None)
            .unwrap(),
    )
}

#[test]
fn programs_of_every_layout_are_accepted() {
    let (mut held, mut sample) = (0, Sample::one_in(5));
    for (label, model) in all_kinds() {
        for layout in layouts() {
            let model = Model { dropout: if layout.3 { 0.1 } else { 0.0 }, ..model.clone() };
            for form in [Compression::None, Compression::Bf16, Compression::Int8] {
                let offload = if form == Compression::Bf16 { Offload::None } else { Offload::Disk };
                for offload in
                    [Offload::None, offload].into_iter().take(1 + usize::from(offload != Offload::None))
                {
                    if sample.takes()
                        && let Some(d) = storing(&model, layout, form, offload)
                    {
                        d.verify().unwrap_or_else(|e| panic!("{label} {layout:?} {form} {offload}: {e}"));
                        held += 1;
                    }
                }
            }
        }
    }
    assert!(held > 200, "{held}");
}

/// Whether a collective that started before node `at` is waited for after it, and writes rows of the value of `view`.
fn is_coming(list: &[Node], at: usize, view: &View) -> bool {
    let started = |id| list[..at].iter().any(|node| matches!(node, Node::Start(c) if c.id == id));
    list[at..].iter().any(|node| match node {
        Node::Wait { id, dst, .. } => dst.buffer == view.buffer && dst.rows > 0 && started(*id),
        _ => false,
    })
}

/// Programs that differ from this one in one place, with the change: those that the sample takes.
fn mutants(unit: &UnitProgram, phase: Phase, sample: &mut Sample) -> Vec<(String, UnitProgram)> {
    let list = unit.list(phase);
    let mut all = Vec::new();
    let mut with = |what: String, change: &dyn Fn(&mut Vec<Node>)| {
        if !sample.takes() {
            return;
        }
        let mut mutant = unit.clone();
        change(&mut mutant.lists[phase as usize]);
        all.push((what, mutant));
    };
    for (at, node) in list.iter().enumerate() {
        match node {
            Node::Collective(c) | Node::Start(c) => {
                with(format!("{at}: {} of {} removed", c.kind.name(), c.name), &|l| drop(l.remove(at)));
                with(format!("{at}: {} of {} doubled", c.kind.name(), c.name), &|l| {
                    l.insert(at, list[at].clone())
                });
                let twin = |id: usize| {
                    let value = &unit.values[id];
                    (0..unit.values.len()).filter(move |o| {
                        let other = &unit.values[*o];
                        *o != id
                            && (other.rows, other.cols, other.dtype) == (value.rows, value.cols, value.dtype)
                    })
                };
                for other in twin(c.src.buffer.id as usize) {
                    let name = &unit.values[other].name;
                    with(format!("{at}: {} of {} reads {name}", c.kind.name(), c.name), &|l| {
                        if let Node::Collective(c) | Node::Start(c) = &mut l[at] {
                            let same = c.src == c.dst;
                            c.src.buffer.id = other as u32;
                            if same {
                                c.dst = c.src;
                            }
                        }
                    });
                }
                for other in twin(c.dst.buffer.id as usize).filter(|_| c.src != c.dst) {
                    let name = &unit.values[other].name;
                    with(format!("{at}: {} of {} writes {name}", c.kind.name(), c.name), &|l| {
                        if let Node::Collective(c) | Node::Start(c) = &mut l[at] {
                            c.dst.buffer.id = other as u32;
                        }
                    });
                }
            }
            Node::Offload(moved) | Node::Reload(moved) => {
                let name = &unit.values[moved.value()].name;
                with(format!("{at}: transfer of {name} removed"), &|l| drop(l.remove(at)));
                with(format!("{at}: transfer of {name} doubled"), &|l| l.insert(at, list[at].clone()));
                let change = |l: &mut Vec<Node>, change: &dyn Fn(&mut OffloadedValue)| {
                    if let Node::Offload(moved) | Node::Reload(moved) = &mut l[at] {
                        change(moved);
                    }
                };
                with(format!("{at}: {name} elsewhere in the second memory"), &|l| {
                    change(l, &|moved| moved.offset += OFFLOAD_ALIGNMENT / 2);
                });
                with(format!("{at}: a row less of {name}"), &|l| change(l, &|moved| moved.view.rows -= 1));
                let value = &unit.values[moved.value()];
                let alike = |v: &Value| (v.rows, v.cols, v.dtype) == (value.rows, value.cols, value.dtype);
                for other in (0..unit.values.len()).filter(|o| *o != moved.value() && alike(&unit.values[*o]))
                {
                    let other_name = &unit.values[other].name;
                    with(format!("{at}: transfer of {other_name} instead of {name}"), &|l| {
                        change(l, &|moved| moved.view.buffer.id = other as u32);
                    });
                }
                let users = |node: &Node| node.touches().iter().any(|t| t.value() == moved.value());
                match node {
                    // Before the last node that writes the value, or after its first reader.
                    Node::Offload(_) => {
                        let writes = |node: &Node| {
                            let mut touches = node.touches().into_iter();
                            touches.any(|t| t.value() == moved.value() && t.access != Access::Read)
                        };
                        if let Some(last) = list[..at].iter().rposition(writes) {
                            with(format!("{at}: {name} leaves before {last}"), &|l| {
                                let node = l.remove(at);
                                l.insert(last, node);
                            });
                        }
                    }
                    Node::Reload(_) => {
                        let reader = at + 1 + list[at + 1..].iter().position(users).unwrap_or(0);
                        with(format!("{at}: {name} comes behind {reader}"), &|l| {
                            let node = l.remove(at);
                            l.insert(reader, node);
                        });
                    }
                    _ => {}
                }
            }
            Node::Wait { id, .. } => with(format!("{at}: wait for {id} removed"), &|l| drop(l.remove(at))),
            Node::Launch(launch) if ["quantise", "dequantise"].contains(&launch.op.name()) => {
                with(format!("{at}: {} removed", launch.op.name()), &|l| drop(l.remove(at)));
            }
            // Reads the rest of an operand's rows too, some of which are in flight.
            Node::Launch(_) => {
                for read in node.touches().into_iter().filter(|touch| touch.access == Access::Read) {
                    let value = &unit.values[read.value()];
                    let rest = value.rows - read.view.offset / value.cols.max(1);
                    if read.view.rows < rest && is_coming(list, at, &read.view) {
                        let name = &value.name;
                        with(format!("{at}: all rows of {name} are read before they are there"), &|l| {
                            l[at].for_each_view(&mut |view| {
                                view.rows = if *view == read.view { rest } else { view.rows };
                            });
                        });
                    }
                }
            }
        }
        // Swaps neighbours, one of which writes what the other touches.
        if let Some(next) = list.get(at + 1) {
            let (a, b) = (node.touches(), next.touches());
            let depend = a.iter().any(|x| {
                b.iter().any(|y| {
                    let writes = x.access != Access::Read || y.access != Access::Read;
                    writes && x.view.overlaps(&y.view)
                })
            });
            if depend {
                with(format!("{at}: exchanged with the next"), &|l| l.swap(at, at + 1));
            }
        }
    }
    all
}

pub(crate) fn refuse(
    what: &str,
    d: &Decoder,
    (unit, program, memory): (Unit, &UnitProgram, &UnitMemory),
    sample: &mut Sample,
) -> usize {
    let mut count = 0;
    for &phase in d.phases() {
        for (mutation, mutant) in mutants(program, phase, sample) {
            let verdict = verify(&mutant, memory, d.phases(), d.ranks());
            let Err(e) = verdict else { panic!("{what} {unit:?} {}: {mutation} is accepted", phase.name()) };
            assert!(program.values.iter().any(|v| v.name == e.value), "{e}");
            count += 1;
        }
    }
    count
}

#[test]
fn every_mutation_of_a_program_is_refused_by_name() {
    let kinds = all_kinds();
    let (mut count, sample) = (0, &mut Sample::one_in(6));
    for (at, layout) in layouts().into_iter().enumerate() {
        let mutated = |(kind, _): &(usize, _)| is_mutated(*kind, at, layout.2);
        for (_, (label, model)) in kinds.iter().enumerate().filter(mutated) {
            // One layer is as good as another.
            let Some(d) = decoder(&Model { layers: 1, ..model.clone() }, layout) else { continue };
            for program in d.programs() {
                count += refuse(&format!("{label} {layout:?}"), &d, program, sample);
            }
        }
    }
    assert!(count > either(1_600, 10_000), "{count}");
}

/// Compression adds nodes of its own to a layer, the same for all kinds of models.
#[test]
fn every_mutation_of_a_compressed_layer_is_refused_by_name() {
    let (label, model) = all_kinds().into_iter().next().unwrap();
    let (mut count, sample) = (0, &mut Sample::one_in(2));
    for layout in layouts().into_iter().filter(|layout| (layout.0, layout.1) == (2, 0)) {
        let layer = Model { layers: 1, ..model.clone() };
        let Some(d) = storing(&layer, layout, Compression::Int8, Offload::None) else { continue };
        let layer = d.programs().find(|p| matches!(p.0, Unit::Layer(_))).unwrap();
        let launches = |op: &str| {
            let nodes = d.phases().iter().flat_map(|phase| layer.1.list(*phase)).filter_map(Node::op);
            nodes.filter(|found| found.name() == op).count()
        };
        assert!(launches("quantise") > 0 && launches("dequantise") > 0, "{layout:?}");
        count += refuse(&format!("{label} {layout:?}"), &d, layer, sample);
    }
    assert!(count > either(100, 200), "{count}");
}

/// Offloading adds nodes of its own to a layer. The moved values are uncompressed, or compressed.
#[test]
fn every_mutation_of_an_offloaded_layer_is_refused_by_name() {
    let (label, model) = all_kinds().into_iter().next().unwrap();
    let (mut count, sample) = (0, &mut Sample::one_in(4));
    for layout in layouts().into_iter().filter(|layout| (layout.0, layout.1) == (2, 0)) {
        for form in [Compression::None, Compression::Int8] {
            let layer = Model { layers: 1, ..model.clone() };
            let Some(d) = storing(&layer, layout, form, Offload::Disk) else { continue };
            let layer = d.programs().find(|p| matches!(p.0, Unit::Layer(_))).unwrap();
            let saved = layer.2.homes.iter().filter(|home| matches!(home, Home::Saved | Home::Kept)).count();
            assert_eq!(saved, 0, "{layout:?} {form}: everything waits in the second memory");
            assert!(offloads(layer.1).count() > 0, "{layout:?}");
            count += refuse(&format!("{label} {layout:?} {form}"), &d, layer, sample);
        }
    }
    assert!(count > either(100, 400), "{count}");
}

/// Rank `index` of two, with these parameters on both.
fn annotated(model: &Model, index: usize, stream: Stream, patterns: &[&str], shape: Shape) -> Decoder {
    let replicate = |pattern: &&str| ((*pattern).to_owned(), ParamLayout::Replicate);
    let annotations = Annotations(patterns.iter().map(replicate).collect());
    let shardings = model.annotated_shardings(&annotations, stream == Stream::ROWS).unwrap();
    let part = model.tensor_shard_of(shardings, 2, index).unwrap();
    let (config, stage) = (ActivationConfig::default(), StageConfig::whole(&part.model));
    Decoder::of_stage(&mut NullBackend::new(), &part, stream, shape, config, &stage, None).unwrap()
}

#[test]
fn every_mutation_of_an_annotated_program_is_refused_by_name() {
    let (mut count, sample) = (0, &mut Sample::one_in(4));
    for (label, model) in all_kinds() {
        let model = Model { layers: 1, ..model };
        if model.tensor_shard(2, 0).is_err() {
            continue;
        }
        for (stream, patterns) in [
            (Stream::ROWS, &["*.mlp.*"][..]),
            (Stream::WHOLE, &["*.attention.*", "embed.tokens"]),
            (Stream::WHOLE, &["*.mlp.*"]),
        ] {
            let d = annotated(&model, 1, stream, patterns, SHAPE);
            d.verify().unwrap_or_else(|e| panic!("{label} {stream:?} {patterns:?}: {e}"));
            for program in d.programs() {
                count += refuse(&format!("{label} {stream:?} {patterns:?}"), &d, program, sample);
            }
        }
    }
    assert!(count > either(125, 500), "{count}");
}

/// A matrix that is sharded along the width of the residual stream: the error names the recipe key that is wrong.
#[test]
fn a_layout_conflict_names_the_recipe_key() {
    let (_, model) = all_kinds().swap_remove(0);
    let mut shardings = model.shardings();
    let down = shardings.iter_mut().find(|s| s.spec.name == "layers.0.mlp.down.weight").unwrap();
    down.layout = down.layout.with(Axis::Tensor, Placement::Shard { dim: 0 });
    let part = model.tensor_shard_of(shardings, 2, 0).unwrap();
    let (config, stage) = (ActivationConfig::default(), StageConfig::whole(&part.model));
    let decoder =
        Decoder::of_stage(&mut NullBackend::new(), &part, Stream::WHOLE, SHAPE, config, &stage, None);
    let e = decoder.map(drop).unwrap_err().to_string();
    for words in ["linear", "over the tensor axis", "change parallel.annotate.\"layers.0.mlp.down.weight\""] {
        assert!(e.contains(words), "{words} is missing in {e}");
    }
}

/// A bias that every rank adds to its term, and a mask that begins elsewhere, are no matter of order.
#[test]
fn an_operand_on_every_rank_is_refused() {
    let (_, model) = all_kinds().swap_remove(0);
    let layout = (2, 1, WHOLE, false, false, Recompute::Selective);
    let (first, second) =
        (decoder(&model, (2, 0, layout.2, false, false, layout.5)), decoder(&model, layout));
    let (first, second) = (first.unwrap(), second.unwrap());
    let layer = |d: &Decoder| d.programs().nth(1).map(|(_, p, m)| (p.clone(), m.clone())).unwrap();
    let ((with_bias, _), (mut program, memory)) = (layer(&first), layer(&second));
    let down = |p: &UnitProgram| {
        p.list(Phase::Forward).iter().rposition(|n| n.op().is_some_and(|o| o.name() == "linear"))
    };
    let at = down(&program).unwrap();
    program.lists[Phase::Forward as usize][at] =
        with_bias.list(Phase::Forward)[down(&with_bias).unwrap()].clone();
    let e = verify(&program, &memory, second.phases(), second.ranks()).unwrap_err().to_string();
    assert!(e.contains("mlp.down.bias is added by more than one rank"), "{e}");
}

/// Checks programs without the versions of a sealed program, from the operators' rules alone: a reduction or a gather that is left out, a
/// reduction that is made twice, a wait that is left out.
#[test]
fn collectives_that_are_missing_or_doubled_break_the_rules() {
    let (mut count, sample) = (0, &mut Sample::one_in(4));
    for (at, layout) in layouts().into_iter().enumerate() {
        let mutated = |(kind, _): &(usize, _)| is_mutated(*kind, at, layout.2);
        for (_, (label, model)) in all_kinds().into_iter().enumerate().filter(mutated) {
            let Some(d) = decoder(&Model { layers: 1, ..model }, layout) else { continue };
            for (unit, program, memory) in d.programs() {
                for &phase in d.phases() {
                    for (mutation, mut mutant) in mutants(program, phase, sample) {
                        // Rows may be gathered twice, and exchanged for columns.
                        let kinds = [CollectiveKind::AllGather, CollectiveKind::AllToAll];
                        let twice = kinds.iter().any(|kind| mutation.contains(kind.name()))
                            && mutation.ends_with("doubled");
                        if twice || !(mutation.ends_with("removed") || mutation.ends_with("doubled")) {
                            continue;
                        }
                        seal(&mut mutant);
                        let verdict = verify(&mutant, memory, d.phases(), d.ranks());
                        assert!(verdict.is_err(), "{label} {layout:?} {unit:?} {}: {mutation}", phase.name());
                        count += 1;
                    }
                }
            }
        }
    }
    assert!(count > either(500, 2_000), "{count}");
}

/// Holds text against a file under `tests/golden`; with `BESSEMER_GOLDEN=write` writes it.
fn check(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var("BESSEMER_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == text,
        "{path} differs; if that is meant: BESSEMER_GOLDEN=write cargo test -p bessemer-runtime --test integration printed"
    );
}

/// Text for reviewers: a layer of GPT-2 and of Llama on one device, and on a rank of two in several layouts.
#[test]
fn printed_programs_are_the_golden_files() {
    for name in ["gpt2-124m", "llama-1b"] {
        let model = Model { layers: 2, ..bessemer_arch::named(name).unwrap() };
        let none = Recompute::None;
        let shape = Shape { sequences: 1, seq: 1024, purpose: Purpose::Train };
        for (what, layout) in [
            ("one-device", (1, 0, WHOLE, false, false, none)),
            ("recompute", (1, 0, WHOLE, false, false, Recompute::Selective)),
            ("tensor", (2, 0, WHOLE, false, false, none)),
            ("tensor-partitioned", (2, 0, PARTITIONED, false, false, Recompute::Full)),
            ("sequence", (2, 0, ROWS, false, false, none)),
            ("sequence-recompute-full", (2, 0, ROWS, false, false, Recompute::Full)),
            ("context", (2, 1, GATHERED, false, false, none)),
            ("context-ulysses", (2, 1, EXCHANGED, false, false, none)),
            ("context-ring", (4, 2, ring(ContextOrder::ZigZag), false, false, none)),
            ("context-lightseq", (4, 3, HELPED, false, false, none)),
            (
                "context-tensor",
                (4, 3, ring(ContextOrder::ZigZag).with_line(2, LineStream::Rows), false, false, none),
            ),
            ("context-heads", (4, 3, ring(ContextOrder::ZigZag).with_heads(2), false, false, none)),
            ("context-tensor-ulysses", (4, 3, EXCHANGED.with_line(2, LineStream::Whole), false, false, none)),
            ("sequence-overlap", (2, 0, ROWS, true, false, none)),
            ("split", (1, 0, WHOLE, false, true, none)),
        ] {
            let (degree, index, stream, overlap, split, recompute) = layout;
            let tensor_shard = part(&model, degree, index, stream).unwrap();
            let stage = StageConfig {
                pending: usize::from(split),
                overlap,
                ..StageConfig::whole(&tensor_shard.model)
            };
            let config = ActivationConfig { recompute: recompute.into(), ..ActivationConfig::default() };
            let d = Decoder::of_stage(
                &mut NullBackend::new(),
                &tensor_shard,
                stream.stream,
                shape,
                config,
                &stage,
                None,
            )
            .unwrap();
            let (_, program, memory) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
            let wanted = |p: &&Phase| **p != Phase::Score && (!split || **p != Phase::Backward);
            let texts: Vec<String> =
                d.phases().iter().filter(wanted).map(|p| print(program, memory, *p, d.ranks())).collect();
            check(&format!("{name}-{what}"), &texts.join("\n"));
        }
        let tensor_shard = part(&model, 2, 0, ROWS).unwrap();
        let config =
            ActivationConfig { compression: Compression::Int8.into(), ..ActivationConfig::default() };
        let stage = StageConfig::whole(&tensor_shard.model);
        let d = Decoder::of_stage(
            &mut NullBackend::new(),
            &tensor_shard,
            Stream::ROWS,
            shape,
            config,
            &stage,
            None,
        )
        .unwrap();
        let (_, program, memory) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
        let of = |phase: Phase| print(program, memory, phase, d.ranks());
        check(&format!("{name}-sequence-int8"), &[of(Phase::Forward), of(Phase::Backward)].join("\n"));
        for (what, grid, rank) in [("grid", plane(2, 2, 1), 3), ("cube", TensorGrid::Cube { side: 2 }, 0)] {
            let part = model.grid_shard(grid, rank).unwrap();
            let (stage, config) = (StageConfig::whole(&part.model), ActivationConfig::default());
            let shape = Shape { sequences: 4, ..shape };
            let null = &mut NullBackend::new();
            let d = Decoder::of_stage(null, &part, Stream::WHOLE, shape, config, &stage, None).unwrap();
            let (_, program, memory) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
            let of = |phase: Phase| print(program, memory, phase, d.ranks());
            check(&format!("{name}-{what}"), &[of(Phase::Forward), of(Phase::Backward)].join("\n"));
        }
        let d = annotated(&model, 0, Stream::ROWS, &["layers.0.mlp.*"], shape);
        let (_, program, memory) = d.programs().find(|p| p.0 == Unit::Layer(0)).unwrap();
        let of = |phase: Phase| print(program, memory, phase, d.ranks());
        check(&format!("{name}-sequence-annotated"), &[of(Phase::Forward), of(Phase::Backward)].join("\n"));
    }
}
