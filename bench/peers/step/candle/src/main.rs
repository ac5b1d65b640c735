//! The training step of `bessemer-bench step --dump DIR` in candle: `step-candle DIR [steps] [warmup]`; threads come from
//! RAYON_NUM_THREADS. Prints one JSON object.

use candle_core::{D, Device, Result, Tensor, Var};
use candle_nn::ops::{layer_norm_slow, softmax};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use std::collections::HashMap;
use std::time::Instant;

type Weights = HashMap<String, Var>;

/// `x W + b` with Hugging Face's `[inputs, outputs]`.
fn linear(w: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
    let (b, t, d) = x.dims3()?;
    let y = x.reshape((b * t, d))?.matmul(&w[&format!("{name}.weight")])?;
    y.broadcast_add(&w[&format!("{name}.bias")])?.reshape((b, t, ()))
}

/// candle's fused layer_norm and softmax_last_dim have no backward.
fn norm(w: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
    layer_norm_slow(x, &w[&format!("{name}.weight")], &w[&format!("{name}.bias")], 1e-5)
}

fn block(w: &Weights, i: usize, heads: usize, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let at = |name: &str| format!("transformer.h.{i}.{name}");
    let (b, t, d) = x.dims3()?;
    let qkv = linear(w, &at("attn.c_attn"), &norm(w, &at("ln_1"), x)?)?;
    let part = |k: usize| {
        qkv.narrow(D::Minus1, k * d, d)?.reshape((b, t, heads, d / heads))?.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? * (1.0 / ((d / heads) as f64).sqrt()))?;
    let y = softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&v)?;
    let y = y.transpose(1, 2)?.reshape((b, t, d))?;
    let x = (x + linear(w, &at("attn.c_proj"), &y)?)?;
    let up = linear(w, &at("mlp.c_fc"), &norm(w, &at("ln_2"), &x)?)?.gelu()?;
    &x + linear(w, &at("mlp.c_proj"), &up)?
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, otherwise: usize| args.get(i).map_or(Ok(otherwise), |a| a.parse());
    let (dir, steps, warmup) = (&args[1], number(2, 5)?, number(3, 2)?);
    let job: serde_json::Value = serde_json::from_slice(&std::fs::read(format!("{dir}/job.json"))?)?;
    let size = |key: &str| job[key].as_u64().map(|v| v as usize).ok_or(format!("job.json has no {key}"));
    let (layers, heads, batch, seq) = (size("layers")?, size("heads")?, size("batch")?, size("seq")?);
    let device = Device::Cpu;
    let mut w = Weights::new();
    for (name, tensor) in candle_core::safetensors::load(format!("{dir}/model.safetensors"), &device)? {
        w.insert(name, Var::from_tensor(&tensor)?);
    }
    let ids: Vec<u32> = std::fs::read(format!("{dir}/tokens.u32"))?
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let inputs = Tensor::from_slice(&ids[..batch * seq], batch * seq, &device)?;
    let targets = Tensor::from_slice(&ids[1..], batch * seq, &device)?;
    let lower: Vec<f32> =
        (0..seq * seq).map(|i| if i % seq > i / seq { f32::NEG_INFINITY } else { 0.0 }).collect();
    let mask = Tensor::from_vec(lower, (seq, seq), &device)?;

    let (decayed, rest): (Vec<Var>, Vec<Var>) = w.values().cloned().partition(|v| v.rank() > 1);
    let adamw = |vars, weight_decay| {
        let lr = job["lr"].as_f64().unwrap_or(3e-4);
        AdamW::new(vars, ParamsAdamW { lr, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay })
    };
    let (mut first, mut second) = (adamw(decayed, 0.1)?, adamw(rest, 0.0)?);
    let (mut losses, mut seconds) = (Vec::new(), Vec::new());
    for step in 0..warmup + steps {
        let begun = Instant::now();
        let table = &w["transformer.wte.weight"];
        let positions = w["transformer.wpe.weight"].narrow(0, 0, seq)?;
        let mut x = table.index_select(&inputs, 0)?.reshape((batch, seq, ()))?.broadcast_add(&positions)?;
        for i in 0..layers {
            x = block(&w, i, heads, &x, &mask)?;
        }
        let x = norm(&w, "transformer.ln_f", &x)?;
        let logits = x.flatten_to(1)?.matmul(&table.t()?)?;
        let loss = candle_nn::loss::cross_entropy(&logits, &targets)?;
        let grads = loss.backward()?;
        first.step(&grads)?;
        second.step(&grads)?;
        losses.push(loss.to_scalar::<f32>()?);
        if step >= warmup {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let tokens = (batch * seq) as f64;
    println!(
        "{}",
        serde_json::json!({
            "system": "candle 0.11.1",
            "tokens_per_s": tokens / seconds[seconds.len() / 2],
            "tokens_per_s_best": tokens / seconds[0],
            "losses": losses,
            "peak_rss_bytes": peak_rss(),
        })
    );
    Ok(())
}

fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
