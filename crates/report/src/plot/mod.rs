//! Pictures as inline SVG: line charts, bar charts, bars made of parts, lanes, heat maps, networks.
//!
//! Every picture is a plain value with an `svg()` method: same value, same text. Colours and fonts are classes
//! that [`STYLE`] defines for light, dark and print; [`standalone`] carries them inside a picture of its own.

mod axis;
mod bars;
mod canvas;
mod heat;
mod lanes;
mod line;
mod network;
mod panels;
mod stack;

pub use axis::{Axis, Scale};
pub use bars::{Bar, BarChart};
pub use heat::{HeatClass, HeatMap, HeatRow};
pub(crate) use lanes::TONES;
pub use lanes::{Cell, Key, Lane, Lanes, Panel, Part};
pub use line::{LineChart, Mark, Rule, Series};
pub use network::{NetworkChart, NetworkEdge, NetworkPoint};
pub use panels::panels;
pub use stack::{StackPanel, StackedBar, StackedBars};

/// Number of colours that tell series apart; indices beyond wrap around.
pub const COLORS: usize = 8;

/// Style rules of the pictures. The order of hues is that of Okabe and Ito (2008). Lightness and hue were chosen so that any
/// two of the colours stay apart for people with each common form of colour blindness; the tests compute how far.
pub const STYLE: &str = "\
:root{--c0:#1552e5;--c1:#e67503;--c2:#15523f;--c3:#962590;--c4:#616903;--c5:#232a34;--c6:#0aa0c2;--c7:#af6872;\
--ink:#1b1f24;--soft:#59636e;--line:#d5dae0;--grid:#e8ebef;--page:#ffffff;--card:#f6f8fa}\
@media (prefers-color-scheme:dark){:root{--c0:#a0bcf6;--c1:#e78329;--c2:#6affe2;--c3:#b131d4;--c4:#f4d65b;--c5:#5e6671;\
--c6:#549ea2;--c7:#cf0407;--ink:#e6e9ed;--soft:#9aa4af;--line:#39414b;--grid:#282e36;--page:#14171b;--card:#1c2026}}\
@media print{:root{--c0:#1552e5;--c1:#e67503;--c2:#15523f;--c3:#962590;--c4:#616903;--c5:#232a34;--c6:#0aa0c2;--c7:#af6872;\
--ink:#000;--soft:#444;--line:#bbb;--grid:#ddd;--page:#fff;--card:#fff}}\
svg.plot{display:block;width:100%;height:auto;font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
svg.plot text{fill:var(--soft)}svg.plot text.strong{fill:var(--ink)}\
svg.plot .grid{stroke:var(--grid);stroke-width:1}svg.plot .frame{stroke:var(--line);stroke-width:1}\
svg.plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}\
svg.plot .faint{fill:none;stroke-width:1;opacity:.35;stroke-linejoin:round}\
svg.plot .rule{fill:none;stroke-width:1.6;stroke-dasharray:6 4}svg.plot .dot{stroke:var(--page);stroke-width:1}\
svg.plot .s0{stroke:var(--c0)}svg.plot .s1{stroke:var(--c1)}svg.plot .s2{stroke:var(--c2)}\
svg.plot .s3{stroke:var(--c3)}svg.plot .s4{stroke:var(--c4)}svg.plot .s5{stroke:var(--c5)}svg.plot .s6{stroke:var(--c6)}svg.plot .s7{stroke:var(--c7)}\
svg.plot .f0{fill:var(--c0)}svg.plot .f1{fill:var(--c1)}svg.plot .f2{fill:var(--c2)}\
svg.plot .f3{fill:var(--c3)}svg.plot .f4{fill:var(--c4)}svg.plot .f5{fill:var(--c5)}\
svg.plot .f6{fill:var(--c6)}svg.plot .f7{fill:var(--c7)}\
svg.plot .idle{fill:var(--grid)}svg.plot .t1{fill-opacity:.7}svg.plot .t2{fill-opacity:.5}\
svg.plot text.in{fill:var(--page);font-size:11px}svg.plot text.tiny{fill:var(--page);font-size:9px}";

/// A picture as an SVG file of its own, with its style and background inside. It follows light and dark mode wherever it is
/// shown, also as an image of another page. Its colours are variables of the picture itself, so that a page which takes in
/// the file as text keeps its own.
pub fn standalone(svg: &str) -> String {
    match svg.split_once('>') {
        Some((open, rest)) if svg.starts_with("<svg") => {
            let style = STYLE.replace(":root", "svg.plot");
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{open}><style>{style}svg.plot{{background:var(--page)}}</style>{rest}"
            )
        }
        _ => svg.to_string(),
    }
}

#[cfg(test)]
mod tests;
