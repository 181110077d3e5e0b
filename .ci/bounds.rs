//! Holds the rows of `aquifer replay --json` on standard input to bounds on reserved memory. Knows the
//! fields' names and nothing of JSON beyond them.
//!
//! The bounds leave a few percent above what the default policy does on the 15 recorded traces:
//! geometric mean 1.365, worst 3.34.

const MEAN_MAX: f64 = 1.50;
const WORST_MAX: f64 = 3.60;

fn number(line: &str, field: &str) -> f64 {
    let start = line.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("no {field}: {line}"));
    let value = &line[start + field.len() + 3..];
    let end = value.find([',', '}']).expect("a row ends");
    value[..end].parse().unwrap_or_else(|error| panic!("{field}: {error}: {line}"))
}

fn main() {
    let mut ratios = Vec::new();
    for line in std::io::stdin().lines().map(|line| line.expect("rows are text")) {
        assert_eq!(number(&line, "ooms"), 0.0, "out of memory: {line}");
        ratios.push(number(&line, "peak_reserved_bytes") / number(&line, "peak_live_bytes"));
    }
    assert!(!ratios.is_empty(), "no rows");
    let mean = (ratios.iter().map(|x| x.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    println!("{} traces: reserved / live {mean:.3} (geometric mean), {worst:.3} (worst)", ratios.len());
    assert!(mean <= MEAN_MAX, "geometric mean over {MEAN_MAX}");
    assert!(worst <= WORST_MAX, "worst over {WORST_MAX}");
    assert!(ratios.iter().all(|ratio| *ratio >= 1.0), "less reserved than live");
}
