//! `bessemer corpus media`: look at media files, make shards of them.

use crate::cli::{MediaBuildArgs, MediaCommand, MediaDType, MediaNormalisation};
use crate::commands::tokenizer;
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::{machine, signals};
use bessemer_media::build::{BuildConfig, Counts, Encode, FAILURES_FILE, build};
use bessemer_media::image::{CLIP, IMAGENET};
use bessemer_media::shard::{DType, SetIndex};
use bessemer_media::{Limits, MediaError, inspect};
use bessemer_train::Observer;
use bessemer_units::{Bytes, counted};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

pub(crate) fn run(command: &MediaCommand, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    match command {
        MediaCommand::Inspect { file } => look(file, as_json),
        MediaCommand::Build(args) => make(args, as_json, console),
    }
}

fn look(file: &Path, as_json: bool) -> Result<(), Failure> {
    let seen = inspect(file, &Limits::default())?;
    if as_json {
        return Ok(print(&serde_json::to_string(&seen)?)?);
    }
    let mut text = format!("{:<12}{}, {}\n", "kind", seen.kind, Bytes(seen.bytes));
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<12}{value}");
        }
    };
    row("pixels", seen.width.zip(seen.height).map(|(w, h)| format!("{w} x {h}")));
    row("seconds", seen.seconds.map(|s| format!("{s:.3}")));
    row("rate", seen.sample_rate.map(|r| format!("{r} Hz")));
    row("channels", seen.channels.map(|c| c.to_string()));
    row("codec", seen.codec);
    row("dhash", seen.dhash);
    row("phash", seen.phash);
    row("samples", seen.samples.map(|n| n.to_string()));
    row("tokens", seen.tokens.map(|n| n.to_string()));
    row("xxh3", seen.xxh3);
    Ok(print(&text)?)
}

fn make(args: &MediaBuildArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let tokenizer = tokenizer::load(&args.tokenizer)?;
    let dtype = match args.dtype {
        MediaDType::F32 => DType::F32,
        MediaDType::Bf16 => DType::Bf16,
    };
    let constants = args.normalize.map(|n| match n {
        MediaNormalisation::Imagenet => IMAGENET,
        MediaNormalisation::Clip => CLIP,
    });
    let config = BuildConfig {
        image_size: args.image_size,
        patch: args.patch,
        normalised: constants.map(|n| (n, dtype)),
        mels: args.mels,
        audio_seconds: args.audio_seconds,
        audio_dtype: dtype,
        frames: args.frames,
        near_duplicates: args.near_duplicates,
        shard_bytes: args.shard_size.saturating_mul(1 << 20),
        threads: machine::threads(args.threads),
        ..BuildConfig::default()
    };
    let tokens = |text: &str| tokenizer.encode(text.as_bytes()).map_err(|e| e.to_string());
    let encode = Encode {
        encode: &tokens,
        vocab_size: u32::try_from(tokenizer.vocab_size()).map_err(Failure::new)?,
        fingerprint: fingerprint(&tokenizer.fingerprint())?,
    };
    let stop = signals::stop_flag()?;
    let counts = build(&args.source, &args.out, &config, &encode, |counts| {
        console.progress("samples", counts.read, 0);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let (index, _) = SetIndex::open(&args.out)?;
    if as_json {
        return Ok(print(&serde_json::to_string(&serde_json::json!({
            "counts": counts, "samples": index.samples, "tokens": index.tokens, "shards": index.shards.len(),
        }))?)?);
    }
    console.say("");
    let mut text = summary(&counts);
    let files = index.shards.len();
    let bytes = Bytes(index.shards.iter().map(|s| s.file_bytes).sum());
    let _ = writeln!(
        text,
        "shards      {}, {bytes}, {}, in {}",
        counted(files, "file"),
        counted(index.tokens, "token"),
        args.out.display()
    );
    if counts.failures() > 0 {
        let _ = writeln!(text, "each failure with its reason: {}", args.out.join(FAILURES_FILE).display());
    }
    Ok(print(&text)?)
}

fn summary(counts: &Counts) -> String {
    let mut text = format!("read        {:>9} samples\nkept        {:>9}\n", counts.read, counts.kept);
    if counts.near_duplicates > 0 {
        let _ = writeln!(text, "near-duplicate images {:>2} left out", counts.near_duplicates);
    }
    let _ = writeln!(text, "failed      {:>9}", counts.failures());
    for (reason, n) in &counts.failed {
        let _ = writeln!(text, "  {reason:<20} {n}");
    }
    text
}

fn fingerprint(hex: &str) -> Result<[u8; 32], Failure> {
    let mut bytes = [0; 32];
    for (i, b) in bytes.iter_mut().enumerate() {
        let digits = hex
            .get(2 * i..2 * i + 2)
            .ok_or_else(|| Failure::new("the tokenizer's fingerprint is too short"))?;
        *b = u8::from_str_radix(digits, 16).map_err(Failure::new)?;
    }
    Ok(bytes)
}

impl From<MediaError> for Failure {
    fn from(e: MediaError) -> Failure {
        let code = match e {
            MediaError::Stopped => code::CONTINUE,
            MediaError::Argument(_) => code::USAGE,
            _ => code::FAILED,
        };
        Failure { code, message: e.to_string() }
    }
}
