//! Links by name, each with the source of its bandwidth.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A link of the catalogue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueLink {
    /// 1e9 bytes a second of one direction.
    pub bandwidth_gbs: f64,
    /// Document that states the bandwidth.
    pub source: String,
}

/// Returns the links that descriptions may name.
pub fn catalogue() -> BTreeMap<String, CatalogueLink> {
    toml::from_str(include_str!("../catalogue.toml")).expect("a test reads the catalogue")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_source() {
        let links = catalogue();
        assert!(links.len() > 10);
        for (name, link) in links {
            assert!(link.bandwidth_gbs > 0.0 && link.source.len() > 20, "{name}");
        }
    }
}
