//! `bessemer eval`: how well a checkpoint predicts a split or a text, and answers tasks.

use crate::cli::EvalArgs;
use crate::commands::expert_ranks::{ModelUse, with_decoder};
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::{RunDir, SHARDS};
use bessemer_eval::score::{DecoderLosses, score_components};
use bessemer_kernels_cpu::CpuBackend;
use bessemer_loader::{EvaluationWindows, LoaderConfig};
use bessemer_runtime::{CacheShape, Decoder};
use bessemer_shards::ShardSet;
use bessemer_train::Observer;
use bessemer_units::Bytes;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

mod kola;
mod robust;
mod tasks;
mod text;

pub(crate) fn run(args: &EvalArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match &args.text {
        Some(file) => text::run(args, file, as_json, console),
        None if args.tasks.is_empty() => split(args, as_json, console),
        None => tasks::run(args, as_json, console),
    }
}

/// Longest input that texts and tasks have.
fn window(args: &EvalArgs, saved: &SavedModel) -> Result<usize, Failure> {
    let context = saved.model().context;
    let trained = (saved.state.loader.seq_len as usize).min(context);
    match args.window {
        None => Ok(if trained == 0 { context } else { trained }),
        Some(wanted) if (2..=context).contains(&wanted) => Ok(wanted),
        Some(found) => Err(Failure::usage(format!(
            "--window {found}: wanted 2 to the model's context of {context} tokens"
        ))),
    }
}

/// Calls `work` with the model on the ranks that the arguments name, for batches of so many sequences of so many tokens.
fn with_model<T>(
    saved: &SavedModel,
    args: &EvalArgs,
    batch: (usize, usize),
    cached: Option<CacheShape>,
    work: impl FnOnce(CpuBackend, Decoder) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let model_use = ModelUse { batch, cached, threads: args.threads, ranks: args.ranks, adapters: Bytes(0) };
    with_decoder(saved, &model_use, &AtomicBool::new(false), work)
}

fn split(args: &EvalArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let dir = RunDir::new(&args.run.run);
    let saved = SavedModel::open(&args.run, console)?;
    if !dir.shards().join(&args.split).is_dir() {
        return Err(Failure::new(format!(
            "--split {}: {} has no shards of this split; use train or validation, or --text FILE or --tasks \
             NAME, which need no shards",
            args.split,
            dir.shards().display()
        )));
    }
    let set = Arc::new(ShardSet::open(dir.dir(SHARDS)?, &args.split)?);
    let fingerprint = saved.tokenizer.fingerprint().parse().map_err(Failure::new)?;
    set.require(fingerprint, saved.tokenizer.vocab_size() as u32)?;
    let seq = saved.state.loader.seq_len as usize;
    let windows = EvaluationWindows::new(set, seq, saved.tokenizer.end_of_text())?
        .prefetching(LoaderConfig::default().prefetch_config());
    let batch = ((args.batch_tokens / seq).max(1), seq);
    let most = (args.max_tokens > 0).then_some(args.max_tokens);
    let lengths = saved.tokenizer.byte_lengths();
    let (report, components) = with_model(&saved, args, batch, None, |mut backend, mut decoder| {
        let mut model = DecoderLosses { decoder: &mut decoder, backend: &mut backend };
        Ok(score_components(&mut model, &windows, &lengths, most, &mut |done, total| {
            console.progress("scoring", done, total);
        })?)
    })?;
    if as_json {
        return Ok(print(&serde_json::to_string(&json!({
            "step": saved.state.step, "split": args.split, "report": report,
            "components": components.iter().cloned().collect::<BTreeMap<_, _>>(),
        }))?)?);
    }
    print(&format!(
        "step {}, {}: loss {:.5} nats/token, perplexity {:.4}, {:.5} bits/byte ({} tokens, {} bytes)",
        saved.state.step,
        args.split,
        report.loss,
        report.perplexity,
        report.bits_per_byte,
        report.tokens,
        report.bytes
    ))?;
    for (name, report) in &components {
        print(&format!(
            "  {name}: loss {:.5} nats/token, {:.5} bits/byte ({} tokens)",
            report.loss, report.bits_per_byte, report.tokens
        ))?;
    }
    Ok(())
}
