//! Logits, losses, every gradient and ten AdamW steps of thirteen tiny models against Hugging Face transformers and
//! PyTorch (`golden/model/make.py`).

use crate::{instruction_set, tiny};

use bessemer_kernels_cpu::CpuConfig;
use bessemer_optim::OptimConfig;
use bessemer_runtime::{Purpose, TokenBatch};
use safetensors::SafeTensors;
use std::path::PathBuf;
use tiny::{adamw, batch, context, cpu, decoder, golden_mixtures, gradients, models, relative, scored};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/model")
}

fn record() -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("losses.json")).unwrap()).unwrap()
}

fn stored(label: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{label}.safetensors"))).unwrap()
}

fn tensor(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = file.tensor(name).unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::F32);
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn logits_loss_and_every_gradient_agree_with_transformers() {
    let record = record();
    let rungs: Vec<_> = instruction_set::rungs().collect();
    for ((label, model), rung) in
        models().into_iter().chain(golden_mixtures()).flat_map(|m| rungs.iter().map(move |r| (m.clone(), *r)))
    {
        let bytes = stored(label);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut b = instruction_set::with_rung(CpuConfig { threads: 2, ..CpuConfig::default() }, rung);
        let (name, label) = (label, format!("{label}, {rung} kernels"));
        let (ids, targets) = batch(0);
        let tokens = TokenBatch { ids: &ids, targets: &targets, positions: None };

        let mut d = decoder(&mut b, &model, tiny::SEQUENCES, Purpose::Score);
        let gold = tensor(&file, "logits");
        let mut logits = Vec::new();
        d.logits(&mut b, &tokens, |n, row| {
            assert_eq!(n, logits.len() / row.len());
            logits.extend_from_slice(row);
        })
        .unwrap();
        let worst = logits.iter().zip(&gold).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4 && logits.len() == gold.len(), "{label}: logits differ by {worst}");

        let wanted = record[name]["loss"].as_f64().unwrap();
        let mean = d.loss(&mut b, &tokens, None).unwrap().mean();
        assert!((mean - wanted).abs() < 1e-5 * wanted, "{label}: scored {mean}, wanted {wanted}");

        let mut d = decoder(&mut b, &model, tiny::SEQUENCES, Purpose::Train);
        let sum = d.forward_backward(&mut b, &tokens, &context(0, scored(&targets))).unwrap();
        assert!((sum.mean() - wanted).abs() < 1e-5 * wanted, "{label}: {}, wanted {wanted}", sum.mean());
        let found = gradients(&mut b, &d);
        let trained = d.params().iter().zip(&found).filter(|(p, _)| p.grad.is_some());
        assert_eq!(trained.clone().count() + 1, file.len(), "{label}: every gradient is compared");
        for (p, found) in trained {
            let param = &p.spec.name;
            let gold = tensor(&file, &format!("grad.{param}"));
            let whole = relative(found, &gold);
            let bound = if model.experts.is_some() { 1e-5 } else { 1e-4 };
            assert!(whole < bound, "{label} {param}: gradient differs by {whole} of its norm");
            // Element by element, with a floor for elements that are rounding noise (a key's bias has none at all).
            let largest = gold.iter().fold(0f32, |m, g| m.max(g.abs()));
            for (e, (a, b)) in found.iter().zip(&gold).enumerate() {
                let allowed = 1e-4 * b.abs() + 2e-6 * largest;
                assert!((a - b).abs() <= allowed, "{label} {param}[{e}]: {a}, wanted {b}");
            }
        }
    }
}

#[test]
fn ten_adamw_steps_have_the_losses_and_gradient_norms_of_pytorch() {
    let record = record();
    let key = |k: &str| record["optim"][k].as_f64().unwrap();
    let config = OptimConfig {
        lr: key("lr"),
        beta1: key("beta1"),
        beta2: key("beta2"),
        eps: key("eps"),
        weight_decay: key("weight_decay"),
        clip: key("clip"),
        ..Default::default()
    };
    for (label, model) in models().into_iter().chain(golden_mixtures()) {
        let mut b = cpu(1);
        let mut d = decoder(&mut b, &model, tiny::SEQUENCES, Purpose::Train);
        let mut optimizer = adamw(&mut b, &d, &config);
        for step in 0..10 {
            let (ids, targets) = batch(step);
            let tokens = TokenBatch { ids: &ids, targets: &targets, positions: None };
            let loss = d.forward_backward(&mut b, &tokens, &context(step, scored(&targets))).unwrap().mean();
            let wanted = record[label]["losses"][step as usize].as_f64().unwrap();
            assert!((loss - wanted).abs() < 1e-4, "{label} step {step}: loss {loss}, wanted {wanted}");
            let stats = optimizer.step(&mut b, step + 1, config.lr).unwrap();
            let wanted = record[label]["grad_norms"][step as usize].as_f64().unwrap();
            // The closest choice of Qwen2-MoE's experts in step 9 has a margin of 1.0e-4, which nine steps may flip: one token then moves the norm.
            let bound = if model.experts.is_some() { 1e-3 } else { 1e-4 };
            let close = (stats.grad_norm / wanted - 1.0).abs() < bound;
            assert!(close, "{label} step {step}: gradient norm {}, wanted {wanted}", stats.grad_norm);
            assert!((stats.clip_factor * (wanted + 1e-6) - 1.0).abs() < bound && !stats.skipped);
        }
    }
}
