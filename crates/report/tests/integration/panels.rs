//! Small multiples.

use bessemer_report::plot::{LineChart, Mark, Series, panels};

fn chart(height: f64) -> LineChart {
    let points = vec![[0.0, 0.0], [1.0, height]];
    LineChart {
        title: "one".into(),
        series: vec![Series { name: "curve".into(), color: 0, mark: Mark::Line, points }],
        ..LineChart::default()
    }
}

#[test]
fn every_chart_is_drawn_once_and_two_to_a_row() {
    let charts: Vec<(String, LineChart)> =
        (1..=3).map(|index| (format!("panel <{index}>"), chart(f64::from(index)))).collect();
    let svg = panels("three", &charts);
    assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (1, 1));
    assert_eq!(svg.matches("<g transform").count(), 3);
    let curve = "class=\"line s0\"";
    assert_eq!(svg.matches(curve).count(), 3 * chart(1.0).svg().matches(curve).count());
    for index in 1..=3 {
        assert!(svg.contains(&format!(">panel &lt;{index}&gt;</text>")), "{svg}");
    }
    assert!(svg.contains("viewBox=\"0 0 920 ") && svg.contains("translate(460 22)"), "{svg}");
}

#[test]
fn a_single_chart_without_a_heading_stays_as_it_is() {
    assert_eq!(panels("one", &[(String::new(), chart(1.0))]), chart(1.0).svg());
    assert!(panels("none", &[]).starts_with("<svg"));
}
