//! Words and sentences of English against those of spaCy (golden/english_words.py).

use bessemer_text::split::english::{Tokenizer, sentence_count};
use bessemer_text::{Words, unicode::strip};

#[test]
fn words_and_sentences_of_spacy() {
    let cases: Vec<(String, Vec<String>, usize)> =
        serde_json::from_str(include_str!("english_words.json")).expect("the golden file is JSON");
    assert!(cases.len() > 1000);
    let (mut tokenizer, mut tokens) = (Tokenizer::new(), Vec::new());
    let mut wrong = Vec::new();
    for (text, words, sentences) in &cases {
        tokenizer.tokenize(text, &mut tokens);
        let found: Vec<&str> =
            tokens.iter().map(|token| strip(token.of(text))).filter(|word| !word.is_empty()).collect();
        let count = sentence_count(text, &tokens);
        if found != *words || count != *sentences {
            wrong.push(format!("{text:?}: {found:?} and {count}, wanted {words:?} and {sentences}"));
        }
        assert_eq!(Words::English.split(text), found);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
