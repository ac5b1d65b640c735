//! Sharding rules by numbers: every operator computed whole, and on two and three simulated ranks that hold what its rule
//! says; and wrong rules, which must change the numbers.

mod cases;
mod ranks;

use crate::Suite;
use bessemer_tensor::Backend;
use bessemer_tensor::op::rule::{Linear, Rule};
use bessemer_tensor::op::{Access, FactorKind, Op};
use cases::{Case, cases};
use ranks::{Deviation, Mistake, by_factor, by_terms};

/// The operators of all cases on buffers of a backend.
pub(crate) fn bound_cases(backend: &mut dyn Backend) -> Vec<Op> {
    cases().iter().map(|case| ranks::bind(backend, &case.op, &case.values).unwrap()).collect()
}

/// Largest deviation that rounding explains. Sums of at most a hundred products of numbers around 1, and the few
/// operations after them, each of which rounds by 2^-24 of a number of at most [`Deviation::magnitude`].
const ROUNDING: f32 = 100.0 / 16_777_216.0;

pub(crate) fn every_operator_has_a_rule_that_fits_its_operands(_: &Suite<'_>) {
    let cases = cases();
    for name in Op::NAMES {
        assert!(cases.iter().any(|c| c.op.name() == *name), "{name} is in no case");
    }
    for Case { what, op, .. } in &cases {
        op.check().unwrap();
        let (rule, operands) = (op.rule(), op.operands());
        assert_eq!(rule.operands.len(), operands.iter().count(), "{what}");
        for (o, found) in operands.iter().zip(&rule.operands) {
            assert_eq!((o.name, o.access), (found.name, found.access), "{what}");
            let size = |factors: &[usize]| factors.iter().map(|f| rule.factors[*f].size).product::<usize>();
            let dims = (size(&found.rows), size(&found.cols));
            assert_eq!(dims, (o.view.rows, o.view.cols), "{what}: dims of {}", o.name);
        }
        for (i, factor) in rule.factors.iter().enumerate() {
            let has = |o: &bessemer_tensor::op::OperandRule| o.rows.contains(&i) || o.cols.contains(&i);
            assert!(rule.operands.iter().any(has), "{what}: {} is in no operand", factor.name);
            let contracted = rule.operands.iter().any(|o| o.access != Access::Read && !has(o));
            assert!(
                factor.kind != FactorKind::Sum || contracted,
                "{what}: {} is not contracted",
                factor.name
            );
        }
    }
}

/// Ranks that a factor can be given to: two, and three if the parts are not empty.
fn degrees(size: usize) -> impl Iterator<Item = usize> {
    [2, 3].into_iter().filter(move |ranks| size >= *ranks)
}

fn agrees(suite: &Suite<'_>, what: &str, found: Result<Deviation, bessemer_tensor::TensorError>) {
    let found = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    let bound = suite.bound(ROUNDING) * found.magnitude.max(1.0);
    assert!(
        found.deviation <= bound,
        "{what}: {} is off by {}, bound {bound}",
        found.operand,
        found.deviation
    );
}

/// Errors count: the operator refuses what it cannot compute.
fn differs(what: &str, found: Result<Deviation, bessemer_tensor::TensorError>) {
    if let Ok(found) = found {
        let bound = 30.0 * ROUNDING * found.magnitude.max(1.0);
        // Also true of NaN.
        let within = found.deviation <= bound;
        assert!(!within, "{what}: only off by {}", found.deviation);
    }
}

pub(crate) fn ranks_that_share_a_loop_compute_what_one_computes(suite: &Suite<'_>) {
    for kernels in suite.reference_and_fastest() {
        for case in cases() {
            let rule = case.op.rule();
            for (f, factor) in rule
                .factors
                .iter()
                .enumerate()
                .filter(|f| f.1.kind != FactorKind::Whole && f.1.name != Rule::TOKENS)
            {
                for ranks in degrees(factor.size) {
                    let what = format!("{kernels}: {}, {} over {ranks}", case.what, factor.name);
                    agrees(suite, &what, by_factor(suite, kernels, &case, &rule, f, ranks, Mistake::None));
                }
            }
        }
    }
}

pub(crate) fn partial_operands_that_are_declared_linear_give_partial_results(suite: &Suite<'_>) {
    for kernels in suite.reference_and_fastest() {
        // Terms of counts are counts, and no arbitrary numbers.
        for case in cases().into_iter().filter(|case| case.op.name() != "received_groups") {
            let rule = case.op.rule();
            let jointly =
                rule.operands.iter().filter(|o| o.linear == Linear::Jointly && o.access == Access::Read);
            let together: Vec<&str> = jointly.map(|o| o.name).collect();
            let alone =
                rule.operands.iter().filter(|o| o.linear == Linear::Alone && o.access != Access::Write);
            let mut sets: Vec<Vec<&str>> = alone.map(|o| vec![o.name]).collect();
            sets.extend((!together.is_empty()).then_some(together));
            for partial in sets {
                let what = format!("{kernels}: {}, partial {partial:?}", case.what);
                agrees(suite, &what, by_terms(suite, kernels, &case, &rule, &partial, 2));
                agrees(suite, &what, by_terms(suite, kernels, &case, &rule, &partial, 3));
            }
        }
    }
}

/// The rule with one factor of another kind.
fn with_kind(rule: &Rule, factor: usize, kind: FactorKind) -> Rule {
    let mut rule = rule.clone();
    rule.factors[factor].kind = kind;
    rule
}

pub(crate) fn wrong_rules_change_the_numbers(suite: &Suite<'_>) {
    let kernels = suite.fastest();
    let (mut whole, mut sums, mut offsets, mut once) = (0, 0, 0, 0);
    for case in cases() {
        let rule = case.op.rule();
        for (f, factor) in
            rule.factors.iter().enumerate().filter(|f| f.1.size > 1 && f.1.name != Rule::TOKENS)
        {
            let what = format!("{}, {}", case.what, factor.name);
            match factor.kind {
                FactorKind::Whole => {
                    let free = with_kind(&rule, f, FactorKind::Free);
                    differs(
                        &format!("{what}: whole as free"),
                        by_factor(suite, kernels, &case, &free, f, 2, Mistake::None),
                    );
                    whole += 1;
                }
                FactorKind::Sum => {
                    let free = with_kind(&rule, f, FactorKind::Free);
                    differs(
                        &format!("{what}: sum as free"),
                        by_factor(suite, kernels, &case, &free, f, 2, Mistake::None),
                    );
                    sums += 1;
                    if rule.operands.iter().any(|o| o.once) {
                        let found = by_factor(suite, kernels, &case, &rule, f, 2, Mistake::OnceOnEveryRank);
                        differs(&format!("{what}: once everywhere"), found);
                        once += 1;
                    }
                }
                FactorKind::Free => {}
            }
            if factor.offset && factor.kind != FactorKind::Whole {
                let found = by_factor(suite, kernels, &case, &rule, f, 2, Mistake::NoOffset);
                differs(&format!("{what}: without offset"), found);
                offsets += 1;
            }
        }
    }
    let seen = [whole, sums, offsets, once];
    assert!(seen.iter().all(|n| *n > 1), "{seen:?}");
}

/// A log-sum-exp whose terms are added is off by the logarithm of the ranks.
pub(crate) fn a_wrong_reduction_changes_the_numbers(suite: &Suite<'_>) {
    let case = cases().into_iter().find(|c| c.op.name() == "logit_sums").unwrap();
    let mut rule = case.op.rule();
    let v = rule.factors.iter().position(|f| f.name == "v").unwrap();
    rule.operands.iter_mut().for_each(|o| o.reduce = bessemer_tensor::op::TermReduction::Sum);
    differs("lse as sum", by_factor(suite, suite.fastest(), &case, &rule, v, 2, Mistake::None));
}

pub(crate) fn partial_operands_that_are_not_linear_change_the_numbers(suite: &Suite<'_>) {
    let not_linear = [
        ("activation", "x"),
        ("activation_backward", "x"),
        ("adamw", "grad"),
        ("attention", "q"),
        ("attention", "k"),
        ("attention_backward", "q"),
        ("gated", "gate"),
        ("gated_backward", "gate"),
        ("linear_cross_entropy", "x"),
        ("lion", "grad"),
        ("logit_sums", "x"),
        ("norm", "x"),
        ("norm_backward", "x"),
        ("sum_squares", "x"),
        ("divide_by_norm", "squares"),
    ];
    for (name, operand) in not_linear {
        let all = cases();
        let case = all.iter().find(|c| c.op.name() == name).unwrap();
        let rule = case.op.rule();
        assert_eq!(rule.operand(operand).unwrap().linear, Linear::No, "{name}.{operand}");
        let found = by_terms(suite, suite.fastest(), case, &rule, &[operand], 2);
        differs(&format!("{name}: partial {operand}"), found);
    }
}
