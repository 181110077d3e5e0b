//! Bytes as a line of text. Does not know what they are over.

/// Characters of a [`sparkline`].
const SPARKS: usize = 72;

/// The most in each of some parts as a bar of text, whose full height is `most`.
pub(crate) fn sparkline(bytes: &[u64], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let parts = SPARKS.min(bytes.len());
    let bounds = |part: usize| part * bytes.len() / parts..(part + 1) * bytes.len() / parts;
    let bar = |part| {
        let highest = bytes[bounds(part)].iter().max().copied().unwrap_or(0);
        BARS[(u128::from(highest) * 7).div_ceil(u128::from(most.max(1))).min(7) as usize]
    };
    (0..parts).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_as_high_as_its_values() {
        assert_eq!(sparkline(&[0, 1, 4, 8], 8), "▁▂▅█");
        assert_eq!(sparkline(&[], 8), "");
        let long = sparkline(&[u64::MAX; 1000], u64::MAX);
        assert_eq!(long, "█".repeat(SPARKS));
    }
}
