//! Layouts of a job.

use bessemer_mesh::TensorGrid;
use bessemer_plan::{
    Calibration, Candidates, ElementBytes, Layout, Machine, ParameterBytes, Question, Recompute, Transformer,
    ZeroStage, candidates, grids,
};

const BYTES: ElementBytes = ElementBytes {
    parameters: ParameterBytes { parameter: 2.0, gradient: 2.0, state: 12.0 },
    activation: 2.0,
    tables: 1.0,
};

fn search(model: Transformer, devices: usize, global_batch: usize, memory: f64) -> Candidates {
    search_with(model, devices, global_batch, memory, &[])
}

fn search_with(
    model: Transformer,
    devices: usize,
    global_batch: usize,
    memory: f64,
    grids: &[TensorGrid],
) -> Candidates {
    let machine = Machine { memory, ..Machine::named("a100-80gb").unwrap() };
    let calibration = Calibration::none();
    let question = Question {
        model,
        seq: 2048,
        global_batch,
        devices,
        machine: &machine,
        calibration: &calibration,
        bytes: BYTES,
        grids,
        splits: &[],
        samples: 0.0,
    };
    candidates(&question, |_| true).unwrap()
}

fn gpt() -> Transformer {
    Transformer::gpt(4096, 32, 32, 51_200)
}

fn small() -> Transformer {
    Transformer::gpt(512, 8, 4, 51_200)
}

/// Counted by hand: degrees whose product is 16, with each what may be chosen beside it.
#[test]
fn every_layout_is_there_once_and_takes_all_devices() {
    let found = search(small(), 16, 64, 1e15);
    assert_eq!((found.evaluated, found.too_large), (found.layouts.len(), 0));
    for (index, one) in found.layouts.iter().enumerate() {
        assert_eq!(one.job.devices(), 16);
        one.job.check().unwrap();
        assert!(found.layouts[..index].iter().all(|other| other.job.layout != one.job.layout));
    }
    let powers = [1, 2, 4, 8, 16, 32, 64];
    let mut count = 0;
    for (tensor, context) in powers.iter().flat_map(|t| powers.map(|c| (*t, c))) {
        for pipeline in powers.into_iter().filter(|p| tensor * context * p <= 16) {
            let data = 16 / tensor / context / pipeline;
            if tensor > 8 || pipeline > 4 {
                continue;
            }
            for micro_batch in powers.into_iter().filter(|m| (64 / data) % m == 0) {
                let micro_batches = 64 / data / micro_batch;
                // All-gather and ring take one sequence at a time, heads are exchanged where each rank has some.
                let methods = match context {
                    1 => 1,
                    _ => usize::from(micro_batch == 1) * 2 + usize::from((8 / tensor) % context == 0),
                };
                // Chunks of equal length where the stages divide the micro-batches; ZB-H1 always, ZB-V in two chunks.
                let interleaved = [2, 4]
                    .iter()
                    .filter(|c| pipeline > 1 && micro_batches % pipeline == 0 && 4 % (pipeline * **c) == 0);
                let split_in_two = pipeline > 1 && 4 % (2 * pipeline) == 0 && micro_batches >= 2 * pipeline;
                // Nothing, or one of four kinds of recomputation in any number of a stage's layers; in all where it has chunks.
                let of_stage = 1 + 4 * (4 / pipeline);
                let whole = of_stage + interleaved.count() * 5;
                let split = if pipeline > 1 { of_stage } else { 0 } + usize::from(split_in_two) * 5;
                // ZeRO's groups are all data-parallel ranks, or those of a node; gradients of split passes are kept whole.
                let within = 8 / (tensor * context).min(8);
                let groups = if within > 1 && within < data { 2 } else { 1 };
                let copies = |stages: usize| if data > 1 { 1 + stages * groups } else { 1 };
                let schedules = whole * copies(3) + split * copies(1);
                count += methods * schedules * if tensor > 1 { 2 } else { 1 };
            }
        }
    }
    assert_eq!(found.evaluated, count);
}

#[test]
fn the_fastest_is_first() {
    let found = search(gpt(), 64, 256, 80e9);
    assert!(found.too_large > 0);
    assert!(found.layouts.windows(2).all(|pair| pair[0].time.total <= pair[1].time.total));
    assert!(found.layouts.iter().all(|one| one.least_memory <= 80e9));
    assert!(found.smallest.unwrap().least_memory <= found.layouts[0].least_memory);
}

#[test]
fn less_memory_admits_no_more_layouts() {
    let layouts = |memory| -> Vec<Layout> {
        search(small(), 32, 128, memory).layouts.iter().map(|one| one.job.layout).collect()
    };
    let (much, little) = (layouts(8e9), layouts(2e8));
    assert!(little.len() < much.len() && !little.is_empty());
    assert!(little.iter().all(|layout| much.contains(layout)));
    assert!(layouts(1e6).is_empty());
}

#[test]
fn states_are_those_of_the_paper() {
    // Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 devices, bytes of a parameter 2 + 2 + 12.
    let model = Transformer { layers: 1, ..gpt() };
    let of = |zero| {
        let found = search(model, 64, 64, 1e15);
        let is = |layout: &Layout| {
            (layout.data, layout.shard, layout.zero) == (64, 0, zero) && layout.recompute == Recompute::Full
        };
        let one = found.layouts.iter().find(|one| is(&one.job.layout)).copied().unwrap();
        // Without the activation that waits, and what is whole while the layer is at work.
        let parameters = model.layer_parameters() + model.table_parameters();
        let whole = match zero {
            ZeroStage::Ddp | ZeroStage::Zero1 => 0.0,
            ZeroStage::Zero2 => 2.0 * model.layer_parameters(),
            ZeroStage::Zero3 => 4.0 * model.layer_parameters(),
        };
        // The input that waits, unless it lies in gradients, and the values that are computed again: 34 bytes for each column without
        // scores and masks.
        let waits = if matches!(zero, ZeroStage::Ddp | ZeroStage::Zero1) { 0.0 } else { 2.0 };
        let values = 2048.0 * 4096.0 * (waits + 30.0);
        (one.least_memory - whole - values) / parameters * 7.5
    };
    for (zero, gigabytes) in
        [(ZeroStage::Ddp, 120.0), (ZeroStage::Zero1, 31.4), (ZeroStage::Zero2, 16.6), (ZeroStage::Zero3, 1.9)]
    {
        assert!((of(zero) - gigabytes).abs() < 0.05, "{zero:?}: {}", of(zero));
    }
}

#[test]
fn what_does_not_divide_has_no_layout() {
    let found = search(gpt(), 67, 64, 1e15);
    assert_eq!((found.evaluated, found.smallest), (0, None));
    let machine = Machine::named("a100-80gb").unwrap();
    let calibration = Calibration::none();
    let question = Question {
        model: gpt(),
        seq: 2048,
        global_batch: 0,
        devices: 8,
        machine: &machine,
        calibration: &calibration,
        bytes: BYTES,
        grids: &[],
        splits: &[],
        samples: 0.0,
    };
    assert!(candidates(&question, |_| true).unwrap_err().to_string().contains("global batch is 0"));
}

/// Planes of at least 2 x 2 ranks and the cube, with sequences and heads that they divide, and nothing that they refuse.
#[test]
fn grids_stand_beside_lines() {
    let plane = |rows, columns, depth| TensorGrid::Plane { rows, columns, depth };
    let all = grids(8);
    assert_eq!(
        all,
        [plane(2, 2, 1), plane(2, 2, 2), plane(2, 4, 1), plane(4, 2, 1), TensorGrid::Cube { side: 2 }]
    );
    let (lines, found) = (search(small(), 8, 32, 1e15), search_with(small(), 8, 32, 1e15, &all));
    let of_grids = found.layouts.iter().filter(|one| one.job.layout.grid.is_some());
    assert_eq!(found.layouts.len(), lines.layouts.len() + of_grids.clone().count());
    for one in of_grids {
        one.job.check().unwrap();
        let Layout { grid, tensor, micro_batch, context, sequence, schedule, .. } = one.job.layout;
        let grid = grid.unwrap();
        assert_eq!((one.job.devices(), grid.ranks()), (8, tensor));
        assert!(micro_batch % grid.sequence_parts() == 0 && context == 1 && !sequence);
        assert_eq!(schedule, bessemer_plan::PipelineSchedule::OneFOneB);
        assert!(one.time.tensor > 0.0);
    }
    for grid in all {
        assert!(found.layouts.iter().any(|one| one.job.layout.grid == Some(grid)), "{grid}");
    }
    // Three ranks along the line would divide no head.
    assert!(search_with(small(), 6, 24, 1e15, &grids(6)).layouts.iter().all(
        |one| match one.job.layout.grid {
            Some(grid) => grid.degree(grid.line()) == 2,
            None => true,
        }
    ));
}

/// Of one layout that differs in what it computes again, more recomputation takes longer and holds no more.
#[test]
fn kinds_of_recomputation_trade_time_for_memory() {
    let found = search(small(), 1, 8, 1e15);
    let of = |recompute| {
        let is =
            |layout: &Layout| (layout.recompute, layout.recomputed, layout.micro_batch) == (recompute, 0, 8);
        found.layouts.iter().find(|one| is(&one.job.layout)).copied().unwrap()
    };
    let kinds = Recompute::ALL.map(of);
    assert!(kinds.windows(2).all(|pair| pair[0].time.total < pair[1].time.total), "{kinds:?}");
    assert!(kinds.windows(2).all(|pair| pair[0].least_memory >= pair[1].least_memory));
    let expected = kinds.map(|one| bessemer_plan::expected_memory(&one.job));
    assert!(expected.windows(2).all(|pair| pair[0] > pair[1]), "{expected:?}");
}

/// Worked out by hand: 4 tensor-parallel ranks, 2 shards and 2 stages on nodes of 8 hold all of the first and one of the other groups, or 2 of
/// each.
#[test]
fn orders_differ_in_what_a_node_holds() {
    use bessemer_plan::Axis;
    let layout = Layout { tensor: 4, data: 2, pipeline: 2, zero: ZeroStage::Zero1, ..Layout::default() };
    let others = layout.other_orders(8);
    assert_eq!(others.len(), 2, "{others:?}");
    let place = |order: &[Axis; 5], axis| order.iter().position(|other| *other == axis).unwrap();
    let [stages_inside, halves] = [&others[0], &others[1]];
    assert!(place(stages_inside, Axis::Pipeline) < place(stages_inside, Axis::Shard));
    assert!(place(halves, Axis::Tensor) > place(halves, Axis::Pipeline).max(place(halves, Axis::Shard)));
    // A node that holds all, or one rank, holds it in any order.
    assert!(layout.other_orders(16).is_empty() && layout.other_orders(1).is_empty());
}

/// Rates of the search; `cargo test --release -p bessemer-plan --test integration speed_of -- --ignored --nocapture`.
#[test]
#[ignore = "prints times"]
fn speed_of_the_search() {
    let models = [
        ("175B", Transformer::gpt(12_288, 96, 96, 51_200), 512, 3072),
        (
            "405B",
            Transformer {
                kv_heads: 8,
                ffn_width: 53_248,
                gated: true,
                ..Transformer::gpt(16_384, 128, 126, 128_256)
            },
            16_384,
            2048,
        ),
    ];
    for (name, model, devices, batch) in models {
        for grids in [Vec::new(), grids(devices)] {
            let begun = std::time::Instant::now();
            let found = search_with(model, devices, batch, 80e9, &grids);
            let seconds = begun.elapsed().as_secs_f64();
            println!(
                "{name} on {devices}, {} grids: {} layouts, {} too large, in {seconds:.2} s: {:.2} million a second",
                grids.len(),
                found.evaluated,
                found.too_large,
                found.evaluated as f64 / seconds / 1e6
            );
        }
    }
}
