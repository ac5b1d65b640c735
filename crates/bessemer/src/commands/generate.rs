//! `bessemer generate`: text from a checkpoint.

use crate::cli::GenerateArgs;
use crate::commands::saved_model::SavedModel;
use crate::console::print;
use crate::escape;
use crate::failure::Failure;
use bessemer_eval::generate::{CachedDecoder, ContextLimit, GenerateConfig, generate_text};
use bessemer_eval::sampling::SamplingConfig;
use bessemer_model::Cache;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::Instant;

pub(crate) fn run(args: &GenerateArgs, as_json: bool) -> Result<(), Failure> {
    let saved = SavedModel::open(&args.run)?;
    let (mut backend, decoder) = saved.decoder((1, 1), args.threads)?;
    let mut cache = Cache::new(&mut backend, &decoder, 1, saved.model().context)?;
    let config = GenerateConfig {
        max_tokens: args.max_tokens as u64,
        context_limit: ContextLimit::Slide,
        sampling: SamplingConfig {
            temperature: f64::from(args.temperature),
            top_k: args.top_k as u64,
            top_p: f64::from(args.top_p),
            seed: args.seed,
            ..SamplingConfig::default()
        },
    };
    for sample in 0..args.samples {
        let begun = Instant::now();
        let mut out = std::io::stdout().lock();
        if !as_json {
            out.write_all(escape::controls(&args.prompt).as_bytes())?;
        }
        let mut closed = None;
        let mut model = CachedDecoder::new(&decoder, &mut backend, &mut cache)?;
        let written =
            generate_text(&mut model, &saved.tokenizer, &args.prompt, &config, sample, &mut |text| {
                let shown = escape::controls(text);
                if !as_json && let Err(e) = out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                    closed = Some(e);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
        drop(out);
        if let Some(e) = closed {
            return Err(e.into());
        }
        let text = match as_json {
            false => "\n".to_owned(),
            true => json!({
                "prompt": args.prompt,
                "text": written.text,
                "tokens": written.generated.tokens,
                "finish": written.generated.finish,
                "tokens_per_s": written.generated.tokens.len() as f64 / begun.elapsed().as_secs_f64(),
            })
            .to_string(),
        };
        print(&text)?;
    }
    Ok(())
}
