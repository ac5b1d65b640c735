//! `bessemer bench`: speed, measured between two probes of the arithmetic peak.

use crate::cli::BenchCommand;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::machine;
use bessemer_arch::ModelConfig;
use bessemer_kernels_cpu::{CpuBackend, CpuConfig, peak};
use bessemer_model::{Decoder, Purpose, Shape, StepContext, TokenBatch};
use bessemer_optim::{AdamW, OptimConfig, OptimParam};
use bessemer_tensor::rng::RngKey;
use bessemer_train::MemoryPlan;
use bessemer_units::Bytes;
use serde_json::json;
use std::time::Instant;

pub(crate) fn run(command: &BenchCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let BenchCommand::Step { model, batch, seq, vocab, threads, steps } = command;
    let vocab_size = match vocab {
        0 => bessemer_arch::named(model).map_or(0, |m| m.vocab_size),
        v => *v,
    };
    let model =
        ModelConfig { architecture: model.clone(), ..ModelConfig::default() }.resolve(Some(vocab_size))?;
    let shape = Shape { sequences: *batch, seq: *seq, purpose: Purpose::Train };
    let optim = OptimConfig { lr: 3e-4, beta2: 0.95, ..OptimConfig::default() };
    MemoryPlan::new(&model, shape, &optim)?.fits(machine::available_memory())?;
    let threads = machine::threads(*threads as u64);
    let before = peak::measure(threads)?;
    let mut backend = CpuBackend::new(CpuConfig { threads, ..CpuConfig::default() })?;
    let mut decoder = Decoder::new(&mut backend, &model, shape)?;
    let params: Vec<OptimParam> = decoder
        .params()
        .iter()
        .filter_map(|p| {
            Some(OptimParam {
                name: p.spec.name.clone(),
                value: p.value,
                grad: p.grad?,
                decays: p.spec.decays(),
            })
        })
        .collect();
    let mut adamw = AdamW::new(&mut backend, &params, &optim)?;
    decoder.init(&mut backend, 0)?;

    let tokens = batch * seq;
    let key = RngKey::new(0, 0, "bench.tokens");
    let stream: Vec<u32> = (0..=tokens as u64).map(|i| key.block(i)[0] % vocab_size as u32).collect();
    let data = TokenBatch { ids: &stream[..tokens], targets: &stream[1..], positions: None };
    let (mut losses, mut seconds) = (Vec::new(), Vec::new());
    for step in 0..=*steps {
        let begun = Instant::now();
        let context = StepContext {
            seed: 0,
            step,
            first_sequence: 0,
            loss_scale: 1.0 / tokens as f32,
            accumulate: false,
        };
        let loss = decoder.forward_backward(&mut backend, &data, &context)?;
        adamw.step(&mut backend, step + 1, optim.lr)?;
        let took = begun.elapsed().as_secs_f64();
        console.say(&format!("step {step}: loss {:.4}, {:.0} tokens/s", loss.mean(), tokens as f64 / took));
        losses.push(loss.mean());
        // The first step touches memory for the first time.
        if step > 0 {
            seconds.push(took);
        }
    }
    let after = peak::measure(threads)?;
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
    let flops = model.train_flops_per_token(*seq).0 * tokens as f64;
    let result = json!({
        "model": model.summary(),
        "threads": threads,
        "tokens_per_s": tokens as f64 / median,
        "tokens_per_s_best": tokens as f64 / seconds.first().copied().unwrap_or(f64::NAN),
        "gflops": flops / median / 1e9,
        "peak_gflops": [before.flops_per_s / 1e9, after.flops_per_s / 1e9],
        "peak_rss_bytes": machine::peak_resident_bytes(),
        "losses": losses,
    });
    if as_json {
        return Ok(print(&serde_json::to_string_pretty(&result)?)?);
    }
    let peak = (before.flops_per_s + after.flops_per_s) / 2.0;
    Ok(print(&format!(
        "{}\n{:.0} tokens/s (median of {steps}), {:.0} GFLOP/s = {:.0} % of the measured peak {:.0} GFLOP/s, peak memory {}",
        model.summary(),
        tokens as f64 / median,
        flops / median / 1e9,
        100.0 * flops / median / peak,
        peak / 1e9,
        Bytes(machine::peak_resident_bytes().unwrap_or_default())
    ))?)
}
