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

pub(crate) fn timeline(step: Option<&StepTimeline>) -> String {
    let Some(step) = step else { return String::new() };
    let mut body = String::new();
    if let Some(picture) = &step.picture {
        body += &format!("<div class=\"scroll\">{}</div>\n", picture.svg());
    }
    for note in &step.notes {
        body += &format!("<p class=\"note\">{}</p>\n", escape(note));
    }
    section("timeline", "A step on the clock", &body)
}
