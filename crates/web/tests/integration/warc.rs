//! Reader and writer of WARC files: round trips, ranges, resuming, and whatever can be broken.

use bessemer_web::fields::Fields;
use bessemer_web::warc::*;
use proptest::prelude::*;
use std::io::{Cursor, Read, Write};

const ALL: [Compression; 3] = [Compression::Plain, Compression::Gzip, Compression::Zstd];

fn file(compression: Compression, blocks: &[Vec<u8>]) -> (Vec<u8>, Vec<u64>) {
    let mut writer = WarcWriter::new(Vec::new(), compression);
    let mut starts = vec![0];
    for (i, block) in blocks.iter().enumerate() {
        let n = writer.response(&format!("http://example.com/{i}"), block).unwrap();
        starts.push(starts[i] + n);
    }
    (writer.into_inner(), starts)
}

fn reader(bytes: &[u8]) -> WarcReader<Cursor<Vec<u8>>> {
    WarcReader::new(Cursor::new(bytes.to_vec()), WarcLimits::default()).unwrap()
}

/// Everything a reader gives: records, and faults that it went on after.
fn drain<R: Read + std::io::Seek>(reader: &mut WarcReader<R>) -> (Vec<Record>, Vec<WarcError>) {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    loop {
        match reader.next() {
            Ok(Some(r)) => records.push(r),
            Ok(None) => return (records, faults),
            Err(e) => faults.push(e),
        }
        assert!(records.len() + faults.len() < 100_000, "does not end");
    }
}

fn blocks(n: usize) -> Vec<Vec<u8>> {
    (0..n)
        .map(|i| {
            // Hardly compressible, so that damage hits a member's data.
            let mut x = i as u64 + 1;
            let mut next = || {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 56) as u8
            };
            (0..2000 + i * 37).map(|_| next()).collect()
        })
        .collect()
}

fn uris(records: &[Record]) -> Vec<usize> {
    records.iter().map(|r| r.target_uri().unwrap().rsplit('/').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_record_has_its_fields_position_and_block() {
    let text = "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: <http://a.b/>\r\nX-Folded: one\r\n two\r\n\
        content-length: 5\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n\r\nhello\r\n\r\n\
        WARC/1.1\nWARC-Type: Odd\nContent-Length: 0\n\n\n\n";
    let (records, faults) = drain(&mut reader(text.as_bytes()));
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(records.len(), 2);
    let r = &records[0];
    assert_eq!(
        (r.version.as_str(), &r.kind, r.block.as_slice()),
        ("1.0", &RecordType::Conversion, &b"hello"[..])
    );
    assert_eq!(r.target_uri(), Some("http://a.b/"));
    assert_eq!(r.fields.get("x-folded"), Some("one two"));
    assert_eq!(r.date(), Some("2026-01-01T00:00:00Z"));
    assert_eq!(records[1].kind, RecordType::Other("odd".into()));
    assert_eq!(records[1].position.offset as usize, text.find("WARC/1.1").unwrap());
}

#[test]
fn broken_members_in_the_middle_are_counted_and_passed_over() {
    for compression in ALL {
        let (bytes, starts) = file(compression, &blocks(9));
        let mut damaged = bytes.clone();
        match compression {
            // In a plain file only the header can be broken.
            Compression::Plain => {
                damaged[starts[4] as usize..starts[4] as usize + 5].copy_from_slice(b"XXXXX");
            }
            _ => {
                let middle = (starts[4] + 200) as usize;
                damaged[middle..middle + 300].fill(0);
            }
        }
        let mut r = reader(&damaged);
        let (records, faults) = drain(&mut r);
        assert_eq!(uris(&records), [0, 1, 2, 3, 5, 6, 7, 8], "{compression:?}");
        assert_eq!(faults.len(), 1, "{compression:?} {faults:?}");
        assert_eq!(faults[0].offset, starts[4]);
        assert_eq!(r.counts().skipped_bytes, starts[5] - starts[4], "{compression:?}");
        assert_eq!(r.counts().faults.values().sum::<u64>(), 1);
        assert_eq!(r.counts().records, 8);
    }
}

#[test]
fn a_cut_file_gives_what_came_before() {
    for compression in ALL {
        let (bytes, starts) = file(compression, &blocks(4));
        for cut in [starts[3] + 1, starts[3] + 9, starts[3] + 700, starts[4] - 5] {
            let (records, faults) = drain(&mut reader(&bytes[..cut as usize]));
            assert_eq!(uris(&records)[..3], [0, 1, 2], "{compression:?} {cut}");
            if records.len() == 3 {
                assert_eq!(faults.len(), 1, "{compression:?} {cut} {faults:?}");
                assert!(
                    matches!(faults[0].kind, FaultKind::Truncated | FaultKind::Member | FaultKind::Header),
                    "{faults:?}"
                );
                assert_eq!(faults[0].offset, starts[3]);
            }
        }
    }
}

#[test]
fn damage_at_the_very_beginning_does_not_lose_the_rest() {
    for compression in [Compression::Gzip, Compression::Zstd] {
        let (mut bytes, _) = file(compression, &blocks(4));
        bytes[..2].fill(b'?');
        let folder = tempfile::tempdir().unwrap();
        let name = if compression == Compression::Gzip { "x.warc.gz" } else { "x.warc.zst" };
        std::fs::write(folder.path().join(name), &bytes).unwrap();
        let mut r = WarcReader::open(&folder.path().join(name), WarcLimits::default()).unwrap();
        let (records, faults) = drain(&mut r);
        assert_eq!(uris(&records), [1, 2, 3]);
        assert_eq!(faults.len(), 1);
    }
}

#[test]
fn several_records_in_one_member_have_their_index_and_resume() {
    let (plain, _) = file(Compression::Plain, &blocks(5));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain).unwrap();
    let bytes = encoder.finish().unwrap();
    let (records, faults) = drain(&mut reader(&bytes));
    assert!(faults.is_empty());
    assert_eq!(records.iter().map(|r| r.position.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let mut r = reader(&bytes);
    r.seek(records[3].position).unwrap();
    let (rest, _) = drain(&mut r);
    assert_eq!(rest, records[3..]);
    // A record that is passed over as too large keeps its place among the others.
    let limits = WarcLimits { max_block: 2050, ..WarcLimits::default() };
    let mut r = WarcReader::new(Cursor::new(&bytes), limits).unwrap();
    let (small, faults) = drain(&mut r);
    assert_eq!((small.len(), faults.len()), (2, 3));
    let several = [blocks(5), blocks(1)].concat();
    let (plain, _) = file(Compression::Plain, &several);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain).unwrap();
    let bytes = encoder.finish().unwrap();
    let mut r = WarcReader::new(Cursor::new(&bytes), limits).unwrap();
    let (small, _) = drain(&mut r);
    assert_eq!(small[2].position.index, 5);
    r.seek(small[2].position).unwrap();
    assert_eq!(drain(&mut r).0, small[2..]);
}

#[test]
fn a_dictionary_in_the_first_frame_is_used_and_missed() {
    let texts: Vec<Vec<u8>> =
        (0..50).map(|i| format!("common words of many pages, page {i}").repeat(5).into_bytes()).collect();
    // A dictionary of content alone; trained ones carry a number and are named when they are missed.
    let dictionary: Vec<u8> = texts[..3].concat();
    for compress in [false, true] {
        let mut writer = WarcWriter::with_dictionary(Vec::new(), &dictionary, compress).unwrap();
        for (i, t) in texts.iter().enumerate() {
            writer.response(&format!("http://example.com/{i}"), t).unwrap();
        }
        let bytes = writer.into_inner();
        let (records, faults) = drain(&mut reader(&bytes));
        assert!(faults.is_empty(), "{:?}", faults.first());
        assert_eq!(uris(&records), (0..50).collect::<Vec<_>>());
        assert_eq!(records[7].block, texts[7]);
        let mut split = Vec::new();
        for range in cut(bytes.len() as u64, 4) {
            let mut r = reader(&bytes);
            r.restrict(range).unwrap();
            split.extend(drain(&mut r).0);
        }
        assert_eq!(split, records);
        // Without its first frame the file cannot be read, and says why.
        let first = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let (records, faults) = drain(&mut reader(&bytes[first..]));
        assert!(records.is_empty());
        assert!(matches!(faults[0].kind, FaultKind::Dictionary | FaultKind::Member), "{}", faults[0]);
    }
}

#[test]
fn bombs_and_giants_are_passed_over_in_small_memory() {
    let limits = WarcLimits { max_block: 1 << 20, bomb_floor: 4 << 20, ..WarcLimits::default() };
    let small = b"HTTP/1.1 200 OK\r\n\r\nsmall".to_vec();
    for compression in ALL {
        let mut writer = WarcWriter::new(Vec::new(), compression);
        writer.response("http://example.com/0", &small).unwrap();
        writer.response("http://example.com/1", &vec![0; 64 << 20]).unwrap();
        writer.response("http://example.com/2", &small).unwrap();
        let bytes = writer.into_inner();
        let mut r = WarcReader::new(Cursor::new(&bytes), limits).unwrap();
        let (records, faults) = drain(&mut r);
        assert_eq!(uris(&records), [0, 2], "{compression:?}");
        let wanted = if compression == Compression::Plain { FaultKind::TooLarge } else { FaultKind::Bomb };
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].kind, wanted, "{}", faults[0]);
    }
}

#[test]
fn a_promised_length_is_not_believed() {
    for length in ["18446744073709551615", "30000000", "-1", "", "1e3"] {
        let text = format!(
            "WARC/1.0\r\nWARC-Type: response\r\nContent-Length: {length}\r\n\r\nabc\r\n\r\n\
             WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://example.com/1\r\nContent-Length: 2\r\n\r\nok"
        );
        let (records, faults) = drain(&mut reader(text.as_bytes()));
        assert_eq!(uris(&records), [1], "{length}");
        assert_eq!(faults.len(), 1);
    }
    let endless = format!("WARC/1.0\r\n{}", "A: b\r\n".repeat(1 << 20));
    let (records, faults) = drain(&mut reader(endless.as_bytes()));
    assert_eq!((records.len(), faults[0].kind), (0, FaultKind::Header));
}

/// Gzip members, or zstd frames, of these contents.
fn members(compression: Compression, contents: &[Vec<u8>]) -> Vec<u8> {
    let packed = |content: &Vec<u8>| match compression {
        Compression::Plain => content.clone(),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Zstd => zstd::encode_all(&content[..], 1).unwrap(),
    };
    contents.iter().flat_map(packed).collect()
}

/// A record of this block that states a length.
fn stating(number: usize, length: &str, block: &[u8]) -> Vec<u8> {
    let uri = format!("http://example.com/{number}");
    let head = format!(
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {uri}\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), block, b"\r\n\r\n"].concat()
}

#[test]
fn a_wrong_length_ends_no_record_of_a_compressed_member() {
    let body = b"HTTP/1.1 200 OK\r\n\r\nFirst paragraph.\r\n\r\nSecond paragraph, not WARC/1.0.\n";
    let right = body.len() as i64;
    for compression in [Compression::Gzip, Compression::Zstd] {
        for off in [-40, -23, -10, -5, -1, 0, 1, 2, 4, 5, 10, 1000, 1 << 40] {
            let record = |number, off: i64| stating(number, &(right + off).to_string(), body);
            let single = members(compression, &[record(0, off), record(1, 0), record(2, off)]);
            let all = [record(0, off), record(1, 0), record(2, off)].concat();
            for bytes in [single, members(compression, &[all, record(3, 0)])] {
                let mut r = reader(&bytes);
                let (records, faults) = drain(&mut r);
                assert!(faults.is_empty(), "{compression:?} {off}: {faults:?}");
                assert_eq!(uris(&records)[..3], [0, 1, 2], "{compression:?} {off}");
                for record in &records {
                    let (block, wanted) = (&record.block, &body[..]);
                    let is_near =
                        (-1..=4).contains(&off) && block.trim_ascii_end() == wanted.trim_ascii_end();
                    assert!(
                        block == wanted || is_near,
                        "{compression:?} {off}: {:?}",
                        String::from_utf8_lossy(block)
                    );
                    r.seek(record.position).unwrap();
                    assert_eq!(&r.next().unwrap().unwrap(), record);
                }
                assert!((-1..=4).contains(&off) || records[0].wrong_length, "{compression:?} {off}");
                assert!(!records[1].wrong_length);
            }
        }
        for length in ["", "-1", "ten"] {
            let (records, faults) = drain(&mut reader(&members(compression, &[stating(0, length, body)])));
            assert!(faults.is_empty() && records[0].block == body && records[0].wrong_length, "{length}");
        }
        // A member that is cut off tells no end.
        let whole = members(compression, &[stating(0, &(right + 10).to_string(), body)]);
        let (records, faults) = drain(&mut reader(&whole[..whole.len() - 3]));
        assert!(records.is_empty() && faults.len() == 1, "{compression:?}");
        // Nor is a block above the limit held.
        let limits = WarcLimits { max_block: 100, ..WarcLimits::default() };
        let large = stating(0, "5", &[b'x'; 3000]);
        let bytes = members(compression, &[large, stating(1, "2", b"ok")]);
        let (records, faults) = drain(&mut WarcReader::new(Cursor::new(bytes), limits).unwrap());
        assert_eq!((uris(&records), faults[0].kind), (vec![1], FaultKind::TooLarge));
    }
}

#[test]
fn many_false_members_end_the_search() {
    let limits = WarcLimits { max_candidates: 1000, ..WarcLimits::default() };
    let bytes = [0x1f, 0x8b, 8, 0].repeat(100_000);
    let mut r = WarcReader::new(Cursor::new(bytes), limits).unwrap();
    let (records, _) = drain(&mut r);
    assert!(records.is_empty());
    assert_eq!(r.counts().faults[&FaultKind::Lost], 1);
}

#[test]
fn a_field_with_a_line_break_is_not_written() {
    let mut writer = WarcWriter::new(Vec::new(), Compression::Plain);
    let fields: Fields = [("A", "b\r\nContent-Length: 9")].into_iter().collect();
    assert!(writer.write(&fields, b"").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_read_whole_resumed_and_in_ranges(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..12),
        kind in 0usize..3,
        parts in 1u64..9,
    ) {
        let (bytes, starts) = file(ALL[kind], &blocks);
        let (records, faults) = drain(&mut reader(&bytes));
        prop_assert!(faults.is_empty());
        prop_assert_eq!(records.iter().map(|r| r.block.clone()).collect::<Vec<_>>(), blocks);
        for (r, start) in records.iter().zip(&starts) {
            prop_assert_eq!(r.position.offset, *start);
        }
        for (i, r) in records.iter().enumerate() {
            let mut again = reader(&bytes);
            again.seek(r.position).unwrap();
            prop_assert_eq!(&drain(&mut again).0[..], &records[i..]);
        }
        let mut split = Vec::new();
        for range in cut(bytes.len() as u64, parts) {
            let mut part = reader(&bytes);
            part.restrict(range).unwrap();
            let (some, faults) = drain(&mut part);
            prop_assert!(faults.is_empty());
            split.extend(some);
        }
        prop_assert_eq!(split, records);
    }

    #[test]
    fn damage_anywhere_neither_panics_nor_hangs_nor_invents(
        at in any::<prop::sample::Index>(),
        damage in prop::collection::vec(any::<u8>(), 1..40),
        kind in 0usize..3,
    ) {
        let originals = blocks(5);
        let (mut bytes, _) = file(ALL[kind], &originals);
        let at = at.index(bytes.len());
        for (i, d) in damage.iter().enumerate() {
            if let Some(b) = bytes.get_mut(at + i) {
                *b = *d;
            }
        }
        let Ok(mut r) = WarcReader::new(Cursor::new(bytes), WarcLimits::default()) else { return Ok(()) };
        let (records, _) = drain(&mut r);
        if kind == 1 {
            // gzip members carry a checksum: what is returned is what was written.
            for r in &records {
                prop_assert!(originals.contains(&r.block));
            }
            prop_assert!(at < 3 || records.len() >= 3, "{} records", records.len());
        }
    }

    #[test]
    fn fuzz_warc_arbitrary_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..3000), head in 0usize..5) {
        let heads: [&[u8]; 5] = [b"", &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd], &[0x5d, 0x2a, 0x4d, 0x18],
            b"WARC/1.0\r\nContent-Length: 10\r\n\r\n"];
        let mut all = heads[head].to_vec();
        all.append(&mut bytes);
        if let Ok(mut r) = WarcReader::new(Cursor::new(all), WarcLimits::default()) {
            drain(&mut r);
        }
    }
}
