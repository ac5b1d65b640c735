//! Tables, SVG plots, the HTML report.
