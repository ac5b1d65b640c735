//! Every perturbation, and the counting of groups, on any text.

use bessemer_metrics::bias::{Group, GroupCounter};
use bessemer_perturb::{Perturbation, of_document};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for perturbation in Perturbation::all() {
        let changed = perturbation.apply(&text, &mut of_document(1, data.len()));
        assert!(changed.len() <= 64 * (text.len() + 1), "{perturbation:?}");
    }
    let targets = ["a".to_owned()];
    let groups = Group::genders();
    let mut counter = GroupCounter::new(&groups, &targets);
    counter.add(&counter.of(&text), 1);
    let _ = (counter.representation(), counter.association());
}
