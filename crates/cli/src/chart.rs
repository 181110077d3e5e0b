//! Bytes over the operations of a trace as an SVG picture. Does not know where the bytes come from.

use std::fmt::{self, Write};

use crate::bytes::Readable;

/// A line of the chart: the most bytes in each of equal parts of the trace.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u64>,
}

/// Shown as SVG: a line for each of `lines` over the area of what was live.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// How many operations the lines are over.
    pub(crate) ops: usize,
    pub(crate) live: Vec<u64>,
    pub(crate) lines: Vec<Line>,
}

const LEFT: f64 = 78.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 400.0;
/// The height without what many lines add to the legend.
const HEIGHT: f64 = 460.0;
const LEGEND_LEFT: f64 = RIGHT + 24.0;
const LEGEND_STEP: f64 = 42.0;
/// About the width of a letter there, and the letters for which there is room in any case.
const LETTER: f64 = 8.0;
const LETTERS_MIN: usize = 26;

/// Colours that the colour-blind tell apart (Okabe and Ito, "Color Universal Design", 2008), without
/// yellow, which white swallows.
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
/// Strokes and gaps; a colour that comes again has another one.
const DASHES: [&str; 5] = ["none", "9 4", "2 3", "12 3 2 3", "5 2"];

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = Scale::new(self);
        let legend = TOP + LEGEND_STEP * (self.lines.len() + 1) as f64;
        let height = HEIGHT.max(legend);
        let letters = self.lines.iter().map(|line| line.name.chars().count());
        let letters = letters.max().unwrap_or(0).max(LETTERS_MIN);
        let width = LEGEND_LEFT + 48.0 + LETTER * letters as f64;
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" \
             fill=\"#222\">"
        )?;
        let title = format!("{}: reserved and live memory", self.title);
        writeln!(f, "<title>{}</title>", Escaped(&title))?;
        writeln!(f, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>")?;
        text(f, [LEFT, 28.0], "font-size=\"16\"", &title)?;
        scale.axes(f)?;
        self.live_area(f, &scale)?;
        for (index, line) in self.lines.iter().enumerate() {
            let points = scale.points(&line.bytes);
            let name = Escaped(&line.name);
            writeln!(
                f,
                "<polyline {} points=\"{points}\"><title>{name}</title></polyline>",
                stroke(index)
            )?;
        }
        self.legend(f)?;
        f.write_str("</svg>\n")
    }
}

impl Chart {
    fn live_area(&self, f: &mut fmt::Formatter<'_>, scale: &Scale) -> fmt::Result {
        let points = scale.points(&self.live);
        writeln!(
            f,
            "<polygon fill=\"#ddd\" stroke=\"#555\" stroke-width=\"0.8\" \
             points=\"{LEFT},{BOTTOM} {points} {RIGHT},{BOTTOM}\"><title>live</title></polygon>"
        )
    }

    /// Each line's stroke with its name and peak.
    fn legend(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = |bytes: &[u64]| bytes.iter().max().copied().unwrap_or(0);
        let live = peak(&self.live);
        let mut y = TOP + 10.0;
        for (index, line) in self.lines.iter().enumerate() {
            let (from, to) = (LEGEND_LEFT, LEGEND_LEFT + 36.0);
            writeln!(f, "<path {} d=\"M{from} {y}H{to}\"/>", stroke(index))?;
            let reserved = peak(&line.bytes);
            let mut told = format!("peak {}", Readable(reserved));
            if live > 0 {
                told += &format!(", {:.3} × live", reserved as f64 / live as f64);
            }
            entry(f, y, [&line.name, &told])?;
            y += LEGEND_STEP;
        }
        let top = y - 7.0;
        writeln!(
            f,
            "<rect x=\"{LEGEND_LEFT}\" y=\"{top}\" width=\"36\" height=\"14\" fill=\"#ddd\" \
             stroke=\"#555\" stroke-width=\"0.8\"/>"
        )?;
        entry(f, y, ["live (asked for)", &format!("peak {}", Readable(live))])
    }
}

/// A name beside its sign in the legend, and below it what there is to tell.
fn entry(f: &mut fmt::Formatter<'_>, y: f64, [name, told]: [&str; 2]) -> fmt::Result {
    let x = LEGEND_LEFT + 44.0;
    text(f, [x, y + 4.0], "font-weight=\"bold\"", name)?;
    text(f, [x, y + 20.0], "fill=\"#555\"", told)
}

fn stroke(index: usize) -> String {
    let (colour, dash) = (COLOURS[index % COLOURS.len()], DASHES[index % DASHES.len()]);
    format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"")
}

/// Text at x and y, with further attributes.
fn text(f: &mut fmt::Formatter<'_>, [x, y]: [f64; 2], style: &str, text: &str) -> fmt::Result {
    let text = Escaped(text);
    writeln!(f, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>")
}

/// Where operations and bytes lie in the picture.
struct Scale {
    ops: f64,
    ops_step: f64,
    unit: (&'static str, f64),
    /// The highest value of the axis, and the distance of its ticks, in units.
    most: f64,
    step: f64,
}

impl Scale {
    fn new(chart: &Chart) -> Scale {
        let values = chart.lines.iter().flat_map(|line| &line.bytes).chain(&chart.live);
        let most = values.max().copied().unwrap_or(0).max(1) as f64;
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("bytes", 0)];
        let units = units.map(|(name, bits)| (name, f64::from(bits).exp2()));
        let unit = units.into_iter().find(|unit| unit.1 <= most).unwrap_or(("bytes", 1.0));
        let step = round_step(most / unit.1 / 5.0);
        let ops = chart.ops.max(1) as f64;
        Scale {
            ops,
            ops_step: round_step(ops / 6.0).max(1.0),
            unit,
            most: (most / unit.1 / step).ceil() * step,
            step,
        }
    }

    fn x(&self, ops: f64) -> f64 {
        LEFT + ops / self.ops * (RIGHT - LEFT)
    }

    fn y(&self, units: f64) -> f64 {
        BOTTOM - units / self.most * (BOTTOM - TOP)
    }

    /// Each part as a point at its middle.
    fn points(&self, bytes: &[u64]) -> String {
        let mut points = String::new();
        let part_ops = self.ops / bytes.len().max(1) as f64;
        for (part, &bytes) in bytes.iter().enumerate() {
            let (x, y) =
                (self.x((part as f64 + 0.5) * part_ops), self.y(bytes as f64 / self.unit.1));
            let gap = if part == 0 { "" } else { " " };
            write!(points, "{gap}{x:.1},{y:.1}").expect("text takes all that is written to it");
        }
        points
    }

    fn axes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ticks = |most: f64, step: f64| {
            (0..=(most / step + 1e-9) as u32).map(move |i| f64::from(i) * step)
        };
        for units in ticks(self.most, self.step) {
            let y = self.y(units);
            writeln!(f, "<path stroke=\"#e4e4e4\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>")?;
            let (place, style) = ([LEFT - 8.0, y + 4.0], "text-anchor=\"end\"");
            text(f, place, style, &short(units))?;
        }
        for ops in ticks(self.ops, self.ops_step) {
            let (x, end) = (self.x(ops), BOTTOM + 5.0);
            writeln!(f, "<path stroke=\"#222\" d=\"M{x:.1} {BOTTOM}V{end}\"/>")?;
            text(f, [x, BOTTOM + 20.0], "text-anchor=\"middle\"", &thousands(ops as u64))?;
        }
        writeln!(f, "<path fill=\"none\" stroke=\"#222\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>")?;
        let middle = (LEFT + RIGHT) / 2.0;
        text(f, [middle, BOTTOM + 44.0], "text-anchor=\"middle\"", "operations of the trace")?;
        let (x, y) = (20.0, (TOP + BOTTOM) / 2.0);
        let style = format!("text-anchor=\"middle\" transform=\"rotate(-90 {x} {y})\"");
        text(f, [x, y], &style, &format!("memory, {}", self.unit.0))
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is no less.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// With at most three places.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text as XML holds it. Traces get their names from files, which may be called anything.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                // XML has no way to write most of these.
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: usize) -> Chart {
        let line =
            |i| Line { name: format!("paged <{i}> & \"more\""), bytes: vec![3 << 29, 1 << 30] };
        Chart {
            title: "a <b> & \u{1}c".into(),
            ops: 12_345,
            live: vec![1 << 30, 0],
            lines: (0..lines).map(line).collect(),
        }
    }

    #[test]
    fn the_picture_is_xml_with_a_line_for_each_and_the_axes_told() {
        for lines in [0, 3, 31] {
            let text = chart(lines).to_string();
            let picture = roxmltree::Document::parse(&text).unwrap();
            let named = |name| picture.descendants().filter(move |node| node.has_tag_name(name));
            assert_eq!((named("polyline").count(), named("polygon").count()), (lines, 1));
            for line in named("polyline") {
                assert_eq!(line.attribute("points").unwrap().split(' ').count(), 2);
            }
            let told = |text: &str| named("text").any(|node| node.text() == Some(text));
            for text in
                ["memory, GiB", "operations of the trace", "10,000", "0", "live (asked for)"]
            {
                assert!(told(text), "{text}");
            }
            assert!(told("a <b> & ?c: reserved and live memory"));
            assert_eq!(told("paged <2> & \"more\""), lines > 2);
            assert_eq!(told("peak 1.50 GiB, 1.500 × live"), lines > 0);
        }
    }

    #[test]
    fn each_of_thirty_lines_looks_different() {
        let strokes = std::collections::BTreeSet::from_iter((0..30).map(stroke));
        assert_eq!(strokes.len(), 30);
    }

    #[test]
    fn points_lie_in_the_picture_whatever_the_values() {
        for most in [0, 1, 999, 1 << 20, u64::MAX] {
            let chart = Chart { live: vec![0, most], ..chart(0) };
            let points = Scale::new(&chart).points(&chart.live);
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                    "{most}: {point}"
                );
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        for (least, step) in
            [(0.13, 0.2), (1.0, 1.0), (2.1, 5.0), (6.0, 10.0), (43_000.0, 50_000.0)]
        {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
        assert_eq!((short(0.4), short(12.0)), ("0.4".into(), "12".into()));
        assert_eq!([0, 999, 1000, 1234567].map(thousands).join(" "), "0 999 1,000 1,234,567");
    }
}
