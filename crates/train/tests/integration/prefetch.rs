//! Batches prepared ahead change no bit of a run, and an error of theirs ends it where it would have ended.

use crate::place::{STEPS, recipe};
use crate::run::{Run, cpu, numbers, tensor_bytes};
use bessemer_runlog::Record;
use bessemer_train::{TrainError, checkpoints};

/// Prefetch sizes: none, one micro-batch, some, and more than the run has.
const RINGS: [(&str, u64); 4] = [("0", 1), ("1", 1), ("2kB", 3), ("16MiB", 2)];

/// Sessions of a run until its end, the first up to step 9.
fn train(noisy: bool, sets: &[&str], ranks: usize, ring: (&str, u64)) -> (Run, Vec<Record>) {
    let (bytes, threads) = (format!("loader.prefetch={:?}", ring.0), format!("loader.threads={}", ring.1));
    let recipe = recipe(&[sets, &[&bytes, &threads]].concat());
    let run = Run::new(noisy);
    let mut records = run.train(&recipe, ranks, Some(9));
    records.extend(run.train(&recipe, ranks, None));
    (run, records)
}

#[test]
fn depth_and_threads_change_no_bit_of_a_run() {
    let cases: [(usize, bool, &[&str]); 11] = [
        (1, false, &["eval.every_steps=5", "eval.at_end=true"]),
        (1, false, &["train.lengths=padded"]),
        (1, false, &["train.lengths=bucketed", "train.skip_samples=[[40,64],[100,101]]"]),
        (1, false, &["loader.shuffle=false"]),
        (1, false, &["loader.cache=1MiB", "loader.cache_policy=lru"]),
        (1, false, &["loader.order=grouped", "loader.block=100B", "loader.group=400B"]),
        // Goes back several times.
        (
            1,
            true,
            &[
                "train.spike_action=rewind",
                "train.spike_sigma=1.5",
                "train.spike_window=8",
                "save.every_steps=2",
            ],
        ),
        (2, false, &["parallel.data=zero1", "train.micro_batch=2"]),
        // A rank's chunks request each micro-batch in turn; two directions; several steps of one program.
        (
            2,
            false,
            &[
                "model.layers=4",
                "train.micro_batch=1",
                "parallel.pipeline=2",
                "parallel.schedule=interleaved",
            ],
        ),
        (2, false, &["train.micro_batch=1", "parallel.pipeline=2", "parallel.schedule=chimera"]),
        (
            2,
            false,
            &[
                "parallel.pipeline=2",
                "parallel.schedule=pipedream",
                "parallel.window=5",
                "optim.clip=0",
                "model.tied_embeddings=false",
            ],
        ),
    ];
    for (ranks, noisy, sets) in cases {
        let (plain, wanted) = train(noisy, sets, ranks, RINGS[0]);
        assert!(numbers(&wanted).len() as u64 >= STEPS);
        for ring in &RINGS[1..] {
            let (run, records) = train(noisy, sets, ranks, *ring);
            assert_eq!(numbers(&records), numbers(&wanted), "{sets:?}, {ring:?}");
            let last = |run: &Run| tensor_bytes(&checkpoints(&run.dir).path(STEPS));
            assert!(last(&run) == last(&plain), "{sets:?}, {ring:?}");
        }
    }
}

/// The wait is that of the passes, and bytes are those of the training split.
#[test]
fn steps_record_their_wait_and_their_bytes() {
    for ring in RINGS {
        let run = Run::new(false);
        let (bytes, threads) =
            (format!("loader.prefetch={:?}", ring.0), format!("loader.threads={}", ring.1));
        let records = run.train(&recipe(&[&bytes, &threads]), 1, None);
        let steps: Vec<_> =
            records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect();
        assert_eq!(steps.len() as u64, STEPS);
        assert!(steps.iter().all(|s| (0.0..=s.seconds).contains(&s.data_seconds.unwrap())));
        let bytes: u64 = steps.iter().map(|s| s.data_bytes.unwrap()).sum();
        // A step takes 8 windows of 17 tokens of 2 bytes; its one block is verified as well.
        let (windows, split) = (STEPS * 8 * 17 * 2, run.train.token_count() * 2);
        let verified = bytes - windows;
        // Threads that touch a block at the same time all verify it, and the step reads the batches that are not yet in the ring.
        assert!(
            verified.is_multiple_of(split + 8) && (1..=ring.1 + 1).contains(&(verified / (split + 8))),
            "{ring:?}"
        );
    }
}

/// With a cache the split is read once, by whichever thread is first.
#[test]
fn a_cache_changes_no_bit_and_reads_a_split_that_fits_once() {
    let plain = Run::new(false);
    let wanted = numbers(&plain.train(&recipe(&[]), 1, None));
    for (ring, policy) in RINGS.into_iter().zip(["fixed", "lru", "fixed", "lru"]) {
        let run = Run::new(false);
        let (bytes, threads) =
            (format!("loader.prefetch={:?}", ring.0), format!("loader.threads={}", ring.1));
        let policy = format!("loader.cache_policy={policy}");
        let records = run.train(&recipe(&["loader.cache=4MiB", &policy, &bytes, &threads]), 1, None);
        assert_eq!(numbers(&records), wanted, "{ring:?}");
        let steps: Vec<_> =
            records.iter().filter_map(|r| if let Record::Step(s) = r { Some(s) } else { None }).collect();
        let bytes: u64 = steps.iter().map(|s| s.data_bytes.unwrap()).sum();
        assert_eq!(bytes, run.train.token_count() * 2 + 8, "{ring:?}");
        assert!(steps.iter().all(|s| s.data_hit_share.is_none_or(|share| (0.0..=1.0).contains(&share))));
        assert!(ring.0 != "0" || steps[1..].iter().all(|s| s.data_hit_share == Some(1.0)));
    }
}

/// A file of the training split that is cut while the run is going.
#[test]
fn a_cut_file_ends_the_run_and_is_named() {
    for ring in RINGS {
        let run = Run::new(false);
        let file = run.dir.join("shards/train/00000.shard");
        let cut = |step: u64| {
            if step == 6 {
                let open = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
                open.set_len(4096).unwrap();
            }
        };
        let (bytes, threads) =
            (format!("loader.prefetch={:?}", ring.0), format!("loader.threads={}", ring.1));
        let ended =
            run.watched(&recipe(&["train.steps=4000", &bytes, &threads]), 1, (None, &cut), &|_| cpu());
        let error = ended.into_iter().next().unwrap().unwrap_err();
        assert!(matches!(error, TrainError::Load(_)), "{ring:?}: {error:?}");
        assert!(error.to_string().contains("00000.shard"), "{error}");
    }
}
