//! Models that the original fastText wrote are read here with its labels and probabilities, and the other way round.
//!
//! The files under `data/fasttext` and the predictions are made by golden/score/fasttext_models.py. The test whose
//! name begins with `oracle` trains with fastText itself.

use bessemer_score::fasttext::{Example, FastText, Loss, TrainConfig, labelled_lines, train};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(serde::Deserialize)]
struct Expected {
    texts: Vec<String>,
    predictions: HashMap<String, Vec<Vec<(String, f32)>>>,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fasttext")
}

fn same(model: &FastText, expected: &Expected, name: &str) {
    for (text, wanted) in expected.texts.iter().zip(&expected.predictions[name]) {
        let found = model.predict(text, usize::MAX, 0.0);
        assert_eq!(found.len(), wanted.len(), "{name}: {text:?}");
        let wanted: HashMap<&str, f32> = wanted.iter().map(|(l, p)| (l.as_str(), *p)).collect();
        for one in &found {
            let p = wanted[one.label.as_str()];
            assert!((one.probability - p).abs() < 1e-6, "{name}: {text:?}: {one:?}, wanted {p}");
        }
        assert!(found.windows(2).all(|pair| pair[0].probability >= pair[1].probability));
        // The first one is the first one of the original unless they are as good as equal.
        if let [first, second, ..] = &found[..]
            && first.probability > second.probability + 1e-5
        {
            let best = wanted.values().copied().fold(0.0, f32::max);
            assert!((wanted[first.label.as_str()] - best).abs() < 1e-7, "{name}: {text:?}");
        }
    }
}

#[test]
fn models_of_the_original_give_its_labels_and_probabilities() {
    let text = std::fs::read_to_string(data().join("predictions.json")).expect("golden file");
    let expected: Expected = serde_json::from_str(&text).expect("golden file");
    assert_eq!(expected.predictions.len(), 5);
    for name in expected.predictions.keys() {
        let model = FastText::open(&data().join(name)).expect("a model of the original");
        same(&model, &expected, name);
    }
}

#[test]
fn a_model_is_written_as_it_was_read() {
    for name in ["softmax.bin", "hs.bin", "ova.bin", "ns.bin"] {
        let bytes = std::fs::read(data().join(name)).expect("golden file");
        let model = FastText::read(&bytes[..], bytes.len() as u64, name).expect("reads");
        let mut again = Vec::new();
        model.write(&mut again).expect("a vector takes all");
        assert!(again == bytes, "{name}");
    }
    let quantised = FastText::open(&data().join("pruned.ftz")).expect("reads");
    assert!(quantised.write(&mut Vec::new()).is_err());
}

#[test]
fn truncated_and_changed_files_are_refused_or_usable() {
    for name in ["softmax.bin", "hs.bin", "pruned.ftz"] {
        let bytes = std::fs::read(data().join(name)).expect("golden file");
        for cut in (0..bytes.len()).step_by(61).chain(bytes.len() - 3..bytes.len()) {
            let error = FastText::read(&bytes[..cut], cut as u64, name).expect_err("truncated");
            assert!(error.to_string().contains(name), "{error}");
        }
        // Every byte of the header and some of the rest, set to extremes.
        for at in (0..200).chain((200..bytes.len()).step_by(97)) {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                if let Ok(model) = FastText::read(&bad[..], bad.len() as u64, name) {
                    let found = model.predict("the größe où что", 3, 0.0);
                    assert!(found.iter().all(|p| p.probability.is_finite()), "{name}, byte {at} = {value}");
                }
            }
        }
    }
    let vectors = FastText::read(&b"not a model at all"[..], 18, "x").expect_err("no model");
    assert!(vectors.to_string().contains("magic"), "{vectors}");
}

/// `lines` of a training file with labels that follow from the words, most of the time.
fn training_file(lines: usize) -> String {
    let topics = [
        ("en", "the of and to in is that it was"),
        ("de", "der die und in den von zu das mit"),
        ("fr", "le de un être et à il avoir ne"),
    ];
    let mut state = 12345u32;
    let mut draw = move |bound: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % bound
    };
    let mut text = String::new();
    for _ in 0..lines {
        let topic = draw(3) as usize;
        text.push_str(&format!("__label__{}", topics[topic].0));
        for _ in 0..6 {
            let from = if draw(4) == 0 { draw(3) as usize } else { topic };
            let words: Vec<&str> = topics[from].1.split(' ').collect();
            text.push(' ');
            text.push_str(words[draw(words.len() as u32) as usize]);
        }
        text.push('\n');
    }
    text
}

const PEER: &str = r#"
import json, sys, fasttext
mode, path, extra = sys.argv[1:4]
texts = [l.rstrip("\n") for l in open(extra, encoding="utf-8")]
strip = lambda t: " ".join(w for w in t.split(" ") if not w.startswith("__label__"))
if mode == "train":
    loss = path.split("-")[-1].split(".")[0]
    model = fasttext.train_supervised(input=extra, loss=loss, thread=1, dim=10, lr=0.2, epoch=5, wordNgrams=2, minn=2, maxn=3, bucket=1000, verbose=0)
    model.save_model(path)
else:
    model = fasttext.load_model(path)
rows = [[[l, float(p)] for p, l in model.f.predict(strip(t) + "\n", -1, 0.0, "strict")] for t in texts]
print(json.dumps({"texts": [strip(t) for t in texts], "predictions": {"m": rows}}))
"#;

fn peer(python: &std::ffi::OsStr, mode: &str, model: &Path, texts: &Path) -> Expected {
    let output =
        Command::new(python).args(["-c", PEER, mode]).arg(model).arg(texts).output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The share of texts whose first label is right.
fn accuracy(examples: &[Example], best: impl Fn(usize) -> String) -> f64 {
    let right = examples.iter().enumerate().filter(|(i, e)| e.labels[0] == best(*i)).count();
    right as f64 / examples.len() as f64
}

#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_models_trained_here_are_read_by_fasttext_and_are_as_good() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let folder = tempfile::tempdir().expect("temporary folder");
    let texts = folder.path().join("train.txt");
    let file = training_file(600);
    std::fs::write(&texts, &file).expect("written");
    let examples: Vec<Example> = labelled_lines(&file).collect();
    for (loss, name) in [(Loss::Softmax, "softmax"), (Loss::Hs, "hs"), (Loss::Ns, "ns"), (Loss::Ova, "ova")] {
        let theirs_path = folder.path().join(format!("theirs-{name}.bin"));
        let theirs = peer(&python, "train", &theirs_path, &texts);
        same(&FastText::open(&theirs_path).expect("reads"), &theirs, "m");
        let config = TrainConfig {
            loss,
            dim: 10,
            lr: 0.2,
            word_ngrams: 2,
            minn: 2,
            maxn: 3,
            bucket: 1000,
            block: 16,
            threads: 2,
            ..TrainConfig::default()
        };
        let ours = train(&config, || labelled_lines(&file).map(Ok)).expect("trains");
        let ours_path = folder.path().join(format!("ours-{name}.bin"));
        let mut bytes = Vec::new();
        ours.write(&mut bytes).expect("a vector takes all");
        std::fs::write(&ours_path, &bytes).expect("written");
        let read_by_them = peer(&python, "load", &ours_path, &texts);
        same(&ours, &read_by_them, "m");
        let our_accuracy = accuracy(&examples, |i| ours.predict(&examples[i].text, 1, 0.0)[0].label.clone());
        let their_accuracy = accuracy(&examples, |i| theirs.predictions["m"][i][0].0.clone());
        println!("{name}: accuracy {our_accuracy:.4} here, {their_accuracy:.4} there");
        assert!(our_accuracy > their_accuracy - 0.02, "{name}: {our_accuracy} here, {their_accuracy} there");
    }
}
