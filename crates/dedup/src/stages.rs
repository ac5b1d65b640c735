//! From a configuration to the stages of its methods.

use bessemer_corpus_config::dedup::{DedupConfig, Method};
use bessemer_dataflow::Stage;

/// The stages of all methods, in order. Rows carry `file`, `row`, `text`, `reason`, `detail`, perhaps `split`
/// and `copies`, and are ordered by (file, row). The keys of all methods before the first that edits texts come first: no later
/// method of them reads the texts.
pub fn stages(config: &DedupConfig) -> Vec<Stage> {
    let edits = |method: &Method| matches!(method, Method::Bloom | Method::Substring | Method::Lines);
    let first = config.methods.iter().position(edits).unwrap_or(config.methods.len());
    let (unedited, others) = config.methods.split_at(first);
    let mut stages: Vec<Stage> = unedited.iter().filter_map(|method| keys(config, *method)).collect();
    stages.extend(unedited.iter().flat_map(|method| behind_keys(config, *method)));
    for method in others {
        stages.extend(keys(config, *method));
        stages.extend(behind_keys(config, *method));
    }
    stages
}

/// The map that makes the keys of a method, where it keeps them.
fn keys(config: &DedupConfig, method: Method) -> Option<Stage> {
    match method {
        Method::Exact => Some(crate::exact::keys()),
        Method::Minhash => Some(crate::minhash::stages::keys(&config.minhash)),
        Method::Simhash => Some(crate::simhash::keys(&config.simhash)),
        Method::Semantic => Some(crate::semantic::keys(&config.semantic)),
        Method::Bloom | Method::Substring | Method::Lines => None,
    }
}

fn behind_keys(config: &DedupConfig, method: Method) -> Vec<Stage> {
    match method {
        Method::Exact => crate::exact::stages(),
        Method::Minhash => crate::minhash::stages::stages(&config.minhash),
        Method::Simhash => crate::simhash::stages(&config.simhash),
        Method::Bloom => crate::bloom::stages(&config.bloom),
        Method::Semantic => crate::semantic::stages(&config.semantic),
        Method::Substring => crate::substring::stages(&config.substring),
        Method::Lines => crate::lines::stages(&config.lines),
    }
}
