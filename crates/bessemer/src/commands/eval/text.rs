//! `bessemer eval --text`: how well a model predicts any text, in rolling windows.

use super::{window, with_model};
use crate::cli::EvalArgs;
use crate::commands::metric::{lines_of_json, text_of};
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_eval::score::answers::prefix;
use bessemer_eval::score::rows::{LengthDecoders, Row, rolling_rows, score_rows};
use bessemer_tasks::words;
use bessemer_train::Observer;
use bessemer_units::counted;
use serde_json::json;
use std::path::Path;

/// Rows that are made at once.
const ROWS: usize = 1024;

pub(super) fn run(args: &EvalArgs, file: &Path, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let documents = documents(args, file)?;
    let saved = SavedModel::open(&args.run, console)?;
    let (tokenizer, longest) = (&saved.tokenizer, window(args, &saved)?);
    if args.context > longest as u64 {
        return Err(Failure::usage(format!(
            "--context {}: wanted at most the window of {longest} tokens",
            args.context
        )));
    }
    let (bytes, words) = (
        documents.iter().map(String::len).sum::<usize>(),
        documents.iter().map(|text| words(text)).sum::<usize>(),
    );
    let prefix = prefix(tokenizer)?;
    let encoded =
        documents.iter().map(|text| tokenizer.encode(text.as_bytes())).collect::<Result<Vec<_>, _>>();
    let encoded = encoded.map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    drop(documents);
    let tokens: usize = encoded.iter().map(Vec::len).sum();
    if tokens == 0 {
        return Err(Failure::new(format!("{}: wanted a text, found an empty file", file.display())));
    }
    let sequences = (args.batch_tokens / longest).max(1);
    let nats = with_model(&saved, args, (sequences, longest), None, |mut backend, decoder| {
        let mut model = LengthDecoders::new(&mut backend, decoder);
        let (mut nats, mut scored, mut rows) = (0.0, 0u64, Vec::with_capacity(ROWS));
        let mut flush = |rows: &mut Vec<Row>| -> Result<(), Failure> {
            let scores = score_rows(&mut model, rows, false, &mut |_, _| ())?;
            nats -= scores.iter().map(|row| row.log_likelihood).sum::<f64>();
            scored += rows.iter().map(|row| row.scored as u64).sum::<u64>();
            console.progress("scoring", scored, tokens as u64);
            rows.clear();
            Ok(())
        };
        for text in &encoded {
            for row in rolling_rows(prefix, text, longest as u64, args.context)? {
                rows.push(row);
                if rows.len() == ROWS {
                    flush(&mut rows)?;
                }
            }
        }
        flush(&mut rows)?;
        Ok(nats)
    })?;
    let loss = nats / tokens as f64;
    let bits = nats / std::f64::consts::LN_2 / bytes as f64;
    let [perplexity, by_word, by_byte] = [loss, nats / words as f64, nats / bytes as f64].map(f64::exp);
    if as_json {
        return Ok(print(&serde_json::to_string(&json!({
            "step": saved.state.step, "text": file, "documents": encoded.len(), "tokens": tokens, "bytes": bytes, "words": words,
            "window": longest, "context": args.context, "nats": nats, "loss": loss, "perplexity": perplexity,
            "word_perplexity": by_word, "byte_perplexity": by_byte, "bits_per_byte": bits,
        }))?)?);
    }
    print(&format!(
        "step {}, {}: loss {loss:.5} nats/token, perplexity {perplexity:.4}, {bits:.5} bits/byte, {by_word:.4} per word, {by_byte:.4} per byte \
         ({}, {}, {}, {}; windows of {longest} tokens, at least {} of history)",
        saved.state.step,
        file.display(),
        counted(encoded.len(), "document"),
        counted(tokens, "token"),
        counted(bytes, "byte"),
        counted(words, "word"),
        args.context
    ))?;
    Ok(())
}

/// The texts of a file.
fn documents(args: &EvalArgs, file: &Path) -> Result<Vec<String>, Failure> {
    if file.extension().is_none_or(|extension| extension != "jsonl") {
        return Ok(vec![text_of(file)?]);
    }
    let key = &args.text_key;
    let lines = lines_of_json(file)?;
    let text = |(i, line): (usize, serde_json::Value)| {
        line[key].as_str().map(str::to_owned).ok_or_else(|| {
            Failure::new(format!(
                "{}: line {}: wanted an object with a text under the key {key}",
                file.display(),
                i + 1
            ))
        })
    };
    lines.into_iter().enumerate().map(text).collect()
}
