//! Tables, SVG plots, the HTML report, and the lines of the terminal.
//!
//! Everything here is a pure function from records to text, and the text is the same for the same records; the only
//! file that is written is the report itself.
//!
//! - [`render`] makes `report.html` from the records of a run: one page that needs no network and runs no script.
//! - [`render_study`] makes the page of a study of several small runs, [`render_coord_check`] that of a coordinate check.
//! - [`ScalingPage`] is the page of a scaling law, [`SweepPage`] that of a sweep of a setting.
//! - [`Comparison`] holds several runs side by side, as a page and as text; [`RunFigures`] are the key figures of one.
//! - [`plot`] draws line charts, bar charts, lanes and networks as inline SVG.
//! - [`plan_bars`] and [`compare`] show a plan of the layout, and what its steps took.
//! - [`terminal`] formats steps, evaluations and the summary as lines.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod compare;
mod coord_check;
mod corpus_file;
mod facts;
mod figures;
mod html;
mod page;
mod planned;
pub mod plot;
mod report;
mod scaling;
mod section;
mod study;
mod sweep;
pub mod terminal;
mod text;

pub use compare::{ComparedRun, Comparison, RecipeDifference, RecordedRecipe};
pub use coord_check::{render_coord_check, write_coord_check};
pub use figures::{EvalFigures, RunFigures, ScoreFigures};
pub use html::{Align, table};
pub use planned::{ComparedItem, compare, measured_bars, measured_lines, plan_bars, plan_line, seconds};
pub use report::{ReportInput, render, write};
pub use scaling::{ScalingPage, ScalingPoint};
pub use section::headline::fixed;
pub use section::loads::ExpertLoads;
pub use section::timeline::StepTimeline;
pub use study::{render_study, write_study};
pub use sweep::{SweepCurve, SweepPage};
pub use text::{escape, grouped, number, signed_percent};
