//! Holds the rows of `aquifer replay --json` on standard input to bounds. Knows the fields' names and nothing
//! of JSON beyond them.
//!
//! Arguments, one of:
//! - `ratio FIELD LARGE GIB SMALL MEAN`: the highest ratio of FIELD to peak live memory where that is over
//!   GIB GiB, the highest elsewhere, the highest geometric mean;
//! - `most VALUE FIELD...`: the highest value of a field, each FIELD to be looked for after the one before;
//! - `get FIELD`: prints the field of each row.

/// The number after `fields`, each looked for after the one before.
fn number(line: &str, fields: &[&str]) -> f64 {
    let value = fields.iter().fold(line, |rest, field| {
        let key = format!("\"{field}\":");
        let start = rest.find(&key).unwrap_or_else(|| panic!("no {field}: {line}"));
        &rest[start + key.len()..]
    });
    let end = value.find([',', '}']).expect("a row ends");
    value[..end].parse().unwrap_or_else(|error| panic!("{fields:?}: {error}: {line}"))
}

fn bound(text: &str) -> f64 {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Holds ratios of `field` to bounds.
fn hold_ratios(rows: &[String], field: &str, bounds: &[f64]) {
    let [large_max, large_gib, small_max, mean_max] = bounds[..] else { panic!("four bounds") };
    let mut ratios = Vec::new();
    for line in rows {
        let live = number(line, &["peak_live_bytes"]);
        let ratio = number(line, &[field]) / live;
        let max = if live > large_gib * 1024f64.powi(3) { large_max } else { small_max };
        assert!((1.0..=max).contains(&ratio), "{ratio:.4} is not in 1 to {max}: {line}");
        ratios.push(ratio);
    }
    let mean = (ratios.iter().map(|x| x.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "{} rows: {field} / live {mean:.4} (geometric mean), {worst:.4} (worst)",
        ratios.len()
    );
    assert!(mean <= mean_max, "geometric mean over {mean_max}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let rows: Vec<String> =
        std::io::stdin().lines().map(|line| line.expect("rows are text")).collect();
    assert!(!rows.is_empty(), "no rows");
    for line in &rows {
        assert_eq!(number(line, &["ooms"]), 0.0, "out of memory: {line}");
    }
    match &arguments[..] {
        ["ratio", field, bounds @ ..] => {
            let bounds: Vec<f64> = bounds.iter().map(|text| bound(text)).collect();
            hold_ratios(&rows, field, &bounds);
        }
        ["most", max, fields @ ..] => {
            let values = || rows.iter().map(|line| number(line, fields));
            let highest = values().fold(0.0, f64::max);
            println!("{} rows: {} at most {highest}", rows.len(), fields.join("."));
            assert!(highest <= bound(max), "over {max}");
        }
        ["get", field] => rows.iter().for_each(|line| println!("{}", number(line, &[*field]))),
        _ => panic!("ratio, most or get; not {arguments:?}"),
    }
}
