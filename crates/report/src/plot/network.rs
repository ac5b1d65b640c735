//! Networks: points joined by edges, coloured by how busy they are.

use super::canvas::{Anchor, Canvas, cropped};

/// A point of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPoint {
    /// Position in a square of side 1, the origin at the top left.
    pub at: [f64; 2],
    /// Name of the part, shown under the pointer.
    pub label: String,
    /// Whether it is a device; the others are switches.
    pub is_device: bool,
}

/// An edge between two points.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkEdge {
    /// Indices of the points.
    pub ends: [usize; 2],
    /// How busy it is, from 0 to 1 for the busiest edge.
    pub load: f64,
    /// Whether it is drawn in a bow, because it passes other points.
    pub bowed: bool,
}

/// A network with the loads of its links.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NetworkChart {
    /// Title.
    pub title: String,
    /// Line below the chart: "busiest cable: 1.2 ms a step".
    pub note: String,
    /// Points.
    pub points: Vec<NetworkPoint>,
    /// Edges.
    pub edges: Vec<NetworkEdge>,
}

const WIDTH: f64 = 760.0;
const SIDE: f64 = 470.0;
const MARGIN: f64 = 16.0;
const TOP: f64 = 34.0;

/// Classes of load: upper bound, style, words of the key.
const LOADS: [(f64, &str, &str); 4] = [
    (0.0, "grid", "idle"),
    (0.34, "line s6", "up to a third of the busiest"),
    (0.67, "line s0", "up to two thirds"),
    (1.0, "line s1", "above"),
];

impl NetworkChart {
    /// The chart as inline SVG.
    pub fn svg(&self) -> String {
        let height = TOP + SIDE + 44.0;
        let devices = self.points.iter().filter(|p| p.is_device).count();
        let description = format!(
            "{} points of devices, {} of switches, {} edges. {}",
            devices,
            self.points.len() - devices,
            self.edges.len(),
            self.note
        );
        let mut canvas = Canvas::sized([WIDTH, height], &self.title, &description);
        canvas.words("strong", [MARGIN, 20.0], Anchor::Start, &cropped(&self.title, WIDTH - 2.0 * MARGIN));
        let place = |point: usize| {
            let [x, y] = self.points[point].at;
            [MARGIN + x * (WIDTH - 2.0 * MARGIN), TOP + y * SIDE]
        };
        // The busiest edges are drawn last, above the others.
        for (class, (limit, style, _)) in LOADS.iter().enumerate() {
            let below = if class == 0 { -1.0 } else { LOADS[class - 1].0 };
            let lines: Vec<Vec<[f64; 2]>> = (self.edges.iter())
                .filter(|e| e.load > below && e.load <= *limit)
                .map(|e| {
                    let [a, b] = e.ends.map(place);
                    if e.bowed { bow(a, b) } else { vec![a, b] }
                })
                .collect();
            canvas.path(style, &lines);
        }
        for (i, point) in self.points.iter().enumerate() {
            let (class, radius) = if point.is_device { ("f2", 3.0) } else { ("f5", 4.5) };
            canvas.dot(class, place(i), radius, &point.label);
        }
        let base = TOP + SIDE + 16.0;
        canvas.words("", [MARGIN, base], Anchor::Start, &cropped(&self.note, WIDTH - 2.0 * MARGIN));
        let mut x = MARGIN;
        for (_, style, words) in LOADS {
            canvas.line(style, [x, base + 14.0], [x + 24.0, base + 14.0]);
            canvas.words("", [x + 30.0, base + 18.0], Anchor::Start, words);
            x += 46.0 + 7.0 * words.len() as f64;
        }
        canvas.finish()
    }
}

/// Points of a flat bow from `a` to `b`, beside the straight line.
fn bow(a: [f64; 2], b: [f64; 2]) -> Vec<[f64; 2]> {
    let [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    let at = |t: f64| {
        let side = 0.25 * t * (1.0 - t);
        [a[0] + t * dx - side * dy, a[1] + t * dy + side * dx]
    };
    (0..=8).map(|i| at(f64::from(i) / 8.0)).collect()
}
