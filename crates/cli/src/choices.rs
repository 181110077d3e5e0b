//! What several verbs let a user choose of a replay: policies, a backing, a slack, a lag. Knows neither
//! verb.

use aquifer::trace::Trace;

use crate::engine::Engine;

/// More operations than a trace can have.
pub(crate) const LAG_MAX: u64 = 1 << 40;

/// The policy where none is asked for.
const POLICY: &str = "first-fit";

/// The policy of a backing that takes none.
pub(crate) const NO_POLICY: &str = "-";

/// Traces of more operations are run once unless told otherwise.
const LONG_TRACE_OPS: usize = 1_000_000;

/// How many times a trace is run unless told otherwise.
pub(crate) fn usual_repeats(trace: &Trace) -> u32 {
    if trace.len() > LONG_TRACE_OPS { 1 } else { 3 }
}

/// The policies that a list names, each one that the engine can run.
pub(crate) fn policies(list: Option<&str>, engine: &dyn Engine) -> Result<Vec<String>, String> {
    let policies = match list.unwrap_or(POLICY).trim() {
        "all" => engine.policies().iter().map(|name| name.to_string()).collect(),
        specs => split_specs(specs),
    };
    policies.iter().try_for_each(|spec| engine.check_policy(spec))?;
    Ok(policies)
}

/// Holds a backing's name to those that the engine has.
pub(crate) fn check_backing(name: &str, engine: &dyn Engine) -> Result<(), String> {
    let known = engine.backings();
    let there_are = || format!("unknown backing `{name}`: expected one of {}", known.join(", "));
    known.contains(&name).then_some(()).ok_or_else(there_are)
}

pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fraction) if fraction.is_finite() && fraction >= 0.0 => Ok(fraction),
        _ => Err("not a fraction: write 0, 0.05 or 0.25".into()),
    }
}

/// Splits a list at its commas, except at those within the options of a policy: a part `key=value`
/// belongs to the policy before it.
fn split_specs(list: &str) -> Vec<String> {
    let mut specs: Vec<String> = Vec::new();
    for part in list.split(',') {
        match specs.last_mut() {
            Some(spec) if spec.contains(':') && part.contains('=') && !part.contains(':') => {
                *spec += &format!(",{part}");
            }
            _ => specs.push(part.trim().to_string()),
        }
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_part_policies_but_not_their_options() {
        for (list, specs) in [
            ("bins", &["bins"][..]),
            ("bins, buddy", &["bins", "buddy"]),
            (
                "bins:small=1,grow=0.2,buddy:grow=1,bins",
                &["bins:small=1,grow=0.2", "buddy:grow=1", "bins"],
            ),
            ("bins,grow=1", &["bins", "grow=1"]),
            ("", &[""]),
        ] {
            assert_eq!(split_specs(list), specs);
        }
    }
}
