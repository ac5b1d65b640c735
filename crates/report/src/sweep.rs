//! The page of a sweep: the loss over a setting such as the learning rate, and where it is least.

use crate::html::{Align, figure, grid, section, table};
use crate::page::page;
use crate::plot::{LineChart, Mark, Scale, Series};
use crate::text::{escape, number};
use std::io;
use std::path::Path;

/// The runs of one model and batch.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepCurve {
    /// Model and batch.
    pub name: String,
    /// Setting and loss; the loss of a run that diverged is none.
    pub points: Vec<(f64, Option<f64>)>,
    /// Setting of the least loss and that loss, where it lies inside what was tried.
    pub best: Option<[f64; 2]>,
}

/// Contents of the page.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPage {
    /// Name of the setting.
    pub setting: String,
    /// Curves.
    pub curves: Vec<SweepCurve>,
    /// Conclusions, a paragraph each.
    pub findings: Vec<String>,
}

impl SweepPage {
    /// The page.
    pub fn render(&self) -> String {
        let title = format!("Best {}", self.setting);
        let findings: String =
            self.findings.iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
        let header = format!("<header><h1>{}</h1>\n{findings}</header>\n", escape(&title));
        let body = [
            header,
            section("figures", "Figures", &grid(&[self.losses()])),
            section("runs", "Runs", &self.runs()),
        ];
        page(&format!("{title} · Bessemer"), &body.concat())
    }

    /// Writes the page; a reader sees the old page or the new one, never a part.
    ///
    /// # Errors
    /// The system's, with the path in the message.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        bessemer_durable::write(path, self.render().as_bytes())
    }

    fn losses(&self) -> String {
        let mut series = Vec::new();
        for (color, curve) in self.curves.iter().enumerate() {
            let points = curve.points.iter().filter_map(|(x, y)| Some([*x, (*y)?]));
            let dots = Series { name: curve.name.clone(), color, mark: Mark::Dots, points: points.collect() };
            if let Some(best) = curve.best {
                series.push(Series {
                    name: String::new(),
                    mark: Mark::Dots,
                    points: vec![best],
                    ..dots.clone()
                });
            }
            series.push(dots);
        }
        let title = format!("Loss by {}", self.setting);
        let chart = LineChart {
            title: title.clone(),
            x_label: self.setting.clone(),
            y_label: "nats for each token".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Linear,
            series: series.into_iter().filter(|one| !one.points.is_empty()).collect(),
            ..Default::default()
        };
        figure(
            &title,
            &chart.svg(),
            "Runs of one model and batch are joined; the dot beside them is the least of a parabola.",
        )
    }

    fn runs(&self) -> String {
        let rows = self.curves.iter().flat_map(|curve| {
            curve.points.iter().map(|(x, y)| {
                vec![
                    curve.name.clone(),
                    number(*x),
                    y.map_or("not finite".into(), |loss| format!("{loss:.4}")),
                ]
            })
        });
        let head = ["runs", &self.setting, "loss"];
        table(&head, &[Align::Left, Align::Right, Align::Right], &rows.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_run_and_names_those_that_diverged() {
        let curve = |name: &str| SweepCurve {
            name: name.into(),
            points: vec![(1e-3, Some(2.75)), (2e-3, Some(2.5)), (4e-3, Some(2.625)), (8e-3, None)],
            best: Some([2.2e-3, 2.49]),
        };
        let page = SweepPage {
            setting: "learning rate".into(),
            curves: vec![curve("64x2 <a>"), curve("128x2")],
            findings: vec!["best 2.2e-3 & so on".into()],
        };
        let text = page.render();
        for part in ["64x2 &lt;a&gt;", "2.7500", "not finite", "2.2e-3 &amp; so on", "Loss by learning rate"]
        {
            assert!(text.contains(part), "{part}");
        }
    }
}
