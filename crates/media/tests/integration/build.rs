//! From archives and folders to shards.

use bessemer_media::build::{BuildConfig, Counts, Encode, FAILURES_FILE, build};
use bessemer_media::image::{self, CLIP, Filter, patchify, resize_shorter_side};
use bessemer_media::shard::{DType, INDEX_FILE, Sample, SetIndex};
use bessemer_media::video::{Ffmpeg, Seek};
use bessemer_media::{Limits, MediaError, inspect};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A tokenizer of bytes.
fn encode(text: &str) -> Result<Vec<u32>, String> {
    match text {
        "refuse" => Err("refused".into()),
        "panic" => panic!("a defect of the tokenizer"),
        _ => Ok(text.bytes().map(u32::from).collect()),
    }
}

fn run(source: &Path, out: &Path, config: &BuildConfig) -> Result<Counts, MediaError> {
    let encode = Encode { encode: &encode, vocab_size: 256, fingerprint: [3; 32] };
    build(source, out, config, &encode, |_| ControlFlow::Continue(()))
}

/// A folder of good and bad samples.
fn folder(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    std::fs::create_dir(&source).unwrap();
    let put = |name: &str, from: &str, text: &str| {
        let extension = from.rsplit('.').next().unwrap();
        std::fs::copy(golden(from), source.join(format!("{name}.{extension}"))).unwrap();
        std::fs::write(source.join(format!("{name}.txt")), text).unwrap();
    };
    for i in 0..6 {
        put(&format!("family-{i}-0"), &format!("family-{i:02}.webp"), "the original\n");
        put(&format!("family-{i}-1"), &format!("family-{i:02}-resized.webp"), "smaller");
        put(&format!("family-{i}-2"), &format!("family-{i:02}-re-encoded.jpg"), "JPEG");
    }
    put("sound", "tone.flac", "a sweep");
    put("stereo", "stereo.wav", "two channels");
    put("refused", "rgb8.png", "refuse");
    put("panics", "rgb8.png", "panic");
    std::fs::write(source.join("no-text.png"), std::fs::read(golden("rgb8.png")).unwrap()).unwrap();
    std::fs::write(source.join("no-media.txt"), "alone").unwrap();
    std::fs::write(source.join("json.json"), r#"{"caption": "from JSON"}"#).unwrap();
    std::fs::write(source.join("json.png"), std::fs::read(golden("gray8.png")).unwrap()).unwrap();
    let png = std::fs::read(golden("rgb8.png")).unwrap();
    std::fs::write(source.join("cut.png"), &png[..png.len() / 2]).unwrap();
    std::fs::write(source.join("cut.txt"), "cut").unwrap();
    source
}

fn config(threads: usize) -> BuildConfig {
    BuildConfig {
        image_size: 32,
        patch: 16,
        mels: Some(80),
        audio_seconds: 2,
        shard_bytes: 60_000,
        threads,
        ..BuildConfig::default()
    }
}

/// Every file of a folder by name.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    files.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn samples(dir: &Path) -> Vec<Sample> {
    let (_, readers) = SetIndex::open(dir).unwrap();
    readers.iter().flat_map(|r| r.samples().collect::<Result<Vec<_>, _>>().unwrap()).collect()
}

#[test]
fn a_folder_becomes_shards_and_failures_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (folder(dir.path()), dir.path().join("out"));
    let counts = run(&source, &out, &config(1)).unwrap();
    assert_eq!((counts.read, counts.kept, counts.near_duplicates), (26, 21, 0));
    let failed: Vec<(&str, u64)> = counts.failed.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(failed, [("damaged", 1), ("incomplete-sample", 2), ("panic", 1), ("tokenizer", 1)]);
    let told = std::fs::read_to_string(out.join(FAILURES_FILE)).unwrap();
    assert_eq!(told.lines().count(), 5);
    assert!(told.contains(r#""key":"cut""#) && told.contains("a defect of the tokenizer"), "{told}");
    let all = samples(&out);
    let by_key = |key: &str| all.iter().find(|s| s.key == key).unwrap();
    assert_eq!(by_key("json").tokens, "from JSON".bytes().map(u32::from).collect::<Vec<_>>());
    let original = by_key("family-0-0");
    assert_eq!(original.tokens.len(), "the original".len());
    assert_eq!((original.array.dtype(), original.array.shape()), (DType::U8, &[4, 768][..]));
    // What stands there is what the functions give one by one.
    let picture =
        image::decode(&std::fs::read(golden("family-00.webp")).unwrap(), [255; 3], &Limits::default())
            .unwrap();
    let small = resize_shorter_side(&picture, 32, Filter::Bicubic).unwrap();
    let cut = small.crop(image::centre_crop((small.width(), small.height()), 32, 32)).unwrap();
    assert_eq!(original.array.data(), patchify(&cut, 16).unwrap());
    for key in ["sound", "stereo"] {
        assert_eq!((by_key(key).array.dtype(), by_key(key).array.shape()), (DType::F32, &[80, 200][..]));
    }
    // The same as normalised bf16.
    let normalised =
        BuildConfig { normalised: Some((CLIP, DType::Bf16)), audio_dtype: DType::Bf16, ..config(1) };
    run(&source, &out, &normalised).unwrap();
    let first = &samples(&out)[0];
    let wanted = CLIP.apply(original.array.data());
    assert!(first.array.to_f32().iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= b.abs() / 256.0));
}

/// An entry of a tar archive.
fn entry(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 512];
    b[..name.len()].copy_from_slice(name.as_bytes());
    b[124..136].copy_from_slice(format!("{:011o}\0", bytes.len()).as_bytes());
    b[156] = kind;
    b[257..265].copy_from_slice(b"ustar\x0000");
    b[148..156].fill(b' ');
    let sum: u32 = b.iter().map(|&v| u32::from(v)).sum();
    b[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    b.extend_from_slice(bytes);
    b.resize(b.len().next_multiple_of(512), 0);
    b
}

#[test]
fn paths_that_leave_the_archive_are_counted_and_nothing_is_written_there() {
    let dir = tempfile::tempdir().unwrap();
    let (home, out) = (dir.path().join("home"), dir.path().join("home/out"));
    std::fs::create_dir(&home).unwrap();
    let png = std::fs::read(golden("rgb8.png")).unwrap();
    let absolute = dir.path().join("absolute");
    let absolute = absolute.to_str().unwrap();
    let mut archive = Vec::new();
    for stem in ["../climbs", "a/../../climbs", "a/b/../../../../climbs", absolute, "C:\\drive", "..\\climbs"]
    {
        archive.extend(entry(&format!("{stem}.png"), b'0', &png));
        archive.extend(entry(&format!("{stem}.txt"), b'0', b"x"));
    }
    archive.extend(entry("link.png", b'2', b""));
    archive.extend(entry("link.txt", b'0', b"x"));
    archive.extend(entry("good.png", b'0', &png));
    archive.extend(entry("good.txt", b'0', b"kept"));
    let source = home.join("hostile.tar");
    std::fs::write(&source, archive).unwrap();
    let counts = run(&source, &out, &config(1)).unwrap();
    assert_eq!(counts.kept, 1);
    assert_eq!(samples(&out)[0].key, "good");
    assert!(counts.failed["climbing-path"] >= 4 && counts.failed["absolute-path"] >= 2, "{counts:?}");
    let beside: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside, ["home"]);
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 2);
}

#[test]
fn the_bytes_do_not_depend_on_the_threads_and_near_duplicates_go() {
    let dir = tempfile::tempdir().unwrap();
    let source = folder(dir.path());
    let mut seen = Vec::new();
    for threads in [1, 2, 5] {
        let out = dir.path().join(format!("out-{threads}"));
        let config = BuildConfig { near_duplicates: Some(8), ..config(threads) };
        let counts = run(&source, &out, &config).unwrap();
        assert_eq!((counts.kept, counts.near_duplicates), (9, 12));
        seen.push(contents(&out));
    }
    assert!(seen[0].len() > 3, "several shard files");
    assert!(seen[0] == seen[1] && seen[0] == seen[2]);
    let kept: Vec<String> = samples(&dir.path().join("out-1")).into_iter().map(|s| s.key).collect();
    assert!((0..6).all(|i| kept.contains(&format!("family-{i}-0"))), "{kept:?}");
}

#[test]
fn a_build_that_stops_leaves_no_list_and_the_next_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (folder(dir.path()), dir.path().join("out"));
    run(&source, &out, &config(2)).unwrap();
    let whole = contents(&out);
    let encode = Encode { encode: &encode, vocab_size: 256, fingerprint: [3; 32] };
    let stopped = build(&source, &out, &config(2), &encode, |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(MediaError::Stopped)));
    assert!(!out.join(INDEX_FILE).exists() && SetIndex::open(&out).is_err());
    // What a killed writer leaves.
    std::fs::write(out.join(".00007.media.partial"), b"half").unwrap();
    std::fs::write(out.join("00099.media"), b"stale").unwrap();
    run(&source, &out, &config(1)).unwrap();
    assert!(contents(&out) == whole);
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bad in [
        BuildConfig { image_size: 225, ..BuildConfig::default() },
        BuildConfig { patch: 0, ..BuildConfig::default() },
        BuildConfig { threads: 0, ..BuildConfig::default() },
        BuildConfig { near_duplicates: Some(32), ..BuildConfig::default() },
        BuildConfig { audio_dtype: DType::U8, ..BuildConfig::default() },
        BuildConfig { mels: Some(0), ..BuildConfig::default() },
    ] {
        let e = run(dir.path(), &dir.path().join("out"), &bad).unwrap_err();
        assert_eq!(e.reason(), "argument", "{e}");
    }
}

#[test]
fn files_are_told_what_they_are() {
    let limits = Limits::default();
    let seen = inspect(&golden("rotated.jpg"), &limits).unwrap();
    assert_eq!((seen.kind, seen.width, seen.height), ("JPEG", Some(47), Some(61)));
    assert!(seen.phash.is_some_and(|h| h.len() == 16));
    let seen = inspect(&golden("stereo.wav"), &limits).unwrap();
    assert_eq!(
        (seen.kind, seen.sample_rate, seen.channels, seen.seconds),
        ("WAV", Some(44_100), Some(2), Some(0.5))
    );
    assert!(inspect(&golden("golden.json"), &limits).is_err());
}

#[test]
#[ignore = "needs ffmpeg and ffprobe (apt-get install ffmpeg): cargo test -p bessemer-media frames_of_a_video -- --ignored"]
fn frames_of_a_video_are_those_of_their_times() {
    let ffmpeg = Ffmpeg::default();
    assert!(ffmpeg.is_present(), "needs ffmpeg and ffprobe (apt-get install ffmpeg)");
    let limits = Limits::default();
    let path = golden("levels.mp4");
    let header = ffmpeg.probe(&path, &limits).unwrap();
    assert_eq!((header.width, header.height, header.rate), (64, 48, Some(10.0)));
    assert!((header.seconds - 10.0).abs() < 0.2, "{header:?}");
    // Frame k, at k / 10 seconds, has level 2 k.
    let level = |frame: &image::Image| f64::from(frame.data()[3 * (24 * 64 + 32)]);
    for (i, frame) in ffmpeg.uniform_frames(&path, 8, Seek::Exact, &limits).unwrap().iter().enumerate() {
        let time = (i as f64 + 0.5) * header.seconds / 8.0;
        assert_eq!((frame.width(), frame.height()), (64, 48));
        assert!((level(frame) - 20.0 * time).abs() <= 5.0, "frame {i} at {time}: {}", level(frame));
    }
    // Key frames stand every 2 seconds: the one before 5.5 s is that of 4 s.
    let key = ffmpeg.frame(&path, 5.5, Seek::KeyFrame, &limits).unwrap();
    assert!((level(&key) - 80.0).abs() <= 3.0, "{}", level(&key));
    assert_eq!(ffmpeg.frame(&path, 1000.0, Seek::Exact, &limits).unwrap_err().reason(), "ffmpeg");
    assert_eq!(ffmpeg.probe(&golden("golden.json"), &limits).unwrap_err().reason(), "ffmpeg");
    let small = Limits { pixels: 1000, ..limits };
    assert_eq!(ffmpeg.probe(&path, &small).unwrap_err().reason(), "too-large");
    // The same through a build.
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::copy(&path, source.join("v.mp4")).unwrap();
    std::fs::write(source.join("v.txt"), "gray").unwrap();
    let out = dir.path().join("out");
    run(&source, &out, &config(1)).unwrap();
    assert_eq!(samples(&out)[0].array.shape(), [8, 4, 768]);
    assert!(contents(&out).keys().all(|k| !k.contains("scratch")));
}
