//! Errors of predictions.

use bessemer_plan::{best_constant, errors, ranking};
use proptest::prelude::*;

#[test]
fn errors_are_those_worked_out_by_hand() {
    let e = errors(&[0.9, 1.2, 1.0, 1.1]).unwrap();
    assert!((e.mean - 0.1).abs() < 1e-12);
    assert!((e.median - 0.1).abs() < 1e-12);
    assert!((e.max - 0.2).abs() < 1e-12);
    assert!((e.bias - 0.05).abs() < 1e-12);
    // 1/1.1: |0.8182 - 1|, |1.0909 - 1|, |0.9091 - 1|, 0.
    assert!((e.shape - (2.0 / 11.0 + 1.0 / 11.0 + 1.0 / 11.0) / 4.0).abs() < 1e-12);
    assert_eq!(errors(&[]), None);
}

#[test]
fn ranking_counts_pairs_and_the_price_of_the_choice() {
    // Predicted order: a c b; measured: a b c.
    let (regret, tau) = ranking(&[(1.0, 10.0), (3.0, 11.0), (2.0, 12.0)]).unwrap();
    assert_eq!((regret, tau), (0.0, 1.0 / 3.0));
    let (regret, tau) = ranking(&[(3.0, 10.0), (2.0, 11.0), (1.0, 12.0)]).unwrap();
    assert!((regret - 0.2).abs() < 1e-12);
    assert_eq!(tau, -1.0);
    assert_eq!(ranking(&[(1.0, 1.0)]), None);
}

proptest! {
    #[test]
    fn no_constant_is_better(ratios in prop::collection::vec(0.1f64..10.0, 1..20), c in 0.01f64..20.0) {
        let error = ratios.iter().map(|ratio| (c * ratio - 1.0).abs()).sum::<f64>() / ratios.len() as f64;
        prop_assert!(best_constant(&ratios) <= error + 1e-12);
    }
}
