//! Layouts of a job.

use bessemer_plan::{
    Calibration, Candidates, DataParallel, ElementBytes, Layout, Machine, ParameterBytes, Question,
    Transformer, candidates,
};

const BYTES: ElementBytes = ElementBytes {
    parameters: ParameterBytes { parameter: 2.0, gradient: 2.0, state: 12.0 },
    activation: 2.0,
};

fn search(model: Transformer, devices: usize, global_batch: usize, memory: f64) -> Candidates {
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
                // Nothing, or attention or whole layers of any number of a stage's layers; of all where it has chunks.
                let of_stage = 1 + 2 * (4 / pipeline);
                let whole = of_stage + interleaved.count() * 3;
                let split = if pipeline > 1 { of_stage } else { 0 } + usize::from(split_in_two) * 3;
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
            (layout.data, layout.shard, layout.zero) == (64, 0, zero)
                && layout.recompute == bessemer_plan::Recompute::Full
        };
        let one = found.layouts.iter().find(|one| is(&one.job.layout)).copied().unwrap();
        // Without the activation that waits.
        let parameters = model.layer_parameters() + model.table_parameters();
        (one.least_memory - 2048.0 * 4096.0 * 2.0) / parameters * 7.5
    };
    for (zero, gigabytes) in [
        (DataParallel::Ddp, 120.0),
        (DataParallel::Zero1, 31.4),
        (DataParallel::Zero2, 16.6),
        (DataParallel::Zero3, 1.9),
    ] {
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
    };
    assert!(candidates(&question, |_| true).unwrap_err().to_string().contains("global batch is 0"));
}
