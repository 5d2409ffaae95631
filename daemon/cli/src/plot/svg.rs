//! Writes a figure as SVG.

use std::fmt::Write;

use super::Plot;
use super::figure::{Anchor, Colour, Figure, Item, Size, WIDTH};

/// An SVG document that shows `plot`.
pub(crate) fn svg(plot: &Plot) -> String {
    let Figure { height, items } = Figure::of(plot);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"Noto Sans Mono, DejaVu Sans Mono, monospace\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for item in &items {
        // Writing to a string cannot fail.
        let _ = match item {
            Item::Stroke { points, width, colour } => stroke(&mut out, points, *width, *colour),
            Item::Text { at, anchor, size, colour, text } => {
                let anchor = match anchor {
                    Anchor::Left => "start",
                    Anchor::Middle => "middle",
                    Anchor::Right => "end",
                };
                let [x, y] = at;
                // `Size` is the line height; glyphs fill nine tenths of it.
                let size = f64::from(Size::points(*size)) * 0.9;
                let (colour, text) = (hexadecimal(*colour), escaped(text));
                writeln!(
                    out,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\" fill=\"{colour}\" \
                     text-anchor=\"{anchor}\">{text}</text>"
                )
            }
        };
    }
    out + "</svg>\n"
}

fn stroke(out: &mut String, points: &[[f64; 2]], width: f64, colour: Colour) -> std::fmt::Result {
    write!(out, "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"", hexadecimal(colour))?;
    write!(out, " stroke-linecap=\"round\" stroke-linejoin=\"round\" d=\"M")?;
    for [x, y] in points {
        write!(out, " {x:.1} {y:.1}")?;
    }
    // A dot is a line to its own start.
    if let [[x, y]] = points {
        write!(out, " {x:.1} {y:.1}")?;
    }
    writeln!(out, "\"/>")
}

fn hexadecimal([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn document_has_every_curve_and_text() {
        let svg = svg(&sample());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">tiny-k3f9q2 &lt;succeeded&gt;</text>"));
        assert!(svg.contains(">loss</text>") && svg.contains(">auc</text>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // 200 points of loss in one path.
        let longest = svg.lines().filter(|line| line.starts_with("<path")).map(str::len).max();
        assert!(longest.is_some_and(|longest| longest > 200 * 8));
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }
}
