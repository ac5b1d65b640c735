//! Files made to harm: every parser gives a typed error, quickly and within bounded memory, and never panics.
//!
//! The corpus names attacks on every field; the mutations below it try what nobody named. Manifests are sealed with a
//! correct checksum, as an attacker would.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed unwrap in a test's own plumbing is a failed test"
)]

use bessemer_checkpoint::format::{Header, SafetensorsFile};
use bessemer_checkpoint::fs::{Links, OsFileSystem};
use bessemer_checkpoint::hf::import_hf;
use bessemer_checkpoint::{
    CheckpointError, HostTensors, Loaded, MANIFEST_NAME, Manifest, SaveRequest, Store,
};
use bessemer_tensor::host::HostTensor;
use bessemer_units::DType;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Instant;

fn container(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn open(dir: &Path, bytes: &[u8]) -> Result<SafetensorsFile, CheckpointError> {
    let path = dir.join("x.safetensors");
    fs::write(&path, bytes).unwrap();
    SafetensorsFile::open(&OsFileSystem, &path, Links::Refuse)
}

fn seal(body: &str) -> Vec<u8> {
    format!("{body},\n  \"checksum\": \"blake3:{}\"\n}}\n", blake3::hash(body.as_bytes()).to_hex())
        .into_bytes()
}

/// Most memory that this process has held so far, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn malformed_containers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let t = |dtype: &str, shape: &str, b: &str, e: &str| {
        format!("{{\"a\":{{\"dtype\":{dtype},\"shape\":{shape},\"data_offsets\":[{b},{e}]}}}}")
    };
    let huge = (1u64 << 61) - 1;
    let eight: Vec<String> = (0..8)
        .map(|i| {
            format!(
                "\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[{huge}],\"data_offsets\":[{},{}]}}",
                i * huge,
                (i + 1) * huge
            )
        })
        .collect();
    let two = |x: &str, y: &str| {
        let one =
            |n: &str, o: &str| format!("\"{n}\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[{o}]}}");
        format!("{{{},{}}}", one("a", x), one("b", y))
    };
    let cases: Vec<(String, usize, &str)> = vec![
        (String::new(), 0, "does not start with '{'"),
        (" {}".into(), 0, "does not start with '{'"),
        ("[]".into(), 0, "does not start with '{'"),
        ("{".into(), 0, "EOF"),
        ("{}x".into(), 0, "trailing"),
        (t("\"F32\"", "[2]", "0", "8"), 7, "the file has 7"),
        (t("\"F32\"", "[2]", "0", "8"), 9, "the file has 9"),
        (t("\"F32\"", "[2]", "0", "9"), 9, "takes 8 bytes"),
        (t("\"F32\"", "[2]", "8", "0"), 8, "takes 8 bytes"),
        (t("\"F32\"", "[2]", "-8", "0"), 8, "invalid value"),
        (t("\"F32\"", "[-2]", "0", "8"), 8, "invalid value"),
        (t("\"F32\"", "[2.0]", "0", "8"), 8, "invalid type"),
        (t("\"F32\"", "[1e1]", "0", "40"), 40, "invalid type"),
        (t("\"F32\"", "[18446744073709551615,2]", "0", "8"), 8, "overflows"),
        (t("\"F32\"", "[18446744073709551616]", "0", "8"), 8, "invalid type"),
        (t("\"F32\"", "[4611686018427387904,4]", "0", "0"), 0, "overflows"),
        (t("\"F32\"", "[2]", "18446744073709551615", "7"), 8, "takes 8 bytes"),
        (t("\"F31\"", "[2]", "0", "8"), 8, "unknown dtype \"F31\""),
        (t("\"F4\"", "[2]", "0", "1"), 1, "unknown dtype \"F4\""),
        (t("7", "[2]", "0", "8"), 8, "invalid type"),
        (t("\"U8\"", &format!("[{}]", ["1"; 9].join(",")), "0", "1"), 1, "at most 8"),
        (t("\"U8\"", &format!("[{}]", ["1"; 100_000].join(",")), "0", "1"), 1, "at most 8"),
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}".into(), 1, "at most 2"),
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}".into(), 1, "two numbers"),
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}".into(), 1, "two numbers"),
        ("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}".into(), 1, "no dtype"),
        ("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}".into(), 1, "no shape"),
        (
            "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}".into(),
            1,
            "twice",
        ),
        (
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}".into(),
            1,
            "unknown key \"x\"",
        ),
        ("{\"a\":5}".into(), 0, "invalid type"),
        ("{\"__metadata__\":{\"a\":1}}".into(), 0, "invalid type"),
        ("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}".into(), 0, "twice"),
        ("{\"__metadata__\":{},\"__metadata__\":{}}".into(), 0, "twice"),
        (two("0,4", "2,6"), 6, "an overlap"),
        (two("0,4", "0,4"), 4, "an overlap"),
        (two("0,4", "5,9"), 9, "a hole"),
        (two("1,5", "5,9"), 9, "a hole"),
        (two("0,4", "4,8").replace("\"b\"", "\"a\""), 8, "given twice"),
        (format!("{{{}}}", eight.join(",")), 0, "overlap"),
        (
            format!("{{\"{}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}}}", "n".repeat(2000)),
            1,
            "2000 bytes",
        ),
        (format!("{{\"a\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000)), 0, "invalid type"),
        (format!("{{\"__metadata__\":{}", "{\"a\":".repeat(100_000)), 0, "invalid type"),
    ];
    for (header, data, word) in cases {
        let started = Instant::now();
        let e = open(dir.path(), &container(header.as_bytes(), data)).unwrap_err().to_string();
        let word = if word == "overlap" { "the file has 0" } else { word };
        let shown: String = header.chars().take(80).collect();
        let ok = e.contains(word) || (word == "the file has 0" && e.contains("overflow"));
        assert!(ok, "{shown}: {e}");
        assert!(e.len() < 4000 && e.contains("x.safetensors"), "{shown}: {e}");
        assert!(started.elapsed().as_secs() < 10);
    }
    // Not UTF-8; lengths that lie.
    assert!(open(dir.path(), &container(b"{\"\xff\xfe\":1}", 0)).is_err());
    for length in [0u64, 1, 3, 1 << 20, 100_000_000, 100_000_001, u64::MAX, u64::MAX - 7, 1 << 63] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        assert!(open(dir.path(), &bytes).is_err(), "{length}");
    }
    for n in 0..8 {
        assert!(open(dir.path(), &vec![0; n]).is_err(), "{n}");
    }
}

#[test]
fn valid_but_unusual_containers_are_read() {
    let dir = tempfile::tempdir().unwrap();
    // Unsorted, space-padded, a path-like name, an empty tensor in between, a scalar, rank 8, metadata.
    let header = "{\"../../etc/x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]},\
        \"z\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]},\
        \"e\":{\"dtype\":\"F64\",\"shape\":[0,18446744073709551615],\"data_offsets\":[4,4]},\
        \"__metadata__\":{\"format\":\"pt\"}}      ";
    let f = open(dir.path(), &container(header.as_bytes(), 8)).unwrap();
    let names: Vec<&str> = f.header().entries.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["z", "e", "../../etc/x"]);
    assert_eq!(f.header().metadata["format"], "pt");
    let mut v = [0.0];
    f.read_f32(f.header().entry("../../etc/x").unwrap(), 0, &mut v).unwrap();
    assert_eq!(v[0].to_bits(), 0x0707_0707);
    assert!(f.read_f32(f.header().entry("../../etc/x").unwrap(), 1, &mut v).is_err(), "past the end");
    assert!(f.read_f32(f.header().entry("../../etc/x").unwrap(), usize::MAX, &mut v).is_err());
    let e = f.read_f32(f.header().entry("z").unwrap(), 0, &mut [0.0; 4]).unwrap_err().to_string();
    assert!(e.contains("U8"), "{e}");
    assert!(open(dir.path(), &container(b"{}", 0)).unwrap().header().entries.is_empty());
}

/// Whatever the reference implementation refuses, ours refuses; whatever ours accepts, it accepts with the same tensors.
#[test]
fn mutated_containers_never_panic_and_are_accepted_only_if_the_reference_does() {
    let good = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\
        \"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},\"c\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[32,40]}}";
    let tokens: Vec<&str> = vec![
        "0",
        "1",
        "-1",
        "24",
        "32",
        "18446744073709551615",
        "4611686018427387904",
        "1e3",
        "[",
        "]",
        "{",
        "}",
        "\"",
        ",",
        ":",
        "null",
        "\"a\"",
        "\"b\"",
        "\"F32\"",
        "\"F64\"",
        "\"shape\"",
        "\\u0000",
        " ",
        "[0,24]",
    ];
    let mut x = 0x2545_F491_4F6C_DD1Du64;
    let mut below = |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % n as u64) as usize
    };
    let mut accepted = 0;
    for round in 0..60_000 {
        let mut h = good.as_bytes().to_vec();
        for _ in 0..1 + below(3) {
            let at = below(h.len());
            match below(4) {
                0 => h[at] ^= 1 << below(8),
                1 => {
                    let end = (at + below(12)).min(h.len());
                    h.drain(at..end);
                }
                2 => {
                    let t = tokens[below(tokens.len())].bytes();
                    h.splice(at..at, t);
                }
                _ => {
                    let end = (at + 1 + below(20)).min(h.len());
                    let piece = h[at..end].to_vec();
                    let to = below(h.len());
                    h.splice(to..to, piece);
                }
            }
            if h.is_empty() {
                break;
            }
        }
        let ours = Header::parse(&h, 40);
        let theirs = safetensors::SafeTensors::deserialize(&{
            let mut b = (h.len() as u64).to_le_bytes().to_vec();
            b.extend_from_slice(&h);
            b.resize(b.len() + 40, 0);
            b
        })
        .map(|s| {
            s.tensors()
                .into_iter()
                .map(|(n, v)| (n, v.shape().to_vec()))
                .collect::<std::collections::BTreeMap<_, _>>()
        });
        if let Ok(ours) = ours {
            accepted += 1;
            let ours: std::collections::BTreeMap<_, _> =
                ours.entries.into_iter().map(|e| (e.name, e.shape)).collect();
            let theirs = theirs.unwrap_or_else(|e| {
                panic!("round {round}: only ours accepts {}: {e:?}", String::from_utf8_lossy(&h))
            });
            assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&h));
        }
    }
    assert!(accepted > 500, "the mutations must leave some valid: {accepted}");
}

/// A saved checkpoint and the body of its manifest.
fn saved(dir: &Path) -> (Store, String) {
    let store = Store::open(dir);
    let list = [HostTensor { name: "w".into(), shape: vec![2, 3], dtype: DType::F32, values: vec![1.0; 6] }];
    store
        .save(SaveRequest {
            step: 4,
            tokens: 9,
            state: json!({"k": [1, "two"]}),
            recipe: "r".into(),
            tokenizer: None,
            tensors: &mut HostTensors::new(&list),
            max_file_bytes: 1 << 20,
            progress: &mut |_, _| {},
        })
        .unwrap();
    let text = fs::read_to_string(store.path(4).join(MANIFEST_NAME)).unwrap();
    let body = text.split(",\n  \"checksum\"").next().unwrap().to_string();
    assert_eq!(seal(&body), text.as_bytes(), "the README's recipe for the checksum");
    (store, body)
}

#[test]
fn sealed_but_hostile_manifests_are_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let (store, body) = saved(tmp.path());
    let path = store.path(4).join(MANIFEST_NAME);
    let shard = "shard-00001-of-00001.safetensors";
    let file_line = body.lines().find(|l| l.contains("\"bytes\"")).unwrap().trim().to_string();
    let tensor_line = body.lines().find(|l| l.contains("\"dtype\"")).unwrap().trim().to_string();
    let slice = |from: &str, to: &str| {
        assert!(tensor_line.contains(from), "{tensor_line}");
        (tensor_line.clone(), tensor_line.replacen(from, to, 1))
    };
    let cases: Vec<((String, String), &str)> = vec![
        (("\"version\": 2".into(), "\"version\": 3".into()), "version 3, this program reads up to 2"),
        (
            ("\"version\": 2".into(), "\"version\": 18446744073709551615".into()),
            "version 18446744073709551615",
        ),
        (("\"version\": 2".into(), "\"version\": -1".into()), "invalid value"),
        (("\"version\": 2".into(), "\"version\": 1".into()), "version 1 has no"),
        (("\"version\": 2".into(), "\"version\": 0".into()), "version 0"),
        (("\"chunk_bytes\":1048576".into(), "\"chunk_bytes\":1048577".into()), "power of two"),
        (("\"chunk_bytes\":1048576".into(), "\"chunk_bytes\":512".into()), "power of two"),
        (("\"chunk_bytes\":1048576".into(), "\"chunk_bytes\":9223372036854775808".into()), "power of two"),
        (
            ("\"chunk_bytes\":1048576".into(), "\"chunk_bytes\":1024,\"chunks\":[\"00\"]".into()),
            "1 checksums of chunks, wanted 0",
        ),
        (
            ("\"previous\": null".into(), "\"previous\": {\"step\":3,\"checksum\":\"00\"}".into()),
            "previous: wanted",
        ),
        (
            (
                "\"previous\": null".into(),
                format!("\"previous\": {{\"step\":4,\"checksum\":\"{}\"}}", "0".repeat(64)),
            ),
            "previous.step is 4",
        ),
        (("bessemer-checkpoint".into(), "other".into()), "format \"other\""),
        (("\"step\": 4".into(), "\"step\": 5".into()), "holds step 5"),
        (("\"step\": 4".into(), "\"step\": -4".into()), "invalid value"),
        (("\"step\": 4".into(), "\"step\": 4,\n  \"step\": 4".into()), "duplicate"),
        (("\"step\": 4".into(), "\"critical\": 4,\n  \"step\": 4".into()), "unknown field"),
        (("\"tokens\": 9,\n".into(), String::new()), "missing field"),
        (("{\"k\":[1,\"two\"]}".into(), "[]".into()), "state: wanted a JSON object"),
        (("{\"k\":[1,\"two\"]}".into(), format!("{}1{}", "[".repeat(5000), "]".repeat(5000))), "recursion"),
        ((shard.into(), "../../etc/passwd".into()), "file name"),
        ((shard.into(), "/etc/passwd".into()), "file name"),
        ((shard.into(), "a\\\\b".into()), "file name"),
        ((shard.into(), ".hidden".into()), "file name"),
        ((shard.into(), "a\\u0000b".into()), "file name"),
        ((shard.into(), String::new()), "file name"),
        ((shard.into(), "x".repeat(256)), "file name"),
        ((shard.into(), "manifest.json".into()), "listed twice"),
        (
            (
                file_line.clone(),
                format!(
                    "{file_line},\n    {}",
                    file_line
                        .to_uppercase()
                        .replace("\"NAME\"", "\"name\"")
                        .replace("\"BYTES\"", "\"bytes\"")
                        .replace("\"BLAKE3\"", "\"blake3\"")
                        .replace("\"CHUNK_BYTES\"", "\"chunk_bytes\"")
                ),
            ),
            "listed twice",
        ),
        ((tensor_line.clone(), format!("{tensor_line},\n    {tensor_line}")), "listed twice"),
        (slice("\"offset\":", "\"offset\":1"), "past the end"),
        (slice("\"offset\":", "\"offset\":-"), "invalid value"),
        (slice("\"bytes\":24", "\"bytes\":18446744073709551615"), "states 18446744073709551615 bytes"),
        (slice("\"file\":0", "\"file\":1"), "there are 1"),
        (slice("\"start\":[0,0]", "\"start\":[0,18446744073709551615]"), "outside"),
        (slice("\"start\":[0,0]", "\"start\":[0]"), "start [0]"),
        (slice("\"shape\":[2,3]", "\"shape\":[4611686018427387904,4611686018427387904]"), "overflows"),
        (slice("\"shape\":[2,3]", "\"shape\":[0,3]"), "outside"),
        (slice("\"shape\":[2,3]", "\"shape\":[4,3]"), "cover 24 of 48"),
        (slice("\"shape\":[2,3]", "\"shape\":[1,1,1,1,1,1,1,2,3]"), "9 dims"),
        (slice("\"dtype\":\"f32\"", "\"dtype\":\"f64\""), "unknown variant"),
        (slice("\"dtype\":\"f32\"", "\"dtype\":\"u32\""), "describe it differently"),
        (slice("\"name\":\"w\"", "\"name\":\"v\""), "describe it differently"),
        (slice("\"name\":\"w\"", "\"name\":\"\""), "1 to 1024"),
    ];
    for ((from, to), word) in cases {
        let bad = body.replacen(&from, &to, 1);
        assert_ne!(bad, body, "{from}");
        fs::write(&path, seal(&bad)).unwrap();
        let e = store.load(4).unwrap_err().to_string();
        assert!(e.contains(word), "{word}: {e}");
        assert!(e.contains("manifest.json") || e.contains(shard), "{e}");
        assert!(store.latest_valid().is_err(), "never mistaken for an empty store");
    }
    // A foreign version of any kind is a version error, not damage.
    fs::write(&path, seal(&body.replacen("\"version\": 2", "\"version\": 7", 1))).unwrap();
    assert!(matches!(store.load(4), Err(CheckpointError::Version { found: 7, supported: 2, .. })));
    // A newer program has saved it: an older checkpoint beside it must not be gone on from in silence.
    let older = fs::read_dir(store.path(4)).unwrap().map(|e| e.unwrap().path());
    fs::create_dir(store.path(3)).unwrap();
    for file in older {
        fs::copy(&file, store.path(3).join(file.file_name().unwrap())).unwrap();
    }
    fs::write(store.path(3).join("manifest.json"), seal(&body.replacen("\"step\": 4", "\"step\": 3", 1)))
        .unwrap();
    store.load(3).unwrap();
    for result in [store.latest_valid().map(|_| ()), store.latest_complete_until(9).map(|_| ())] {
        let e = result.unwrap_err();
        assert!(matches!(e, CheckpointError::Version { found: 7, .. }), "{e}");
        assert!(e.to_string().contains("use the program that wrote it"), "{e}");
    }
}

#[test]
fn mutated_manifests_never_panic() {
    let tmp = tempfile::tempdir().unwrap();
    let (_, body) = saved(tmp.path());
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % n as u64) as usize
    };
    let numbers =
        ["0", "1", "-1", "18446744073709551615", "9223372036854775807", "1e400", "null", "[]", "{}", "\"\""];
    for _ in 0..30_000 {
        let mut b = body.clone().into_bytes();
        for _ in 0..1 + below(3) {
            let at = below(b.len());
            match below(3) {
                0 => b[at] = b"\"{}[],:0123456789-\\ax"[below(21)],
                1 => {
                    // A number becomes another.
                    if let Some(start) = (at..b.len()).find(|i| b[*i].is_ascii_digit()) {
                        let end = (start..b.len()).find(|i| !b[*i].is_ascii_digit()).unwrap_or(b.len());
                        b.splice(start..end, numbers[below(numbers.len())].bytes());
                    }
                }
                _ => {
                    let end = (at + below(30)).min(b.len());
                    b.drain(at..end);
                }
            }
        }
        let text = String::from_utf8_lossy(&b).into_owned();
        if let Ok(m) = Manifest::parse(&seal(&text), Path::new("m")) {
            // What is accepted can be written, and says the same again.
            let again = Manifest::parse(&m.to_bytes().unwrap(), Path::new("m")).unwrap();
            assert_eq!(again, m);
        }
    }
}

/// Large hostile inputs: the growth of the whole process stays small against what naive parsing would take.
#[test]
fn memory_stays_bounded_on_inputs_that_ask_for_more() {
    let tmp = tempfile::tempdir().unwrap();
    let (store, body) = saved(tmp.path());
    let path = store.path(4).join(MANIFEST_NAME);
    let before = peak_kib();

    // 20 MB of text that would be 10 million JSON values of 70 bytes.
    let zeros = format!("{{\"k\":[0{}]}}", ",0".repeat(10_000_000));
    fs::write(&path, seal(&body.replacen("{\"k\":[1,\"two\"]}", &zeros, 1))).unwrap();
    let e = store.load(4).unwrap_err().to_string();
    assert!(e.contains("JSON values"), "{e}");
    // A sparse file of a terabyte in the manifest's place, and in a container's.
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(store.load(4).unwrap_err().to_string().contains("at most"));
    let sparse = tmp.path().join("sparse.safetensors");
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert!(SafetensorsFile::open(&OsFileSystem, &sparse, Links::Refuse).is_err());
    // A config.json and an index of the same kind.
    let hf = tmp.path().join("hf");
    fs::create_dir(&hf).unwrap();
    fs::File::create(hf.join("config.json")).unwrap().set_len(1 << 40).unwrap();
    assert!(import_hf(&hf).is_err());

    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 200 << 10, "{grown} KiB");
    assert!(Loaded::open(&store.path(4)).is_err());
}
