//! Numbers of bytes as people write and read them: `24GiB`, `512MiB`, `4096`.

use std::fmt;

const UNITS: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a number of bytes: digits, with a fraction or not, then a unit or none for bytes. Case and
/// a space before the unit do not matter; a fraction of a byte is dropped.
///
/// # Errors
///
/// A message that says what would be right.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err("not a number of bytes: write 24GiB, 1.5GiB, 512MiB or plain bytes".into());
    }
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(unknown_unit(number, unit)),
    };
    scaled(whole, fraction, factor).ok_or_else(|| "more than 2^64 - 1 bytes".into())
}

fn unknown_unit(number: &str, unit: &str) -> String {
    let units = UNITS.map(|(name, _)| name);
    let letter = unit.get(..1).map(str::to_ascii_uppercase);
    let meant = units.iter().find(|name| letter.as_deref() == name.get(..1) && name.len() > 1);
    match meant {
        Some(meant) => format!("unknown unit `{unit}`: did you mean {number}{meant}?"),
        None => format!("unknown unit `{unit}`: write one of {}", units.join(", ")),
    }
}

/// `whole.fraction` times the factor, none above `u64::MAX`. Digits past the 18th of the fraction
/// are below a byte in every unit.
fn scaled(whole: &str, fraction: &str, factor: u64) -> Option<u64> {
    let fraction = &fraction[..fraction.len().min(18)];
    let places = 10u128.pow(fraction.len() as u32);
    let part = u128::from(factor) * fraction.parse::<u128>().ok()? / places;
    let bytes = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    bytes.checked_add(u64::try_from(part).ok()?)
}

/// Bytes in the largest unit they fill, with two places: `6.86 GiB`.
pub(crate) struct Readable(pub(crate) u64);

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = UNITS.iter().rev().find(|(_, factor)| self.0 >= *factor);
        match filled.unwrap_or(&UNITS[0]) {
            (unit, 1) => write!(f, "{} {unit}", self.0),
            (unit, factor) => write!(f, "{:.2} {unit}", self.0 as f64 / *factor as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("24GiB", 24 << 30),
            ("512 MiB", 512 << 20),
            ("1.5gib", 3 << 29),
            ("0.3KiB", 307),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
            ("0.99999999999999999999999999999GiB", (1 << 30) - 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_wrong_size_says_what_would_be_right() {
        for (text, part) in [
            ("", "write 24GiB"),
            ("GiB", "write 24GiB"),
            ("-3", "write 24GiB"),
            ("1.GiB", "write 24GiB"),
            ("1.2.3GiB", "write 24GiB"),
            ("24GB", "did you mean 24GiB?"),
            ("24g", "did you mean 24GiB?"),
            ("3 parsecs", "one of B, KiB, MiB, GiB, TiB"),
            ("3é", "one of B, KiB, MiB, GiB, TiB"),
            ("18446744073709551616", "more than 2^64 - 1"),
            ("99999999TiB", "more than 2^64 - 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_they_fill() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (7_364_637_248, "6.86 GiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(Readable(bytes).to_string(), text);
        }
    }
}
