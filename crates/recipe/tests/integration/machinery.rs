//! The machinery on a config type made for it: every kind of mistake is found, placed and explained.

use bessemer_recipe::{Loaded, Origin, RecipeError, json_schema, load, parse, show_diff, to_toml};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Demo {
    /// What it is called.
    name: String,
    /// Training.
    train: Train,
    /// Optimizer.
    optim: Optim,
    /// Sources to read.
    sources: Vec<Source>,
    /// Weights by name.
    mixture: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Train {
    /// Learning rate.
    ///
    /// Second paragraph with "quotes".
    #[schemars(range(min = 0.0, max = 1.0))]
    lr: f64,
    /// Steps.
    steps: u64,
    /// Small.
    level: u8,
    /// Shape of the schedule.
    shape: Shape,
    /// Optional limit.
    limit: Option<u64>,
    /// Optional shape.
    other: Option<Shape>,
    /// Whether to be loud.
    loud: bool,
    /// Betas.
    betas: [f64; 2],
    /// Path.
    path: String,
}

impl Default for Train {
    fn default() -> Self {
        Train {
            lr: 3e-4,
            steps: 100,
            level: 1,
            shape: Shape::Cosine,
            limit: None,
            other: None,
            loud: false,
            betas: [0.9, 0.95],
            path: String::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    /// Half a cosine.
    Cosine,
    /// Warm-up, stable, decay.
    WarmupStableDecay,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Optim {
    Adamw {
        #[serde(default = "beta")]
        beta1: f64,
        #[serde(default)]
        decay: f64,
    },
    Sgd {
        momentum: f64,
    },
}

fn beta() -> f64 {
    0.9
}

impl Default for Optim {
    fn default() -> Self {
        Optim::Adamw { beta1: 0.9, decay: 0.1 }
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Source {
    /// Where.
    path: String,
    /// How much.
    weight: f64,
    /// Options.
    inner: Inner,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Inner {
    /// Words.
    words: Vec<String>,
}

fn demo(text: &str, sets: &[&str]) -> Result<Loaded<Demo>, RecipeError> {
    parse("demo.toml", text, &sets.iter().map(|s| s.to_string()).collect::<Vec<_>>())
}

/// The messages of an invalid recipe, each as `line:column message (help)`.
fn mistakes(text: &str, sets: &[&str]) -> Vec<String> {
    let error = demo(text, sets).expect_err(text);
    assert!(!error.diagnostics().is_empty(), "{error}");
    let each = error.diagnostics().iter().map(|d| {
        let place = d.location.as_ref().map_or("-".to_string(), |l| format!("{}:{}", l.line, l.column));
        format!("{place} {} ({})", d.message, d.help.clone().unwrap_or_default())
    });
    each.collect()
}

#[test]
fn an_unknown_key_is_shown_with_its_line_a_caret_and_the_nearest_name() {
    let error = demo("name = \"x\"\n[train]\nlr = 0.1\nstepps = 5 # five\n", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "demo.toml:4:1: unknown key `stepps` in [train]\n  |\n4 | stepps = 5 # five\n  | ^^^^^^\n  = did you mean `steps`?"
    );
    assert!(mistakes("steps = 5", &[])[0].contains("did you mean `train.steps`?"));
    assert!(mistakes("[train]\nzzz = 5", &[])[0].contains("known keys here: betas, level"));
    assert_eq!(mistakes("[trian]\nlr = 1", &[]), ["1:2 unknown key `trian` (did you mean `train`?)"]);
    assert!(mistakes("[[sources]]\npth = 'x'", &[])[0].starts_with("2:1 unknown key `pth` in [sources[0]]"));
}

#[test]
fn wrong_types_and_ranges_point_at_the_value() {
    for (text, wanted) in [
        (
            "[train]\nlr = \"0.1\"",
            "2:6 `train.lr` must be a number, found the string `0.1` (write it without quotes: 0.1)",
        ),
        ("[train]\nlr = 1.5", "2:6 `train.lr` must be at least 0 and at most 1, found the float 1.5 ()"),
        ("[train]\nlr = nan", "2:6 `train.lr` must be a finite number"),
        (
            "[train]\nsteps = 2e3",
            "2:9 `train.steps` must be an integer, found the float 2000.0 (write it without exponent and fraction: 2000)",
        ),
        ("[train]\nsteps = -1", "2:9 `train.steps` must be at least 0, found the integer -1 ()"),
        ("[train]\nlevel = 256", "2:9 `train.level` must be"),
        ("[train]\nlimit = 'x'", "2:9 `train.limit` must be an integer, found the string `x`"),
        (
            "[train]\nshape = 'cosin'",
            "2:9 `train.shape` must be one of \"cosine\", \"warmup-stable-decay\"; found the string `cosin` (did you mean \"cosine\"?)",
        ),
        ("[train]\nother = 'cosin'", "2:9 `train.other` must be one of"),
        ("[train]\nloud = 1", "2:8 `train.loud` must be true or false, found the integer 1"),
        ("[train]\nbetas = [0.9]", "2:9 `train.betas` must have 2 elements, found 1"),
        ("[train]\nbetas = [0.9, 'x']", "2:15 `train.betas[1]` must be a number"),
        ("train = 5", "1:9 `train` must be a table, found the integer 5"),
        ("name = 1979-05-27", "1:8 `name` must be a string, found the date `1979-05-27` (put it in quotes)"),
        ("[mixture]\nweb = 'x'", "2:7 `mixture.web` must be a number"),
        ("sources = 'x'", "1:11 `sources` must be an array, found the string `x`"),
        (
            "[optim]\nkind = 'adam'",
            "2:8 `optim.kind` must be one of \"adamw\", \"sgd\"; found the string `adam` (did you mean \"adamw\"?)",
        ),
        ("[optim]\nbeta = 1", "2:1 unknown key `beta` in [optim] (did you mean `beta1`?)"),
        ("[optim]\nkind = 'sgd'", "1:1 missing key `optim.momentum`"),
        ("[optim]\nkind = 'sgd'\nbeta1 = 1\nmomentum = 1", "3:1 unknown key `beta1` in [optim]"),
    ] {
        let found = mistakes(text, &[]);
        assert!(
            found.len() == 1 && found[0].starts_with(wanted),
            "{text}\nwanted {wanted}\nfound  {found:#?}"
        );
    }
}

#[test]
fn malformed_toml_and_duplicates_point_at_the_place() {
    for (text, place) in [
        ("a = ", "1:"),
        ("[train]\nlr = 1\nlr = 2", "3:1"),
        ("[train]\n[train]", "2:"),
        ("x = \"\u{7}", "1:"),
    ] {
        let found = mistakes(text, &[]);
        assert!(found[0].starts_with(place) && found[0].contains("malformed TOML"), "{found:?}");
    }
}

#[test]
fn several_mistakes_are_reported_at_once_and_at_most_ten() {
    let found = mistakes("nam = 1\n[train]\nlr = 'x'\nstep = 1\n", &["train.level=300", "nonsense"]);
    assert_eq!(found.len(), 5, "{found:#?}");
    let many: String = (0..50).map(|i| format!("key{i} = 1\n")).collect();
    let error = demo(&many, &[]).unwrap_err();
    assert_eq!(error.diagnostics().len(), 10);
    assert!(error.to_string().ends_with("... and 40 more errors"));
}

#[test]
fn overrides_go_through_the_same_checker_and_take_bare_words() {
    let l = demo(
        "[train]\nlr = 0.5\n",
        &[
            "train.lr=3e-4",
            "train.path=/data/my file.txt",
            "name=1e5",
            "train.shape=warmup-stable-decay",
            "train.betas=[0.8, 0.9]",
            "optim={kind='sgd', momentum=0.5}",
            "mixture.\"web text\"=0.25",
            "train.limit = 7",
            "train.loud=true",
        ],
    )
    .unwrap();
    assert_eq!(
        (l.value.train.lr, l.value.train.path.as_str(), l.value.name.as_str()),
        (3e-4, "/data/my file.txt", "1e5")
    );
    assert_eq!((l.value.train.limit, l.value.train.loud), (Some(7), true));
    assert_eq!(l.value.train.betas, [0.8, 0.9]);
    assert_eq!(l.value.optim, Optim::Sgd { momentum: 0.5 });
    assert_eq!(l.value.mixture["web text"], 0.25);
    for (set, wanted) in [
        ("train.lrr=1", "1:1 unknown key `lrr` in [train] (did you mean `lr`?)"),
        ("train.lr=2", "1:10 `train.lr` must be at least 0 and at most 1"),
        ("train.lr=fast", "1:10 `train.lr` must be a number, found the string `fast`"),
        ("train.betas=[0.8, ", "1:"),
        ("train.lr", "1:1 --set `train.lr` has no `=`"),
        ("train.lr=", "1:1 `train.lr` has no value"),
        ("=1", "1:1 `` is not a dotted key"),
        ("[train]#=1", "1:1 `[train]#` is not a dotted key"),
        ("train..lr=1", "1:1 `train..lr` is not a dotted key"),
        ("name=x\ny=2", "1:1 --set: wanted key=value on one line, found several lines"),
        ("base=x.toml", "1:1 `base` is a key of recipe files"),
    ] {
        let found = mistakes("", &[set]);
        assert!(found.len() == 1 && found[0].starts_with(wanted), "{set}: {found:#?}");
    }
    let shown = demo("", &["train.lr=2"]).unwrap_err().to_string();
    assert!(
        shown.starts_with("--set:10: `train.lr`") && shown.contains("--set | train.lr=2\n      |          ^"),
        "{shown}"
    );
}

fn files(list: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in list {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn load_in(dir: &Path, name: &str, sets: &[&str]) -> Result<Loaded<Demo>, RecipeError> {
    load(&dir.join(name), &sets.iter().map(|s| s.to_string()).collect::<Vec<_>>())
}

#[test]
fn layers_merge_key_by_key_arrays_replace_and_every_origin_is_known() {
    let dir = files(&[
        (
            "base.toml",
            "name = 'b'\nsources = [{path='1'}, {path='2'}]\n[train]\nlr = 0.1\nsteps = 7\nbetas = [0.1, 0.2]\n[optim]\ndecay = 0.5\n",
        ),
        (
            "child.toml",
            "base = 'base.toml'\nsources = [{path='3'}]\n\n[train]\nsteps = 9\n[optim]\nbeta1 = 0.8\n",
        ),
    ]);
    let l = load_in(dir.path(), "child.toml", &["train.level=3"]).unwrap();
    let t = &l.value.train;
    assert_eq!((l.value.name.as_str(), t.lr, t.steps, t.level, t.betas), ("b", 0.1, 9, 3, [0.1, 0.2]));
    assert_eq!(l.value.sources, [Source { path: "3".into(), ..Default::default() }]);
    assert_eq!(l.value.optim, Optim::Adamw { beta1: 0.8, decay: 0.5 });
    let (base, child) = (dir.path().join("base.toml"), dir.path().join("child.toml"));
    let (base, child) = (base.display().to_string(), child.display().to_string());
    for (key, origin) in [
        ("name", Origin::Base { file: base.clone(), line: 1 }),
        ("train.lr", Origin::Base { file: base.clone(), line: 4 }),
        ("train.steps", Origin::File { file: child.clone(), line: 5 }),
        ("train.level", Origin::Set { argument: "train.level=3".into() }),
        ("train.loud", Origin::Default),
        ("train.limit", Origin::Default),
        ("optim.kind", Origin::Default),
        ("optim.decay", Origin::Base { file: base, line: 8 }),
        ("sources[0].path", Origin::File { file: child, line: 2 }),
        ("sources[0].weight", Origin::Default),
    ] {
        assert_eq!(l.origin(key), Some(origin), "{key}");
    }
    assert_eq!(l.origin("train.nothing"), None);
    let shown = l.show_origins();
    assert!(shown.contains("train.level = 3 ") && shown.contains("# --set train.level=3"), "{shown}");
    assert!(shown.contains("train.limit = (not set)"), "{shown}");
}

#[test]
fn choosing_another_variant_drops_the_keys_of_the_one_below() {
    let dir = files(&[
        ("base.toml", "[optim]\nkind = 'adamw'\nbeta1 = 0.5\ndecay = 0.5\n"),
        ("sgd.toml", "base = 'base.toml'\n[optim]\nkind = 'sgd'\nmomentum = 0.9\n"),
        ("same.toml", "base = 'base.toml'\n[optim]\nkind = 'adamw'\ndecay = 0.25\n"),
    ]);
    assert_eq!(load_in(dir.path(), "sgd.toml", &[]).unwrap().value.optim, Optim::Sgd { momentum: 0.9 });
    assert_eq!(
        load_in(dir.path(), "same.toml", &[]).unwrap().value.optim,
        Optim::Adamw { beta1: 0.5, decay: 0.25 }
    );
    let found = load_in(dir.path(), "sgd.toml", &["optim.decay=1"]).unwrap_err().to_string();
    assert!(found.contains("unknown key `decay` in [optim]"), "{found}");
}

#[test]
fn a_mistake_in_a_base_is_found_even_where_it_is_overridden() {
    let dir = files(&[
        ("base.toml", "[train]\nlr = 'x'\nstep = 1\n"),
        ("c.toml", "base = 'base.toml'\n[train]\nlr = 0.5\n"),
    ]);
    let text = load_in(dir.path(), "c.toml", &[]).unwrap_err().to_string();
    assert!(
        text.contains("base.toml:2:6: `train.lr` must be a number")
            && text.contains("base.toml:3:1: unknown key `step`"),
        "{text}"
    );
}

#[test]
fn a_base_that_cannot_be_used_is_explained_at_the_line_that_names_it() {
    let dir = files(&[
        ("two.toml", "base = 'one.toml'\n"),
        ("one.toml", "base = 'zero.toml'\n"),
        ("self.toml", "base = 'self.toml'\n"),
        ("gone.toml", "\nbase = 'nowhere.toml'\n"),
        ("type.toml", "base = 5\n"),
        ("folder.toml", "base = '.'\n"),
    ]);
    for (file, wanted) in [
        ("two.toml", "one.toml:1:1: a base recipe cannot have a base"),
        ("self.toml", "self.toml:1:1: a base recipe cannot have a base"),
        ("gone.toml", "gone.toml:2:8: there is no recipe"),
        ("type.toml", "type.toml:1:8: `base` must be a string"),
        ("folder.toml", "wanted a regular file, found a directory"),
    ] {
        let text = load_in(dir.path(), file, &[]).unwrap_err().to_string();
        assert!(text.contains(wanted), "{file}: {text}");
    }
    assert!(mistakes("base = 'x'", &[])[0].contains("relative to"));
}

#[test]
fn a_recipe_may_come_from_a_pipe() {
    let dir = files(&[("base.toml", "name = 'base'\n")]);
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = std::thread::spawn(move || fs::write(pipe, "base = 'base.toml'\n").unwrap());
    load_in(dir.path(), "pipe", &[]).unwrap();
    writer.join().unwrap();
}

#[test]
fn files_that_are_no_recipes_are_refused() {
    let dir = files(&[]);
    fs::write(dir.path().join("binary"), b"a = \"\xff\xfe\"").unwrap();
    fs::write(dir.path().join("huge"), vec![b'#'; (1 << 20) + 1]).unwrap();
    for (name, wanted) in [
        ("binary", "byte 0xff at offset 5"),
        ("huge", "larger than"),
        ("none", "there is no recipe"),
        (".", "regular file"),
    ] {
        let text = load_in(dir.path(), name, &[]).unwrap_err().to_string();
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn a_resolved_recipe_is_complete_documented_and_reads_back_to_the_same_value() {
    let text = "name = \"q\\\"\\\\\\u0001\\n\\tµ\"\n[train]\nlr = 0.1\nlimit = 3\nshape = 'warmup-stable-decay'\n\
                [optim]\nkind = 'sgd'\nmomentum = 1e-30\n[[sources]]\npath = 'a'\ninner.words = ['x', '']\n[[sources]]\n[mixture]\n\"web, text\" = 1\nb = 0.1\n";
    for text in ["", text] {
        let first = demo(text, &[]).unwrap();
        let written = first.to_toml();
        let second: Loaded<Demo> =
            parse("resolved.toml", &written, &[]).unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(first.value, second.value, "{written}");
        assert_eq!(written, second.to_toml());
        assert_eq!(written, to_toml(&first.value).unwrap());
        for key in ["name", "lr", "steps", "level", "shape", "loud", "betas", "path"] {
            assert!(written.contains(&format!("\n{key} = ")), "{key} missing in {written}");
        }
        assert!(
            written.contains("# Learning rate.\n#\n# Second paragraph with \"quotes\".\nlr = "),
            "{written}"
        );
        assert!(written.contains("# One of: \"cosine\", \"warmup-stable-decay\".\nshape = "), "{written}");
        // All of it is now written by the file.
        assert!(
            second
                .settings()
                .iter()
                .all(|s| s.origin != Origin::Default || s.value == "(not set)" || s.value == "[]"),
            "{written}"
        );
        toml::from_str::<Demo>(&written).unwrap();
    }
    assert!(demo("", &[]).unwrap().to_toml().contains("# Optional limit.\n# limit is not set\n"));
}

#[test]
fn saving_is_atomic_and_leaves_no_other_file() {
    let dir = files(&[]);
    let l = demo("name = 'x'", &[]).unwrap();
    l.save(&dir.path().join("recipe.toml")).unwrap();
    l.save(&dir.path().join("recipe.toml")).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("recipe.toml")).unwrap(), l.to_toml());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let text = l.save(&dir.path().join("none/recipe.toml")).unwrap_err().to_string();
    assert!(text.contains("cannot write") && text.contains("recipe.toml"), "{text}");
}

#[test]
fn a_difference_lists_only_what_resolves_differently() {
    let (a, b) =
        (demo("", &[]).unwrap(), demo("[train]\nlr = 3e-4\nsteps = 5\n[mixture]\nweb = 1\n", &[]).unwrap());
    assert_eq!(
        show_diff(&a.diff(&b)),
        "train.steps: 100 -> 5\nmixture: {} -> (no such key)\nmixture.web: (no such key) -> 1.0\n"
    );
    assert!(a.diff(&a).is_empty());
}

#[test]
fn the_exported_schema_is_complete_and_documented() {
    let schema = json_schema::<Demo>();
    assert!(schema["properties"]["base"]["description"].as_str().unwrap().contains("starts from"));
    let order: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(order, ["name", "train", "optim", "sources", "mixture", "base"]);
    assert_eq!(schema["$defs"]["Train"]["properties"]["steps"]["description"], "Steps.");
}
