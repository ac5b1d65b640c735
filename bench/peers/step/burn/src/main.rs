//! The training step of `bessemer-bench step --dump DIR` in burn on its Flex CPU backend: `step-burn DIR [steps] [warmup]`;
//! threads come from RAYON_NUM_THREADS. Prints one JSON object.

use burn::module::{Module, Param, ParamGroup};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::gelu_approximate;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use std::time::Instant;

#[derive(Module, Debug)]
struct Block {
    ln_1: LayerNorm,
    qkv: Linear,
    out: Linear,
    ln_2: LayerNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
    #[module(skip)]
    heads: usize,
}

/// Weights of the dump. burn's linear layers hold `[inputs, outputs]` as Hugging Face's GPT-2 does.
struct Source<'a>(SafeTensors<'a>, &'a Device);

impl Source<'_> {
    fn get<const D: usize>(&self, name: &str) -> Param<Tensor<D>> {
        let view = self.0.tensor(&format!("transformer.{name}")).expect("a tensor of the dump");
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Param::from_data(TensorData::new(values, view.shape().to_vec()), self.1)
    }

    fn linear(&self, name: &str) -> Linear {
        let mut linear = LinearConfig::new(1, 1).init(self.1);
        linear.weight = self.get(&format!("{name}.weight"));
        linear.bias = Some(self.get(&format!("{name}.bias")));
        linear
    }

    fn norm(&self, name: &str) -> LayerNorm {
        let mut norm = LayerNormConfig::new(1).with_epsilon(1e-5).init(self.1);
        norm.gamma = self.get(&format!("{name}.weight"));
        norm.beta = Some(self.get(&format!("{name}.bias")));
        norm
    }

    fn embedding(&self, name: &str) -> Embedding {
        let mut embedding = EmbeddingConfig::new(1, 1).init(self.1);
        embedding.weight = self.get(&format!("{name}.weight"));
        embedding
    }

    fn gpt(&self, layers: usize, heads: usize) -> Gpt {
        let block = |i: usize| Block {
            ln_1: self.norm(&format!("h.{i}.ln_1")),
            qkv: self.linear(&format!("h.{i}.attn.c_attn")),
            out: self.linear(&format!("h.{i}.attn.c_proj")),
            ln_2: self.norm(&format!("h.{i}.ln_2")),
            up: self.linear(&format!("h.{i}.mlp.c_fc")),
            down: self.linear(&format!("h.{i}.mlp.c_proj")),
        };
        Gpt {
            wte: self.embedding("wte"),
            wpe: self.embedding("wpe"),
            blocks: (0..layers).map(block).collect(),
            ln_f: self.norm("ln_f"),
            heads,
        }
    }
}

impl Gpt {
    fn block(&self, block: &Block, x: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let qkv = block.qkv.forward(block.ln_1.forward(x.clone()));
        let part = |k: usize| {
            qkv.clone().narrow(2, k * d, d).reshape([b, t, self.heads, d / self.heads]).swap_dims(1, 2)
        };
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let y = attention(part(0), part(1), part(2), None, None, options);
        let x = x + block.out.forward(y.swap_dims(1, 2).reshape([b, t, d]));
        let up = gelu_approximate(block.up.forward(block.ln_2.forward(x.clone())));
        x + block.down.forward(up)
    }

    fn logits(&self, ids: Tensor<2, Int>, positions: Tensor<2, Int>) -> Tensor<2> {
        let mut x = self.wte.forward(ids) + self.wpe.forward(positions);
        for block in &self.blocks {
            x = self.block(block, x);
        }
        let [b, t, d] = x.dims();
        self.ln_f.forward(x).reshape([b * t, d]).matmul(self.wte.weight.val().transpose())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, otherwise: usize| args.get(i).map_or(Ok(otherwise), |a| a.parse());
    let (dir, steps, warmup) = (&args[1], number(2, 5)?, number(3, 2)?);
    let job: serde_json::Value = serde_json::from_slice(&std::fs::read(format!("{dir}/job.json"))?)?;
    let size = |key: &str| job[key].as_u64().map(|v| v as usize).ok_or(format!("job.json has no {key}"));
    let (layers, heads, batch, seq) = (size("layers")?, size("heads")?, size("batch")?, size("seq")?);
    let device = Device::flex().autodiff();
    let mut model = {
        let file = std::fs::read(format!("{dir}/model.safetensors"))?;
        Source(SafeTensors::deserialize(&file)?, &device).gpt(layers, heads)
    };
    let ids: Vec<i64> = std::fs::read(format!("{dir}/tokens.u32"))?
        .chunks_exact(4)
        .map(|b| i64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
        .collect();
    let n = batch * seq;
    let matrix = |values: Vec<i64>| {
        let rows = values.len() / seq;
        Tensor::<2, Int>::from_data(TensorData::new(values, [rows, seq]), &device)
    };
    let inputs = matrix(ids[..n].to_vec());
    let positions = matrix((0..seq as i64).collect());
    let targets = matrix(ids[1..].to_vec()).reshape([n]);

    let decay = |weight_decay: f32| {
        AdamWConfig::new()
            .with_beta_1(0.9)
            .with_beta_2(0.95)
            .with_epsilon(1e-8)
            .with_weight_decay(weight_decay)
    };
    // Vectors: norms and biases.
    let vectors = ParamGroup::from_any_predicates(vec!["ln_", "bias"]);
    let mut adamw = decay(0.1).init().with_group(vectors, decay(0.0).build(), None);
    let lr = job["lr"].as_f64().unwrap_or(3e-4);
    let criterion = CrossEntropyLossConfig::new().init(&device);
    let (mut losses, mut seconds) = (Vec::new(), Vec::new());
    for step in 0..warmup + steps {
        let begun = Instant::now();
        let loss = criterion.forward(model.logits(inputs.clone(), positions.clone()), targets.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = adamw.step(lr, model, grads);
        losses.push(loss.into_scalar::<f32>());
        if step >= warmup {
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    println!(
        "{}",
        serde_json::json!({
            "system": "burn 0.22.1 flex",
            "tokens_per_s": n as f64 / seconds[seconds.len() / 2],
            "tokens_per_s_best": n as f64 / seconds[0],
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
