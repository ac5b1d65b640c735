//! Decoding with a cache against the full forward pass.

use crate::tiny;

use bessemer_runtime::{
    Cache, CacheShape, Decoder, ModelError, NextPosition, PrefixCache, Purpose, Shape, TokenBatch,
};
use tiny::{SEQ, all_kinds, cpu, decoder, models, tokens};

/// Logits `[rows, V]` of a full forward pass.
fn full(label: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let model = all_kinds().into_iter().find(|m| m.0 == label).unwrap().1;
    let mut b = cpu(2);
    let mut d = decoder(&mut b, &model, 3, Purpose::Score);
    let (ids, targets) = tokens(5, 3);
    let mut rows = Vec::new();
    let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
    d.logits(&mut b, &batch, |_, row| rows.push(row.to_vec())).unwrap();
    (ids, rows)
}

#[test]
fn cached_logits_are_the_full_forward_logits_for_any_cut_of_the_sequence() {
    for (label, model) in all_kinds() {
        let (ids, rows) = full(label);
        let mut b = cpu(2);
        // A decoder's own shape does not matter for decoding.
        let d = decoder(&mut b, &model, 1, Purpose::Train);
        let close = |found: &[f32], wanted: &[f32], what: &str| {
            let worst = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-5, "{label} {what}: {worst}");
        };
        for pieces in [&[16][..], &[1; 16], &[7, 1, 1, 5, 2], &[15, 1]] {
            let mut cache =
                Cache::new(&mut b, &d, CacheShape { logit_rows: 3, ..CacheShape::slots(3, SEQ) }).unwrap();
            let mut at = 0;
            for &new in pieces {
                for s in 0..3 {
                    let part = &ids[s * SEQ + at..s * SEQ + at + new];
                    let what = format!("{pieces:?} sequence {s} position {}", at + new);
                    if s == 2 {
                        let mut seen = 0;
                        d.decode_each(&mut b, &mut cache, s, part, &mut |i, found| {
                            close(found, &rows[s * SEQ + at + i], &what);
                            seen += 1;
                        })
                        .unwrap();
                        assert_eq!(seen, new);
                    } else {
                        let found = d.decode(&mut b, &mut cache, s, part).unwrap();
                        close(found, &rows[s * SEQ + at + new - 1], &what);
                    }
                    assert_eq!(cache.len(s), at + new);
                }
                at += new;
            }
        }
        // Sequences of different lengths, a position of each at a time; later ones begin while others are in progress.
        let mut cache = Cache::new(&mut b, &d, CacheShape::slots(3, SEQ)).unwrap();
        d.prefill(&mut b, &mut cache, 2, &ids[2 * SEQ..2 * SEQ + 9]).unwrap();
        for step in 0..2 * SEQ {
            let goes = |s: &usize| cache.len(*s) < SEQ && (*s != 1 || step > 4);
            let order: Vec<usize> = [1, 2, 0].into_iter().filter(goes).collect();
            if order.is_empty() {
                break;
            }
            let next = |&s: &usize| NextPosition { slot: s, id: ids[s * SEQ + cache.len(s)] };
            let next: Vec<NextPosition> = order.iter().map(next).collect();
            let at: Vec<usize> = order.iter().map(|&s| s * SEQ + cache.len(s)).collect();
            let logits = d.decode_rows(&mut b, &mut cache, &next).unwrap();
            for (found, at) in logits.chunks(model.vocab_size).zip(at) {
                close(found, &rows[at], &format!("row {at} at step {step}"));
            }
        }
        assert!((0..3).all(|s| cache.len(s) == SEQ));
    }
}

/// Bits of the logits of a prompt and of the tokens that follow it in `slot`, while `others` are decoded in the same passes.
fn bits_beside(
    (model, threads): (&bessemer_arch::Model, usize),
    others: usize,
    slot: usize,
    ids: &[u32],
    prompt: usize,
) -> Vec<Vec<u32>> {
    let mut b = cpu(threads);
    let d = decoder(&mut b, model, 1, Purpose::Score);
    let mut cache = Cache::new(&mut b, &d, CacheShape::slots(others + 1, SEQ)).unwrap();
    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let mut found = vec![bits(d.decode(&mut b, &mut cache, slot, &ids[..prompt]).unwrap())];
    let beside = (0..=others).filter(|&s| s != slot).collect::<Vec<usize>>();
    for (step, &id) in ids[prompt..].iter().enumerate() {
        let mut rows = vec![NextPosition { slot, id }];
        for &s in &beside {
            // The others begin at different times, with prompts of their own; their order changes.
            let other = NextPosition { slot: s, id: ((step * 31 + s * 7) % 90) as u32 };
            match cache.len(s) {
                0 if step > s % 3 => {
                    let prompt: Vec<u32> = (0..1 + s).map(|i| ((i * 13 + s) % 90) as u32).collect();
                    d.prefill(&mut b, &mut cache, s, &prompt).unwrap();
                }
                0 => {}
                len if len < SEQ => rows.insert(step * s % (rows.len() + 1), other),
                _ => cache.truncate(s, 0),
            }
        }
        let at = rows.iter().position(|r| r.slot == slot).unwrap();
        let logits = d.decode_rows(&mut b, &mut cache, &rows).unwrap();
        found.push(bits(&logits[at * model.vocab_size..][..model.vocab_size]));
    }
    found
}

/// Bits of a sequence do not depend on who else is decoded, on the slot or on the threads.
#[test]
fn a_sequence_has_its_own_bits_whoever_is_decoded_beside_it() {
    for (label, model) in all_kinds() {
        let ids = &tokens(5, 1).0[..SEQ];
        for prompt in [1, 9] {
            // One token after another in a cache for one: as `generate` does.
            let alone = bits_beside((&model, 1), 0, 0, ids, prompt);
            for (threads, others, slot) in [(2, 0, 0), (1, 1, 1), (2, 7, 3), (1, 7, 0), (2, 2, 2)] {
                let found = bits_beside((&model, threads), others, slot, ids, prompt);
                let first = found.iter().zip(&alone).position(|(a, b)| a != b);
                assert_eq!(
                    first, None,
                    "{label}: {threads} threads, {others} others, slot {slot}, prompt {prompt}"
                );
            }
        }
    }
}

#[test]
fn a_truncated_cache_goes_on_from_the_common_beginning() {
    let (label, model) = models().remove(1);
    let (ids, rows) = full(label);
    let mut b = cpu(1);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    let mut cache = Cache::new(&mut b, &d, CacheShape::one(SEQ)).unwrap();
    d.decode(&mut b, &mut cache, 0, &ids[..6]).unwrap();
    d.decode(&mut b, &mut cache, 0, &[1, 2, 3, 4]).unwrap();
    cache.truncate(0, 6);
    let logits = d.decode(&mut b, &mut cache, 0, &ids[6..9]).unwrap();
    let worst = logits.iter().zip(&rows[8]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-5, "{worst}");
    cache.truncate(0, 100);
    assert_eq!(cache.len(0), 9);
    cache.truncate(0, 0);
    assert!(cache.is_empty(0));
}

#[test]
fn a_prompt_longer_than_one_pass_goes_through_in_pieces() {
    let mut model = models().remove(2).1;
    model.context = 400;
    let mut b = cpu(2);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    let ids: Vec<u32> = (0..300).map(|i| (i * i + 7) % 97).collect();
    let mut whole = Cache::new(&mut b, &d, CacheShape::one(400)).unwrap();
    let at_once = d.decode(&mut b, &mut whole, 0, &ids).unwrap().to_vec();
    let mut stepped = Cache::new(&mut b, &d, CacheShape::one(400)).unwrap();
    for id in &ids {
        d.decode(&mut b, &mut stepped, 0, &[*id]).unwrap();
    }
    let logits = d.decode(&mut b, &mut stepped, 0, &[5]).unwrap().to_vec();
    let again = d.decode(&mut b, &mut whole, 0, &[5]).unwrap();
    let worst = logits.iter().zip(again).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 5e-5, "{worst}");
    assert!(at_once != logits);
    let e = d.decode(&mut b, &mut whole, 0, &[0; 100]).unwrap_err();
    assert!(matches!(e, ModelError::CacheFull { len: 301, new: 100, capacity: 400 }), "{e}");
}

#[test]
fn token_losses_are_those_of_the_logits() {
    for (label, model) in all_kinds() {
        let (ids, rows) = full(label);
        let (_, targets) = tokens(5, 3);
        let mut b = cpu(2);
        let mut d = decoder(&mut b, &model, 3, Purpose::Score);
        let mut per_token = vec![f32::NAN; ids.len()];
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        let sum = d.loss(&mut b, &batch, Some(&mut per_token)).unwrap();
        let mut nats = 0.0;
        for ((row, &target), &loss) in rows.iter().zip(&targets).zip(&per_token) {
            if target == bessemer_tensor::op::IGNORED {
                assert_eq!(loss, 0.0);
                continue;
            }
            let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let wanted = lse - f64::from(row[target as usize]);
            assert!((f64::from(loss) - wanted).abs() < 2e-5, "{label}: {loss} {wanted}");
            nats += wanted;
        }
        assert!((sum.nats / nats - 1.0).abs() < 1e-5);
        assert_eq!(sum.scored as usize, tiny::scored(&targets));
    }
}

/// Packed documents under a mask have the losses of each document alone.
#[test]
fn packed_documents_have_the_losses_of_the_documents_alone() {
    let kinds = all_kinds().into_iter().filter(|m| m.1.document_end.is_some());
    let mut documents = 0;
    for (label, model) in kinds {
        let end = model.document_end.unwrap();
        let mut b = cpu(2);
        let mut packed = decoder(&mut b, &model, 2, Purpose::Train);
        let (mut ids, targets) = tokens(5, 2);
        (ids[SEQ + 7], ids[SEQ + 8]) = (end, end);
        let mut losses = vec![0.0; ids.len()];
        let batch = TokenBatch { ids: &ids, targets: &targets, positions: None };
        packed.loss(&mut b, &batch, Some(&mut losses)).unwrap();
        for (row, (ids, targets)) in ids.chunks(SEQ).zip(targets.chunks(SEQ)).enumerate() {
            let mut first = 0;
            for document in ids.split_inclusive(|id| *id == end) {
                let range = first..first + document.len();
                let shape = Shape { sequences: 1, seq: document.len(), purpose: Purpose::Score };
                let mut alone = Decoder::new(&mut b, &model, shape).unwrap();
                for (i, p) in alone.params().iter().enumerate() {
                    alone.write_param(&mut b, &p.spec.name, &tiny::values(i, &p.spec)).unwrap();
                }
                let batch = TokenBatch { ids: document, targets: &targets[range.clone()], positions: None };
                let mut wanted = vec![0.0; document.len()];
                alone.loss(&mut b, &batch, Some(&mut wanted)).unwrap();
                let found = &losses[row * SEQ..][range];
                let worst = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-5, "{label} row {row} from {first}: {worst}");
                first += document.len();
                documents += 1;
            }
        }
    }
    assert!(documents >= 15, "{documents}");
}

#[test]
fn impossible_rows_and_slots_are_refused_and_change_nothing() {
    let model = models().remove(0).1;
    let mut b = cpu(1);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    let mut cache = Cache::new(&mut b, &d, CacheShape::slots(2, 3)).unwrap();
    d.prefill(&mut b, &mut cache, 1, &[1, 2, 3]).unwrap();
    let row = |slot, id| NextPosition { slot, id };
    for (rows, wanted) in [
        (&[][..], "1 to 2, the slots"),
        (&[row(0, 1), row(1, 1), row(0, 2)], "1 to 2, the slots"),
        (&[row(0, 1), row(0, 2)], "slot 0 in rows 0 and 1"),
        (&[row(2, 1)], "slot: wanted 0 to 1, found 2"),
        (&[row(0, 1), row(1, 1)], "holds 3 of 3 positions"),
        (&[row(0, 1 << 20)], "ids[0]"),
    ] {
        let e = d.decode_rows(&mut b, &mut cache, rows).unwrap_err().to_string();
        assert!(e.contains(wanted), "{e}");
    }
    assert!(d.decode(&mut b, &mut cache, 2, &[1]).is_err() && d.decode(&mut b, &mut cache, 0, &[]).is_err());
    assert_eq!((cache.len(0), cache.len(1), cache.len(7)), (0, 3, 0));
}

/// Token losses have the same bits when the beginning of a sequence goes through first and stays in a cache, wherever it is cut, and
/// whatever the size of the batch.
#[test]
fn continuations_of_a_cached_beginning_have_the_bits_of_the_whole_sequence() {
    const LONG: usize = 120;
    for (label, mut model) in all_kinds() {
        model.context = LONG;
        let mut b = cpu(2);
        let d = decoder(&mut b, &model, 1, Purpose::Score);
        if model.document_end.is_some() {
            let e = PrefixCache::new(&mut b, d.model(), 2, LONG).unwrap_err().to_string();
            assert!(e.contains("whole sequences"), "{e}");
            continue;
        }
        let ids = |s: usize| (0..LONG).map(move |t| ((t * t + 7 * s + 3) % 97) as u32);
        let shape = |sequences, seq| Shape { sequences, seq, purpose: Purpose::Score };
        let bits = |losses: &[f32]| losses.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        let targets = |ids: &[u32]| ids.iter().map(|id| (id * 5 + 1) % 97).collect::<Vec<u32>>();
        let params = d.params().to_vec();
        let mut whole = |sequences: usize, s: usize| {
            let batch: Vec<u32> = (0..sequences).flat_map(|_| ids(s)).collect();
            let mut d = Decoder::with_params(
                &mut b,
                &model,
                shape(sequences, LONG),
                Default::default(),
                params.clone(),
            )
            .unwrap();
            let mut losses = vec![0.0; batch.len()];
            let batch = TokenBatch { ids: &batch, targets: &targets(&batch), positions: None };
            d.loss(&mut b, &batch, Some(&mut losses)).unwrap();
            bits(&losses[..LONG])
        };
        let wanted = [whole(1, 0), whole(32, 1)];
        assert_eq!(whole(32, 0), wanted[0], "{label}: a batch of 32");
        let cache = PrefixCache::new(&mut b, &model, 2, LONG).unwrap();
        for pieces in [&[120][..], &[64, 56], &[8, 16, 32, 64], &[104, 16], &[40, 72, 8]] {
            let mut past = 0;
            for &seq in pieces {
                let mut d = d.after_prefix(&mut b, shape(2, seq), &cache).unwrap();
                d.set_past(past).unwrap();
                let batch: Vec<u32> = (0..2).flat_map(|s| ids(s).skip(past).take(seq)).collect();
                let mut losses = vec![0.0; batch.len()];
                let batch = TokenBatch { ids: &batch, targets: &targets(&batch), positions: None };
                d.loss(&mut b, &batch, Some(&mut losses)).unwrap();
                for (found, wanted) in losses.chunks(seq).zip(&wanted) {
                    assert_eq!(bits(found), wanted[past..past + seq], "{label}: {pieces:?} from {past}");
                }
                let e = d.set_past(LONG - seq + 1).unwrap_err();
                assert!(matches!(e, ModelError::CacheFull { .. }), "{e}");
                past += seq;
            }
        }
        for (sequences, seq) in [(2, 7), (3, 8)] {
            let e = d.after_prefix(&mut b, shape(sequences, seq), &cache);
            assert!(e.unwrap_err().to_string().contains("2 sequences of 8 to 120 positions"));
        }
    }
}
