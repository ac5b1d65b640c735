//! Evaluation windows: every token of a split, exactly once, in order.

use crate::support;

use bessemer_loader::{Batch, EvaluationWindows, IGNORED, LoadError};
use proptest::prelude::*;
use support::{counting_split, document_lengths};

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn every_token_is_scored_exactly_once_in_order(
        tokens in 2u64..700, seq_len in 1usize..60, n in 1usize..7, with_context: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &document_lengths(tokens), 300);
        let context = with_context.then_some(tokens as u32 - 1);
        let windows = EvaluationWindows::new(set.clone(), seq_len, context).unwrap();
        let first = u64::from(!with_context);
        prop_assert_eq!(windows.target_tokens(), tokens - first);

        let (mut targets, mut pairs, mut counted, mut at) = (Vec::new(), Vec::new(), 0, 0);
        let mut batch = Batch::new();
        while at < windows.windows() {
            let here = windows.batch(at, n, &mut batch).unwrap();
            prop_assert_eq!(here as u64, (n as u64).min(windows.windows() - at));
            prop_assert_eq!(batch.samples.len(), here);
            prop_assert_eq!(batch.inputs.len(), n * seq_len);
            counted += batch.scored;
            for (i, (&input, &target)) in batch.inputs.iter().zip(&batch.targets).enumerate() {
                if target != IGNORED {
                    prop_assert!(i / seq_len < here);
                    targets.push(u64::from(target));
                    pairs.push((input, target));
                } else {
                    prop_assert_eq!(input, 0);
                }
            }
            at += here as u64;
        }
        prop_assert_eq!(counted, tokens - first);
        prop_assert_eq!(targets, (first..tokens).collect::<Vec<_>>());
        for (i, (input, target)) in pairs.into_iter().enumerate() {
            let wanted = if i == 0 && with_context { tokens as u32 - 1 } else { target - 1 };
            prop_assert_eq!(input, wanted);
        }
        prop_assert_eq!(windows.batch(at, n, &mut batch).unwrap(), 0);
        prop_assert!(batch.targets.iter().all(|&t| t == IGNORED));
        prop_assert_eq!(windows.batch(u64::MAX, n, &mut batch).unwrap(), 0);
    }
}

#[test]
fn splits_without_a_token_to_score_are_refused() {
    for (tokens, context, allowed) in
        [(0, None, false), (0, Some(0), false), (1, None, false), (1, Some(0), true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let set = counting_split(dir.path(), &document_lengths(tokens), 300);
        let windows = EvaluationWindows::new(set, 8, context);
        assert_eq!(windows.is_ok(), allowed, "{tokens} tokens, context {context:?}");
        if let Err(error) = windows {
            assert!(matches!(error, LoadError::TooFewTokens { .. }) && error.to_string().contains("train"));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let set = counting_split(dir.path(), &[10], 300);
    let refused = EvaluationWindows::new(set, 8, Some(10));
    assert!(matches!(refused, Err(LoadError::ContextToken { vocab_size: 10, found: 10 })));
}
