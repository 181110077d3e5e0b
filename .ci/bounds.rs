//! Holds the rows of `aquifer replay --json` on standard input to bounds on reserved over live memory.
//! Knows the fields' names and nothing of JSON beyond them.
//!
//! Arguments: the highest ratio where peak live is over so many GiB, that number of GiB, the highest
//! ratio elsewhere, the highest geometric mean.

fn number(line: &str, field: &str) -> f64 {
    let start = line.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("no {field}: {line}"));
    let value = &line[start + field.len() + 3..];
    let end = value.find([',', '}']).expect("a row ends");
    value[..end].parse().unwrap_or_else(|error| panic!("{field}: {error}: {line}"))
}

fn main() {
    let bounds: Vec<f64> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let [large_max, large_gib, small_max, mean_max] = bounds[..] else { panic!("four bounds") };
    let mut ratios = Vec::new();
    for line in std::io::stdin().lines().map(|line| line.expect("rows are text")) {
        assert_eq!(number(&line, "ooms"), 0.0, "out of memory: {line}");
        let live = number(&line, "peak_live_bytes");
        let ratio = number(&line, "peak_reserved_bytes") / live;
        let max = if live > large_gib * 1024f64.powi(3) { large_max } else { small_max };
        assert!((1.0..=max).contains(&ratio), "{ratio:.4} is not in 1 to {max}: {line}");
        ratios.push(ratio);
    }
    assert!(!ratios.is_empty(), "no rows");
    let mean = (ratios.iter().map(|x| x.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    println!("{} traces: reserved / live {mean:.4} (geometric mean), {worst:.4} (worst)", ratios.len());
    assert!(mean <= mean_max, "geometric mean over {mean_max}");
}
