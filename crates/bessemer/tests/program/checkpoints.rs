//! Checkpoints compared, written in other files, copied and uploaded.

use crate::workplace::{LLAMA, Workplace, is_tensors};

#[test]
fn checkpoints_are_compared_resharded_and_copied() {
    let place = Workplace::new(LLAMA);
    place.train(&["save.every_steps=3", "eval.at_end=false"]);
    let of = |step: u32| format!("runs/t/checkpoints/step-{step:08}");
    let same = place.bessemer(&["checkpoint", "diff", "runs/t", &of(6), "--json"]).json();
    assert_eq!(same["same"], true, "{same}");
    let differs = place.bessemer(&["checkpoint", "diff", &of(3), &of(6)]);
    differs.failed(1, &["step-00000003 and", "differ"]);
    let text = String::from_utf8(differs.out).unwrap();
    for part in ["state.loader.samples", "embed.tokens", "relative L2", "0 tensors are equal to the bit"] {
        assert!(text.contains(part), "wanted {part:?} in:\n{text}");
    }
    let tensors = place.bessemer(&["checkpoint", "diff", &of(3), &of(6), "--json", "--tensors"]);
    assert_eq!(tensors.code, Some(1));
    let found: serde_json::Value = serde_json::from_slice(&tensors.out).unwrap();
    assert_eq!(found["metadata"], serde_json::json!([]));
    assert!(found["tensors"].as_array().unwrap().iter().all(|t| t["max_abs"].as_f64().unwrap() > 0.0));

    // In the files of other layouts, from one to the next, and back into one file.
    let reshard = |from: &str, out: &str, more: &[&str]| {
        let words = [&["checkpoint", "reshard", from, out, "--json"], more].concat();
        let done = place.bessemer(&words).json();
        let checked =
            place.bessemer(&["checkpoint", "diff", from, &format!("{out}/step-00000006"), "--json"]);
        assert_eq!(checked.json()["same"], true, "{words:?}");
        done["files"].as_u64().unwrap()
    };
    assert_eq!(reshard("runs/t", "a", &["--ranks", "4", "--layout", "tensor=2,data=zero1"]), 4);
    assert_eq!(reshard("a/step-00000006", "b", &["--ranks", "2", "--layout", "pipeline=2"]), 2);
    assert_eq!(reshard("b", "c", &["--ranks", "3"]), 3);
    assert_eq!(reshard("c", "d", &[]), 1);
    place.bessemer(&["checkpoint", "reshard", "c", "d"]).failed(1, &["already exists"]);
    let bad = ["checkpoint", "reshard", "c", "e", "--layout", "tensor=3", "--ranks", "3"];
    let refused = place.bessemer(&bad);
    assert!(refused.code.is_some_and(|code| code > 0), "{refused:?}");
    assert!(!place.path("e").exists(), "{}", refused.err);

    // A run goes on from a copy as from its own, whatever its files.
    place.bessemer(&["checkpoint", "copy", "a", "copied", "--step", "6"]).text();
    assert_eq!(place.files("copied/step-00000006").len(), place.files("a/step-00000006").len());
    let again = place.bessemer(&["checkpoint", "copy", "a", "copied"]).text();
    assert!(again.contains("already exists"), "{again}");
    let verified = place.bessemer(&["checkpoint", "verify", "copied"]).text();
    assert!(verified.contains("intact"), "{verified}");

    place.bessemer(&["checkpoint", "upload", "runs/t"]).failed(2, &["save.upload", "--to"]);
    let addressed = [
        &["checkpoint", "ls", "s3://bucket/x"][..],
        &["checkpoint", "upload", "runs/t", "--to", "s3://bucket/x"],
        &["run", "recipe.toml", "--set", "save.upload=s3://bucket/x", "--set", "train.steps=9"],
    ];
    for words in addressed.iter().filter(|_| cfg!(not(feature = "remote"))) {
        place.bessemer(words).failed(1, &["s3://bucket/x", "--features remote"]);
    }
}

/// Every command that takes an older checkpoint because the newest is damaged warns of that one.
#[test]
fn commands_that_take_an_older_checkpoint_name_the_damaged_one() {
    let place = Workplace::new(LLAMA);
    place.train(&["save.every_steps=3", "eval.at_end=false"]);
    let newest = place.path("runs/t/checkpoints/step-00000006");
    let shard =
        std::fs::read_dir(&newest).unwrap().map(|e| e.unwrap().path()).find(|p| is_tensors(p)).unwrap();
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(place.path("text.txt"), "the quick brown fox jumps over lazy dogs").unwrap();
    let init = ["run", "recipe.toml", "--set", "run.name=u", "--set", "train.init.from=runs/t", "--set"];
    let init = [&init[..], &["tokenizer.file=runs/t/tokenizer.json", "--set", "train.steps=1"]].concat();
    let commands = [
        &["eval", "runs/t"][..],
        &["eval", "runs/t", "--text", "text.txt"],
        &["generate", "runs/t", "--prompt", "the", "--max-tokens", "2"],
        &["checkpoint", "export", "runs/t", "--out", "hf"],
        &["checkpoint", "export", "runs/t", "--to", "gguf", "--out", "t.gguf"],
        &["checkpoint", "inspect", "runs/t"],
        &["checkpoint", "diff", "runs/t", "runs/t/checkpoints/step-00000003"],
        &["checkpoint", "reshard", "runs/t", "resharded"],
        &["checkpoint", "copy", "runs/t", "copied"],
        &["checkpoint", "gc", "runs/t"],
        &init,
        // Last: it saves step 6 anew.
        &["train", "recipe.toml"],
    ];
    for words in commands {
        let done = place.bessemer(words);
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.err);
        for part in ["warning: ", "step-00000006 was skipped: ", "bytes"] {
            assert!(done.err.contains(part), "{words:?}: wanted {part:?} in:\n{}", done.err);
        }
    }
    let intact = place.bessemer(&["eval", "runs/t"]);
    assert!(intact.code == Some(0) && !intact.err.contains("was skipped"), "{}", intact.err);
}

#[cfg(feature = "remote")]
mod remote {
    use crate::moto::Moto;
    use crate::store::{Act, Store};
    use crate::workplace::{Finished, LLAMA, Workplace, finished, with_overrides};
    use std::fs;
    use std::process::Command;

    const URL: &str = "s3://bucket/run";

    /// The program with the settings of a store.
    fn command(place: &Workplace, settings: &[(String, String)], words: &[&str]) -> Command {
        let mut command = place.command(words);
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        command
    }

    fn bessemer(place: &Workplace, settings: &[(String, String)], words: &[&str]) -> Finished {
        finished(command(place, settings, words))
    }

    /// Trains with uploads, is killed, loses its directory, and goes on from the store with the bits of a run that was left alone.
    fn a_run_that_loses_its_directory(settings: &[(String, String)]) {
        let upload = format!("save.upload={URL}");
        let sets = ["save.every_steps=2", "save.keep_last=2", "train.steps=6", "optim.schedule=constant"];
        let straight = Workplace::new(LLAMA);
        straight.train(&[sets[0], sets[1], "train.steps=10", sets[3]]);
        let place = Workplace::new(LLAMA);
        let words = with_overrides(&["run", "recipe.toml"], &[sets[0], sets[1], sets[2], sets[3], &upload]);
        let done = bessemer(&place, settings, &words);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let listed = bessemer(&place, settings, &["checkpoint", "ls", URL]).text();
        assert!(listed.contains("s3://bucket/run/step-00000006"), "{listed}");
        let same = ["checkpoint", "diff", "s3://bucket/run/step-00000006", "runs/t", "--json"];
        assert_eq!(bessemer(&place, settings, &same).json()["same"], true);
        let verified = bessemer(&place, settings, &["checkpoint", "verify", URL]).text();
        assert!(verified.lines().all(|line| line.starts_with("intact")), "{verified}");
        // On another machine.
        fs::remove_dir_all(place.path("runs/t")).unwrap();
        let more = [sets[0], sets[1], "train.steps=10", sets[3], &upload];
        let words = with_overrides(&["run", "recipe.toml"], &more);
        let done = bessemer(&place, settings, &words);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(
            done.err.contains("resuming after step 6 from s3://bucket/run/step-00000006"),
            "{}",
            done.err
        );
        assert!(!done.err.contains("could not be uploaded"), "{}", done.err);
        assert!(place.tensors(10) == straight.tensors(10), "other bits after the loss of the directory");
        let listed = bessemer(&place, settings, &["checkpoint", "ls", URL]).text();
        assert!(listed.contains("step-00000010"), "{listed}");
        // Another run does not mix its checkpoints in.
        let other = with_overrides(&["run", "recipe.toml"], &["run.name=u", "train.steps=2"]);
        assert_eq!(bessemer(&place, settings, &other).code, Some(0));
        bessemer(&place, settings, &["checkpoint", "upload", "runs/u", "--to", URL])
            .failed(1, &["another run", "save.upload", "--take-over"]);
    }

    #[test]
    fn a_run_goes_on_from_a_store() {
        a_run_that_loses_its_directory(&Store::start([], &[]).settings());
    }

    #[test]
    #[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test --features remote oracle -- --ignored (golden/requirements.txt)"]
    fn oracle_moto_lets_a_run_go_on() {
        let Some(moto) = Moto::start(None) else { return };
        moto.make_bucket("bucket");
        a_run_that_loses_its_directory(&moto.settings());
    }

    /// Errors of the store do not change the end of the run; its records contain them.
    #[test]
    fn training_goes_on_when_uploads_fail() {
        let place = Workplace::new(LLAMA);
        let store = Store::start([], &[]);
        let settings = store.settings();
        let upload = format!("save.upload={URL}");
        let sets = ["save.every_steps=2", "train.steps=4", &upload];
        // The session and its rank look for checkpoints to go on from; then nothing works.
        let acts = [vec![Act::Serve; 2], vec![Act::Status(403); 500]].concat();
        store.state.lock().unwrap().acts = acts.into();
        let done = bessemer(&place, &settings, &with_overrides(&["run", "recipe.toml"], &sets));
        assert_eq!(done.code, Some(0), "{}", done.err);
        for part in ["could not be uploaded", "check the credentials", "training continues"] {
            assert!(done.err.contains(part), "{}", done.err);
        }
        let warnings = place.records("warning");
        let told = |w: &serde_json::Value| w["message"].as_str().unwrap().contains("check the credentials");
        assert_eq!(warnings.iter().filter(|w| told(w)).count(), 1, "once: {warnings:?}");
        // Once the store works, one command brings it up to date.
        store.state.lock().unwrap().acts.clear();
        let done = bessemer(&place, &settings, &["checkpoint", "upload", "runs/t"]).text();
        assert!(done.contains("uploaded 1"), "{done}");
        // A store that refuses from the beginning ends a run that might have to go on from there.
        fs::remove_dir_all(place.path("runs/t/checkpoints")).unwrap();
        store.state.lock().unwrap().acts = vec![Act::Status(403); 50].into();
        bessemer(&place, &settings, &with_overrides(&["run", "recipe.toml"], &sets))
            .failed(1, &["check the credentials"]);
    }

    /// An upload is killed again and again at other moments; what is read is whole, and in the end all is there.
    #[test]
    fn an_upload_that_is_killed_leaves_nothing_half_and_the_next_goes_on() {
        let place = Workplace::new(LLAMA);
        place.train(&["save.every_steps=3", "save.max_file_mib=1"]);
        let store = Store::start([], &[]);
        let settings = store.settings();
        let words = ["checkpoint", "upload", "runs/t", "--to", URL];
        for pause in [5, 10, 20, 30, 40, 60, 80] {
            let mut child = command(&place, &settings, &words).spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(pause));
            child.kill().unwrap();
            child.wait().unwrap();
            let verified = bessemer(&place, &settings, &["checkpoint", "verify", URL]);
            assert_eq!(verified.code, Some(0), "{verified:?}");
        }
        bessemer(&place, &settings, &words).text();
        let listed = bessemer(&place, &settings, &["checkpoint", "ls", URL]).text();
        assert!(listed.contains("step-00000006"), "{listed}");
    }
}
