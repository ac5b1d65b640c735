//! The methods that a study compares.

use bessemer_arch::{ArchError, InitChoice, Model, ModelConfig, NormChoice, Placement};
use bessemer_runlog::study::StudySettings;

/// A place for the normalisations and an initialisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Name on the command line and in files.
    pub name: &'static str,
    /// Name for people, with source.
    pub title: &'static str,
    placement: Placement,
    norm: NormChoice,
    init: InitChoice,
}

const fn post(name: &'static str, title: &'static str, init: InitChoice) -> Method {
    Method { name, title, placement: Placement::Post, norm: NormChoice::LayerNorm, init }
}

/// All methods, in the order in which a study runs them.
pub const METHODS: &[Method] = &[
    post("post-ln", "Post-LN, Xavier (Vaswani et al. 2017)", InitChoice::Xavier),
    post("post-ln-gpt2", "Post-LN, normal .02 (GPT-2's initialisation)", InitChoice::Gpt2),
    Method {
        name: "pre-ln",
        title: "Pre-LN, normal .02 (GPT-2, Radford et al. 2019)",
        placement: Placement::Pre,
        norm: NormChoice::LayerNorm,
        init: InitChoice::Gpt2,
    },
    post("ds-init", "Post-LN, DS-Init (Zhang et al. 2019)", InitChoice::DsInit),
    post("lri", "Post-LN, LRI (Xu et al. 2020)", InitChoice::Lri),
    Method {
        name: "t-fixup",
        title: "no LN, T-Fixup (Huang et al. 2020)",
        placement: Placement::Pre,
        norm: NormChoice::None,
        init: InitChoice::TFixup,
    },
    Method {
        name: "deepnorm",
        title: "DeepNorm (Wang et al. 2022)",
        placement: Placement::DeepNorm,
        norm: NormChoice::LayerNorm,
        init: InitChoice::DeepNorm,
    },
];

/// The method of that name.
pub fn method(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|m| m.name == name)
}

impl Method {
    /// The decoder: learned positions, GELU, biases, an output projection of its own, no dropout.
    ///
    /// # Errors
    /// Sizes that cannot be, by their keys in the `[model]` table.
    pub fn model(&self, settings: &StudySettings, symbols: usize) -> Result<Model, ArchError> {
        let config = ModelConfig {
            architecture: "gpt2".into(),
            layers: Some(settings.layers),
            width: Some(settings.width),
            heads: Some(settings.heads),
            context: Some(settings.context),
            tied_embeddings: Some(false),
            norm: Some(self.norm),
            placement: self.placement,
            init: Some(self.init),
            ..ModelConfig::default()
        };
        config.resolve(Some(symbols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_a_model_of_the_same_sizes() {
        let settings = StudySettings {
            layers: 24,
            width: 64,
            heads: 4,
            context: 64,
            batch: 12,
            steps: 400,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
        };
        for (i, m) in METHODS.iter().enumerate() {
            let model = m.model(&settings, 65).unwrap();
            assert_eq!((model.layers, model.width, model.ffn_width, model.vocab_size), (24, 64, 256, 65));
            assert_eq!((model.norm, model.placement, model.init), (m.norm, m.placement, m.init));
            assert_eq!(method(m.name), Some(m));
            assert!(METHODS[..i].iter().all(|other| other.name != m.name));
        }
        assert_eq!(method("pre-norm"), None);
        let odd = StudySettings { heads: 5, ..settings };
        assert!(METHODS[0].model(&odd, 65).unwrap_err().to_string().contains("model.heads"));
    }
}
