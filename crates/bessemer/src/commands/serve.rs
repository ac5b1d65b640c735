//! `bessemer serve`: a checkpoint behind an HTTP interface.

use crate::cli::ServeArgs;
use crate::commands::chat_template;
use crate::commands::expert_ranks::{ModelUse, with_decoder};
use crate::commands::key_file;
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use crate::signals;
use bessemer_http::{Access, Server};
use bessemer_runtime::{Cache, CacheShape};
use bessemer_serve::chat::ChatTemplate;
use bessemer_serve::engine::LOGIT_ROWS;
use bessemer_serve::{AccessKey, Model, ModelEngine, Service, limits, serve};
use bessemer_tensor::Backend;
use bessemer_units::Bytes;
use serde_json::json;
use std::env::VarError;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Connections beyond those whose requests wait or run: pages, probes, refusals.
const MORE_CONNECTIONS: usize = 64;
/// Variable of the environment with the key that clients must send.
const KEY_VARIABLE: &str = "BESSEMER_API_KEY";

pub(crate) fn run(args: &ServeArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let drain = Duration::from_secs(args.drain);
    // An address that is taken is found before the model is loaded.
    let connections = args.slots + args.max_queue + MORE_CONNECTIONS;
    let access = Access { hosts: args.hosts.allow_hosts.clone(), origins: args.allow_origins.clone() };
    let server =
        Server::bind(&args.listen, limits(connections, drain)).map_err(Failure::new)?.with_access(access);
    let key = access_key(args)?;
    let stop = signals::stop_flag()?;
    let saved = SavedModel::open(&args.run, console)?;
    let most = saved.model().context;
    let capacity = match args.context {
        Some(context) if !(1..=most).contains(&context) => {
            return Err(Failure::usage(format!(
                "--context {context}: wanted 1 to the model's context of {most}"
            )));
        }
        Some(context) => context,
        None => most,
    };
    let shape = CacheShape { slots: args.slots, capacity, logit_rows: LOGIT_ROWS };
    let model_use = ModelUse { batch: (1, 1), cached: Some(shape), threads: args.threads, ranks: args.ranks };
    with_decoder(&saved, &model_use, &stop, |mut backend, decoder| {
        let cache = Cache::new(&mut backend, &decoder, shape)?;
        let cache_bytes: Bytes = backend
            .memory()
            .classes
            .iter()
            .filter(|(class, _)| *class == "cache")
            .map(|(_, bytes)| *bytes)
            .sum();
        let run = RunDir::new(&args.run.run);
        let model = Model {
            name: args.name.clone().unwrap_or_else(|| run.name()),
            tokenizer: Arc::clone(&saved.tokenizer),
            context: capacity,
            chat: match chat_template::of_directory(&run)? {
                Some(template) => ChatTemplate::new(template, &saved.tokenizer).map_err(Failure::new)?,
                None => ChatTemplate::plain(),
            },
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let address = server.address();
        match as_json {
            true => print(
                &json!({
                    "address": address.to_string(), "model": model.name, "step": saved.state.step, "slots": args.slots,
                    "context": capacity, "cache_bytes": cache_bytes.0,
                })
                .to_string(),
            )?,
            false => console.say(&format!(
                "{} (step {}) at http://{address}/ and http://{address}/v1: {} texts at a time of up to {capacity} tokens, {cache_bytes} of cache; Ctrl-C stops",
                model.name, saved.state.step, args.slots
            )),
        }
        let mut service = Service::new(model, args.max_queue, args.slots, cache_bytes.0);
        service.key = key;
        let service = Arc::new(service);
        let mut engine = ModelEngine { backend, decoder, cache };
        serve(server, &service, &mut engine, &stop, drain)?;
        console.say("stopped");
        Ok(())
    })
}

/// The key that clients must send: that of `--api-key-file`, or else of the environment.
fn access_key(args: &ServeArgs) -> Result<Option<AccessKey>, Failure> {
    let (place, key) = match (&args.api_key_file, std::env::var(KEY_VARIABLE)) {
        (Some(file), _) => {
            (format!("--api-key-file {}", file.display()), key_file::read("--api-key-file", file)?)
        }
        (None, Ok(key)) => (KEY_VARIABLE.to_owned(), key),
        (None, Err(VarError::NotPresent)) => return Ok(None),
        (None, Err(e)) => return Err(Failure::new(format!("{KEY_VARIABLE}: {e}"))),
    };
    AccessKey::new(&key).map(Some).map_err(|e| Failure::new(format!("{place}: {e}")))
}
