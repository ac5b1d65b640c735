//! Whatever the text: a value or an error, never a panic, a hang or an endless message.

use bessemer_recipe::{RecipeError, parse_recipe};
use bessemer_units::splitmix::SplitMix64;

fn survives(text: &str, sets: &[String]) -> bool {
    match parse_recipe("hostile.toml", text, sets) {
        Ok(loaded) => {
            let again =
                parse_recipe("again.toml", &loaded.to_toml(), &[]).expect("what was resolved loads again");
            assert_eq!(again.value, loaded.value);
            true
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.is_empty() && shown.len() < 20_000, "{} bytes", shown.len());
            assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
            assert!(matches!(&error, RecipeError::Invalid { diagnostics, .. } if diagnostics.len() <= 10));
            false
        }
    }
}

#[test]
fn hand_made_monsters_are_refused() {
    let deep_dotted = vec!["a"; 70].join(".");
    let mut nested = String::from("1");
    for _ in 0..75 {
        nested = format!("{{{deep_dotted} = {nested}}}");
    }
    let monsters = [
        format!("x = {nested}"),
        format!("x = {}", "[".repeat(500_000)),
        format!("x = {}{}", "[".repeat(79), "]".repeat(79)),
        format!("{} = 1", vec!["a"; 200_000].join(".")),
        format!("[{}]", vec!["train"; 79].join(".")),
        format!("{} = 1", "k".repeat(500_000)),
        format!("x = \"{}\"", "v".repeat(500_000)),
        format!("run.name = \"{}\"", "v".repeat(500_000)),
        (0..20_000).map(|i| format!("key{i} = {i}\n")).collect(),
        (0..20_000).map(|i| format!("[t{i}]\n")).collect(),
        "train.steps = 99999999999999999999999999999999999999".into(),
        "train.steps = -99999999999999999999".into(),
        "train.steps = 18446744073709551615".into(),
        "train.seq_len = 18446744073709551615\ntrain.batch_tokens = 18446744073709551615".into(),
        "train.tokens = 18446744073709551615".into(),
        "train.epochs = 1e308".into(),
        "train.epochs = 1e309".into(),
        "train.epochs = nan".into(),
        "model.width = 9223372036854775807".into(),
        "\"\" = 1".into(),
        "\"\\u0000\\u001b[31m\" = 1".into(),
        "\"ключ\" = 1".into(),
        "run.\"\u{202e}seed\" = 1".into(),
        "\u{feff}run = 5".into(),
        "a = '''\n\n\n''' \n b = \"\"\"".into(),
        "train = [[[{}]]]".into(),
        "[[train]]\nsteps = 1".into(),
        "train = {}\n[train]\nsteps = 1".into(),
        "run.name.x = 1\nrun.name = 'y'".into(),
        "\0".into(),
        "\r\r\r".into(),
        "base.base.base = 'x'".into(),
    ];
    for text in &monsters {
        assert!(!survives(text, &[]), "{}", text.chars().take(80).collect::<String>());
        survives("", std::slice::from_ref(text));
        survives("", &[format!("train.steps={text}"), format!("{text}=1"), format!("run.name={text}")]);
    }
}

#[test]
fn mutated_recipes_never_panic_and_what_loads_loads_again() {
    let seeds = [
        "[train]\nsteps = 10\nbatch_tokens = 1024\nseq_len = 256\n",
        "base = 'x'\n[run]\nname = \"a\"\nseed = 1\nthreads = 2\n[train]\ntokens = 1_000_000\n",
        "[train]\nepochs = 1.5\n[model]\narchitecture = 'llama'\nlayers = 2\nwidth = 64\nheads = 4\n",
        "train = { steps = 10, log_every = 3 }\nrun = { name = 'x' }\n",
    ];
    let tokens = [
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\n",
        "\"",
        "'",
        "\"\"\"",
        "#",
        "\\u",
        "\\",
        "1",
        "-1",
        "1e9",
        "0x",
        "inf",
        "nan",
        "true",
        "1979-05-27",
        "train",
        "steps",
        "model",
        "[[train]]\n",
        "[train]\n",
        "seq_len = 0\n",
        "é",
        "\u{0}",
        "\t",
        "_",
    ];
    let mut random = SplitMix64(7);
    let mut loaded = 0;
    for _ in 0..1500 {
        let mut text: Vec<char> = seeds[random.index(seeds.len())].chars().collect();
        for _ in 0..random.index(4) {
            let at = random.index(text.len() + 1);
            match random.index(3) {
                0 if at < text.len() => {
                    text.remove(at);
                }
                1 => {
                    let end = (at + random.index(12)).min(text.len());
                    let copy: Vec<char> = text[at..end].to_vec();
                    let to = random.index(text.len() + 1);
                    text.splice(to..to, copy);
                }
                _ => {
                    text.splice(at..at, tokens[random.index(tokens.len())].chars());
                }
            }
        }
        let text: String = text.into_iter().collect();
        let sets = if random.index(4) == 0 { text.lines().map(str::to_string).collect() } else { vec![] };
        loaded += usize::from(survives(&text, &sets));
    }
    assert!(
        loaded > 50,
        "only {loaded} mutated recipes were valid: the mutations are too wild to test anything"
    );
}
