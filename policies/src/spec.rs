//! Which policy, with which options: chosen at run time by a string. Knows every policy by name and
//! no state of any.
use std::fmt;

use crate::{
    BestFit, Bins, Buddy, Direct, FirstFit, NeverCache, Policy, SIZE_MAX, SizeClasses, Sizing,
    TwoEnds,
};

/// The names that [`PolicySpec::parse`] knows, the default first.
pub const NAMES: &[&str] = &[
    "first-fit",
    "best-fit",
    "bins",
    "size-classes",
    "buddy",
    "two-ends",
    "planned",
    "never-cache",
];

/// A policy and its options: makes any number of equal instances.
///
/// Written `name` or `name:key=value,key=value`. Every policy but `never-cache` knows these keys:
///
/// - `small`: the largest size of the small band in bytes, 0 for one band (default 0);
/// - `grow`: the share of the reserved bytes that a new segment adds (default 0.125);
/// - `floor`, `small-floor`: the least bytes of a new segment, and of one in the small band (defaults
///   32MiB and 2MiB).
///
/// `planned` serves what no plan names a place for as `first-fit` does; see [`PolicySpec::plans`].
///
/// `size-classes` also knows `steps`: the size classes per doubling, a power of two from 1 to 64
/// (default 8).
///
/// Bytes are written `512`, `64KiB`, `2MiB`, `1GiB` or `1TiB`.
///
/// ```
/// use aquifer_policies::{Place, Policy, PolicySpec, Request};
///
/// let spec = PolicySpec::parse("first-fit:small=1MiB,floor=64MiB").unwrap();
/// let policy = spec.build();
/// let size = policy.band(2 << 20).size;
/// let request = Request::new(size, 512);
/// assert_eq!(policy.place(&request), Place::Grow { bytes: 64 << 20 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    kind: Kind,
    sizing: Sizing,
    /// Size classes per doubling, for the policy that has them.
    steps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FirstFit,
    BestFit,
    Bins,
    SizeClasses,
    Buddy,
    TwoEnds,
    Planned,
    NeverCache,
}

/// Keys of every policy that keeps free blocks.
const KEYS: &[&str] = &["small", "grow", "floor", "small-floor"];
const KEYS_OF_CLASSES: &[&str] = &["small", "grow", "floor", "small-floor", "steps"];

impl Kind {
    /// In the order of [`NAMES`].
    const ALL: [Kind; NAMES.len()] = [
        Kind::FirstFit,
        Kind::BestFit,
        Kind::Bins,
        Kind::SizeClasses,
        Kind::Buddy,
        Kind::TwoEnds,
        Kind::Planned,
        Kind::NeverCache,
    ];

    fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::NeverCache => &[],
            Kind::SizeClasses => KEYS_OF_CLASSES,
            _ => KEYS,
        }
    }
}

impl PolicySpec {
    /// Reads `name` or `name:key=value,key=value`.
    ///
    /// # Errors
    ///
    /// [`SpecError`] says which part was not understood, and what would be.
    pub fn parse(text: &str) -> Result<PolicySpec, SpecError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name.trim());
        let kind = kind.ok_or_else(|| SpecError::Name { name: name.trim().into() })?;
        let mut spec = PolicySpec { kind, ..PolicySpec::default() };
        let mut seen = Vec::new();
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(SpecError::Twice { key: key.into() });
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        Ok(spec)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let Some(&key) = self.kind.keys().iter().find(|&&known| known == key) else {
            return Err(SpecError::Key { policy: self.name(), key: key.into() });
        };
        let wrong = || SpecError::Value { key, value: value.into() };
        match key {
            "small" => self.sizing.small = parse_bytes(value).ok_or_else(wrong)?,
            "grow" => self.sizing.growth.per_mille = parse_share(value).ok_or_else(wrong)?,
            "floor" => self.sizing.growth.floor = parse_bytes(value).ok_or_else(wrong)?,
            "small-floor" => {
                self.sizing.growth.floor_small = parse_bytes(value).ok_or_else(wrong)?
            }
            "steps" => self.steps = parse_steps(value).ok_or_else(wrong)?,
            _ => unreachable!("every key of a policy is set here"),
        }
        Ok(())
    }

    /// A new instance without free blocks.
    pub fn build(&self) -> Box<dyn Policy> {
        match self.kind {
            // What no plan names a place for goes where first fit puts it.
            Kind::FirstFit | Kind::Planned => Box::new(FirstFit::new(self.sizing)),
            Kind::BestFit => Box::new(BestFit::new(self.sizing)),
            Kind::Bins => Box::new(Bins::new(self.sizing)),
            Kind::SizeClasses => Box::new(SizeClasses::new(self.sizing, self.steps)),
            Kind::Buddy => Box::new(Buddy::new(self.sizing)),
            Kind::TwoEnds => Box::new(TwoEnds::new(self.sizing)),
            Kind::NeverCache => Box::new(NeverCache),
        }
    }

    /// As [`PolicySpec::build`], without a box around the policies that [`Direct`] knows.
    pub fn build_direct(&self) -> Direct {
        match self.kind {
            Kind::FirstFit | Kind::Planned => Direct::FirstFit(FirstFit::new(self.sizing)),
            Kind::Bins => Direct::Bins(Bins::new(self.sizing)),
            _ => Direct::Other(self.build()),
        }
    }

    /// Whether requests go first where a plan of the step says ([`Planner`](crate::planned::Planner)), and
    /// only those that it does not name where [`PolicySpec::build`]'s policy says.
    pub fn plans(&self) -> bool {
        self.kind == Kind::Planned
    }

    /// The policy's name, without options.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The value of an option, as it is written.
    fn value(&self, key: &str) -> String {
        match key {
            "small" => write_bytes(self.sizing.small),
            "grow" => write_share(self.sizing.growth.per_mille),
            "floor" => write_bytes(self.sizing.growth.floor),
            "small-floor" => write_bytes(self.sizing.growth.floor_small),
            "steps" => self.steps.to_string(),
            _ => unreachable!("every key of a policy is written here"),
        }
    }
}

/// First fit with its default options.
impl Default for PolicySpec {
    fn default() -> Self {
        PolicySpec { kind: Kind::FirstFit, sizing: Sizing::DEFAULT, steps: SizeClasses::CLASSES }
    }
}

/// What [`PolicySpec::parse`] reads: the name, then the options that differ from the default.
impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = PolicySpec { kind: self.kind, ..PolicySpec::default() };
        f.write_str(self.name())?;
        let mut mark = ':';
        for key in self.kind.keys() {
            let value = self.value(key);
            if value != usual.value(key) {
                write!(f, "{mark}{key}={value}")?;
                mark = ',';
            }
        }
        Ok(())
    }
}

/// Why a string names no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// No policy has this name.
    Name {
        /// What was written.
        name: String,
    },
    /// The policy has no such option.
    Key {
        /// The policy.
        policy: &'static str,
        /// What was written.
        key: String,
    },
    /// The option cannot have this value.
    Value {
        /// The option.
        key: &'static str,
        /// What was written; empty where there was nothing.
        value: String,
    },
    /// The option was given more than once.
    Twice {
        /// The option.
        key: String,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::Name { name } => {
                write!(f, "unknown policy `{name}`: expected one of {}", NAMES.join(", "))
            }
            SpecError::Key { policy, key } => {
                write!(f, "unknown option `{key}` of policy {policy}: ")?;
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == *policy);
                match kind.map_or(&[][..], Kind::keys) {
                    [] => f.write_str("it has none"),
                    keys => write!(f, "expected one of {}", keys.join(", ")),
                }
            }
            SpecError::Value { key, value } => {
                let wanted = match *key {
                    "steps" => "a power of two from 1 to 64",
                    "grow" => "a share of at most 100 with at most 3 decimals, such as 0.1",
                    _ => "a size of at most 4194304TiB, such as 512, 64KiB, 2MiB or 1GiB",
                };
                write!(f, "option {key} cannot be `{value}`: expected {key}={wanted}")
            }
            SpecError::Twice { key } => write!(f, "option `{key}` is given twice: expected once"),
        }
    }
}

impl std::error::Error for SpecError {}

const UNITS: [(&str, u64); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

fn parse_bytes(text: &str) -> Option<u64> {
    let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (digits, bytes) = unit.unwrap_or((text, 1));
    parse_digits(digits.trim_end())?.checked_mul(bytes).filter(|&bytes| bytes <= SIZE_MAX)
}

fn write_bytes(bytes: u64) -> String {
    let unit = UNITS.into_iter().find(|&(_, unit)| bytes != 0 && bytes.is_multiple_of(unit));
    unit.map_or(bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Thousandths of a number written with up to three decimals.
fn parse_share(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let thousandths = parse_digits(decimals)? * [100, 10, 1].get(decimals.len() - 1)?;
    let share = parse_digits(whole).filter(|&whole| whole <= 100)? * 1000 + thousandths;
    (share <= 100_000).then_some(share as u32)
}

fn parse_steps(text: &str) -> Option<u32> {
    let steps = u32::try_from(parse_digits(text)?).ok()?;
    (steps.is_power_of_two() && steps <= SizeClasses::CLASSES_MAX).then_some(steps)
}

fn write_share(per_mille: u32) -> String {
    let text = format!("{}.{:03}", per_mille / 1000, per_mille % 1000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// A number of digits only: no sign, not empty.
fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Growth;

    fn error(text: &str) -> String {
        PolicySpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_name_is_read_and_written_alike() {
        for name in NAMES {
            let spec = PolicySpec::parse(name).unwrap();
            assert_eq!((spec.name(), spec.to_string().as_str()), (*name, *name));
        }
    }

    #[test]
    fn options_are_read_and_those_not_usual_written() {
        let text = "first-fit: small=1MiB, grow=0.25 ,floor=32MiB,small-floor=65536";
        let spec = PolicySpec::parse(text).unwrap();
        assert_eq!(spec.sizing.small, 1 << 20);
        let growth = Growth { per_mille: 250, floor: 32 << 20, floor_small: 64 << 10 };
        assert_eq!(spec.sizing.growth, growth);
        assert_eq!(spec.to_string(), "first-fit:small=1MiB,grow=0.25,small-floor=64KiB");
        assert_eq!(PolicySpec::parse(&spec.to_string()).unwrap(), spec);
    }

    #[test]
    fn sizes_and_shares_are_exact() {
        for (text, bytes) in [("512", 512), ("64KiB", 1 << 16), ("3 GiB", 3 << 30), ("0", 0)] {
            assert_eq!(parse_bytes(text), Some(bytes));
        }
        for text in ["", "MiB", "-1", "+1", "1.5MiB", "1mb", "4194305TiB", "99999999999999999999"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        for (text, share) in [("0", 0), ("1", 1000), ("0.1", 100), ("2.05", 2050), ("100", 100_000)]
        {
            assert_eq!(parse_share(text), Some(share));
            assert_eq!(parse_share(&write_share(share)), Some(share));
        }
        for text in ["", ".", ".1", "1.", "0.0001", "-0.1", "101", "100.5", "nan", "1e-1"] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }

    #[test]
    fn errors_say_what_was_wrong_and_what_would_be_right() {
        assert_eq!(
            error("frist-fit"),
            format!("unknown policy `frist-fit`: expected one of {}", NAMES.join(", "))
        );
        assert_eq!(
            error("first-fit:smal=1"),
            "unknown option `smal` of policy first-fit: \
             expected one of small, grow, floor, small-floor"
        );
        assert_eq!(
            error("never-cache:small=1"),
            "unknown option `small` of policy never-cache: it has none"
        );
        assert_eq!(
            error("first-fit:grow=much"),
            "option grow cannot be `much`: \
             expected grow=a share of at most 100 with at most 3 decimals, such as 0.1"
        );
        assert!(error("first-fit:small").starts_with("option small cannot be ``: expected small="));
        assert!(error("first-fit:steps=8").starts_with("unknown option"));
        assert!(error("size-classes:steps=12").ends_with("steps=a power of two from 1 to 64"));
        assert!(error("first-fit:grow=1,grow=2").contains("given twice"));
    }
}
