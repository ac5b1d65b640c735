//! fastText models; what is read scores text.

use bessemer_score::LanguageId;
use bessemer_score::fasttext::FastText;
use bessemer_score::language::FastTextLanguages;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    if let Ok(model) = FastText::read(data, data.len() as u64, "fuzz") {
        model.predict("some words, and \u{e9}\u{4e2d} others", 3, 0.0);
        if let Ok(languages) = FastTextLanguages::new(model) {
            languages.identify("some words");
        }
    }
}
