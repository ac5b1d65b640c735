//! Head, middle and tail of the corpus by a perplexity, as cc_net cuts it (Wenzek et al. 2020): two quantiles of the kept
//! documents, of each language apart where languages are known.
//!
//! A side plan: place, perplexity and language travel, texts do not. The pipeline breaker reads its input once into a sketch for each
//! language, and into a file, which it reads again when the cuts are known.

use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bessemer_dataflow::{
    BreakerContext, Error, Input, Output, PipelineBreaker, Result, Stage, column, scan_files,
};
use bessemer_score::ScoreConfig;
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
        name: part.clone(),
        project,
        side: vec![Stage::PipelineBreaker(Arc::new(parts))],
        adds: Arc::new(Schema::new(vec![Field::new(part, DataType::Utf8, true)])),
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
    fn parts(
        &self,
        batch: &RecordBatch,
        cuts: &BTreeMap<String, Cuts>,
        schema: &SchemaRef,
    ) -> Result<RecordBatch> {
        let files: &UInt32Array = column(self.name(), batch, "file")?;
        let ids: &UInt64Array = column(self.name(), batch, "row")?;
        let (mut file, mut row, mut part) =
            (UInt32Builder::new(), UInt64Builder::new(), StringBuilder::new());
        self.each(batch, &mut |index, language, perplexity| {
            if let Some(cuts) = cuts.get(language) {
                file.append_value(files.value(index));
                row.append_value(ids.value(index));
                part.append_value(cuts.part(perplexity).name());
            }
            Ok(())
        })?;
        let columns: Vec<arrow_array::ArrayRef> =
            vec![Arc::new(file.finish()), Arc::new(row.finish()), Arc::new(part.finish())];
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
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
        let path = context.spill.join("perplexities.arrow");
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
                    let file = BufWriter::new(File::create(&path).map_err(io("create"))?);
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
        let schema = Arc::new(Schema::new(vec![
            Field::new("file", DataType::UInt32, false),
            Field::new("row", DataType::UInt64, false),
            Field::new(&self.part, DataType::Utf8, true),
        ]));
        let mut batches = scan_files([path], None);
        while let Some(batch) = batches.next()? {
            if context.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            output(self.parts(&batch()?, &cuts, &schema)?)?;
        }
        Ok(())
    }
}
