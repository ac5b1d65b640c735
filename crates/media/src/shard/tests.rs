//! The format: what is written comes back, and every damage is reported.

use super::*;
use std::fs;
use std::path::Path;

fn sample(i: u32) -> Sample {
    let tokens = (0..i % 7).map(|t| (t * 13 + i) % 100).collect();
    let array = match i % 3 {
        0 => Array::new(DType::U8, &[2, 3 + i], vec![i as u8; 2 * (3 + i as usize)]).unwrap(),
        1 => Array::from_f32(DType::F32, &[2, 1, 2], &[i as f32, -0.5, f32::MIN_POSITIVE, 1e9]).unwrap(),
        _ => Array::from_f32(DType::Bf16, &[3], &[i as f32, 0.1, -1.0]).unwrap(),
    };
    Sample { key: format!("folder/sample-{i}"), tokens, array }
}

fn meta() -> ShardMeta {
    ShardMeta { vocab_size: 100, tokenizer: [7; 32], ordinal: 0 }
}

fn write(path: &Path, n: u32) -> ShardSummary {
    let mut w = ShardWriter::create(path, meta()).unwrap();
    for i in 0..n {
        w.push(&sample(i)).unwrap();
    }
    w.finish().unwrap()
}

#[test]
fn what_is_written_comes_back_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.media");
    let summary = write(&path, 20);
    assert_eq!(fs::metadata(&path).unwrap().len(), summary.file_bytes);
    let reader = ShardReader::open(&path).unwrap();
    assert_eq!((reader.len(), reader.meta().clone(), reader.checksum()), (20, meta(), summary.checksum));
    for i in [19, 0, 7, 7, 12] {
        assert_eq!(reader.sample(i).unwrap(), sample(i as u32));
    }
    assert_eq!(reader.key(3), Some("folder/sample-3"));
    assert!(reader.sample(20).is_err() && reader.key(20).is_none());
    reader.verify().unwrap();
    assert!(
        ShardReader::open(&{
            write(&path, 0);
            path
        })
        .unwrap()
        .is_empty()
    );
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.media");
    write(&path, 5);
    let whole = fs::read(&path).unwrap();
    let bad = dir.path().join("bad.media");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&bad, &bytes).unwrap();
        let found = ShardReader::open(&bad).and_then(|r| r.verify());
        assert!(found.is_err(), "a flipped bit of byte {at} passed");
    }
    for length in (0..whole.len()).step_by(7) {
        fs::write(&bad, &whole[..length]).unwrap();
        assert!(ShardReader::open(&bad).is_err(), "cut to {length} bytes passed");
    }
    fs::write(&bad, [&whole[..], b"x"].concat()).unwrap();
    assert!(ShardReader::open(&bad).is_err());
    let mut newer = whole;
    newer[8] = 2;
    fs::write(&bad, &newer).unwrap();
    let e = ShardReader::open(&bad).unwrap_err().to_string();
    assert!(e.contains("version 1, found 2"), "{e}");
}

#[test]
fn a_writer_refuses_and_leaves_nothing_when_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.media");
    let mut w = ShardWriter::create(&path, meta()).unwrap();
    let mut bad = sample(1);
    bad.tokens = vec![100];
    assert!(w.push(&bad).is_err());
    w.push(&sample(2)).unwrap();
    drop(w);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(Array::new(DType::F32, &[2], vec![0; 7]).is_err());
    assert!(Array::new(DType::F32, &[], vec![0; 4]).is_err());
    assert!(Array::new(DType::U8, &[u32::MAX, u32::MAX, u32::MAX, u32::MAX], vec![]).is_err());
}

#[test]
fn a_set_is_complete_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let build = |n: u32, size: u64| {
        let mut w = SetWriter::create(dir.path(), 100, [7; 32], size).unwrap();
        (0..n).for_each(|i| w.push(&sample(i)).unwrap());
        w
    };
    drop(build(30, 600));
    let e = SetIndex::open(dir.path()).unwrap_err().to_string();
    assert!(e.contains("not finished"), "{e}");
    let index = build(30, 600).finish(serde_json::json!({"a": 1}), serde_json::json!({})).unwrap();
    assert!(index.shards.len() > 3 && index.samples == 30);
    let (again, readers) = SetIndex::open(dir.path()).unwrap();
    assert_eq!(again, index);
    let all: Vec<Sample> = readers.iter().flat_map(|r| r.samples().map(|s| s.unwrap())).collect();
    assert_eq!(all, (0..30).map(sample).collect::<Vec<_>>());
    // A shorter set leaves no file of the longer one.
    let index = build(3, 1 << 20).finish(serde_json::Value::Null, serde_json::Value::Null).unwrap();
    assert_eq!(index.shards.len(), 1);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    fs::copy(dir.path().join("00000.media"), dir.path().join("x")).unwrap();
    write(&dir.path().join("00000.media"), 4);
    assert!(SetIndex::open(dir.path()).unwrap_err().to_string().contains("is not the file"));
}

#[test]
fn bf16_rounds_to_nearest_even() {
    for (v, bits) in [
        (1.0, 0x3f80),
        (-2.0, 0xc000),
        (1.0 + 1.0 / 256.0, 0x3f80),
        (1.0 + 3.0 / 256.0, 0x3f82),
        (f32::INFINITY, 0x7f80),
    ] {
        assert_eq!(bf16(v), bits, "{v}");
    }
    assert!(f32::from_bits(u32::from(bf16(f32::NAN)) << 16).is_nan());
    assert_eq!(bf16(f32::MAX), 0x7f80);
}
