//! Decoding with a cache against the full forward pass.

use crate::tiny;

use bessemer_model::{Cache, Decoder, ModelError, Purpose, Shape, TokenBatch};
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
        for pieces in [&[16][..], &[1; 16], &[7, 1, 1, 5, 2], &[15, 1]] {
            for (sequences, capacity) in [(3, SEQ), (1, SEQ)] {
                if sequences > 1 && model.document_end.is_some() {
                    continue;
                }
                let mut cache = Cache::new(&mut b, &d, sequences, capacity).unwrap();
                let mut at = 0;
                for &new in pieces {
                    let part: Vec<u32> = (0..sequences)
                        .flat_map(|s| &ids[s * SEQ + at..s * SEQ + at + new])
                        .copied()
                        .collect();
                    let logits = d.decode(&mut b, &mut cache, &part).unwrap();
                    at += new;
                    for (s, found) in logits.chunks(model.vocab_size).enumerate() {
                        let wanted = &rows[s * SEQ + at - 1];
                        let worst = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(worst < 2e-5, "{label} {pieces:?} sequence {s} position {at}: {worst}");
                    }
                    assert_eq!(cache.len(), at);
                }
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
    let mut cache = Cache::new(&mut b, &d, 1, SEQ).unwrap();
    d.decode(&mut b, &mut cache, &ids[..6]).unwrap();
    d.decode(&mut b, &mut cache, &[1, 2, 3, 4]).unwrap();
    cache.truncate(6);
    let logits = d.decode(&mut b, &mut cache, &ids[6..9]).unwrap();
    let worst = logits.iter().zip(&rows[8]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-5, "{worst}");
    cache.truncate(100);
    assert_eq!(cache.len(), 9);
    cache.truncate(0);
    assert!(cache.is_empty());
}

#[test]
fn a_prompt_longer_than_one_pass_goes_through_in_pieces() {
    let mut model = models().remove(2).1;
    model.context = 400;
    let mut b = cpu(2);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    let ids: Vec<u32> = (0..300).map(|i| (i * i + 7) % 97).collect();
    let mut whole = Cache::new(&mut b, &d, 1, 400).unwrap();
    let at_once = d.decode(&mut b, &mut whole, &ids).unwrap().to_vec();
    let mut stepped = Cache::new(&mut b, &d, 1, 400).unwrap();
    for id in &ids {
        d.decode(&mut b, &mut stepped, &[*id]).unwrap();
    }
    let logits = d.decode(&mut b, &mut stepped, &[5]).unwrap().to_vec();
    let again = d.decode(&mut b, &mut whole, &[5]).unwrap();
    let worst = logits.iter().zip(again).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 5e-5, "{worst}");
    assert!(at_once != logits);
    let e = d.decode(&mut b, &mut whole, &[0; 100]).unwrap_err();
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
fn several_sequences_are_refused_where_one_of_them_ends_a_document() {
    let model = all_kinds().into_iter().find(|m| m.1.document_end.is_some()).unwrap().1;
    let end = model.document_end.unwrap();
    let mut b = cpu(1);
    let d = decoder(&mut b, &model, 1, Purpose::Score);
    let mut cache = Cache::new(&mut b, &d, 2, SEQ).unwrap();
    d.decode(&mut b, &mut cache, &[end + 1; 4]).unwrap();
    let e = d.decode(&mut b, &mut cache, &[end + 1, end]).unwrap_err().to_string();
    assert!(e.contains("ids[1] ends a document"), "{e}");
    assert_eq!(cache.len(), 2);
}
