//! `bessemer serve`: a checkpoint behind an HTTP interface.

use crate::cli::{NamedAdapter, ServeArgs};
use crate::commands::adapters::Adapted;
use crate::commands::chat_template;
use crate::commands::expert_ranks::{ModelUse, with_decoder};
use crate::commands::key_file;
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use crate::run_dir::RunDir;
use crate::signals;
use bessemer_chat::ChatTemplate as Template;
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
    let adapted = read_adapters(args, &saved, console)?;
    let adapters = Bytes(adapted.iter().map(|(_, adapted)| adapted.bytes().0).sum());
    let shape = CacheShape { slots: args.slots, capacity, logit_rows: LOGIT_ROWS };
    let model_use =
        ModelUse { batch: (1, 1), cached: Some(shape), threads: args.threads, ranks: args.ranks, adapters };
    with_decoder(&saved, &model_use, &stop, |mut backend, decoder| {
        let cache = Cache::new(&mut backend, &decoder, shape)?;
        let mut beside = Vec::with_capacity(adapted.len());
        for (_, adapted) in &adapted {
            let decoder = adapted.decoder(&mut backend, &decoder)?;
            let cache = cache.sharing(&mut backend, &decoder)?;
            beside.push((decoder, cache));
        }
        let cache_bytes: Bytes = backend
            .memory()
            .classes
            .iter()
            .filter(|(class, _)| *class == "cache")
            .map(|(_, bytes)| *bytes)
            .sum();
        let run = RunDir::new(&args.run.run);
        let model = |name: &str, template: Option<Template>, parent: Option<&str>| {
            Ok::<_, Failure>(Model {
                name: name.into(),
                tokenizer: Arc::clone(&saved.tokenizer),
                context: capacity,
                chat: match template {
                    Some(template) => ChatTemplate::new(template, &saved.tokenizer).map_err(Failure::new)?,
                    None => ChatTemplate::plain(),
                },
                created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                parent: parent.map(str::to_owned),
            })
        };
        let name = name_of(args);
        // Adapters that were tuned on chats have the template of these chats with them.
        let with_adapters = |(of, _): &(&NamedAdapter, Adapted)| {
            let own = chat_template::of_directory(&RunDir::new(&of.place))?;
            let template = own.map_or_else(|| chat_template::of_directory(&run), |own| Ok(Some(own)))?;
            model(&of.name, template, Some(&name))
        };
        let with_adapters = adapted.iter().map(with_adapters).collect::<Result<Vec<_>, _>>()?;
        let model = model(&name, chat_template::of_directory(&run)?, None)?;
        let names: Vec<&str> = with_adapters.iter().map(|model| &*model.name).collect();
        let address = server.address();
        match as_json {
            true => print(
                &json!({
                    "address": address.to_string(), "model": model.name, "step": saved.state.step, "slots": args.slots,
                    "context": capacity, "cache_bytes": cache_bytes.0, "adapters": names,
                })
                .to_string(),
            )?,
            false => console.say(&format!(
                "{}{} (step {}) at http://{address}/ and http://{address}/v1: {} texts at a time of up to {capacity} tokens, {cache_bytes} of cache; Ctrl-C stops",
                model.name,
                names.iter().map(|name| format!(", {name}")).collect::<String>(),
                saved.state.step,
                args.slots
            )),
        }
        let mut service = Service::new(model, with_adapters, args.max_queue, args.slots, cache_bytes.0);
        service.key = key;
        let service = Arc::new(service);
        let mut engine = ModelEngine::new(backend, (decoder, cache), beside);
        serve(server, &service, &mut engine, &stop, drain)?;
        console.say("stopped");
        Ok(())
    })
}

/// Name of the base in requests.
fn name_of(args: &ServeArgs) -> String {
    args.name.clone().unwrap_or_else(|| RunDir::new(&args.run.run).name())
}

/// The adapters that the arguments name, each under a name of its own.
fn read_adapters<'a>(
    args: &'a ServeArgs,
    saved: &SavedModel,
    console: &mut Console,
) -> Result<Vec<(&'a NamedAdapter, Adapted)>, Failure> {
    let base = name_of(args);
    let mut adapted = Vec::with_capacity(args.adapters.len());
    for (at, of) in args.adapters.iter().enumerate() {
        if of.name == base || args.adapters[..at].iter().any(|other| other.name == of.name) {
            return Err(Failure::usage(format!(
                "--adapter {}={}: wanted a name of its own, found one that another model has; the base is {base:?} (--name)",
                of.name,
                of.place.display()
            )));
        }
        adapted.push((of, Adapted::read(&of.place, saved, args.unchecked_base, console)?));
    }
    Ok(adapted)
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
