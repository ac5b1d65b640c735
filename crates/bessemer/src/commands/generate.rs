//! `bessemer generate`: text from a checkpoint.

use crate::cli::GenerateArgs;
use crate::commands::adapters::Adapted;
use crate::commands::expert_ranks::{ModelUse, with_decoder};
use crate::commands::metric::lines;
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, Output, print};
use crate::failure::Failure;
use bessemer_eval::generate::{
    CachedDecoder, ContextLimit, GenerateConfig, GeneratedText, generate_text, prompt_tokens,
};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_runtime::{Cache, CacheShape};
use bessemer_units::Bytes;
use serde_json::json;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Longest prompt, in bytes. Only the last tokens of a long one fit into the model's context anyway.
const LONGEST_PROMPT: u64 = 64 << 20;

pub(crate) fn run(args: &GenerateArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    // Everything that can be wrong is found before the first byte of output.
    let prompts = match &args.prompts {
        Some(file) => lines(file)?,
        None => vec![prompt(args)?],
    };
    if let (Some(file), true) = (&args.prompts, prompts.is_empty()) {
        return Err(Failure::usage(format!(
            "--prompts {}: wanted a prompt or more, found none",
            file.display()
        )));
    }
    let config = config(args);
    config.check().map_err(Failure::usage)?;
    let saved = SavedModel::open(&args.run, console)?;
    for prompt in &prompts {
        prompt_tokens(&saved.tokenizer, prompt)
            .map_err(|e| Failure::new(format!("the prompt cannot be encoded: {e}")))?;
    }
    let adapted = match &args.adapter {
        Some(place) => Some(Adapted::read(place, &saved, args.unchecked_base, console)?),
        None => None,
    };
    let adapters = adapted.as_ref().map_or(Bytes(0), Adapted::bytes);
    let capacity = saved.model().context;
    let (shape, none_ended) = (CacheShape::one(capacity), AtomicBool::new(false));
    let model_use =
        ModelUse { batch: (1, 1), cached: Some(shape), threads: args.threads, ranks: args.ranks, adapters };
    with_decoder(&saved, &model_use, &none_ended, |mut backend, base| {
        let decoder = match &adapted {
            Some(adapted) => adapted.decoder(&mut backend, &base)?,
            None => base,
        };
        let mut cache = Cache::new(&mut backend, &decoder, shape)?;
        texts(
            args,
            as_json,
            (&prompts, &config),
            &saved,
            &mut CachedDecoder::new(&decoder, &mut backend, &mut cache)?,
        )
    })
}

/// Continues every prompt as often as it was asked for.
fn texts(
    args: &GenerateArgs,
    as_json: bool,
    (prompts, config): (&[String], &GenerateConfig),
    saved: &SavedModel,
    model: &mut CachedDecoder<'_>,
) -> Result<(), Failure> {
    let asked = prompts.iter().flat_map(|prompt| (0..args.samples).map(move |sample| (prompt, sample)));
    for (prompt, sample) in asked {
        let begun = Instant::now();
        let mut output = Output::lock();
        if !as_json && args.samples > 1 {
            output.write(&format!("--- sample {} of {} ---\n", sample + 1, args.samples))?;
        }
        let (mut pending, mut unwritten) = (Some(prompt.as_str()), None);
        let written = generate_text(model, &saved.tokenizer, prompt, config, sample, &mut |text| {
            if as_json {
                return ControlFlow::Continue(());
            }
            let text = [pending.take().unwrap_or_default(), text].concat();
            match output.write(&text) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    unwritten = Some(e);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(e) = unwritten {
            return Err(e.into());
        }
        match as_json {
            true => {
                drop(output);
                print(&record(sample, prompt, &written, begun.elapsed().as_secs_f64()))?;
            }
            false => output.write(&format!("{}\n", pending.unwrap_or_default()))?,
        }
    }
    Ok(())
}

/// One sample as a line of JSON.
fn record(sample: u64, prompt: &str, written: &GeneratedText, seconds: f64) -> String {
    json!({
        "sample": sample,
        "prompt": prompt,
        "text": written.text,
        "tokens": written.generated.tokens,
        "finish": written.generated.finish,
        "tokens_per_s": written.generated.tokens.len() as f64 / seconds,
    })
    .to_string()
}

fn config(args: &GenerateArgs) -> GenerateConfig {
    GenerateConfig {
        max_tokens: args.max_tokens as u64,
        context_limit: ContextLimit::Slide,
        stop: args.stop.clone(),
        sampling: SamplingConfig {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            seed: args.seed,
            ..SamplingConfig::default()
        },
        ..GenerateConfig::default()
    }
}

/// The text of `--prompt`, or of the file or standard input that is named instead.
fn prompt(args: &GenerateArgs) -> Result<String, Failure> {
    let (flag, file) = match (&args.prompt_file, args.prompt.as_str()) {
        (Some(file), _) => ("--prompt-file", file.as_path()),
        (None, "-") => ("--prompt", Path::new("-")),
        (None, text) => return Ok(text.to_owned()),
    };
    let place = if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    let wrong = |what: String| Failure::new(format!("{flag}: cannot read {place}: {what}"));
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().take(LONGEST_PROMPT + 1).read_to_end(&mut bytes),
        false => bessemer_durable::open_input(file)
            .and_then(|file| file.take(LONGEST_PROMPT + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > LONGEST_PROMPT {
        return Err(wrong(format!("wanted a prompt of at most {LONGEST_PROMPT} bytes")));
    }
    bessemer_durable::decode_text(bytes).map_err(|e| wrong(e.to_string()))
}
