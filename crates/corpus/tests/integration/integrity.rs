//! What comes out of a build is what readers get, or an error that names the file; foreign files survive.

use bessemer_corpus::*;
use bessemer_corpus_config::*;
use bessemer_tokenizer::{Tokenizer, TokenizerConfig, Trainer};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

fn built(config: &CorpusConfig, out: &Path) -> Result<Built> {
    let stop = AtomicBool::new(false);
    build(config, out, &BuildContext { threads: 2, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop })
}

/// Thirty documents in three sources; `source-2/copy.txt` repeats `source-0/00.txt`.
fn input(folder: &Path) -> CorpusConfig {
    for number in 0..30u64 {
        let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let words: Vec<String> = (0..120)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                format!("w{}", (state >> 33) % 5000)
            })
            .collect();
        let path = folder.join(format!("source-{}", number % 3));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(format!("{number:02}.txt")), words.join(" ")).unwrap();
    }
    fs::copy(folder.join("source-0/00.txt"), folder.join("source-2/copy.txt")).unwrap();
    CorpusConfig { source: SourceKind::Folder, path: folder.display().to_string(), ..CorpusConfig::default() }
}

/// All that a reader says of a corpus.
fn everything(corpus: &Path) -> Result<String> {
    let reader = CorpusReader::open(corpus)?;
    let mut text = format!("{:?}\n", reader.summary());
    for split in Split::ALL {
        for document in reader.documents(split) {
            text += &format!("{split:?} {:?}\n", document?);
        }
    }
    for row in reader.inspect(InspectFilter::default()) {
        text += &format!("{:?}\n", row?);
    }
    Ok(text + &data_card(&reader)?)
}

fn shards(corpus: &Path, tokenizer: &Arc<Tokenizer>, out: &Path) -> Result<Tokenized> {
    let stop = AtomicBool::new(false);
    let context = BuildContext { threads: 1, memory_budget: 64 << 20, progress: &|_| {}, stop: &stop };
    tokenize_to_shards(&CorpusReader::open(corpus)?, tokenizer, out, 1 << 20, &context)
}

fn tokenizer(corpus: &Path) -> Arc<Tokenizer> {
    let config = TokenizerConfig { vocab_size: 270, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    let documents = CorpusReader::open(corpus).unwrap().documents(Split::Train);
    let texts: Vec<String> = documents.map(|document| document.unwrap().text).collect();
    trainer.feed_batch(&texts, 1);
    Arc::new(trainer.finish(|_| {}).unwrap())
}

#[test]
fn a_bit_flipped_anywhere_is_an_error_that_names_the_file() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("corpus");
    built(&input(&folder.path().join("input")), &out).unwrap();
    let expected = everything(&out).unwrap();
    let tokenizer = tokenizer(&out);
    let files: Vec<String> = verify(&out).unwrap().files.into_iter().map(|file| file.name).collect();
    assert!(files.len() >= 6 && verify(&out).unwrap().intact, "{files:?}");
    for name in &files {
        let path = out.join(name);
        let whole = fs::read(&path).unwrap();
        // About sixty places of every file, ends included.
        let step = (whole.len() / 60).max(1);
        for at in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at / step % 8);
            fs::write(&path, &bytes).unwrap();
            // No reader reads the attribution; `verify` does.
            if name != ATTRIBUTION_FILE {
                let error = everything(&out).expect_err(&format!("{name}, byte {at}")).to_string();
                assert!(error.contains(name.as_str()), "{name}, byte {at}: {error}");
            }
            match verify(&out) {
                Ok(found) => {
                    let damaged: Vec<_> = found.files.iter().filter(|file| file.problem.is_some()).collect();
                    assert!(!found.intact && damaged.len() == 1 && damaged[0].name == *name, "{damaged:?}");
                }
                Err(error) => assert!(name == SUMMARY_FILE && error.to_string().contains(name.as_str())),
            }
            if name.starts_with("documents-") {
                let error = shards(&out, &tokenizer, &folder.path().join("shards")).unwrap_err().to_string();
                assert!(error.contains(name.as_str()), "{error}");
                assert!(!folder.path().join("shards").join(TOKENS_FILE).exists());
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    assert!(everything(&out).unwrap() == expected);
    shards(&out, &tokenizer, &folder.path().join("shards")).unwrap();
}

#[test]
fn a_duplicate_is_named_by_the_id_of_the_document_that_is_kept() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("corpus");
    built(&input(&folder.path().join("input")), &out).unwrap();
    let reader = CorpusReader::open(&out).unwrap();
    let filter = InspectFilter { reason: Some("duplicate".into()), ..InspectFilter::default() };
    let mut rows: Vec<Inspected> = reader.inspect(filter).map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), 1);
    reader.name_duplicates(&mut rows).unwrap();
    let kept = rows[0].duplicate_of.clone().unwrap();
    let pair = [rows[0].id.as_str(), kept.id.as_str()];
    assert!(pair.contains(&"source-0/00.txt") && pair.contains(&"source-2/copy.txt"), "{pair:?}");
    assert_eq!(rows[0].detail.as_deref(), Some(format!("same text as {}", kept.id).as_str()));
    assert_eq!((kept.reason, kept.path.is_empty()), (None, false));
    let card = data_card(&reader).unwrap();
    assert!(card.contains(&format!("same text as {}", kept.id)) && !card.contains("file 0 row"), "{card}");

    let by_id = |id: &str, kept| {
        let filter = InspectFilter { id: Some(id.into()), kept, whole: true, ..InspectFilter::default() };
        reader.inspect(filter).map(|row| row.unwrap()).collect::<Vec<_>>()
    };
    let found = by_id(&kept.id, true);
    assert_eq!(found.len(), 1);
    let whole = fs::read_to_string(folder.path().join("input").join(&kept.id)).unwrap();
    assert_eq!(found[0].text.as_deref().map(str::trim), Some(whole.trim()));
    assert!(by_id(&kept.id, false).is_empty() && by_id("source-0", true).is_empty());
}

#[test]
fn numbers_that_are_none_and_lone_surrogates_drop_no_line() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.jsonl");
    let text = |n: usize| format!("{} number {n} {}", "word ".repeat(60), "more ".repeat(n));
    let lines = [
        format!(r#"{{"loss": NaN, "text": "{}", "more": [Infinity, -Infinity]}}"#, text(1)),
        format!(r#"{{"text": "{} \ud83d end"}}"#, text(2)),
        format!(r#"{{"other": "\udc00", "text": "{} \ud83d\ude00"}}"#, text(3)),
        r#"{"text": NaN}"#.into(),
        format!(r#"{{"text": "{}", "loss": NaNo}}"#, text(4)),
    ];
    fs::write(&file, lines.join("\n")).unwrap();
    let mut config = CorpusConfig {
        source: SourceKind::Jsonl,
        path: file.display().to_string(),
        ..CorpusConfig::default()
    };
    config.split.validation_fraction = 0.0;
    let out = folder.path().join("corpus");
    let summary = built(&config, &out).unwrap().summary;
    assert_eq!(summary.kept.documents, 3, "{:?}", summary.dropped_by_reason);
    let reasons: Vec<&str> = summary.dropped_by_reason.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["bad-json", "no-text-field"]);
    let reader = CorpusReader::open(&out).unwrap();
    let texts: Vec<String> = reader.documents(Split::Train).map(|document| document.unwrap().text).collect();
    assert!(texts[1].contains("\u{fffd} end") && texts[2].contains('\u{1f600}'), "{texts:?}");
}

#[test]
fn a_build_removes_nothing_that_no_build_wrote() {
    let folder = TempDir::new().unwrap();
    let (run, outside) = (folder.path().join("run"), folder.path().join("outside"));
    let out = run.join("corpus");
    let mut config = input(&folder.path().join("input"));
    built(&config, &out).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    let safe = || fs::read_to_string(outside.join("precious")).unwrap() == "precious";
    let before = everything(&out).unwrap();

    // A file, a folder and a link of the user's in the directory: refused by name, nothing changed.
    config.split.seed = 7;
    type Put = fn(&Path, &Path);
    let puts: [(&str, Put); 3] = [
        ("notes.txt", |path, _| fs::write(path, "mine").unwrap()),
        ("mine", |path, _| fs::create_dir(path).unwrap()),
        ("documents-train-link.parquet", |path, outside| std::os::unix::fs::symlink(outside, path).unwrap()),
    ];
    for (name, put) in puts {
        put(&out.join(name), &outside);
        let error = built(&config, &out).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("move this elsewhere"), "{error}");
        assert!(everything(&out).unwrap() == before && fs::symlink_metadata(out.join(name)).is_ok());
        assert_eq!(verify(&out).unwrap().foreign, [name]);
        let path = out.join(name);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    // Links in the places of the directories that a build clears.
    for name in ["corpus.partial", "corpus.old.partial", "corpus.lock.partial"] {
        let link = run.join(name);
        let target = if name.contains("lock") { outside.join("precious") } else { outside.clone() };
        std::os::unix::fs::symlink(target, &link).unwrap();
        let error = built(&config, &out).unwrap_err().to_string();
        assert!(error.contains(name) && safe(), "{error}");
        fs::remove_file(link).unwrap();
    }
    // Foreign files in them.
    for name in ["corpus.partial", "corpus.old.partial"] {
        fs::create_dir(run.join(name)).unwrap();
        fs::write(run.join(name).join("thesis.txt"), "mine").unwrap();
        let error = built(&config, &out).unwrap_err().to_string();
        assert!(error.contains("thesis.txt"), "{error}");
        assert_eq!(fs::read_to_string(run.join(name).join("thesis.txt")).unwrap(), "mine");
        fs::remove_dir_all(run.join(name)).unwrap();
    }

    // A linked corpus is neither read nor replaced.
    fs::rename(&out, outside.join("corpus")).unwrap();
    std::os::unix::fs::symlink(outside.join("corpus"), &out).unwrap();
    for error in [everything(&out).unwrap_err(), built(&config, &out).unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains("symbolic link") && error.contains("link the run directory"), "{error}");
    }
    fs::remove_file(&out).unwrap();
    fs::rename(outside.join("corpus"), &out).unwrap();
    assert!(everything(&out).unwrap() == before);

    // A linked run directory is the user's way to another disk.
    std::os::unix::fs::symlink(&run, folder.path().join("linked")).unwrap();
    assert!(!built(&config, &folder.path().join("linked/corpus")).unwrap().reused);
    assert!(everything(&out).unwrap() != before && safe());
}
