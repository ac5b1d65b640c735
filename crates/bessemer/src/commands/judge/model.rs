//! `bessemer judge model`: a model compares or rates the texts of a study.

use super::run_model::{RunModel, decoder};
use super::{now, open};
use crate::cli::{JudgeMethod, JudgeModelArgs, RunArgs};
use crate::commands::key_file;
use crate::commands::saved_model::SavedModel;
use crate::console::{Console, print};
use crate::failure::Failure;
use bessemer_judge::model::{Asked, Endpoint, JudgeTemplate, JudgingModel, Method, OpenAi, ask};
use bessemer_judge::{Question, Store};
use bessemer_train::Observer;
use bessemer_units::counted;
use serde_json::json;
use std::path::Path;

pub(super) fn run(args: &JudgeModelArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    let mut store = open(&args.study)?;
    let method = match args.method {
        JudgeMethod::Likelihood => Method::Likelihood,
        JudgeMethod::Generate => Method::Generate,
    };
    if args.chat && method == Method::Likelihood {
        return Err(Failure::usage(
            "--chat: chat endpoints return no probabilities of a prompt; use --method generate",
        ));
    }
    let template = template(args, &store, method)?;
    template.check(store.study(), method).map_err(Failure::new)?;
    let asking = Asking { args, template: &template, method };
    let (judge, asked) = match (&args.run, &args.at) {
        (_, Some(base)) => {
            let key = args.key_file.as_deref().map(|file| key_file::read("--key-file", file)).transpose()?;
            let name = match &args.model {
                Some(name) => name.clone(),
                None => OpenAi::first_model(base, key.as_deref()).map_err(Failure::new)?,
            };
            let endpoint = Endpoint {
                base: base.clone(),
                model: name.clone(),
                chat: args.chat,
                key,
                parallel: args.parallel,
            };
            let mut model = OpenAi::new(endpoint).map_err(Failure::new)?;
            asking.ask(&mut store, &name, &mut model, console)?
        }
        (Some(run), None) => {
            let saved = SavedModel::open(&RunArgs { run: run.clone(), step: args.step }, console)?;
            let writes = method == Method::Generate;
            let (mut backend, decoder) = decoder(&saved, writes, args.threads)?;
            let mut model = RunModel::new(&saved, (&mut backend, decoder), writes)?;
            let name = format!("{}, step {}", run.display(), saved.state.step);
            asking.ask(&mut store, &name, &mut model, console)?
        }
        (None, None) => return Err(Failure::usage("wanted a run directory or --at URL")),
    };
    let Asked { answered, unparsed, refused, refusal } = asked;
    if as_json {
        let value = json!({
            "judge": judge, "answered": answered, "unparsed": unparsed, "refused": refused, "refusal": refusal,
        });
        return Ok(print(&value.to_string())?);
    }
    let mut said = format!("{judge}: {} answered", counted(answered, "prompt"));
    if unparsed > 0 {
        said += &format!(", {unparsed} of them without a verdict");
    }
    if let Some(why) = refusal {
        said += &format!(", {refused} refused: {why}");
    }
    console.say(&format!("{said}; next: bessemer judge results {}", args.study.display()));
    Ok(())
}

/// The template that is named, or the one for the study's question and the method.
fn template(args: &JudgeModelArgs, store: &Store, method: Method) -> Result<JudgeTemplate, Failure> {
    let usual = match (&store.study().question, method) {
        (Question::Pairs { .. }, Method::Likelihood) => "pair-brief",
        (Question::Pairs { .. }, Method::Generate) => "pair",
        (Question::Scale { .. }, Method::Likelihood) => "scale-brief",
        (Question::Scale { .. }, Method::Generate) => "scale",
    };
    let named = args.template.as_deref().unwrap_or(usual);
    let template = match named.ends_with(".toml") {
        true => {
            let text = bessemer_durable::read_input_to_string(Path::new(named))
                .map_err(|e| Failure::new(format!("--template {named}: {e}")))?;
            JudgeTemplate::parse(named, &text)
        }
        false => JudgeTemplate::shipped(named),
    };
    template.map_err(Failure::new)
}

struct Asking<'a> {
    args: &'a JudgeModelArgs,
    template: &'a JudgeTemplate,
    method: Method,
}

impl Asking<'_> {
    /// Asks a model, and returns the judge's name with what came of it.
    fn ask(
        &self,
        store: &mut Store,
        name: &str,
        model: &mut dyn JudgingModel,
        console: &mut Console,
    ) -> Result<(String, Asked), Failure> {
        let usual = || format!("{name} ({}, {})", self.template.name(), self.method.name());
        let judge = self.args.judge.clone().unwrap_or_else(usual);
        let mut progress = |done, all| console.progress("prompts", done, all);
        let how = (self.template, self.method);
        let asked = ask(store, (&judge, name), how, model, self.args.limit, &now, &mut progress);
        Ok((judge, asked.map_err(Failure::new)?))
    }
}
