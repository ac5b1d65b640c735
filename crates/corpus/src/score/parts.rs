//! Head, middle and tail of the corpus by a perplexity, as cc_net cuts it (Wenzek et al. 2020): two quantiles of the kept
//! documents, of each language apart where languages are known.
//!
//! A side plan: place, perplexity and language travel, texts do not. The pipeline breaker reads its input once into a sketch for each
//! language, and into a file, which it reads again when the cuts are known.

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_corpus_config::scores::ScoreConfig;
use bessemer_dataflow::{
    BreakerContext, Error, Input, Output, PipelineBreaker, Result, Stage, column, scan_files, side_rows,
};
use bessemer_score::quantile::{Cuts, Sketch};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The stage that adds the column of the part, if the score is to have one.
pub(super) fn stage(score: &ScoreConfig, language: Option<&str>) -> Option<Stage> {
    let part = score.part_column()?;
    let mut project: Vec<String> = ["file", "row", "reason", &score.name].map(String::from).into();
    project.extend(language.map(String::from));
    let parts = CorpusParts {
        score: score.name.clone(),
        language: language.map(String::from),
        part: part.clone(),
        head: score.head,
        tail: score.tail,
    };
    Some(Stage::SideJoin {
        name: part,
        project,
        adds: parts.adds(),
        side: vec![Stage::PipelineBreaker(Arc::new(parts))],
    })
}

/// The pipeline breaker.
struct CorpusParts {
    /// Column of the perplexity.
    score: String,
    /// Column of the language.
    language: Option<String>,
    /// Column of the result.
    part: String,
    head: f64,
    tail: f64,
}

impl CorpusParts {
    fn adds(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new(&self.part, DataType::Utf8, true)]))
    }

    /// Language and perplexity of each row of a batch that is kept and has one.
    fn each(&self, batch: &RecordBatch, take: &mut dyn FnMut(usize, &str, f64) -> Result<()>) -> Result<()> {
        let reasons: &StringArray = column(self.name(), batch, "reason")?;
        let scores: &Float64Array = column(self.name(), batch, &self.score)?;
        let languages = match &self.language {
            Some(name) => Some(column::<StringArray>(self.name(), batch, name)?),
            None => None,
        };
        for index in (0..batch.num_rows()).filter(|&index| reasons.is_null(index) && scores.is_valid(index)) {
            let language =
                languages.filter(|names| names.is_valid(index)).map_or("", |names| names.value(index));
            take(index, language, scores.value(index))?;
        }
        Ok(())
    }

    /// The rows of a batch with their parts.
    fn parts(&self, batch: &RecordBatch, cuts: &BTreeMap<String, Cuts>) -> Result<RecordBatch> {
        let files: &UInt32Array = column(self.name(), batch, "file")?;
        let ids: &UInt64Array = column(self.name(), batch, "row")?;
        let (mut found, mut part) = (Vec::new(), StringBuilder::new());
        self.each(batch, &mut |index, language, perplexity| {
            if let Some(cuts) = cuts.get(language) {
                found.push((files.value(index), ids.value(index)));
                part.append_value(cuts.part(perplexity).name());
            }
            Ok(())
        })?;
        side_rows(found, &self.adds(), [Arc::new(part.finish()) as ArrayRef])
    }
}

impl PipelineBreaker for CorpusParts {
    fn name(&self) -> &str {
        "corpus-parts"
    }

    fn run(
        &self,
        input: &mut Input<'_>,
        context: &BreakerContext<'_>,
        output: &mut Output<'_>,
    ) -> Result<()> {
        const FILE: &str = "perplexities.arrow";
        let path = context.spill.path().join(FILE);
        let io = |action: &'static str| {
            let path = path.clone();
            move |cause| Error::Io { action, path, cause }
        };
        let mut sketches: BTreeMap<String, Sketch> = BTreeMap::new();
        let mut kept: Option<StreamWriter<BufWriter<File>>> = None;
        while let Some(batch) = input()? {
            if context.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            self.each(&batch, &mut |_, language, perplexity| {
                match sketches.get_mut(language) {
                    Some(sketch) => sketch.add(perplexity),
                    None => sketches.entry(language.to_string()).or_default().add(perplexity),
                }
                Ok(())
            })?;
            let writer = match &mut kept {
                Some(writer) => writer,
                None => {
                    let file = BufWriter::new(context.spill.create_new(FILE).map_err(Error::System)?);
                    kept.insert(StreamWriter::try_new(file, &batch.schema())?)
                }
            };
            writer.write(&batch)?;
        }
        let Some(mut writer) = kept else { return Ok(()) };
        writer.finish()?;
        writer.into_inner()?.flush().map_err(io("write"))?;
        let cuts: BTreeMap<String, Cuts> = sketches
            .iter()
            .filter_map(|(language, sketch)| {
                Some((language.clone(), Cuts::of(sketch, self.head, self.tail).ok()?))
            })
            .collect();
        let mut batches = scan_files(context.spill, [FILE.into()], None);
        while let Some(batch) = batches.next()? {
            if context.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            output(self.parts(&batch()?, &cuts)?)?;
        }
        Ok(())
    }
}
