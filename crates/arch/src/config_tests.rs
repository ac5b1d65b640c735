use super::*;

#[test]
fn unknown_names_and_impossible_sizes_are_refused_by_key() {
    let bad = [
        (ModelConfig { architecture: "gtp2".into(), ..Default::default() }, "model.architecture"),
        (ModelConfig { heads: Some(5), width: Some(64), ..Default::default() }, "model.heads"),
        (
            ModelConfig { heads: Some(4), kv_heads: Some(3), width: Some(64), ..Default::default() },
            "model.kv_heads",
        ),
        (ModelConfig { layers: Some(0), ..Default::default() }, "model.layers"),
        (
            ModelConfig { norm: Some(NormChoice::None), placement: Placement::Post, ..Default::default() },
            "model.placement",
        ),
        (
            ModelConfig { rope_scaling: Some(RopeScaling::default()), ..Default::default() },
            "model.rope_scaling",
        ),
        (ModelConfig { window: Some(0), ..Default::default() }, "model.window"),
        (ModelConfig { init: Some(InitChoice::MuP), ..Default::default() }, "model.mup_base_width"),
        (ModelConfig { mup_base_width: Some(64), ..Default::default() }, "model.mup_base_width"),
        (ModelConfig { init_gain: 0.5, ..Default::default() }, "model.init_gain"),
        (ModelConfig { ds_init: DsInitForm::Code, ..Default::default() }, "model.ds_init"),
        (
            ModelConfig { init_distribution: Some(Distribution::Normal), ..Default::default() },
            "model.init_distribution",
        ),
        (ModelConfig { embedding_scale: Some(0.0), ..Default::default() }, "model.embedding_scale"),
        (ModelConfig { qk_norm_span: Some(QkNormSpan::Width), ..Default::default() }, "model.qk_norm_span"),
        (ModelConfig { qkv_bias: Some(false), ..Default::default() }, "model.qkv_bias"),
        (ModelConfig { dropout: 1.5, ..Default::default() }, "model.dropout"),
        (ModelConfig { dropout: f64::NAN, ..Default::default() }, "model.dropout"),
    ];
    for (config, key) in bad {
        let e = config.check().unwrap_err().to_string();
        assert!(e.starts_with(key), "{e}");
    }
}

#[test]
fn vocabulary_must_hold_the_tokenizer() {
    let c = ModelConfig { vocab_size: 100, ..Default::default() };
    assert!(c.resolve(Some(101)).unwrap_err().to_string().contains("101 tokens"));
    assert_eq!(c.resolve(Some(99)).unwrap().vocab_size, 100);
    assert_eq!(ModelConfig::default().resolve(Some(99)).unwrap().vocab_size, 99);
}

/// Every size and choice of a named model, written with the model's own value: alone or all together, nothing changes.
#[test]
fn a_named_model_with_its_own_values_repeated_is_that_model() {
    type Repeat = fn(&mut ModelConfig, &Model);
    let repeats: [(&str, Repeat); 16] = [
        ("layers", |c, m| c.layers = Some(m.layers as u64)),
        ("width", |c, m| c.width = Some(m.width as u64)),
        ("heads", |c, m| c.heads = Some(m.heads as u64)),
        ("kv_heads", |c, m| c.kv_heads = Some(m.kv_heads as u64)),
        ("head_dim", |c, m| c.head_dim = Some(m.head_dim as u64)),
        ("ffn_width", |c, m| c.ffn_width = Some(m.ffn_width as u64)),
        ("context", |c, m| c.context = Some(m.context as u64)),
        ("norm", |c, m| c.norm = Some(m.norm)),
        ("norm_eps", |c, m| c.norm_eps = Some(m.norm_eps)),
        ("activation", |c, m| c.activation = Some(m.activation)),
        ("positions", |c, m| c.positions = Some(m.positions)),
        ("rope_theta", |c, m| c.rope_theta = Some(m.rope_theta)),
        ("window", |c, m| c.window = m.window.map(|w| w as u64)),
        ("qk_norm", |c, m| c.qk_norm = Some(m.qk_norm)),
        ("bias", |c, m| c.bias = Some(m.bias)),
        ("tied_embeddings", |c, m| c.tied_embeddings = Some(m.tied_embeddings)),
    ];
    for name in NAMED {
        let plain = ModelConfig { architecture: (*name).into(), ..Default::default() };
        let wanted = plain.resolve(Some(9)).unwrap();
        let mut all = plain.clone();
        for (key, repeat) in repeats {
            let mut one = plain.clone();
            repeat(&mut one, &wanted);
            assert_eq!(one.resolve(Some(9)).unwrap(), wanted, "{name} with its own {key}");
            repeat(&mut all, &wanted);
            assert_eq!(all.resolve(Some(9)).unwrap(), wanted, "{name} with its own values up to {key}");
        }
    }
}

/// The same beside a change: of two sizes written, the one that repeats the base's has no say.
#[test]
fn a_repeated_size_beside_a_changed_one_has_no_effect() {
    let sized = |width, heads| ModelConfig {
        architecture: "llama-8b".into(),
        width,
        heads,
        ..ModelConfig::default()
    };
    let of = |c: ModelConfig| c.resolve(Some(9)).unwrap();
    assert_eq!(of(sized(Some(4096), Some(16))), of(sized(None, Some(16))));
    assert_eq!(of(sized(Some(2048), Some(32))), of(sized(Some(2048), None)));
    assert_eq!(of(sized(Some(2048), None)).kv_heads, 8);
}

#[test]
fn biases_of_queries_keys_and_values_alone_are_a_choice_of_their_own() {
    let llama = ModelConfig { architecture: "llama".into(), ..Default::default() };
    let biases = |c: &ModelConfig| {
        let names = c.resolve(Some(9)).unwrap().params().into_iter().map(|p| p.name);
        names.filter(|n| n.ends_with(".bias")).map(|n| n["layers.0.".len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(biases(&llama), Vec::<String>::new());
    let qkv = ModelConfig { qkv_bias: Some(true), ..llama.clone() };
    assert_eq!(biases(&qkv), vec!["attention.qkv.bias"; 4]);
    // `bias = true` has them already: one model, one description.
    let all = ModelConfig { bias: Some(true), ..llama.clone() };
    let both = ModelConfig { bias: Some(true), ..qkv };
    assert_eq!(both.resolve(Some(9)).unwrap(), all.resolve(Some(9)).unwrap());
    // A named model that has them can be had without.
    let qwen = ModelConfig { architecture: "qwen2.5-0.5b".into(), ..Default::default() };
    assert_eq!(biases(&qwen).len(), 24);
    assert_eq!(biases(&ModelConfig { qkv_bias: Some(false), ..qwen }).len(), 0);
}

/// Of every named model and of one in which everything is chosen otherwise.
#[test]
fn a_model_has_a_table_that_resolves_to_it() {
    let named = crate::NAMED.iter().map(|name| crate::named(name).unwrap());
    let mut odd = crate::named("llama").unwrap();
    odd.vocab_size = 97;
    (odd.head_dim, odd.ffn_width, odd.window, odd.dropout) = (32, 100, Some(7), 0.1);
    (odd.qkv_bias, odd.qk_norm, odd.embedding_scale, odd.document_end) = (true, true, 3.0, Some(5));
    odd.qk_norm_span = QkNormSpan::Width;
    (odd.init, odd.mup_base_width) = (InitChoice::MuP, Some(64));
    for model in named.chain([odd]) {
        let found = ModelConfig::of(&model).resolve_for(model.vocab_size, Some(5)).unwrap();
        assert_eq!(found, model);
    }
}

#[test]
fn a_new_width_gives_the_usual_feed_forward_width() {
    let c = ModelConfig { width: Some(256), heads: Some(4), ..Default::default() };
    assert_eq!(c.resolve(Some(9)).unwrap().ffn_width, 1024);
    let c =
        ModelConfig { architecture: "llama".into(), width: Some(256), heads: Some(4), ..Default::default() };
    assert_eq!(c.resolve(Some(9)).unwrap().ffn_width, 704);
}
