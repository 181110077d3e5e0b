//! Rows of a replay as people or programs read them: a table with a summary, or lines of JSON. Does
//! not know how a row came about.

use std::io::{self, Write};

use crate::bytes::Readable;
use crate::engine::ReplayRow;
use crate::table::Table;

/// How rows are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    pub(crate) json: bool,
    /// Whether the smallest capacity was searched for.
    pub(crate) min_capacity: bool,
}

/// Where rows go: each as a line of JSON at once, or all in a table at the end.
pub(crate) struct Output<'a> {
    writer: &'a mut dyn Write,
    format: Format,
    rows: Vec<ReplayRow>,
    failed: Option<io::Error>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(format: Format, writer: &'a mut dyn Write) -> Output<'a> {
        Output { writer, format, rows: Vec::new(), failed: None }
    }

    pub(crate) fn push(&mut self, row: ReplayRow) {
        if !self.format.json {
            return self.rows.push(row);
        }
        let line = serde_json::to_string(&row).expect("a row is numbers and text");
        let written = writeln!(self.writer, "{line}").and_then(|()| self.writer.flush());
        self.failed = self.failed.take().or(written.err());
    }

    /// Writes what is left to write.
    ///
    /// # Errors
    /// The writer's first.
    pub(crate) fn finish(self) -> io::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.rows.is_empty() {
            write!(self.writer, "{}", table(&self.rows, self.format))?;
        }
        if let Some(summary) = summary(&self.rows) {
            write!(self.writer, "\n{summary}")?;
        }
        self.writer.flush()
    }
}

const HEAD: [&str; 15] = [
    "trace",
    "backing",
    "policy",
    "peak live",
    "peak reserved",
    "ratio",
    "frag",
    "allocs/frees",
    "moved",
    "after warm-up",
    "driver ms (low..high)",
    "host waits",
    "ooms",
    "ns/op",
    "min capacity",
];

fn table(rows: &[ReplayRow], format: Format) -> Table {
    let columns = if format.min_capacity { HEAD.len() } else { HEAD.len() - 1 };
    let mut table = Table::new(3, &HEAD[..columns]);
    for row in rows {
        let mut cells = cells(row).to_vec();
        cells.truncate(columns);
        table.push(cells);
    }
    table
}

fn cells(row: &ReplayRow) -> [String; HEAD.len()] {
    let calls = |kind| row.driver_calls.get(kind).copied().unwrap_or(0);
    [
        row.trace.clone(),
        row.backing.clone(),
        row.policy.clone(),
        Readable(row.peak_live_bytes).to_string(),
        Readable(row.peak_reserved_bytes).to_string(),
        ratio(row),
        match row.ooms {
            0 => format!("{:.1} %", row.fragmentation * 100.0),
            _ => "-".into(),
        },
        format!(
            "{}/{}",
            calls("allocate") + row.pages_created,
            calls("free") + calls("release_handle")
        ),
        row.pages_moved.to_string(),
        row.driver_calls_after_warmup.to_string(),
        driver_ms(row),
        row.host_waits.to_string(),
        row.ooms.to_string(),
        format!("{:.1}", row.ns_per_op),
        row.min_capacity_bytes.map_or("-".into(), |bytes| Readable(bytes).to_string()),
    ]
}

/// Modelled milliseconds in the driver, with the lowest and the highest.
pub(crate) fn driver_ms(row: &ReplayRow) -> String {
    let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
    let low_high = [ms(row.modelled_driver_ns_low), ms(row.modelled_driver_ns_high)].join("..");
    format!("{} ({low_high})", ms(row.modelled_driver_ns))
}

/// Peak reserved / peak live.
pub(crate) fn ratio(row: &ReplayRow) -> String {
    row.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}"))
}

/// For each policy that ran several traces: how much more than what was live it reserved.
fn summary(rows: &[ReplayRow]) -> Option<Table> {
    let mut policies: Vec<&str> = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let head = ["policy", "worst trace", "traces", "geometric mean of ratios", "worst"];
    let mut table = Table::new(2, &head);
    let mut any = false;
    for policy in policies {
        let of_policy = rows.iter().filter(|row| row.policy == policy);
        let ratios = Vec::from_iter(of_policy.filter_map(|row| Some((row.ratio()?, &row.trace))));
        let worst = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let (Some((ratio, trace)), 2..) = (worst, ratios.len()) else { continue };
        let logs = ratios.iter().map(|(ratio, _)| ratio.ln());
        let mean = (logs.sum::<f64>() / ratios.len() as f64).exp();
        let numbers = [ratios.len().to_string(), format!("{mean:.3}"), format!("{ratio:.3}")];
        table.push([[policy.to_string(), trace.to_string()].as_slice(), &numbers].concat());
        any = true;
    }
    any.then_some(table)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn row(trace: &str, policy: &str, peak_live_bytes: u64) -> ReplayRow {
        ReplayRow {
            trace: trace.into(),
            policy: policy.into(),
            backing: "segments".into(),
            ops: 2,
            peak_live_bytes,
            peak_reserved_bytes: 8 << 20,
            fragmentation: ReplayRow::fragmentation(peak_live_bytes, 8 << 20),
            driver_calls: BTreeMap::from([("allocate".into(), 3), ("free".into(), 2)]),
            driver_calls_after_warmup: 1,
            pages_created: 6,
            pages_moved: 7,
            modelled_driver_ns: 2_000_000,
            modelled_driver_ns_low: 1_000_000,
            modelled_driver_ns_high: 3_000_000,
            driver_ns_per_step_second_half: None,
            host_waits: 4,
            plan_hits: 0,
            plan_misses: 0,
            plan_hits_second_half: 0,
            plan_misses_second_half: 0,
            ooms: 0,
            ns_per_op: 12.34,
            simulated_driver_ns_per_op: 5.6,
            min_capacity_bytes: Some(6 << 20),
            driver_ns_per_step_second_half_at_min_capacity: None,
            driver_calls_at_min_capacity: None,
        }
    }

    fn shown(format: Format, rows: &[ReplayRow]) -> String {
        let mut text = Vec::new();
        let mut output = Output::new(format, &mut text);
        rows.iter().for_each(|row| output.push(row.clone()));
        output.finish().unwrap();
        String::from_utf8(text).unwrap()
    }

    fn words(line: &str) -> Vec<&str> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn a_row_shows_its_figures_and_the_capacity_if_asked() {
        let rows = [row("a", "bins", 4 << 20)];
        let text = shown(Format { json: false, min_capacity: true }, &rows);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "a,segments,bins,4.00 MiB,8.00 MiB,2.000,50.0 %,9/2,7,1,2.00 (1.00..3.00),4,0,12.3,\
             6.00 MiB";
        assert_eq!(words(lines[1]).join(","), expected);
        assert_eq!((words(lines[0]).len(), lines.len()), (15, 2));
        let text = shown(Format { json: false, min_capacity: false }, &rows);
        assert!(!text.contains("min capacity") && !text.contains("6.00 MiB"));
    }

    #[test]
    fn a_run_out_of_memory_has_no_ratio() {
        let short = ReplayRow { ooms: 5, ..row("c", "bins", 400 << 20) };
        let rows = [short, row("a", "bins", 4 << 20), row("b", "bins", 1 << 20)];
        let text = shown(Format { json: false, min_capacity: false }, &rows);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "c,segments,bins,400.00 MiB,8.00 MiB,-,-,9/2,7,1,2.00 (1.00..3.00),4,5,12.3";
        assert_eq!(words(lines[1]).join(","), expected);
        assert_eq!(words(lines[6]).join(","), "bins,b,2,4.000,8.000");
    }

    #[test]
    fn several_traces_are_summed_up_by_policy() {
        let nothing_live = row("c", "bins", 0);
        let rows = [
            row("a", "bins", 4 << 20),
            row("a", "buddy", 1),
            row("b", "bins", 1 << 20),
            nothing_live,
        ];
        let text = shown(Format { json: false, min_capacity: false }, &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[5], lines.len()), ("", 8));
        assert_eq!(words(lines[7]).join(","), "bins,b,2,4.000,8.000");
    }

    #[test]
    fn json_is_a_line_a_row_and_nothing_else() {
        let rows = [row("a", "bins", 1), row("b", "bins", 1)];
        let text = shown(Format { json: true, min_capacity: false }, &rows);
        assert_eq!(text.lines().count(), 2);
        let read: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(read["driver_calls"]["allocate"], 3);
        assert!(read["driver_calls_at_min_capacity"].is_null());
    }
}
