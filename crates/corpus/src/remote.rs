//! The plan of a corpus for other machines.
//!
//! Functions do not travel; their configuration does. A plan's text is the configuration and the key of its input, and every
//! process makes the same plan from it. A machine on which the input is not the same (another listing: names, sizes, times of change,
//! ETags of objects) refuses, rather than mixing two corpora.

use crate::build::{Meter, as_maps};
use crate::check;
use crate::compose;
use crate::error::{Error, Result};
use crate::identity::key;
use crate::parts::units;
use crate::source::{self, Access, Listing, Source, is_address};
use crate::split::Assign;
use bessemer_corpus_config::{CorpusConfig, SourceKind};
use bessemer_dataflow::{Scan, Sink, Stage};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Runs a plan elsewhere than on the threads of this process.
pub trait Engine {
    /// Runs the plan of `text`; the sink gets every row, in the plan's order, on the calling thread. `folder` is for files of this
    /// plan alone; what lies there from an earlier, interrupted run of the same plan may be used.
    fn run(&self, text: &str, folder: &Path, sink: &mut dyn Sink) -> bessemer_dataflow::Result<()>;
}

/// A plan as it travels.
#[derive(Serialize, Deserialize)]
struct Text {
    config: CorpusConfig,
    key: String,
}

/// Makes the path of a source one that means the same on other machines.
fn place(kind: SourceKind, path: &mut String) -> Result<()> {
    if path.is_empty() && kind != SourceKind::Embedded {
        return Err(Error::Config(
            "corpus.path is missing: set it to a path that all machines of the cluster can read".into(),
        ));
    }
    if !is_address(path) {
        return absolute("corpus.path", path);
    }
    // An address means the same everywhere, but the plan that names it is logged by the machines that it passes.
    if path.contains(['?', '@']) {
        return Err(Error::Config(
            "corpus.path is an address that may hold credentials (after ? or before @), which other machines are not given; use s3://, \
             gs:// or az:// with the store's settings in the environment of every machine, or build without a cluster"
                .into(),
        ));
    }
    Ok(())
}

/// A path that means the same in any folder.
fn absolute(key: &str, path: &mut String) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    let found = std::path::absolute(&*path).map_err(Error::io("make absolute", Path::new(&*path)))?;
    let Some(found) = found.to_str() else {
        return Err(Error::Config(format!(
            "{key} = {path:?}: expected UTF-8, because it is sent to other \
                                          machines"
        )));
    };
    *path = found.into();
    Ok(())
}

/// Makes every path of a configuration absolute: processes on other machines run in other folders.
fn absolute_paths(config: &mut CorpusConfig) -> Result<()> {
    if config.sources.is_empty() {
        place(config.source, &mut config.path)?;
    }
    for source in &mut config.sources {
        place(source.source, &mut source.path)
            .map_err(|error| Error::OfSource { name: source.name.clone(), error: Box::new(error) })?;
    }
    config.paths().into_iter().try_for_each(|(key, path)| absolute(&key, path))
}

/// The text of a configuration's plan over an input.
pub(crate) fn text(config: &CorpusConfig, listing: &Listing) -> Result<String> {
    let mut config = config.clone();
    absolute_paths(&mut config)?;
    // Of the configuration as it travels: profiles and lists are part of it under their paths.
    let key = key(&config, listing)?;
    serde_json::to_string(&Text { config, key })
        .map_err(|cause| Error::Config(format!("the configuration cannot be written as JSON: {cause}")))
}

/// A plan whose source is read in parts.
pub struct RemotePlan {
    source: Arc<dyn Source>,
    stages: Vec<Stage>,
    /// Runs of files, or nothing where the source can only be read as a whole.
    units: Vec<Range<usize>>,
}

impl RemotePlan {
    /// Makes the plan of a text. `access`: how this machine reaches object stores.
    ///
    /// # Errors
    /// A text that is no plan's, a source that is missing here, or one that differs from the one the text was made of.
    pub fn of(text: &str, access: &Access) -> Result<RemotePlan> {
        let Text { mut config, key: wanted } = serde_json::from_str(text)
            .map_err(|cause| Error::Config(format!("cannot parse the plan: {cause}")))?;
        config.access = access.clone();
        check(&config).map_err(Error::Config)?;
        let source = source::open(&config)?;
        let found = key(&config, source.listing())?;
        if found != wanted {
            return Err(Error::Source {
                path: config.path.clone().into(),
                problem: format!("its files differ from those that the corpus is built of (key {found}, wanted {wanted})"),
                hint: "let every machine see the same files with the same times, and run the same program on all".into(),
            });
        }
        let assign = Assign::resolve(&config.split, source.listing())?;
        let stages =
            compose::plan(&config, source.clone(), assign, as_maps(&<[Arc<Meter>; 2]>::default()))?.stages;
        let apart = source.file_bytes().len() as u64 == source.listing().files;
        let units = if apart { units(source.as_ref()) } else { Vec::new() };
        Ok(RemotePlan { source, stages, units })
    }

    /// Number of parts.
    pub fn count(&self) -> usize {
        self.units.len().max(1)
    }

    /// The rows of a part. Parts after each other are the source.
    pub fn scan(&self, part: usize) -> bessemer_dataflow::Result<Box<dyn Scan>> {
        match self.units.get(part) {
            Some(files) => self.source.scan_files(files.clone()),
            None => self.source.scan(),
        }
    }

    /// Stages that the rows pass.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_corpus_config::scores::{ScoreConfig, ScoreKind};

    #[test]
    fn a_text_names_every_file_by_a_path_that_holds_anywhere_and_its_key_is_found_there() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("in.jsonl");
        std::fs::write(&input, "{\"text\": \"a text\"}\n").unwrap();
        let list = folder.path().join("domains.txt");
        std::fs::write(&list, "blocked.com\n").unwrap();
        let mut config = CorpusConfig { path: input.display().to_string(), ..CorpusConfig::default() };
        // Relative to the room's folder, in which tests run.
        let model = "../score/tests/data/fasttext/hs.bin";
        config.scores.list = vec![ScoreConfig {
            name: "quality".into(),
            kind: ScoreKind::Fasttext,
            model: model.into(),
            label: "__label__en".into(),
            ..ScoreConfig::default()
        }];
        config.rules.profiles = vec!["gopher-quality".into(), "../rules/profiles/c4.toml".into()];
        config.rules.bad_words = "../corpus/README.md".into();
        config.evaluate.profiles = vec!["../rules/profiles/ziya2.toml".into()];
        config.urls.domain_files = vec![list.display().to_string()];
        let source = source::open(&config).unwrap();
        let text = text(&config, source.listing()).unwrap();
        let told: Text = serde_json::from_str(&text).unwrap();
        let here = std::path::absolute(".").unwrap().display().to_string();
        assert_eq!(told.config.scores.list[0].model, format!("{here}/{model}"));
        assert_eq!(told.config.rules.profiles[0], "gopher-quality");
        for path in [
            &told.config.rules.profiles[1],
            &told.config.rules.bad_words,
            &told.config.evaluate.profiles[0],
            &told.config.urls.domain_files[0],
        ] {
            assert!(Path::new(path).is_absolute(), "{path}");
        }
        RemotePlan::of(&text, &Access::default()).unwrap();
    }
}
