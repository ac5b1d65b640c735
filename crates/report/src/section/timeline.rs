//! One step of the run on the clock, below its simulation.

use crate::html::section;
use crate::plot::Lanes;
use crate::text::escape;

/// A step's picture and what there is to say about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepTimeline {
    /// The picture; none if the trace could not be drawn.
    pub picture: Option<Lanes>,
    /// Sentences below it.
    pub notes: Vec<String>,
}

/// Width of the page's column: a picture of this width is shown whole, with text of the page's size.
const COLUMN: f64 = 1100.0;

pub(crate) fn timeline(step: Option<&StepTimeline>) -> String {
    let Some(step) = step else { return String::new() };
    let mut body = String::new();
    if let Some(picture) = &step.picture {
        body += &format!("<div class=\"scroll\">{}</div>\n", picture.svg_of_width(COLUMN));
    }
    for note in &step.notes {
        body += &format!("<p class=\"note\">{}</p>\n", escape(note));
    }
    section("timeline", "A step on the clock", &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Cell, Lane, Panel};

    fn panel(title: &str, ends: &[f64]) -> Panel {
        let cell =
            |end: &f64| Cell { end: *end, label: "F0".into(), tip: "F 0.0: 2 ms".into(), ..Cell::default() };
        let lane = |(rank, end): (usize, &f64)| Lane {
            label: format!("rank {rank}"),
            cells: vec![cell(end)],
            ..Lane::default()
        };
        Panel { title: title.into(), lanes: ends.iter().enumerate().map(lane).collect() }
    }

    #[test]
    fn a_step_is_drawn_below_its_simulation_with_what_there_is_to_say() {
        let panels = vec![panel("simulated", &[2.0, 3.0]), panel("measured <step 4>", &[2.5, 3.5])];
        let picture = Lanes { title: "1f1b".into(), x_label: "ms".into(), panels, ..Lanes::default() };
        let notes = vec!["Measured 3.5 ms, simulated 3 ms & no more.".into(), "2 further ranks.".into()];
        let page = timeline(Some(&StepTimeline { picture: Some(picture.clone()), notes }));
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
        assert!(at("A step on the clock") < at("<svg") && at("</svg>") < at("class=\"note\""));
        assert!(at("simulated") < at("measured &lt;step 4&gt;"));
        assert_eq!(page.matches(">rank 1<").count(), 2);
        assert!(at("simulated 3 ms &amp; no more.") < at("2 further ranks."));
        assert!(page.contains(&picture.svg_of_width(COLUMN)));
    }

    #[test]
    fn what_cannot_be_drawn_is_said_and_what_was_not_traced_is_left_out() {
        let notes = vec!["The trace is not drawn: it ends <early>".into()];
        let page = timeline(Some(&StepTimeline { picture: None, notes }));
        assert!(page.contains("it ends &lt;early&gt;") && !page.contains("<svg"), "{page}");
        assert_eq!(timeline(None), "");
        assert_eq!(timeline(Some(&StepTimeline::default())), "");
    }
}
