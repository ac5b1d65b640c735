//! The parts of a model under tensor parallelism: together they are the whole, and each is what its model says.

use bessemer_arch::{
    ActivationChoice, GradientSum, Init, InitChoice, Model, TensorShard, TensorShardParam, named,
};
use bessemer_mesh::{Axis, Mesh, MeshConfig};

fn gpt2() -> Model {
    Model { layers: 2, width: 24, heads: 4, kv_heads: 4, head_dim: 6, ffn_width: 32, ..base("gpt2") }
}

/// Grouped heads, gated, untied, with norms of queries and keys.
fn llama() -> Model {
    Model {
        layers: 1,
        width: 20,
        heads: 8,
        kv_heads: 2,
        head_dim: 4,
        ffn_width: 24,
        qk_norm: true,
        tied_embeddings: false,
        ..base("llama")
    }
}

fn base(name: &str) -> Model {
    Model { vocab_size: 11, context: 8, ..named(name).unwrap() }
}

fn parts(model: &Model, degree: usize) -> Vec<TensorShard> {
    (0..degree).map(|i| model.tensor_shard(degree, i).unwrap()).collect()
}

fn param(tensor_shard: &TensorShard, name: &str) -> TensorShardParam {
    tensor_shard.params().into_iter().find(|p| p.name() == name).unwrap()
}

/// (start, len) of the spans of a dim.
fn spans(p: &TensorShardParam, dim: usize) -> Vec<(usize, usize)> {
    p.ranges[dim].iter().map(|s| (s.start, s.len)).collect()
}

/// The whole parameter of the part's element number i is what element number i of the part is.
fn taken(p: &TensorShardParam) -> Vec<usize> {
    let mut whole = vec![usize::MAX; p.len()];
    for run in p.runs() {
        for i in 0..run.len {
            assert_eq!(whole[run.local + i], usize::MAX, "{}: twice", p.name());
            whole[run.local + i] = run.whole + i;
        }
    }
    assert!(!whole.contains(&usize::MAX), "{}: a hole", p.name());
    whole
}

/// Row-major elements of the part, from its spans alone.
fn by_spans(p: &TensorShardParam) -> Vec<usize> {
    let columns = p.sharding.spec.shape.get(1).copied().unwrap_or(1);
    let rows = p.ranges[0].iter().flat_map(|s| s.range());
    rows.flat_map(|r| match p.ranges.get(1) {
        Some(list) => list.iter().flat_map(|s| s.range()).map(|c| r * columns + c).collect::<Vec<_>>(),
        None => vec![r],
    })
    .collect()
}

#[test]
fn parts_have_the_shapes_of_their_model_and_make_up_the_whole() {
    for (model, degrees) in [
        (gpt2(), vec![1, 2, 4]),
        (llama(), vec![1, 2, 4, 8]),
        (Model { bias: true, ..llama() }, vec![4]),
        (Model { qkv_bias: true, ..llama() }, vec![2, 8]),
    ] {
        for degree in degrees {
            let tensor_shards = parts(&model, degree);
            let mut owners: Vec<Vec<usize>> = model.params().iter().map(|p| vec![0; p.len()]).collect();
            for tensor_shard in &tensor_shards {
                let own = tensor_shard.model.params();
                let params = tensor_shard.params();
                assert_eq!(own.len(), params.len());
                for (i, (own, p)) in own.iter().zip(&params).enumerate() {
                    assert_eq!((&own.name[..], &own.shape), (p.name(), &p.shape), "{degree} ranks");
                    assert_eq!(taken(p), by_spans(p), "{}", p.name());
                    let taken = taken(p);
                    for e in p.counted().into_iter().flatten() {
                        owners[i][taken[e]] += 1;
                    }
                }
            }
            for (p, owners) in model.params().iter().zip(&owners) {
                assert!(owners.iter().all(|n| *n == 1), "{} over {degree}: {owners:?}", p.name);
            }
        }
    }
}

/// A mesh with other axes too says the same of every rank.
#[test]
fn portions_are_the_layouts_of_the_mesh() {
    let config = MeshConfig::new().with(Axis::Tensor, 4).with(Axis::Shard, 2).with(Axis::Pipeline, 2);
    let mesh = Mesh::new(&config, 16).unwrap();
    for model in [gpt2(), llama()] {
        let tensor_shards = parts(&model, 4);
        for rank in 0..mesh.world() {
            let coord = mesh.coord(rank);
            for p in tensor_shards[coord.at(Axis::Tensor)].params() {
                let layout = p.sharding.layout;
                layout.check(p.name(), &p.sharding.form, &mesh).unwrap();
                assert_eq!(layout.ranges(&p.sharding.form, &mesh, &coord), p.ranges, "{}", p.name());
                assert_eq!(p.sharding.form.shape(), p.sharding.spec.shape);
            }
        }
    }
}

#[test]
fn the_whole_model_is_its_only_part() {
    let tensor_shard = llama().tensor_shard(1, 0).unwrap();
    assert_eq!((&tensor_shard.model, tensor_shard.is_whole()), (&llama(), true));
    let down = param(&tensor_shard, "layers.0.mlp.down.weight");
    assert_eq!(down.runs().len(), 1);
    assert_eq!(down.runs()[0].len, 20 * 24);
}

/// Written out by hand from Megatron's rules.
#[test]
fn where_the_second_of_two_ranks_lies() {
    let tensor_shard = llama().tensor_shard(2, 1).unwrap();
    assert_eq!((tensor_shard.first_head, tensor_shard.first_kv_head, tensor_shard.kv_replicas), (4, 1, 1));
    // 11 rows of vocabulary: 6 and 5.
    assert_eq!((tensor_shard.first_vocab_row, tensor_shard.model.vocab_size), (6, 5));
    let rows = |name: &str| spans(&param(&tensor_shard, name), 0);
    let columns = |name: &str| spans(&param(&tensor_shard, name), 1);
    // 8 query heads, 2 key heads, 2 value heads of 4 rows: 32, 8, 8.
    assert_eq!(rows("layers.0.attention.qkv.weight"), [(16, 16), (36, 4), (44, 4)]);
    assert_eq!(columns("layers.0.attention.qkv.weight"), [(0, 20)]);
    assert_eq!(columns("layers.0.attention.out.weight"), [(16, 16)]);
    assert_eq!(rows("layers.0.mlp.gate_up.weight"), [(12, 12), (36, 12)]);
    assert_eq!(columns("layers.0.mlp.down.weight"), [(12, 12)]);
    assert_eq!(rows("embed.tokens"), [(6, 5)]);
    assert_eq!(rows("head.weight"), [(6, 5)]);
    assert_eq!(rows("layers.0.attention_norm.weight"), [(0, 20)]);
    assert_eq!(rows("layers.0.attention.k_norm.weight"), [(0, 4)]);

    let gpt2 = gpt2().tensor_shard(4, 2).unwrap();
    let rows = |name: &str| spans(&param(&gpt2, name), 0);
    assert_eq!(rows("layers.1.attention.qkv.bias"), [(12, 6), (36, 6), (60, 6)]);
    assert_eq!(rows("layers.1.mlp.up.bias"), [(16, 8)]);
    assert_eq!(rows("layers.1.mlp.down.bias"), [(0, 24)]);
    assert_eq!(rows("embed.positions"), [(0, 8)]);
}

#[test]
fn key_heads_are_replicated_where_there_are_fewer_than_ranks() {
    let tensor_shards = parts(&llama(), 8);
    for (i, p) in tensor_shards.iter().enumerate() {
        assert_eq!((p.model.heads, p.model.kv_heads, p.first_head, p.first_kv_head), (1, 1, i, i / 4));
        // A query head reads the key head of its group in the whole model.
        assert_eq!(p.first_kv_head, p.first_head / (8 / 2));
        assert_eq!(p.kv_group(), i / 4 * 4..i / 4 * 4 + 4);
        let qkv = param(p, "layers.0.attention.qkv.weight");
        assert_eq!(spans(&qkv, 0), [(4 * i, 4), (32 + 4 * (i / 4), 4), (40 + 4 * (i / 4), 4)]);
        let replicated = qkv.replicated.as_ref().unwrap();
        assert_eq!((&replicated.positions, replicated.dim), (&p.kv_group(), 0));
        assert_eq!(replicated.local.iter().map(|s| (s.start, s.len)).collect::<Vec<_>>(), [(4, 8)]);
        let rows = if i % 4 == 0 { 12 } else { 4 };
        assert_eq!(qkv.counted()[0], 0..rows * 20);
    }
    assert!(param(&parts(&llama(), 2)[1], "layers.0.attention.qkv.weight").replicated.is_none());
}

#[test]
fn initial_values_are_those_of_the_whole() {
    let model = Model { init: InitChoice::TFixup, ..llama() };
    let whole = model.params();
    for tensor_shard in parts(&model, 4) {
        for (p, whole) in tensor_shard.params().iter().zip(&whole) {
            let columns: usize = whole.shape[1..].iter().product();
            for (run, init) in p.initial_runs() {
                let row = run.whole / columns;
                let wanted = match &whole.init {
                    Init::Rows(list) => {
                        let mut end = 0;
                        let found = list.iter().find(|(rows, _)| {
                            end += rows;
                            row < end
                        });
                        &found.unwrap().1
                    }
                    one => one,
                };
                assert_eq!(init, wanted, "{} from {}", p.name(), run.whole);
                assert!(!matches!(init, Init::Rows(_)));
            }
        }
    }
}

#[test]
fn gradients_that_are_partial_are_named() {
    let of = |model: &Model, name: &str| {
        model.shardings().into_iter().find(|s| s.spec.name == name).unwrap().gradient
    };
    for name in
        ["embed.tokens", "layers.0.mlp.gate_up.weight", "layers.0.attention.out.weight", "head.weight"]
    {
        assert_eq!(of(&llama(), name), GradientSum::Nothing, "{name}");
    }
    for name in ["layers.0.attention.q_norm.weight", "layers.0.attention.k_norm.weight"] {
        assert_eq!(of(&llama(), name), GradientSum::All, "{name}");
    }
    assert_eq!(of(&llama(), "layers.0.attention.qkv.weight"), GradientSum::Replicas);
    for name in ["mlp.up", "mlp.down", "attention.out"] {
        assert_eq!(of(&gpt2(), &format!("layers.0.{name}.bias")), GradientSum::Nothing);
    }
    let rows =
        ["embed.positions", "layers.1.attention_norm.weight", "layers.1.mlp_norm.bias", "final_norm.weight"];
    for name in rows {
        assert_eq!(of(&gpt2(), name), GradientSum::IfSequenceParallel, "{name}");
    }
}

#[test]
fn which_ranks_sum_which_elements_of_a_gradient() {
    let tensor_shard = llama().tensor_shard(4, 3).unwrap();
    let of = |tensor_shard: &TensorShard, name: &str, sequence| {
        let sum = tensor_shard.gradient_sum(&param(tensor_shard, name), sequence);
        sum.map(|(ranks, span)| (ranks, span.start, span.len))
    };
    // 2 query heads of 4 rows, then one key and one value head, both also on rank 2.
    assert_eq!(of(&tensor_shard, "layers.0.attention.qkv.weight", false), Some((2..4, 8, 8)));
    assert_eq!(of(&tensor_shard, "layers.0.attention.k_norm.weight", false), Some((0..4, 0, 4)));
    assert_eq!(of(&tensor_shard, "layers.0.mlp_norm.weight", true), Some((0..4, 0, 20)));
    assert_eq!(of(&tensor_shard, "layers.0.mlp_norm.weight", false), None);
    assert_eq!(of(&tensor_shard, "layers.0.mlp.down.weight", true), None);
    let two = llama().tensor_shard(2, 1).unwrap();
    assert_eq!(of(&two, "layers.0.attention.qkv.weight", true), None);
    assert_eq!(of(&llama().tensor_shard(1, 0).unwrap(), "layers.0.attention.k_norm.weight", true), None);
}

#[test]
fn what_cannot_be_cut_is_refused_with_the_reason() {
    let refused = |model: Model, degree: usize, index: usize, word: &str| {
        let e = model.tensor_shard(degree, index).unwrap_err().to_string();
        assert!(e.contains(word) && e.contains(&format!("{degree} ranks")), "{e}");
    };
    refused(llama(), 3, 0, "model.heads or take one of 1, 2, 4, 8");
    refused(Model { heads: 12, kv_heads: 4, ..llama() }, 6, 0, "model.kv_heads");
    refused(Model { ffn_width: 25, ..llama() }, 2, 0, "model.ffn_width or take one of 1, 5, 25");
    refused(Model { vocab_size: 7, ..llama() }, 8, 0, "found 7");
    refused(llama(), 2, 2, "no rank 2");
    refused(llama(), 0, 0, "no rank 0");
    assert!(Model { activation: ActivationChoice::GeluErf, ..llama() }.tensor_shard(8, 7).is_ok());
}

/// Ranks that share experts have equal parts of every layer's, and refuse numbers that one layer lacks.
#[test]
fn ranks_share_the_experts_of_layers_with_different_numbers_of_them() {
    let model = Model { layers: 2, expert_counts: vec![6, 8], ..base("mixtral") };
    let shard = |ranks: usize| {
        model.layer_shard(&Mesh::along(Axis::Expert, ranks), &[Axis::Expert], model.shardings(), 1)
    };
    let part = shard(2).unwrap();
    for (layer, experts) in [(0, 3), (1, 4)] {
        assert_eq!(part.model.experts_of(layer).unwrap().count, experts);
        let down = |p: &&TensorShardParam| p.name() == format!("layers.{layer}.mlp.experts.down.weight");
        let params = part.params();
        assert_eq!(params.iter().find(down).unwrap().shape, [experts * 256, 352]);
    }
    for ranks in [3, 4] {
        let e = shard(ranks).unwrap_err().to_string();
        let wanted = if ranks == 3 { 8 } else { 6 };
        assert!(e.contains(&format!("wanted a divisor of the {wanted} experts of a layer")), "{e}");
        assert!(e.ends_with("take one of 1, 2"), "{e}");
    }
}
