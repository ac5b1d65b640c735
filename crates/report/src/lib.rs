//! Tables, SVG plots, the HTML report, and the lines of the terminal.
//!
//! Everything here is a pure function from records to text, and the text is the same for the same records; the only
//! file that is written is the report itself.
//!
//! - [`render`] makes `report.html` from the records of a run: one page that needs no network and runs no script.
//! - [`render_study`] makes the page of a study of several small runs, [`render_coord_check`] that of a coordinate check.
//! - [`plot`] draws line charts, bar charts and timelines as inline SVG.
//! - [`terminal`] formats steps, evaluations and the summary as lines.

mod coord_check;
mod corpus_file;
mod facts;
mod html;
mod page;
pub mod plot;
mod report;
mod section;
mod study;
pub mod terminal;
mod text;

pub use coord_check::{render_coord_check, write_coord_check};
pub use html::{Align, table};
pub use report::{ReportInput, render, write};
pub use section::timeline::StepTimeline;
pub use study::{render_study, write_study};
pub use text::{escape, grouped, number};
