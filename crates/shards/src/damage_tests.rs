//! Damage to a small file with several blocks: every cut and every flipped bit must be noticed.

use crate::format::{HEADER_BYTES, MAGIC};
use crate::{Fingerprint, Part, ShardError, ShardMeta, ShardReader, ShardWriter};
use std::fs;
use std::path::Path;

pub(crate) fn meta(vocab_size: u32) -> ShardMeta {
    ShardMeta { vocab_size, tokenizer: Fingerprint([7; 32]), split: "train".into(), ordinal: 3 }
}

/// Blocks of 64 bytes; 77 tokens in four documents, the second of them empty.
fn write_small(path: &Path, vocab_size: u32) -> Vec<u32> {
    let tokens: Vec<u32> = (0..77).map(|i| (i * 7919 + 13) % vocab_size).collect();
    let mut writer = ShardWriter::create_with_blocks(path, meta(vocab_size), 64).unwrap();
    writer.push_document([1; 16], 10, &tokens[..5]).unwrap();
    writer.push_document([2; 16], 0, &[]).unwrap();
    writer.push_document([3; 16], 99, &tokens[5..70]).unwrap();
    writer.push_document([4; 16], 1, &tokens[70..]).unwrap();
    let summary = writer.finish().unwrap();
    assert_eq!(summary.file_bytes, fs::metadata(path).unwrap().len());
    tokens
}

/// The file of [`write_small`] for a vocabulary of 1000, as version 1 wrote it.
const VERSION_1: &[u8] = include_bytes!("../tests/version-1.shard");

/// Small files of both versions, with and without a mask, of 77 tokens each.
fn small_files() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let written = [1000, 100_000].map(|vocab_size| {
        write_small(&path, vocab_size);
        fs::read(&path).unwrap()
    });
    crate::mask_tests::write_masked(&path);
    let masked = fs::read(&path).unwrap();
    [vec![VERSION_1.to_vec()], written.to_vec(), vec![masked]].concat()
}

/// What a careful reader would see: the tokens, or a refusal.
pub(crate) fn open_and_verify(path: &Path) -> Result<Vec<u32>, ShardError> {
    let reader = ShardReader::open(path)?;
    reader.verify()?;
    let mut out = vec![0; reader.token_count() as usize];
    reader.read(0, &mut out)?;
    reader.count_scored(0, reader.token_count())?;
    Ok(out)
}

#[test]
fn files_of_version_1_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let tokens = write_small(&path, 1000);
    let documents = |path: &Path| {
        let reader = ShardReader::open(path).unwrap();
        reader.documents().map(|document| document.unwrap()).collect::<Vec<_>>()
    };
    let wanted = documents(&path);
    fs::write(&path, VERSION_1).unwrap();
    assert_eq!(open_and_verify(&path).unwrap(), tokens);
    assert_eq!(documents(&path), wanted);
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    for whole in small_files() {
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            match ShardReader::open(&path) {
                Err(ShardError::Truncated { found, .. }) => assert_eq!(found, length as u64),
                // The header states the length without sections that not every file has.
                Err(e @ ShardError::Malformed { .. }) if length >= whole.len() - 64 => {
                    assert!(e.to_string().contains("the file was cut"), "{e}");
                }
                other => panic!("cut at {length}: {other:?}"),
            }
        }
        for more in 1..20 {
            let mut longer = whole.clone();
            longer.resize(whole.len() + more, 0);
            fs::write(&path, &longer).unwrap();
            let error = ShardReader::open(&path).unwrap_err().to_string();
            assert!(error.contains("bytes were appended"), "{error}");
        }
    }
}

#[test]
fn every_single_flipped_bit_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    for (number, whole) in small_files().into_iter().enumerate() {
        fs::write(&path, &whole).unwrap();
        assert_eq!(open_and_verify(&path).unwrap().len(), 77);
        // Before its mask, the last of the files is like the others.
        let first = if number == 3 { 416 } else { 0 };
        for bit in first * 8..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &damaged).unwrap();
            let error = open_and_verify(&path).expect_err(&format!("bit {bit} flipped without notice"));
            assert!(error.to_string().contains("00003.shard"), "{error}");
        }
    }
}

#[test]
fn a_damaged_block_is_named_on_first_touch_and_the_others_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let tokens = write_small(&path, 1000);
    let mut bytes = fs::read(&path).unwrap();
    bytes[HEADER_BYTES + 64 + 10] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let reader = ShardReader::open(&path).unwrap();
    let mut out = [0; 32];
    reader.read(0, &mut out).unwrap();
    assert_eq!(out, tokens[..32]);
    match reader.read(20, &mut out) {
        Err(ShardError::Checksum { part, .. }) => {
            assert_eq!(part, Part::Block { number: 1, of: 3, start: 192, end: 256 });
        }
        other => panic!("{other:?}"),
    }
    reader.read(64, &mut out[..13]).unwrap();
    assert_eq!(out[..13], tokens[64..]);
}

#[test]
fn a_torn_file_of_the_right_length_is_refused() {
    // After a power cut a file may have its length but zeros from some page on; at 64-byte steps here.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    for whole in small_files() {
        for from in (0..whole.len()).step_by(64) {
            let mut torn = whole.clone();
            torn[from..].fill(0);
            fs::write(&path, &torn).unwrap();
            assert!(open_and_verify(&path).is_err(), "zeros from byte {from} on");
        }
    }
}

#[test]
fn the_layout_of_the_readme_is_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    write_small(&path, 1000);
    let b = fs::read(&path).unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().unwrap());
    assert_eq!(b[..8], MAGIC);
    assert_eq!([8, 12, 16, 20, 24, 28].map(u32_at), [2, 128, 2, 1000, 3, 64]);
    assert_eq!([32, 40, 48].map(u64_at), [77, 4, 110]);
    assert_eq!(b[56..88], [7; 32]);
    assert_eq!(&b[88..94], b"train\0");
    // 154 token bytes end at 282; padding to 288; 3 block checksums; 4 ends; 4 lengths; 4 ids; a checksum of these; three sections; trailer.
    assert_eq!([128, 130].map(|at| u16::from_le_bytes([b[at], b[at + 1]])), [13, 932]);
    assert_eq!(b[282..288], [0; 6]);
    assert_eq!([312, 320, 328, 336].map(u64_at), [5, 5, 70, 77]);
    assert_eq!([344, 352, 360, 368].map(u64_at), [10, 0, 99, 1]);
    assert_eq!(b[376..392], [1; 16]);
    assert_eq!(b[424..440], [4; 16]);
    let entry = |at: usize| (u32_at(at), u32_at(at + 4), u64_at(at + 8), u64_at(at + 16));
    assert_eq!([448, 480, 512].map(entry), [(1, 1, 288, 24), (2, 1, 312, 128), (3, 1, 440, 8)]);
    assert_eq!(u64_at(544), 3);
    assert_eq!(u64_at(560), 592);
    assert_eq!(b.len(), 592);
    assert_eq!(&b[584..], b"\nDRAHSB\x89");
}

#[test]
fn checksums_are_xxh3_64_with_the_published_values() {
    // Sanity vectors of the xxHash project (seed 0): the empty input, and "a" as in its test files.
    assert_eq!(xxhash_rust::xxh3::xxh3_64(b""), 0x2D06_8005_38D3_94C2);
    assert_eq!(xxhash_rust::xxh3::xxh3_64(b"a"), 0xE6C6_32B6_1E96_4E1F);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    write_small(&path, 1000);
    let b = fs::read(&path).unwrap();
    let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().unwrap());
    let sum = xxhash_rust::xxh3::xxh3_64;
    assert_eq!(u64_at(120), sum(&b[..120]));
    assert_eq!([288, 296, 304].map(u64_at), [sum(&b[128..192]), sum(&b[192..256]), sum(&b[256..282])]);
    assert_eq!(u64_at(440), sum(&b[312..440]));
    assert_eq!([472, 504, 536].map(u64_at), [sum(&b[288..312]), sum(&b[440..448]), sum(&b[440..448])]);
    assert_eq!(u64_at(552), sum(&b[448..552]));
    assert_eq!(u64_at(568), u64_at(120));
    assert_eq!(u64_at(576), sum(&b[552..576]));
}

/// Makes all checksums of a small file right, whose table of sections is at byte `table`, if it has one.
fn seal(b: &mut [u8], table: Option<usize>) {
    let sum = xxhash_rust::xxh3::xxh3_64;
    let mut put = |at: usize, from: std::ops::Range<usize>| {
        let value = sum(&b[from]);
        b[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(120, 0..120);
    [(288, 128..192), (296, 192..256), (304, 256..282)].into_iter().for_each(|(at, from)| put(at, from));
    let Some(table) = table else {
        put(440, 282..440);
        b.copy_within(120..128, 456);
        let value = sum(&b[440..464]);
        return b[464..472].copy_from_slice(&value.to_le_bytes());
    };
    put(440, 312..440);
    [(24, 288..312), (56, 440..448), (88, 440..448)].into_iter().for_each(|(at, from)| put(table + at, from));
    let trailer = b.len() - 40;
    let mut put = |at: usize, from: std::ops::Range<usize>| {
        let value = sum(&b[from]);
        b[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(trailer, table..trailer);
    put(trailer + 16, 0..120);
    put(trailer + 24, trailer..trailer + 24);
}

/// A file of version 1 whose checksums are all right, but whose content no writer produces.
fn forge_version_1(path: &Path, change: impl FnOnce(&mut [u8])) {
    let mut b = VERSION_1.to_vec();
    change(&mut b);
    seal(&mut b, None);
    fs::write(path, &b).unwrap();
}

/// As [`forge_version_1`], of this version, with sections (kind, flags, bytes) behind those of each file.
pub(crate) fn forge(path: &Path, further: &[(u32, u32, &[u8])], change: impl FnOnce(&mut [u8])) {
    write_small(path, 1000);
    let written = fs::read(path).unwrap();
    let (mut b, mut table) = (written[..448].to_vec(), written[448..544].to_vec());
    for (kind, flags, bytes) in further {
        [*kind, *flags].iter().for_each(|v| table.extend(v.to_le_bytes()));
        // Of a mask of few tokens: of its count and one checksum.
        let summed = if *kind == 4 { &bytes[..16] } else { *bytes };
        let sum = xxhash_rust::xxh3::xxh3_64(summed);
        [b.len() as u64, bytes.len() as u64, sum].iter().for_each(|v| table.extend(v.to_le_bytes()));
        b.extend(*bytes);
    }
    let at = b.len();
    b.extend(table);
    b.extend((3 + further.len() as u64).to_le_bytes());
    b.extend(&written[552..]);
    let (trailer, length) = (b.len() - 40, b.len() as u64);
    b[trailer + 8..trailer + 16].copy_from_slice(&length.to_le_bytes());
    change(&mut b);
    seal(&mut b, Some(at));
    fs::write(path, &b).unwrap();
}

#[test]
fn forged_files_with_right_checksums_are_refused_without_panic() {
    type Change = Box<dyn FnOnce(&mut [u8])>;
    let put = |at: usize, value: u64| -> Change {
        Box::new(move |b: &mut [u8]| b[at..at + 8].copy_from_slice(&value.to_le_bytes()))
    };
    let put32 = |at: usize, value: u32| -> Change {
        Box::new(move |b: &mut [u8]| b[at..at + 4].copy_from_slice(&value.to_le_bytes()))
    };
    let cases = || -> Vec<(&str, Change)> {
        vec![
            ("tokens 2^64-1", put(32, u64::MAX)),
            ("tokens 2^63", put(32, 1 << 63)),
            ("documents 2^64-1", put(40, u64::MAX)),
            ("documents 2^59", put(40, 1 << 59)),
            ("documents 0", put(40, 0)),
            ("text bytes", put(48, 111)),
            ("header length", put32(12, 64)),
            ("token bytes", put32(16, 4)),
            ("token bytes 0", put32(16, 0)),
            ("vocabulary 0", put32(20, 0)),
            ("block bytes 0", put32(28, 0)),
            ("block bytes 65", put32(28, 65)),
            ("block bytes 128", put32(28, 128)),
            ("split with a path", Box::new(|b: &mut [u8]| b[88..93].copy_from_slice(b"../.."))),
            ("split not UTF-8", put32(88, u32::MAX)),
            ("split with a tail", put32(100, 1)),
            ("split empty", put(88, 0)),
            ("padding", Box::new(|b: &mut [u8]| b[285] = 1)),
            ("ends going back", put(320, 80)),
            ("last end", put(336, 76)),
            ("end 2^64-1", put(336, u64::MAX)),
            ("text bytes overflow", put(344, u64::MAX)),
            ("token outside the vocabulary", Box::new(|b: &mut [u8]| b[131] = 255)),
        ]
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let refused = |name: &str, version: u32| {
        let error = open_and_verify(&path).expect_err(name);
        let wrong = matches!(error, ShardError::Checksum { .. });
        assert!(!wrong, "version {version}, {name}: the forgery is wrong: {error}");
    };
    for (name, change) in cases() {
        forge_version_1(&path, change);
        refused(name, 1);
    }
    let own = vec![("file length", put(448, 481)), ("version 2", put32(8, 2))];
    for (name, change) in own {
        forge_version_1(&path, change);
        refused(name, 1);
    }
    forge_version_1(&path, |_| {});
    open_and_verify(&path).unwrap();
    let own = vec![
        ("version 1", put32(8, 1)),
        ("file length", put(560, 593)),
        ("kind of the first section", put32(448, 2)),
        ("flags of the first section", put32(452, 0)),
        ("flags 2", put32(452, 2)),
        ("offset of the index", put(480 + 8, 304)),
        ("length of the index", put(480 + 16, 1 << 62)),
        ("no sections", put(544, 0)),
        ("two sections", put(544, 2)),
        ("four sections", put(544, 4)),
        ("2^64-1 sections", put(544, u64::MAX)),
    ];
    for (name, change) in cases().into_iter().chain(own) {
        forge(&path, &[], change);
        refused(name, 2);
    }
    forge(&path, &[], |_| {});
    open_and_verify(&path).unwrap();
}

#[test]
fn unknown_sections_are_ignored_unless_they_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let further: [(u32, u32, &[u8]); 3] = [(7, 0, &[7; 24]), (99, 0, &[]), (5, 0, &[9; 8])];
    forge(&path, &further, |_| {});
    assert_eq!(open_and_verify(&path).unwrap().len(), 77);
    let (first, table) = (448, 448 + 32);
    // They are verified with the rest of the file, and change its checksum.
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[first + 30] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = open_and_verify(&path).unwrap_err().to_string();
    assert!(error.contains("bytes 472..480"), "{error}");
    let checksum = |path: &Path| ShardReader::open(path).unwrap().checksum();
    fs::write(&path, &whole).unwrap();
    let with = checksum(&path);
    forge(&path, &[], |_| {});
    assert_ne!(checksum(&path), with);

    forge(&path, &[(7, 0, &[7; 24]), (6, 1, &[1; 8])], |_| {});
    let error = ShardReader::open(&path).unwrap_err();
    assert!(matches!(error, ShardError::Section { kind: 6, .. }), "{error}");
    assert!(error.to_string().contains("section of kind 6 is required"), "{error}");

    // The first further section is the fourth entry.
    let entry = table + 3 * 32;
    for (name, at, value) in [
        ("over the sections before", entry + 8, 440u64),
        ("behind the table", entry + 8, 1 << 40),
        ("2^62 bytes", entry + 16, 1 << 62),
        ("2^64-8 bytes", entry + 16, u64::MAX - 7),
        ("not a multiple of 8", entry + 16, 20),
        ("a gap", entry + 16, 16),
    ] {
        forge(&path, &further, |b| b[at..at + 8].copy_from_slice(&value.to_le_bytes()));
        let error = ShardReader::open(&path).expect_err(name);
        assert!(matches!(error, ShardError::Malformed { .. }), "{name}: {error}");
    }
}

/// 10^8 documents, all but the last without tokens, in a file of holes: opening reads checksums and not the index.
#[test]
fn a_hundred_million_documents_open_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    write_small(&path, 1000);
    let mut bytes = fs::read(&path).unwrap();
    let documents = 100_000_000u64;
    bytes[40..48].copy_from_slice(&documents.to_le_bytes());
    bytes[48..56].fill(0);
    let sum = xxhash_rust::xxh3::xxh3_64;
    let head = sum(&bytes[..120]);
    bytes[120..128].copy_from_slice(&head.to_le_bytes());
    let header = crate::format::Header::parse(&bytes[..128], &path).unwrap();
    let layout = header.layout().unwrap();
    let last = layout.ends + 8 * (documents as usize - 1);
    let mut sums = vec![sum(&[0; 65_536]); (layout.sections_end - layout.index_sums) / 8];
    let mut piece = vec![0; 65_536];
    let with_last = (last - layout.ends) / 65_536;
    let at = last - layout.ends - with_last * 65_536;
    piece[at..at + 8].copy_from_slice(&77u64.to_le_bytes());
    sums[with_last] = sum(&piece);
    let tail = (layout.index_sums - layout.ends) % 65_536;
    *sums.last_mut().unwrap() = sum(&vec![0; if tail == 0 { 65_536 } else { tail }]);
    let sums: Vec<u8> = sums.into_iter().flat_map(u64::to_le_bytes).collect();
    let table = crate::format::table(&layout.sections(sum(&bytes[288..312]), sum(&sums)));
    let head: [u8; 128] = bytes[..128].try_into().unwrap();
    let trailer = crate::format::trailer(&head, sum(&table), layout.file_bytes as u64);
    let file = fs::File::create(&path).unwrap();
    let put =
        |at: usize, bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(&file, bytes, at as u64).unwrap();
    put(0, &bytes[..312]);
    put(last, &77u64.to_le_bytes());
    put(layout.index_sums, &sums);
    put(layout.sections_end, &table);
    put(layout.sections_end + table.len(), &trailer);

    let begun = std::time::Instant::now();
    let reader = ShardReader::open(&path).unwrap();
    let (seconds, read) = (begun.elapsed().as_secs_f64(), reader.counters().storage);
    assert_eq!((reader.document_count(), reader.file_bytes() >> 30), (documents, 2));
    assert!(read < 1 << 20 && seconds < 1.0, "{read} bytes in {seconds} s");
    assert_eq!(reader.document_at(76).unwrap(), Some(documents - 1));
    assert_eq!(reader.document_tokens(documents - 1).unwrap(), Some(0..77));
    assert_eq!(reader.document(50_000_000).unwrap().unwrap().tokens, 0..0);
    // A few pieces of the index more.
    assert!(reader.counters().storage - read < 4 << 20);
}

/// A program that cuts a file while it is open: what a map would turn into SIGBUS is an error that names the file.
#[test]
fn a_file_cut_while_it_is_open_is_an_error_that_names_it() {
    for vocab_size in [1000, 100_000] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00003.shard");
        let tokens = write_small(&path, vocab_size);
        let whole = fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(16) {
            fs::write(&path, &whole).unwrap();
            let reader = ShardReader::open(&path).unwrap();
            let mut out = vec![0; tokens.len()];
            // Blocks that were verified before are read again, not remembered.
            reader.read(0, &mut out).unwrap();
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
            let e = reader.verify().unwrap_err();
            assert!(e.to_string().contains("00003.shard"), "{e}");
            match reader.read(0, &mut out) {
                Ok(()) => assert_eq!(out, tokens, "cut at {length}"),
                Err(ShardError::Truncated { found, wanted, .. }) => {
                    assert_eq!((found, wanted), (length as u64, whole.len() as u64));
                }
                Err(other) => panic!("cut at {length}: {other}"),
            }
            // Documents behind the cut are errors as well, and none is made up.
            for i in 0..4 {
                if let Ok(document) = reader.document(i) {
                    assert_eq!(document.unwrap().id, [i as u8 + 1; 16]);
                }
            }
        }
    }
}

#[test]
fn documents_are_found_across_marks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("00003.shard");
    let mut writer = ShardWriter::create_with_blocks(&path, meta(1000), 64).unwrap();
    let mut starts = Vec::new();
    let mut total = 0u64;
    // Some are empty, so that marks lie within a stretch of empty documents.
    for i in 0..500u64 {
        let length = if (120..200).contains(&i) { 0 } else { i % 3 };
        starts.push((total, total + length));
        writer.push_document([i as u8; 16], length, &vec![7; length as usize]).unwrap();
        total += length;
    }
    writer.finish().unwrap();
    let reader = ShardReader::open(&path).unwrap();
    for offset in 0..total {
        let wanted = starts.iter().position(|(a, b)| (*a..*b).contains(&offset)).unwrap();
        assert_eq!(reader.document_at(offset).unwrap(), Some(wanted as u64));
        assert_eq!(reader.document_tokens(wanted as u64).unwrap(), Some(starts[wanted].0..starts[wanted].1));
    }
    assert_eq!(reader.document_at(total).unwrap(), None);
    assert_eq!(reader.document_tokens(500).unwrap(), None);
}
