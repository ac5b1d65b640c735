//! Measurements: what they say about their work. How fast it was is not for a test.

use crate::workplace::{GPT2, LLAMA, Workplace};

/// Exit code of a wrong command line.
const USAGE: i32 = 2;

#[test]
fn a_step_of_a_recipe_is_timed_with_any_optimizer() {
    let place = Workplace::new(GPT2);
    let losses = |optimizer: &str, threads: &str| {
        let optimizer = format!("optim.optimizer={optimizer}");
        let step = ["step", "--recipe", "recipe.toml", "--set", &optimizer, "--quiet", "--json"];
        let sizes = ["--threads", threads, "--warmup", "1", "--steps", "3"];
        let result = place.bessemer(&[&step[..], &sizes[..]].concat()).json();
        assert!(result["tokens_per_s"].as_f64().unwrap() > 0.0, "{result}");
        let losses: Vec<f64> =
            result["losses"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
        assert_eq!(losses.len(), 4);
        losses
    };
    let adamw = losses("adamw", "1");
    for optimizer in ["sgd", "adafactor", "lion", "muon", "kfac"] {
        let found = losses(optimizer, "1");
        // The same weights and tokens at first; then each goes its own way, downwards on tokens that stay the same.
        assert_eq!(found[0], adamw[0], "{optimizer}");
        assert_ne!(found[1], adamw[1], "{optimizer}");
        assert!(found[3] < found[0], "{optimizer}: {found:?}");
    }
    assert_eq!(losses("kfac", "2"), losses("kfac", "1"));
}

#[test]
fn operators_are_timed_with_the_engine_that_is_named() {
    let place = Workplace::new(GPT2);
    let op = |more: &[&str]| {
        let words = ["op", "linear weight", "--shape", "8x16x32", "--threads", "1", "--quiet", "--json"];
        place.bessemer(&[&words[..], more].concat())
    };
    for more in [&["--engine", "fma"][..], &["--engine", "fma", "--kernels", "portable"]] {
        let result = op(more).json();
        assert_eq!(result["engine"], "fma");
        assert_eq!(result["operators"][0]["op"], "linear weight gradient");
        assert!(result["operators"][0]["gflops"].as_f64().unwrap() > 0.0, "{result}");
    }
    place.bessemer(&["op", "--threads", "99999"]).failed(USAGE, &["--threads", "from 0 to 1024"]);
    place.bessemer(&["step", "--heads", "5"]).failed(USAGE, &["model.heads"]);
    op(&["--engine", "abacus"]).failed(USAGE, &["abacus", "fma, fp16, amx"]);
    op(&["--engine", "fma", "--matmul", "high"]).failed(USAGE, &["--engine", "--matmul"]);
    place.bessemer(&["ladder", "--engine", "fma"]).failed(USAGE, &["bench op"]);
}

#[test]
fn layouts_are_measured_and_simulated_from_what_their_ranks_run() {
    let place = Workplace::new(GPT2);
    let layouts = |more: &[&str]| {
        let step = ["layouts", "--recipe", "recipe.toml", "--quiet", "--json", "--threads", "2"];
        let sizes = ["--warmup", "0", "--steps", "1", "--repeats", "1", "--micro-batches", "2"];
        place.bessemer(&[&step[..], &sizes[..], more].concat())
    };
    let result = layouts(&["--layouts", "zero3,slow-tensor,slow-sequence-blocking,zb-h1"]).json();
    let found = result["layouts"].as_array().unwrap();
    let names: Vec<&str> = found.iter().map(|l| l["layout"].as_str().unwrap()).collect();
    assert_eq!(names, ["zero3", "slow-tensor", "slow-sequence-blocking", "zb-h1"]);
    for layout in found {
        for key in ["measured_seconds", "simulated_seconds", "simulated_over_measured", "events"] {
            assert!(layout[key].as_f64().unwrap() > 0.0, "{key}: {layout}");
        }
    }
    // What travels over a slow link is seen, and under its axis.
    assert!(found[1]["exposed_seconds"]["tensor"].as_f64().unwrap() > 0.0, "{result}");
    assert!(found[2]["exposed_seconds"]["tensor"].as_f64().unwrap() > 0.0, "{result}");
    // More ranks than this machine may have cores, on devices that only take time.
    let result = layouts(&["--layouts", "slow-zero2", "--paced", "1", "--ranks", "4"]).json();
    assert_eq!((&result["ranks"], &result["paced_gflops"]), (&4.into(), &1.0.into()));
    assert!(result["layouts"][0]["exposed_seconds"]["shard"].as_f64().unwrap() > 0.0, "{result}");
    layouts(&["--layouts", "ddp", "--paced", "0"]).failed(USAGE, &["--paced"]);
    layouts(&["--layouts", "zero4"]).failed(USAGE, &["--layouts zero4", "zero3", "zb-h1", "slow-"]);
    layouts(&["--layouts", "ddp", "--bandwidth", "0"]).failed(USAGE, &["--bandwidth 0"]);
    place.bessemer(&["layouts", "--steps", "0"]).failed(USAGE, &["--steps 0"]);
}

#[test]
fn experts_over_ranks_are_simulated_with_the_loads_that_routers_give() {
    let place = Workplace::new(LLAMA);
    let layouts = |more: &[&str]| {
        let step = ["layouts", "--recipe", "recipe.toml", "--quiet", "--json", "--threads", "2"];
        let experts = ["--set", "model.experts.count=4", "--set", "model.experts.choices=2"];
        let sizes = ["--warmup", "0", "--steps", "1", "--repeats", "1", "--micro-batches", "2"];
        place.bessemer(&[&step[..], &experts[..], &sizes[..], more].concat())
    };
    let result =
        layouts(&["--layouts", "experts,slow-experts", "--router-skew", "2", "--bandwidth", "1"]).json();
    for layout in result["layouts"].as_array().unwrap() {
        assert!(layout["measured_seconds"].as_f64().unwrap() > 0.0, "{layout}");
    }
    // One of two ranks gets more rows than the other, and over a slow link that takes longer.
    let [skewed, equal] = ["simulated_seconds", "simulated_seconds_of_equal_loads"]
        .map(|key| result["layouts"][1][key].as_f64().unwrap());
    assert!(skewed > equal, "{result}");
    // Experts of that rank's on both take rows off the link.
    let result =
        layouts(&["--layouts", "slow-experts,slow-experts+s2", "--router-skew", "2", "--bandwidth", "1"])
            .json();
    let [without, with] = [0, 1].map(|at| result["layouts"][at]["simulated_seconds"].as_f64().unwrap());
    assert!(with != without && result["layouts"][1]["measured_seconds"].as_f64().unwrap() > 0.0, "{result}");
    layouts(&["--layouts", "experts+s0"]).failed(USAGE, &["+sN"]);
    layouts(&["--layouts", "experts", "--router-skew=-1"]).failed(USAGE, &["--router-skew"]);
    layouts(&["--layouts", "experts", "--paced", "1"]).failed(USAGE, &["--paced", "route no token"]);
}

#[test]
fn a_checkpoint_is_timed_beside_plain_files() {
    let place = Workplace::new(GPT2);
    let save = |more: &[&str]| {
        let words = ["save", "--recipe", "recipe.toml", "--quiet", "--threads", "1", "--rounds", "2"];
        place.bessemer(&[&words[..], &["--warmup", "1", "--steps", "2"], more].concat())
    };
    let result = save(&["--json"]).json();
    for key in ["plain_write", "plain_read", "save", "load", "stall", "background", "step", "step_beside"] {
        assert!(result["seconds"][key].as_f64().unwrap() > 0.0, "{key}: {result}");
    }
    assert!(result["bytes"].as_u64().unwrap() > 0 && result["rounds"] == 2, "{result}");
    let left = |place: &Workplace| {
        place.files(".").into_keys().filter(|p| p.to_string_lossy().contains("bench-save")).count()
    };
    assert_eq!(left(&place), 0);
    let kept = save(&["--json", "--keep"]).json();
    let checkpoints = std::path::PathBuf::from(kept["directory"].as_str().unwrap()).join("checkpoints");
    let step = place.path(".").join(checkpoints).join("step-00000001");
    assert!(bessemer_checkpoint::Loaded::open(&step).is_ok(), "{}", step.display());
    save(&["--dir", "nowhere"]).failed(USAGE, &["--dir", "nowhere"]);
    save(&["--steps", "0"]).failed(USAGE, &["--steps"]);
}
