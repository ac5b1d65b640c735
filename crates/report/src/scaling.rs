//! The page of a scaling law fitted to runs: constants with intervals, losses against the law, the best sizes by compute.

use crate::html::{Align, figure, grid, section, table};
use crate::page::page;
use crate::plot::{LineChart, Mark, Scale, Series};
use crate::text::{escape, grouped, number};
use std::io;
use std::path::Path;

/// A run and what the law says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingPoint {
    /// Name of the run.
    pub name: String,
    /// Parameters, embeddings included.
    pub parameters: f64,
    /// Tokens.
    pub tokens: f64,
    /// Floating-point operations, `6 N D`.
    pub flops: f64,
    /// Loss, nats for each token.
    pub loss: f64,
    /// Loss by the law.
    pub predicted: f64,
    /// Whether the law was fitted without it.
    pub held_out: bool,
}

/// Contents of the page.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingPage {
    /// Name, value and interval of each constant.
    pub constants: Vec<(String, f64, Option<[f64; 2]>)>,
    /// Part of the samples that an interval holds.
    pub interval_share: f64,
    /// Mean relative error of the fitted runs, percent.
    pub mean_error: f64,
    /// Runs.
    pub points: Vec<ScalingPoint>,
    /// Compute and the least loss that the law says for it.
    pub frontier: Vec<[f64; 2]>,
    /// Compute, best parameters, and the interval of these.
    pub best: Vec<[f64; 4]>,
    /// Omitted runs.
    pub notes: Vec<String>,
}

impl ScalingPage {
    /// The page.
    pub fn render(&self) -> String {
        let header = format!(
            "<header><h1>Scaling law</h1>\n<p>{}</p></header>\n",
            escape(&format!(
                "L(N, D) = E + A / N^alpha + B / D^beta, in nats for each token; N parameters with embeddings, D tokens, compute 6 N D. {} \
                 runs, mean error of those that were fitted {:.2} %.",
                self.points.len(),
                self.mean_error
            ))
        );
        let notes: String =
            self.notes.iter().map(|note| format!("<p class=\"note\">{}</p>\n", escape(note))).collect();
        let body = [
            header,
            section("law", "The law", &self.law()),
            section("figures", "Figures", &grid(&[self.losses(), self.errors(), self.sizes()])),
            section("runs", "Runs", &(self.runs() + &notes)),
        ];
        page("Scaling law · Bessemer", &body.concat())
    }

    /// Writes the page; a reader sees the old page or the new one, never a part.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        bessemer_durable::write(path, self.render().as_bytes())
    }

    fn law(&self) -> String {
        let row = |(name, value, interval): &(String, f64, Option<[f64; 2]>)| {
            let band =
                interval.map_or("–".into(), |[low, high]| format!("{} to {}", number(low), number(high)));
            vec![name.clone(), number(*value), band]
        };
        let head = ["constant", "value", &format!("{:.0} % of samples", 100.0 * self.interval_share)];
        table(
            &head,
            &[Align::Left, Align::Right, Align::Left],
            &self.constants.iter().map(row).collect::<Vec<_>>(),
        )
    }

    /// Runs of each size, the smallest first.
    fn by_size(&self) -> Vec<(f64, Vec<&ScalingPoint>)> {
        let mut points: Vec<&ScalingPoint> = self.points.iter().collect();
        points.sort_by(|a, b| a.parameters.total_cmp(&b.parameters).then(a.flops.total_cmp(&b.flops)));
        let mut groups: Vec<(f64, Vec<&ScalingPoint>)> = Vec::new();
        for point in points {
            match groups.last_mut() {
                Some((size, group)) if *size == point.parameters => group.push(point),
                _ => groups.push((point.parameters, vec![point])),
            }
        }
        groups
    }

    fn losses(&self) -> String {
        let mut series = vec![Series {
            name: "least loss by the law".into(),
            color: 0,
            mark: Mark::Line,
            points: self.frontier.clone(),
        }];
        series.extend(self.by_size().iter().enumerate().map(|(i, (size, group))| Series {
            name: format!("{size:.2e} parameters"),
            color: i + 1,
            mark: Mark::Dots,
            points: group.iter().map(|point| [point.flops, point.loss]).collect(),
        }));
        self.chart(
            "Loss by compute",
            "nats for each token",
            Scale::Linear,
            series,
            "Runs of one size are joined.",
        )
    }

    fn errors(&self) -> String {
        let of = |name: &str, color: usize, held_out: bool| Series {
            name: name.into(),
            color,
            mark: Mark::Dots,
            points: self
                .points
                .iter()
                .filter(|point| point.held_out == held_out)
                .map(|point| [point.flops, 100.0 * (point.predicted / point.loss - 1.0)])
                .collect(),
        };
        let series = [of("fitted", 0, false), of("held out", 1, true)];
        let series = series.into_iter().filter(|one| !one.points.is_empty()).collect();
        self.chart(
            "Error of the law",
            "percent of the loss",
            Scale::Linear,
            series,
            "Above zero: the law predicts more than the run had.",
        )
    }

    fn sizes(&self) -> String {
        let column = |name: &str, mark: Mark, i: usize| Series {
            name: name.into(),
            color: 0,
            mark,
            points: self.best.iter().map(|row| [row[0], row[i]]).collect(),
        };
        let runs = Series {
            name: "runs".into(),
            color: 1,
            mark: Mark::Dots,
            points: self.points.iter().map(|point| [point.flops, point.parameters]).collect(),
        };
        // Of runs only the places are shown, no path through them.
        let dots = runs.points.iter().map(|point| Series {
            points: vec![*point],
            name: String::new(),
            ..runs.clone()
        });
        let mut series = vec![
            column("best by the law", Mark::Line, 1),
            column("its interval", Mark::Faint, 2),
            column("", Mark::Faint, 3),
        ];
        series.extend(dots);
        self.chart("Parameters by compute", "parameters", Scale::Log, series, "Dots are the runs.")
    }

    fn chart(&self, title: &str, y_label: &str, y_scale: Scale, series: Vec<Series>, note: &str) -> String {
        let chart = LineChart {
            title: title.into(),
            x_label: "compute, floating-point operations".into(),
            y_label: y_label.into(),
            x_scale: Scale::Log,
            y_scale,
            series,
            ..Default::default()
        };
        figure(title, &chart.svg(), note)
    }

    fn runs(&self) -> String {
        let row = |point: &ScalingPoint| {
            vec![
                point.name.clone(),
                grouped(point.parameters as u64),
                grouped(point.tokens as u64),
                format!("{:.3e}", point.flops),
                format!("{:.4}", point.loss),
                format!("{:.4}", point.predicted),
                format!("{:+.2} %", 100.0 * (point.predicted / point.loss - 1.0)),
                if point.held_out { "held out" } else { "" }.to_string(),
            ]
        };
        let head = ["run", "parameters", "tokens", "compute", "loss", "law says", "error", ""];
        let align =
            [Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right];
        table(&head, &align, &self.points.iter().map(row).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_run_and_constant() {
        let point = |i: usize| ScalingPoint {
            name: format!("run <{i}>"),
            parameters: [1e6, 2e6][i % 2],
            tokens: 1e8 * (1 + i) as f64,
            flops: 6e14 * (1 + i) as f64,
            loss: 3.0 - 0.1 * i as f64,
            predicted: 3.01 - 0.1 * i as f64,
            held_out: i == 3,
        };
        let page = ScalingPage {
            constants: vec![("E".into(), 1.8, Some([1.7, 1.9])), ("alpha".into(), 0.34, None)],
            interval_share: 0.95,
            mean_error: 0.3,
            points: (0..4).map(point).collect(),
            frontier: vec![[1e14, 3.5], [1e16, 2.9]],
            best: vec![[1e14, 1e6, 9e5, 1.1e6], [1e16, 1e7, 9e6, 1.2e7]],
            notes: vec!["runs/x is left out: it has not ended".into()],
        };
        let text = page.render();
        for part in
            ["run &lt;3&gt;", "held out", "1.7 to 1.9", "alpha", "it has not ended", "Loss by compute"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(text.matches("<svg").count(), 3);
        assert!(!text.contains("run <"));
    }
}
