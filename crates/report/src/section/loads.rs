//! Loads of experts over the steps of a run.

use crate::html::figure;
use crate::plot::{HeatClass, HeatMap, HeatRow};
use bessemer_runlog::LoadSpan;

/// Choices of experts in the spans of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpertLoads {
    /// Experts of each layer, 0 of a layer without.
    pub experts: Vec<u32>,
    /// In the order of the steps.
    pub spans: Vec<LoadSpan>,
}

impl ExpertLoads {
    /// Most spans that a picture shows.
    pub const SPANS: u64 = 96;
}

/// Most rows of the picture.
const ROWS: usize = 192;

/// Ends of the classes: load over the mean of the layer. The picture of equal loads is empty.
const CLASSES: [(f64, &str, &str); 8] = [
    (1e-9, "f5", "none"),
    (0.25, "f1", "below ¼"),
    (0.5, "f1 t1", "¼ to ½"),
    (0.8, "f1 t2", "½ to 0.8"),
    (1.25, "idle", "0.8 to 1¼"),
    (2.0, "f0 t2", "1¼ to 2"),
    (4.0, "f0 t1", "2 to 4"),
    (f64::INFINITY, "f0", "above 4"),
];

/// The loads as a figure; nothing of a model without experts.
pub(crate) fn figure_of(loads: &ExpertLoads) -> Option<String> {
    let all: u64 = loads.experts.iter().map(|count| u64::from(*count)).sum();
    let whole = |span: &&LoadSpan| span.counts.len() as u64 == all;
    let spans: Vec<&LoadSpan> = loads.spans.iter().filter(whole).collect();
    let (first, last) = (spans.first()?, spans.last()?);
    let layers: Vec<(usize, usize)> = loads
        .experts
        .iter()
        .map(|count| *count as usize)
        .enumerate()
        .filter(|(_, count)| *count > 0)
        .collect();
    let all: usize = layers.iter().map(|(_, count)| count).sum();
    // Experts of a row: neighbours, of which the one with most tokens is shown.
    let together = all.div_ceil(ROWS).max(1);
    let (mut rows, mut start) = (Vec::new(), 0);
    for (layer, count) in layers {
        for from in (0..count).step_by(together) {
            let of = start + from..start + (from + together).min(count);
            let value = |span: &&LoadSpan| {
                let all: u64 = span.counts[start..start + count].iter().sum();
                let most = span.counts[of.clone()].iter().max().copied().unwrap_or(0);
                // A layer without a token has no loads.
                most as f64 * count as f64 / all as f64
            };
            let values = spans.iter().map(value).collect();
            rows.push(HeatRow { label: format!("layer {layer}"), values });
        }
        start += count;
    }
    let edges = spans.iter().map(|span| span.steps[0] as f64).chain([last.steps[1] as f64 + 1.0]);
    let class =
        |(below, style, name): (f64, &'static str, &str)| HeatClass { below, style, name: name.into() };
    let map = HeatMap {
        title: format!("Loads of experts over steps {} to {}", first.steps[0], last.steps[1]),
        x_label: "step".into(),
        edges: edges.collect(),
        rows,
        classes: CLASSES.into_iter().map(class).collect(),
    };
    let of_rows = match together {
        1 => "A row is an expert".to_owned(),
        n => format!("A row is the one with most tokens of {n} neighbouring experts"),
    };
    let note = format!("{of_rows}, a colour its tokens over the mean of its layer.");
    Some(figure("Loads of experts", &map.svg(), &note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(steps: [u64; 2], counts: &[u64]) -> LoadSpan {
        LoadSpan { steps, counts: counts.to_vec() }
    }

    #[test]
    fn loads_have_the_colours_of_their_share() {
        // A layer of four and one without experts, then one of two.
        let spans = vec![span([1, 4], &[20, 20, 20, 20, 0, 8]), span([5, 9], &[80, 0, 0, 0, 4, 4])];
        let loads = ExpertLoads { experts: vec![4, 0, 2], spans };
        let page = figure_of(&loads).expect("a picture");
        assert!(page.contains("layer 0") && page.contains("layer 2") && !page.contains("layer 1"));
        let pieces = |style: &str| {
            let path = page.lines().find(|line| line.starts_with(&format!("<path class=\"{style}\"")));
            path.map_or(0, |path| path.matches('M').count())
        };
        // Equal loads: four experts in the first span, both of the last layer in the second.
        assert_eq!((pieces("idle"), pieces("f5"), pieces("f0 t1"), pieces("f0")), (6, 4, 1, 1));
        assert_eq!(figure_of(&ExpertLoads::default()), None);
    }

    /// Layers and experts of DeepSeek-V3, over a long run.
    #[test]
    fn a_picture_is_small_however_many_experts_there_are() {
        let experts = vec![256u32; 58];
        let counts: Vec<u64> = (0..58 * 256u64).map(|i| i * i % 997).collect();
        let spans = (0..ExpertLoads::SPANS).map(|i| span([10 * i + 1, 10 * i + 10], &counts)).collect();
        let page = figure_of(&ExpertLoads { experts, spans }).expect("a picture");
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        assert!(page.contains("neighbouring experts"));
    }
}
