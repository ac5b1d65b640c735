//! The palette: its colours differ for everybody, and differ from the page.

use super::{COLORS, STYLE};

type Rgb = [f64; 3];

/// How people with the forms of colour blindness see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
const VISIONS: [[Rgb; 3]; 4] = [
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
];

fn product(matrix: &[Rgb; 3], v: Rgb) -> Rgb {
    matrix.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
}

/// The colours of one block of the style: `--name:#rrggbb` as linear RGB.
fn color(block: &str, name: &str) -> Rgb {
    let (_, rest) =
        block.split_once(&format!("--{name}:#")).unwrap_or_else(|| panic!("no {name} in {block}"));
    let digits = rest.split([';', '}']).next().unwrap();
    let part = |i: usize| match digits.len() {
        6 => u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap(),
        _ => 17 * u8::from_str_radix(&digits[i..=i], 16).unwrap(),
    };
    [0, 1, 2].map(|i| {
        let x = f64::from(part(i)) / 255.0;
        if x <= 0.04045 { x / 12.92 } else { ((x + 0.055) / 1.055).powf(2.4) }
    })
}

/// OKLab (Ottosson 2020), in hundredths.
fn oklab(rgb: Rgb) -> Rgb {
    let lms = product(
        &[
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ],
        rgb.map(|x| x.clamp(0.0, 1.0)),
    );
    product(
        &[
            [21.04542553, 79.36177850, -0.40720468],
            [197.79984951, -242.85922050, 45.05937099],
            [2.59040371, 78.27717662, -80.86757660],
        ],
        lms.map(f64::cbrt),
    )
}

fn contrast(a: Rgb, b: Rgb) -> f64 {
    let luminance = |c: Rgb| 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn any_two_colours_differ_for_every_vision_and_from_the_page() {
    let blocks: Vec<&str> = STYLE.split(":root{").skip(1).map(|b| b.split('}').next().unwrap()).collect();
    assert_eq!(blocks.len(), 3, "light, dark and print");
    for block in blocks {
        let colors: Vec<Rgb> = (0..COLORS).map(|i| color(block, &format!("c{i}"))).collect();
        for (i, a) in colors.iter().enumerate() {
            // Graphical objects: WCAG 2.1, 1.4.11.
            assert!(contrast(*a, color(block, "page")) >= 3.0, "colour {i} of {block}");
            for (j, b) in colors.iter().enumerate().take(i) {
                for vision in &VISIONS {
                    let [a, b] = [a, b].map(|c| oklab(product(vision, *c)));
                    let distance = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                    assert!(distance >= 10.0, "colours {j} and {i} are {distance:.1} apart in {block}");
                }
            }
        }
    }
}
