//! A dry run takes little memory, however large the model and the buffers of its collectives are: it counts them and allocates
//! nothing. The peak is that of a process of its own: the child is this test program itself, started with the ignored test `child`.

use bessemer_optim::OptimConfig;
use bessemer_parallel::{Job, MemoryPlan, ParallelConfig, Plan, Stage};
use bessemer_runtime::{ActivationConfig, Purpose, Shape};
use bessemer_units::ParamStorage;
use std::process::Command;

const CHILD: &str = "BESSEMER_TEST_DRY_RUN";
/// Address space of a dry run, the test program with its threads included. The buffers that it counts take more.
const MOST_KIB: u64 = 2 << 20;

#[test]
#[ignore = "the process that the other test starts"]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    // The shape of Llama 3 405B.
    let mut model = bessemer_arch::named("llama2-70b").unwrap();
    (model.layers, model.width, model.heads, model.kv_heads) = (126, 16384, 128, 8);
    (model.ffn_width, model.vocab_size, model.context) = (53248, 128_256, 8192);
    let optim = OptimConfig::default();
    let parallel = ParallelConfig {
        stage: Stage::Zero3,
        tensor: 8.into(),
        sequence: true,
        pipeline: 2,
        values_in_flight: 128,
        gradients_in_flight: 128,
        ..ParallelConfig::default()
    };
    let plan = Plan::new(&parallel, 16384, &model, optim.optimizer).unwrap();
    let job = Job {
        model: &model,
        shape: Shape { sequences: 1, seq: 8192, purpose: Purpose::Train },
        activations: ActivationConfig::default(),
        types: ParamStorage::default(),
        optim: &optim,
        losses: &[],
        plan: &plan,
        program: &plan.program(8, 1, None).unwrap(),
    };
    let planned = MemoryPlan::of_rank(&job, None, None).unwrap();
    // Pieces of 2^23 elements in f32, most of the pieces in flight.
    assert!(planned.class("in-flight buffers").0 > 4 << 30, "{:?}", planned.buffers);
}

#[test]
fn a_dry_run_of_405_billion_parameters_takes_little_memory() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "large_dry_run::child", "--ignored", "--quiet"]).env(CHILD, "1");
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let code = loop {
        if let Ok(text) = std::fs::read_to_string(&status)
            && let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmPeak:"))
        {
            peak = peak.max(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
        }
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(code.success() && peak > 0, "{code}");
    assert!(peak < MOST_KIB, "the dry run held {peak} KiB");
}
