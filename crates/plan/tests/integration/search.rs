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
    candidates(&question).unwrap()
}

fn gpt() -> Transformer {
    Transformer::gpt(4096, 32, 32, 51_200)
}

#[test]
fn every_layout_is_there_once_and_takes_all_devices() {
    let found = search(gpt(), 16, 64, 1e15);
    assert_eq!((found.evaluated, found.too_large), (found.layouts.len(), 0));
    for (index, one) in found.layouts.iter().enumerate() {
        assert_eq!(one.job.devices(), 16);
        one.job.check().unwrap();
        assert!(found.layouts[..index].iter().all(|other| other.job.layout != one.job.layout));
    }
    // Counted by hand: degrees whose product is 16, micro-batches that divide 64 / data, chunks up to 8 that divide 32 / pipeline
    // where the micro-batches are a multiple of the stages, ZeRO's 4 stages with several copies, 3 ways to recompute, sequence or not.
    let mut count = 0;
    for tensor in [1, 2, 4, 8, 16] {
        for pipeline in [1, 2, 4, 8, 16].into_iter().filter(|p| tensor * p <= 16) {
            let data = 16 / tensor / pipeline;
            for micro_batch in [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|m| (64 / data) % m == 0) {
                let micro_batches = 64 / data / micro_batch;
                let interleaved = pipeline > 1 && micro_batches % pipeline == 0;
                let chunks = if interleaved {
                    [1, 2, 4, 8].iter().filter(|c| (32 / pipeline) % **c == 0).count()
                } else {
                    1
                };
                count += chunks * if data > 1 { 4 } else { 1 } * if tensor > 1 { 2 } else { 1 } * 3;
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
        search(gpt(), 32, 128, memory).layouts.iter().map(|one| one.job.layout).collect()
    };
    let (much, little) = (layouts(80e9), layouts(20e9));
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
            layout.data == 64 && layout.zero == zero && layout.recompute == bessemer_plan::Recompute::Full
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
    let found = search(gpt(), 7, 64, 1e15);
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
    assert!(candidates(&question).unwrap_err().to_string().contains("global batch is 0"));
}
