//! How fast a checkpoint is saved and loaded, beside plain writing and reading of as many bytes on the same disk.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints")]

use bessemer_checkpoint::{SaveRequest, Store, TensorSpec, TensorsFrom};
use bessemer_units::DType;
use std::io::{Read, Write};
use std::time::Instant;

/// Parameters and two moments of GPT-2 124M: 1.49 GB. Run in release with `--ignored --nocapture`; the directory is the
/// system's temporary one, TMPDIR chooses another.
#[test]
#[ignore = "a measurement of some minutes that writes 1.5 GB three times"]
fn a_gpt2_sized_checkpoint() {
    let model = bessemer_arch::named("gpt2-124m").unwrap();
    let specs: Vec<TensorSpec> = ["", "adamw.m.", "adamw.v."]
        .iter()
        .flat_map(|prefix| {
            model.params().into_iter().map(move |p| TensorSpec {
                name: format!("{prefix}{}", p.name),
                shape: p.shape,
                dtype: DType::F32,
            })
        })
        .collect();
    let tmp = tempfile::tempdir().unwrap();
    let store = Store::open(tmp.path().join("c"));
    let mib = |bytes: u64, seconds: f64| bytes as f64 / seconds / (1 << 20) as f64;
    let mut bytes = 0;
    for round in 1..=3 {
        let plain = tmp.path().join("plain");
        let (started, mut file) = (Instant::now(), std::fs::File::create(&plain).unwrap());
        let chunk = vec![round as u8; 4 << 20];
        for _ in 0..1420 / 4 {
            file.write_all(&chunk).unwrap();
        }
        file.sync_all().unwrap();
        let write = mib(1420 << 20, started.elapsed().as_secs_f64());
        let started = Instant::now();
        let (mut file, mut chunk) = (std::fs::File::open(&plain).unwrap(), vec![0; 1 << 20]);
        while file.read(&mut chunk).unwrap() > 0 {}
        let read = mib(1420 << 20, started.elapsed().as_secs_f64());
        std::fs::remove_file(&plain).unwrap();

        let report = store
            .save(SaveRequest {
                step: 1,
                tokens: 0,
                state: serde_json::json!({"round": round}),
                recipe: String::new(),
                tokenizer: None,
                tensors: &mut TensorsFrom::new(specs.clone(), |i, values| {
                    values.fill(i as f32);
                    Ok(())
                }),
                max_file_bytes: 4 << 30,
                progress: &mut |_, _| {},
            })
            .unwrap();
        bytes = report.bytes;
        let started = Instant::now();
        let loaded = store.latest_valid().unwrap().unwrap().loaded;
        let verified = mib(bytes, started.elapsed().as_secs_f64());
        for s in &specs {
            std::hint::black_box(loaded.read_tensor(&s.name).unwrap());
        }
        let total = mib(bytes, started.elapsed().as_secs_f64());
        println!(
            "save {:.0} MiB/s (plain write + fsync {write:.0}); verify {verified:.0}, verify + read {total:.0} (plain read, cached, {read:.0})",
            mib(bytes, report.seconds)
        );
    }
    assert!(bytes > 1_400_000_000);
}
