//! Synonyms by a small WordNet of invented sets, and METEOR with them, as NLTK has both (`golden/metrics/wordnet.py`).

use bessemer_metrics::Meteor;
use bessemer_metrics::wordnet::{PartFiles, WordNet, WordNetError};
use serde_json::Value;
use std::collections::BTreeSet;

macro_rules! part {
    ($name:literal) => {
        PartFiles {
            index: include_str!(concat!("../wordnet/index.", $name)).into(),
            data: include_str!(concat!("../wordnet/data.", $name)).into(),
            exceptions: include_str!(concat!("../wordnet/", $name, ".exc")).into(),
        }
    };
}

fn files() -> [PartFiles; 4] {
    [part!("noun"), part!("verb"), part!("adj"), part!("adv")]
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../wordnet/golden.json")).expect("JSON")
}

#[test]
fn synonyms_are_those_of_nltk() {
    let net = WordNet::new(files()).unwrap();
    let golden = golden();
    let of = golden["synonyms"].as_object().unwrap();
    assert!(of.len() > 80);
    for (word, wanted) in of {
        let found: BTreeSet<String> = net.synonyms(word).into_iter().collect();
        let wanted: BTreeSet<String> =
            wanted.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
        assert_eq!(found, wanted, "{word}");
    }
    assert!(net.synonyms("blast_furnaces").iter().all(|word| !word.contains('_')));
}

#[test]
fn meteor_with_synonyms_is_that_of_nltk() {
    let net = WordNet::new(files()).unwrap();
    let golden = golden();
    let pairs = golden["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 300);
    let mut helped = 0;
    for pair in pairs {
        let (hypothesis, reference) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        let (found, wanted) = (
            Meteor::default().score(hypothesis, reference, Some(&|word| net.synonyms(word))),
            pair[2].as_f64().unwrap(),
        );
        assert!((found - wanted).abs() < 1e-12, "{found}, wanted {wanted}: {hypothesis:?} and {reference:?}");
        helped += usize::from(found != Meteor::default().score(hypothesis, reference, None));
    }
    assert!(helped > 50, "{helped}");
}

#[test]
fn files_that_are_no_wordnet_are_refused_with_file_and_line() {
    let refused = |change: fn(&mut [PartFiles; 4])| -> WordNetError {
        let mut files = files();
        change(&mut files);
        WordNet::new(files).unwrap_err()
    };
    let moved = refused(|files| files[0].data.insert(0, ' '));
    assert_eq!((moved.file.as_str(), moved.line), ("index.noun", 2), "{moved}");
    let short = refused(|files| files[1].index.push_str("steel v 1\n"));
    assert!(short.to_string().contains("index.verb, line") && short.found == "steel v 1", "{short}");
    let far = refused(|files| files[2].index = "x a 1 18446744073709551615 1 0 00000062\n".into());
    assert_eq!((far.file.as_str(), far.line), ("index.adj", 1));
    let inside = refused(|files| files[2].index = "x a 1 0 1 0 00000063\n".into());
    assert_eq!(inside.wanted, "a lemma and the places of its sets in the data file");
    let empty = refused(|files| files[3].exceptions.push_str("best\n"));
    assert_eq!((empty.file.as_str(), empty.line), ("adv.exc", 2));
}
