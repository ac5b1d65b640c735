//! Descriptions that the program knows by name, one of each topology at least.

/// Names and texts of the examples.
pub const EXAMPLES: [(&str, &str); 12] = [
    ("node-8", include_str!("../networks/node-8.toml")),
    ("nvlink-256", include_str!("../networks/nvlink-256.toml")),
    ("cxl-rack", include_str!("../networks/cxl-rack.toml")),
    ("switch-16", include_str!("../networks/switch-16.toml")),
    ("pcie-64", include_str!("../networks/pcie-64.toml")),
    ("fat-tree-1024", include_str!("../networks/fat-tree-1024.toml")),
    ("fat-tree-16384", include_str!("../networks/fat-tree-16384.toml")),
    ("dragonfly-1056", include_str!("../networks/dragonfly-1056.toml")),
    ("torus-32x32", include_str!("../networks/torus-32x32.toml")),
    ("torus-8x8x16", include_str!("../networks/torus-8x8x16.toml")),
    ("rail-only-1024", include_str!("../networks/rail-only-1024.toml")),
    ("rail-optimised-1024", include_str!("../networks/rail-optimised-1024.toml")),
];
