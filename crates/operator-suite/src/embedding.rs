use crate::setup::ids;
use crate::{Setup, Suite};
use bessemer_tensor::op::{Embedding, EmbeddingBackward, PositionTable};

/// (V, N, D)
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 1, 1), (7, 40, 5), (50, 3, 64), (300, 129, 65), (64, 500, 192)];

pub(crate) fn look_up_and_its_gradient_agree_with_the_reference(suite: &Suite<'_>) {
    for (i, (v, n, d)) in SHAPES.into_iter().enumerate() {
        let table = |s: &mut Setup, table| {
            (i % 2 == 1).then(|| PositionTable { table, positions: s.indices(&ids(n, 11)) })
        };
        suite.check(&format!("embedding {v} {n} {d}"), 0.0, &|s| {
            let learned = s.param(11, d, 1);
            let positions = table(s, learned);
            Embedding {
                table: s.param(v, d, i % 3),
                tensor_shard: None,
                ids: s.indices(&ids(n, v)),
                positions,
                out: s.act(n, d, 2),
            }
            .into()
        });
        suite.check(&format!("embedding backward {v} {n} {d}"), 0.0, &|s| {
            let learned = s.gradient(11, d, 1);
            let positions = table(s, learned);
            EmbeddingBackward {
                ids: s.indices(&ids(n, v)),
                dout: s.act(n, d, i % 2),
                dtable: s.gradient(v, d, i % 3),
                tensor_shard: None,
                positions,
            }
            .into()
        });
    }
}

pub(crate) fn an_index_past_the_table_is_named_on_every_rung(suite: &Suite<'_>) {
    for kernels in suite.kernels() {
        let mut s = suite.setup(kernels, 1);
        let (table, out) = (s.mat(10, 4), s.mat(3, 4));
        let ids = s.indices(&[0, 3, 10]);
        let op = Embedding { table, tensor_shard: None, ids, positions: None, out };
        assert_eq!(s.index_error(&op.into()), ("ids", 2, 10, 10));
        let good = s.indices(&[0, 3, 9]);
        let positions = PositionTable { table: s.mat(5, 4), positions: s.indices(&[7, 0, 0]) };
        let op = EmbeddingBackward {
            ids: good,
            dout: out,
            dtable: table,
            tensor_shard: None,
            positions: Some(positions),
        };
        assert_eq!(s.index_error(&op.into()), ("positions", 0, 7, 5));
    }
}
