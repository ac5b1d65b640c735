use super::*;

fn config(order: usize, memory: u64, folder: &std::path::Path) -> EstimateConfig {
    EstimateConfig { order, memory, folder: folder.to_path_buf(), fallback: true }
}

fn lines(text: &str) -> impl Iterator<Item = Result<String>> + '_ {
    text.lines().map(|line| Ok(line.to_owned()))
}

#[test]
fn a_small_corpus_has_the_probabilities_of_lmplz() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let model = estimate(&config(3, 1 << 20, folder.path()), lines("a a b a\nb a a b\n")).expect("estimates");
    assert_eq!(model.counts(), [5, 7, 7]);
    let half = 0.5f64.log10();
    let golden = [
        ("<unk>", -0.90308999, 0.0),
        ("<s>", 0.0, half),
        ("</s>", -0.57209677, 0.0),
        ("a", -0.46943443, half),
        ("b", -0.57209677, half),
        ("<s> a", -0.37712016, half),
        ("a a", -0.37712016, half),
        ("<s> b", -0.41574957, half),
        ("a </s>", -0.58682002, 0.0),
        ("a b", -0.58682002, half),
        ("b </s>", -0.52201790, 0.0),
        ("b a", -0.29845257, half),
        ("<s> a a", -0.14885089, 0.0),
        ("<s> b a", -0.12407789, 0.0),
        ("a a b", -0.20102891, 0.0),
        ("a b </s>", -0.39761699, 0.0),
        ("a b a", -0.29973937, 0.0),
        ("b a </s>", -0.42082909, 0.0),
        ("b a a", -0.33741079, 0.0),
    ];
    let mut found = 0;
    model
        .for_each(|ngram, log10, backoff| {
            let name = ngram.join(" ");
            let wanted = golden.iter().find(|g| g.0 == name).expect("only these");
            assert!((log10 - wanted.1).abs() < 1e-7, "{name}: {log10}, wanted {}", wanted.1);
            assert!((backoff - wanted.2).abs() < 1e-6, "{name}: {backoff}, wanted {}", wanted.2);
            found += 1;
            Result::Ok(())
        })
        .expect("reads");
    assert_eq!(found, golden.len());
}

/// Sentences with a Zipf-like choice of words.
fn corpus(sentences: u64) -> String {
    let mut draws = crate::random::Uniform::new(11, 0);
    let mut text = String::new();
    for _ in 0..sentences {
        for _ in 0..draws.below(9) {
            let word = (1.0 / draws.unit()).min(40.0) as u64;
            text.push_str(&format!("w{word} "));
        }
        text.push('\n');
    }
    text
}

#[test]
fn probabilities_sum_to_one_after_every_history() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let text = corpus(400);
    let estimated = estimate(&config(4, 1 << 20, folder.path()), lines(&text)).expect("estimates");
    assert!(estimated.discounts().any(|(_, fallback)| !fallback));
    let model = estimated.model().expect("fits");
    let words = estimated.words.clone();
    let mut draws = crate::random::Uniform::new(5, 5);
    for _ in 0..300 {
        let mut state = if draws.below(2) == 0 { model.begin() } else { model.null() };
        for _ in 0..draws.below(5) {
            // Every known word but the begin and the end, and the unknown one.
            let word = &words[3 + draws.below(words.len() as u64 - 3) as usize];
            model.score_word(&mut state, if draws.below(10) == 0 { "never seen" } else { word });
        }
        let sum: f64 = words
            .iter()
            .filter(|word| &***word != BEGIN)
            .map(|word| 10f64.powf(model.score_word(&mut state.clone(), word).log10 as f64))
            .sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum} after {state:?}");
    }
}

#[test]
fn spilling_changes_no_byte_of_the_model() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let text = corpus(500);
    let arpa = |memory| {
        let model = estimate(&config(3, memory, folder.path()), lines(&text)).expect("estimates");
        let mut bytes = Vec::new();
        model.write_arpa(&mut bytes).expect("a vector takes all");
        bytes
    };
    let whole = arpa(1 << 24);
    assert!(whole == arpa(1000));
    let read = LanguageModel::read_arpa(&whole[..], whole.len() as u64, "whole").expect("reads");
    let again = estimate(&config(3, 1 << 24, folder.path()), lines(&text)).expect("estimates");
    let direct = again.model().expect("fits");
    assert_eq!(read.score_sentence("w1 w2 w1 w40 zzz"), direct.score_sentence("w1 w2 w1 w40 zzz"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
}

#[test]
fn what_gives_no_model_is_told() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let none = estimate(&config(3, 1 << 20, folder.path()), lines("\n \n")).expect_err("no words");
    assert!(none.to_string().contains("no words"), "{none}");
    let strict = EstimateConfig { fallback: false, ..config(3, 1 << 20, folder.path()) };
    let few = estimate(&strict, lines("a b\n")).expect_err("too few");
    assert!(few.to_string().contains("fallback"), "{few}");
    assert!(estimate(&config(9, 1, folder.path()), lines("a")).is_err());
}
