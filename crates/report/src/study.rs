//! The page of a study of initialisations: verdicts, loss curves, and the networks before their first update.

use crate::facts::smoothed;
use crate::html::{Align, figure, grid, section, table};
use crate::page::page;
use crate::plot::{LineChart, Mark, Rule, Scale, Series};
use crate::text::{escape, grouped, number};
use bessemer_runlog::study::{Study, StudyMethod, StudyRun, StudyVerdict};
use bessemer_units::stats::mean;
use std::io;
use std::path::Path;

/// The page. Methods without a finished run are left out.
pub fn render_study(study: &Study) -> String {
    let s = &study.settings;
    let header = format!(
        "<header><h1>Which deep networks learn without warm-up?</h1>\n<p>{}</p>\n<p>{}</p></header>\n",
        escape(&format!(
            "{} layers of width {}, {} heads, {} steps of {} × {} {}s of {}, Adam with a constant rate of {} from the \
             first step; no warm-up, clipping, weight decay or dropout.",
            s.layers,
            s.width,
            s.heads,
            s.steps,
            s.batch,
            s.context,
            study.text.unit,
            study.text.name,
            number(s.lr)
        )),
        escape(&format!(
            "{} different {}s, {} to train and {} to validate. A model that knows nothing has a loss of {:.4} nats, one \
             that knows their frequencies {:.4}, one that knows those of pairs {:.4}.",
            study.text.symbols,
            study.text.unit,
            grouped(study.text.train),
            grouped(study.text.validation),
            study.text.uniform_nats(),
            study.text.unigram_nats,
            study.text.bigram_nats
        ))
    );
    let body = [header, results(study), training(study), start(study)];
    page("Study of initialisation · Bessemer", &body.concat())
}

/// Writes the page atomically: a reader sees the old page or the new one, never a part.
///
/// # Errors
/// The system's, with the path in the message.
pub fn write_study(path: &Path, study: &Study) -> io::Result<()> {
    bessemer_durable::write(path, render_study(study).as_bytes())
}

fn results(study: &Study) -> String {
    let rows: Vec<Vec<String>> = finished(study).map(|m| row(study, m)).collect();
    let head = ["method", "verdict", "validation loss", "seeds", "second half", "first gradient"];
    let align = [Align::Left, Align::Left, Align::Right, Align::Left, Align::Right, Align::Right];
    let rule = format!(
        "<p class=\"note\">Validation loss in nats a {0}: mean and sample standard deviation over seeds, then each seed. \
         “Second half” is how much the training loss fell from the middle tenth of the run to the last. Verdicts: diverged, \
         if a loss or gradient was not finite or the loss ended above that of a model that knows nothing; stalled, if it \
         ended less than {1} nats below the entropy of single {0}s; learnt otherwise.</p>\n",
        escape(&study.text.unit),
        StudyVerdict::MARGIN
    );
    section("results", "Results", &(table(&head, &align, &rows) + &rule))
}

fn row(study: &Study, method: &StudyMethod) -> Vec<String> {
    let loss = match method.final_loss() {
        Some((mean, spread)) => format!("{mean:.3} ± {spread:.3}"),
        None => "–".into(),
    };
    let seed = |r: &StudyRun| match (r.final_loss, r.diverged_at) {
        (Some(loss), _) => format!("{loss:.3}"),
        (None, Some(step)) => format!("not finite at step {step}"),
        _ => "not finite".into(),
    };
    let tenth = (study.settings.steps as usize / 10).max(1);
    let fall = |r: &StudyRun| {
        let n = r.losses.len();
        (n as u64 == study.settings.steps && n >= 2 * tenth).then(|| {
            mean(&r.losses[n / 2 - tenth / 2..n / 2 - tenth / 2 + tenth]) - mean(&r.losses[n - tenth..])
        })
    };
    let falls: Vec<f64> = method.runs.iter().filter_map(fall).collect();
    let norms: Vec<f64> = method.runs.iter().filter_map(|r| r.gradient_norms.first().copied()).collect();
    let shown = |v: &[f64]| if v.is_empty() { "–".into() } else { number(mean(v)) };
    vec![
        format!("{} – {}", method.name, method.title),
        method.verdict(),
        loss,
        method.runs.iter().map(seed).collect::<Vec<_>>().join(", "),
        shown(&falls),
        shown(&norms),
    ]
}

fn training(study: &Study) -> String {
    let most = 1.25 * study.text.uniform_nats();
    let loss = LineChart {
        title: "Loss over steps".into(),
        x_label: "step".into(),
        y_label: format!("nats per {}", study.text.unit),
        series: [each_seed(study, most), over_steps(study, |r| &r.losses, most)].concat(),
        rules: vec![
            Rule { name: "single symbols".into(), color: 5, y: study.text.unigram_nats },
            Rule { name: "pairs".into(), color: 4, y: study.text.bigram_nats },
        ],
        ..Default::default()
    };
    let norm = LineChart {
        title: "Gradient norm over steps".into(),
        x_label: "step".into(),
        y_label: "global norm (log scale)".into(),
        y_scale: Scale::Log,
        series: over_steps(study, |r| &r.gradient_norms, f64::INFINITY),
        ..Default::default()
    };
    let note = "Training loss, smoothed: mean over seeds, and each seed pale. Values far above a model that knows nothing \
                are left out.";
    let figures = [
        figure("Loss over steps", &loss.svg(), note),
        figure("Gradient norm over steps", &norm.svg(), "Mean over seeds, smoothed. Nothing is clipped."),
    ];
    section("training", "Training", &grid(&figures))
}

fn start(study: &Study) -> String {
    let depth = |title: &str, first: f64, of: fn(&StudyRun) -> &Vec<f64>| LineChart {
        title: title.into(),
        x_label: "layer".into(),
        y_label: "log scale".into(),
        y_scale: Scale::Log,
        series: by_depth(study, first, of),
        ..Default::default()
    };
    let pictures = [
        (
            "Standard deviation of the residual stream",
            0.0,
            (|r| &r.start.activation_std) as fn(&StudyRun) -> &Vec<f64>,
            "After so many layers; 0 is the embedding. Post-LN keeps it at one, Pre-LN lets it grow.",
        ),
        (
            "Gradient of the residual stream",
            1.0,
            |r| &r.start.stream_gradient,
            "Norm of the loss's gradient where each layer's feed-forward block is added. It is made at the right and \
             travels to the left.",
        ),
        (
            "Gradient of the parameters",
            1.0,
            |r| &r.start.parameter_gradient,
            "Norm over all parameters of a layer.",
        ),
        (
            "Scaling of gradients by normalisation",
            1.0,
            |r| &r.start.norm_factor,
            "Product of 1/σ of the layer's two normalisations at the start. Under Post-LN a gradient passes all of them on its \
             way down, and below one each layer shrinks the direct path. DeepNorm's sums carry a factor α, so that 1/α² = \
             1/√(2 layers) leaves it as it is. Under Pre-LN the direct path passes none.",
        ),
    ];
    let figures =
        pictures.map(|(title, first, of, note)| figure(title, &depth(title, first, of).svg(), note));
    section("start", "Before the first update", &grid(&figures))
}

fn finished(study: &Study) -> impl Iterator<Item = &StudyMethod> {
    study.methods.iter().filter(|m| !m.runs.is_empty())
}

/// One curve a method: mean over seeds of a value of each step, smoothed; values above `most` interrupt it.
fn over_steps(study: &Study, of: fn(&StudyRun) -> &Vec<f64>, most: f64) -> Vec<Series> {
    curves(study, |m| smooth_points(study, &means(m, of), most))
}

fn smooth_points(study: &Study, values: &[f64], most: f64) -> Vec<[f64; 2]> {
    let smooth = smoothed(values, (study.settings.steps as f64 / 40.0).max(2.0));
    (1u32..).zip(smooth).map(|(x, y)| [f64::from(x), if y <= most { y } else { f64::NAN }]).collect()
}

/// A pale curve without a name for the losses of each run, where a method has several.
fn each_seed(study: &Study, most: f64) -> Vec<Series> {
    let mut series = Vec::new();
    for (color, method) in finished(study).enumerate().filter(|(_, m)| m.runs.len() > 1) {
        for run in &method.runs {
            let points = smooth_points(study, &run.losses, most);
            series.push(Series { name: String::new(), color, mark: Mark::Faint, points });
        }
    }
    series
}

/// One curve a method: mean over seeds of a value of each layer.
fn by_depth(study: &Study, first: f64, of: fn(&StudyRun) -> &Vec<f64>) -> Vec<Series> {
    curves(study, |m| (0u32..).zip(means(m, of)).map(|(x, y)| [first + f64::from(x), y]).collect())
}

fn curves(study: &Study, points: impl Fn(&StudyMethod) -> Vec<[f64; 2]>) -> Vec<Series> {
    let series = finished(study).enumerate().map(|(i, m)| Series::of_many(&m.name, i, points(m)));
    series.filter(|s| !s.points.is_empty()).collect()
}

/// Element by element, the mean over the runs that have the element.
fn means(method: &StudyMethod, of: fn(&StudyRun) -> &Vec<f64>) -> Vec<f64> {
    let longest = method.runs.iter().map(|r| of(r).len()).max().unwrap_or(0);
    let at = |i: usize| mean(&method.runs.iter().filter_map(|r| of(r).get(i).copied()).collect::<Vec<_>>());
    (0..longest).map(at).collect()
}
