//! Where each parameter of a model stands in Hugging Face files: one table for writing and reading.

use bessemer_arch::{Model, ParamId, ParamRole, ParamSpec, Placement, Unit};
use std::collections::BTreeSet;

/// A stretch of rows of a parameter that is a tensor of its own in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Name without the base prefix ("transformer.", "model.").
    pub(crate) name: String,
    /// Rows (elements of a vector) of the parameter that it holds, after those of the parts before it.
    pub(crate) rows: usize,
    /// Rows of the tensor before these, which hold nothing.
    pub(crate) skip: usize,
    /// How they lie there.
    pub(crate) order: Order,
}

/// How the elements of a part lie in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As here.
    Same,
    /// `[inputs, outputs]` (`Conv1D`).
    Transposed,
    /// The two rows that a rotary position turns together stand side by side in every head of so many rows; here they are half a
    /// head apart.
    RotaryPairs(usize),
    /// Rows of the parameter are groups of `of` blocks of `rows` rows; the part is block `number` of each group, as a tensor
    /// `[groups, rows, columns]`.
    Blocks { of: usize, number: usize, rows: usize },
}

/// A parameter of [`Model::params`] and the tensors that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Canonical name.
    pub(crate) name: String,
    /// Canonical shape.
    pub(crate) shape: Vec<usize>,
    /// Its parts, in row order.
    pub(crate) parts: Vec<Part>,
}

impl Mapped {
    /// Columns of a row; 1 for a vector.
    pub(crate) fn columns(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Shape of one part in the files.
    pub(crate) fn part_shape(&self, part: &Part) -> Vec<usize> {
        match self.shape[..] {
            [_, cols] if let Order::Blocks { rows, .. } = part.order => vec![part.rows / rows, rows, cols],
            [_, cols] if part.order == Order::Transposed => vec![cols, part.rows],
            [_, cols] => vec![part.skip + part.rows, cols],
            _ => vec![part.skip + part.rows],
        }
    }
}

/// A family of Hugging Face models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Gpt2,
    Llama,
    /// Read only.
    Opt,
}

/// Name of the output projection, which never takes the base prefix.
pub(crate) const LM_HEAD: &str = "lm_head.weight";

impl Style {
    /// Prefix of the tensors of the model without its output projection.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Style::Gpt2 => "transformer.",
            Style::Llama => "model.",
            Style::Opt => "model.decoder.",
        }
    }

    /// Name of the token table, without prefix.
    pub(crate) fn embedding(self) -> &'static str {
        match self {
            Style::Gpt2 => "wte.weight",
            Style::Llama | Style::Opt => "embed_tokens.weight",
        }
    }

    /// A name in the files without prefix, which a model without its output projection lacks in part or whole.
    pub(crate) fn short_name(self, name: &str) -> &str {
        match self {
            Style::Gpt2 | Style::Llama => name.strip_prefix(self.prefix()).unwrap_or(name),
            Style::Opt => {
                let name = name.strip_prefix("model.").unwrap_or(name);
                name.strip_prefix("decoder.").unwrap_or(name)
            }
        }
    }

    /// Full name in the files of a model with output projection.
    pub(crate) fn full_name(self, name: &str) -> String {
        if name == LM_HEAD { name.into() } else { format!("{}{name}", self.prefix()) }
    }

    /// Tensors that hold no parameter: masks and tables that the code recomputes.
    pub(crate) fn is_ignored(self, name: &str) -> bool {
        match self {
            Style::Gpt2 => {
                name.starts_with("h.")
                    && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))
            }
            Style::Llama => name.ends_with("rotary_emb.inv_freq"),
            Style::Opt => false,
        }
    }

    /// The table for a model.
    pub(crate) fn map(self, model: &Model) -> Vec<Mapped> {
        let of = |id: ParamId| match self {
            Style::Gpt2 => super::gpt2::parts(model, id),
            Style::Llama => super::llama::parts(model, id),
            Style::Opt => super::opt::parts(model, id),
        };
        let mapped = |p: ParamSpec| Mapped { parts: of(p.id), name: p.name, shape: p.shape };
        model.params().into_iter().filter(|p| is_exported(p.id.role())).map(mapped).collect()
    }
}

/// The biases that GPT-2 has everywhere and `model` does not, under the names that `map` gives them.
pub(crate) fn absent_biases(model: &Model, map: impl Fn(&Model) -> Vec<Mapped>) -> Vec<Mapped> {
    if model.bias {
        return Vec::new();
    }
    let there: BTreeSet<String> = model.params().into_iter().map(|p| p.name).collect();
    let with = Model { bias: true, qkv_bias: false, ..model.clone() };
    map(&with).into_iter().filter(|m| m.name.ends_with(".bias") && !there.contains(&m.name)).collect()
}

/// A choice as it is written in a recipe.
pub(crate) fn written(choice: impl serde::Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

/// Whether files hold the parameters of a role. Loads of a step serve the balance loss of the next one alone.
pub(crate) fn is_exported(role: ParamRole) -> bool {
    role != ParamRole::RouterLoads
}

/// Roles of the parameters that the formats have tensors for.
const FORMAT_ROLES: [ParamRole; 27] = [
    ParamRole::TokenTable,
    ParamRole::PositionTable,
    ParamRole::AttentionNormWeight,
    ParamRole::AttentionNormBias,
    ParamRole::QkvWeight,
    ParamRole::QkvBias,
    ParamRole::QueryNormWeight,
    ParamRole::KeyNormWeight,
    ParamRole::AttentionOutWeight,
    ParamRole::AttentionOutBias,
    ParamRole::MlpNormWeight,
    ParamRole::MlpNormBias,
    ParamRole::UpWeight,
    ParamRole::UpBias,
    ParamRole::GateUpWeight,
    ParamRole::GateUpBias,
    ParamRole::RouterWeight,
    ParamRole::ExpertsGateUpWeight,
    ParamRole::ExpertsDownWeight,
    ParamRole::SharedGateUpWeight,
    ParamRole::SharedDownWeight,
    ParamRole::SharedGateWeight,
    ParamRole::DownWeight,
    ParamRole::DownBias,
    ParamRole::FinalNormWeight,
    ParamRole::FinalNormBias,
    ParamRole::HeadWeight,
];

/// Choices that no architecture written here can express.
pub(crate) fn foreign_choices(m: &Model) -> Vec<String> {
    let mut list = Vec::new();
    let mut need = |ok: bool, text: String| {
        if !ok {
            list.push(text);
        }
    };
    let foreign = |role: &ParamRole| role.occurs_in(m) && is_exported(*role) && !FORMAT_ROLES.contains(role);
    for role in ParamRole::all().filter(foreign) {
        need(false, format!("parameters of role {role:?} (no tensor holds them)"));
    }
    need(m.placement == Placement::Pre, format!("placement = {} (only pre)", written(m.placement)));
    need(
        m.embedding_scale == 1.0,
        format!(
            "embedding_scale = {} (only 1; multiply embed.tokens by it, if it is not tied)",
            m.embedding_scale
        ),
    );
    need(m.document_end.is_none(), "document_mask (attention there crosses documents)".into());
    need(m.logit_scale() == 1.0, format!("muP's factor {} on the logits (only 1)", m.logit_scale()));
    let usual = 1.0 / (m.head_dim as f64).sqrt();
    need(
        m.attention_scale() == usual,
        format!("muP's factor {} on attention scores (only {usual}, 1/sqrt(head_dim))", m.attention_scale()),
    );
    list
}

/// Last word of the name of a vector or matrix in the files.
pub(crate) fn kind(id: ParamId) -> &'static str {
    if id.role().is_bias() { "bias" } else { "weight" }
}

/// A part whose layers are called "layers.{i}" in the files too.
pub(crate) fn in_layers(id: ParamId, theirs: &str, rows: usize) -> Part {
    let kind = kind(id);
    let name = match id.unit() {
        Unit::Layer(layer) => format!("layers.{layer}.{theirs}.{kind}"),
        Unit::Embedding | Unit::Head => format!("{theirs}.{kind}"),
    };
    Part { name, rows, skip: 0, order: Order::Same }
}

/// Copies rows `first .. first + rows` of a row-major matrix with `columns` columns into `out`, in the order of files.
pub(crate) fn take_rows(
    whole: &[f32],
    first: usize,
    rows: usize,
    columns: usize,
    order: Order,
    out: &mut [f32],
) {
    let part = &whole[first * columns..(first + rows) * columns];
    match order {
        Order::Same => out.copy_from_slice(part),
        Order::Transposed => transpose(part, rows, columns, out),
        Order::RotaryPairs(head) => {
            for (here, there) in rotary_rows(rows, head) {
                out[there * columns..][..columns].copy_from_slice(&part[here * columns..][..columns]);
            }
        }
        Order::Blocks { of, number, rows } => {
            let blocks = whole.chunks_exact(rows * columns).skip(number).step_by(of);
            blocks.zip(out.chunks_exact_mut(rows * columns)).for_each(|(from, to)| to.copy_from_slice(from));
        }
    }
}

/// The inverse of [`take_rows`].
pub(crate) fn put_rows(
    part: &[f32],
    first: usize,
    rows: usize,
    columns: usize,
    order: Order,
    whole: &mut [f32],
) {
    let stretch = first * columns..(first + rows) * columns;
    match order {
        Order::Same => whole[stretch].copy_from_slice(part),
        Order::Transposed => transpose(part, columns, rows, &mut whole[stretch]),
        Order::RotaryPairs(head) => {
            let out = &mut whole[stretch];
            for (here, there) in rotary_rows(rows, head) {
                out[here * columns..][..columns].copy_from_slice(&part[there * columns..][..columns]);
            }
        }
        Order::Blocks { of, number, rows } => {
            let blocks = whole.chunks_exact_mut(rows * columns).skip(number).step_by(of);
            blocks.zip(part.chunks_exact(rows * columns)).for_each(|(to, from)| to.copy_from_slice(from));
        }
    }
}

/// (row with halves of a head apart, the same row with pairs side by side), for heads of `head` rows.
fn rotary_rows(rows: usize, head: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).map(move |row| {
        let (start, within) = (row - row % head, row % head);
        (row, start + 2 * (within % (head / 2)) + within / (head / 2))
    })
}

/// Transposes `rows` x `columns` into `columns` x `rows`, in blocks that fit the nearest cache.
fn transpose(from: &[f32], rows: usize, columns: usize, to: &mut [f32]) {
    const BLOCK: usize = 32;
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..columns).step_by(BLOCK) {
            for r in r0..(r0 + BLOCK).min(rows) {
                for c in c0..(c0 + BLOCK).min(columns) {
                    to[c * rows + r] = from[r * columns + c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_arch::named;
    use std::collections::HashSet;

    #[test]
    fn the_parts_of_a_parameter_are_all_its_rows_under_distinct_names() {
        for (style, name) in
            [(Style::Gpt2, "gpt2"), (Style::Opt, "gpt2"), (Style::Llama, "llama"), (Style::Llama, "llama-8b")]
        {
            let mut model = named(name).unwrap();
            model.tied_embeddings = false;
            let mut names = HashSet::new();
            for m in style.map(&model) {
                assert_eq!(m.parts.iter().map(|p| p.rows).sum::<usize>(), m.shape[0], "{name} {}", m.name);
                for p in m.parts {
                    assert!(names.insert(p.name.clone()), "{name} {} twice", p.name);
                }
            }
        }
    }

    #[test]
    fn put_is_the_inverse_of_take() {
        let (rows, columns) = (67, 45);
        let whole: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        for order in [Order::Same, Order::Transposed] {
            let mut back = vec![0.0; whole.len()];
            for (first, n) in [(0, 40), (40, 27)] {
                let mut part = vec![0.0; n * columns];
                take_rows(&whole, first, n, columns, order, &mut part);
                if order == Order::Transposed {
                    assert_eq!(part[3 * n + 2], whole[(first + 2) * columns + 3]);
                }
                put_rows(&part, first, n, columns, order, &mut back);
            }
            assert_eq!(back, whole);
        }
    }

    /// Three experts, each a gate and an up of two rows.
    #[test]
    fn blocks_are_those_of_one_kind_of_each_group() {
        let whole: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let mut back = vec![0.0; 24];
        for (number, wanted) in [(0, [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]), (1, [2.0, 3.0, 6.0, 7.0, 10.0, 11.0])] {
            let (order, mut part) = (Order::Blocks { of: 2, number, rows: 2 }, vec![0.0; 12]);
            take_rows(&whole, 6 * number, 6, 2, order, &mut part);
            assert_eq!(part.iter().step_by(2).map(|v| v / 2.0).collect::<Vec<_>>(), wanted);
            put_rows(&part, 6 * number, 6, 2, order, &mut back);
        }
        assert_eq!(back, whole);
    }

    /// `LlamaModel.permute` of llama.cpp's converter on 12 rows: two heads of six, then three of four.
    #[test]
    fn rotary_pairs_stand_as_llama_cpp_has_them() {
        let whole: Vec<f32> = (0..24).map(|i| i as f32).collect();
        for (head, wanted) in [
            (6, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]),
            (4, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0, 8.0, 10.0, 9.0, 11.0]),
        ] {
            let mut part = vec![0.0; 24];
            take_rows(&whole, 0, 12, 2, Order::RotaryPairs(head), &mut part);
            assert_eq!(part.iter().step_by(2).map(|v| v / 2.0).collect::<Vec<_>>(), wanted);
            let mut back = vec![0.0; 24];
            put_rows(&part, 0, 12, 2, Order::RotaryPairs(head), &mut back);
            assert_eq!(back, whole);
        }
    }
}
